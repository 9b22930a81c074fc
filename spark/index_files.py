"""Maps the index files of a store for jobs, while its broker may create, write or remove them."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tallystick.spark.presence import bring
from tallystick.store.formats.mapped import ReadMap
from tallystick.store.formats.queue_format import INDEX_HEADER, IndexGeometry, IndexHeader


@contextmanager
def mapped_index(path: Path, needed: int = 1 << 62) -> Iterator[ReadMap | None]:
    """Maps a file. Its first `needed` bytes are fetched if it is elsewhere. None: it does not exist, or is being
    created and has no header yet."""
    with ExitStack() as stack:
        data = None
        try:
            bring(path, 0, needed)
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
    """Returns the number of slots of these files, oldest first. The files do not contain it: it is determined from the
    fullest one, and among equals from the newest.

    None: no file has enough entries.
    """
    most, geometry = least_entries - 1, None
    for path in reversed(paths):
        with mapped_index(path) as data:
            if data is None:
                continue
            data.madvise(mmap.MADV_RANDOM)  # the header; `of_file` says what else it reads
            count = IndexHeader(*INDEX_HEADER.unpack_from(data)).next_entry - 1
            if count > most and (found := IndexGeometry.of_file(data)) is not None:
                most, geometry = count, found
    return geometry
