"""A store's index files as jobs look at them: mapped, while their broker may make one, write to it, or remove it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tallystick.spark.presence import bring
from tallystick.store.mapped import ReadMap
from tallystick.store.queue_format import INDEX_HEADER, IndexGeometry, IndexHeader


@contextmanager
def mapped_index(path: Path) -> Iterator[ReadMap | None]:
    """None: it is not there (any more), or is just being made and has no header yet."""
    with ExitStack() as stack:
        data = None
        try:
            bring(path)
            size = path.stat().st_size
        except FileNotFoundError:
            pass
        else:
            if size >= INDEX_HEADER.size:
                try:
                    data = stack.enter_context(ReadMap(path))
                except FileNotFoundError:
                    pass
        yield data


def geometry_of(paths: Sequence[Path], least_entries: int = 1) -> IndexGeometry | None:
    """Of all these files, oldest first: found in the fullest, of several the newest, as the files do not say it.

    None: none of them has so many entries.
    """
    most, geometry = least_entries - 1, None
    for path in reversed(paths):
        with mapped_index(path) as data:
            if data is None:
                continue
            count = IndexHeader(*INDEX_HEADER.unpack_from(data)).next_entry - 1
            if count > most and (found := IndexGeometry.of_file(data)) is not None:
                most, geometry = count, found
    return geometry
