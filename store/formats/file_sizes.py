"""Determines the right sizes of a store's files without its settings.

RocketMQ's files do not contain their right size. A check that accepts any length of a file does not notice that it was
truncated. So the sizes come from two sources: the progress mark, which contains settings of the broker that wrote it,
and the files themselves. The size in the mark counts if some file has it, or if there is no file; otherwise the length
that most files have.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tallystick.store.formats.progress import ProgressMark
from tallystick.store.formats.queue_format import IndexGeometry
from tallystick.store.formats.segment_files import segment_start


@dataclass(frozen=True, slots=True)
class FileSizes:
    """Bytes of a segment of the log, of a ConsumeQueue file, of a file of its extension; slots and entries of an index
    file. None if unknown."""

    log_segment_bytes: int | None = None
    queue_segment_bytes: int | None = None
    index: IndexGeometry | None = None
    extension_bytes: int | None = None

    @classmethod
    def of(cls, root: Path, queue_lengths: Mapping[int, int] | None = None) -> FileSizes:
        """The sizes in the store in `root`. Raises OSError if a folder cannot be read.

        `queue_lengths`: number of ConsumeQueue files by length, if it is known.
        """
        mark = ProgressMark.load(root)
        geometry = None if mark is None else mark.geometry
        index = None
        if geometry is not None and geometry.index_slots > 0 and geometry.index_entries > 0:
            index = IndexGeometry(geometry.index_slots, geometry.index_entries)
            lengths = set(lengths_of(root.glob("index/*")))
            index = index if not lengths or index.file_bytes in lengths else None
        log = [root / "commitlog", *root.glob("dledger-*/data")]
        return cls(
            _chosen(_lengths(log), geometry and geometry.log_segment_bytes),
            _chosen(
                _lengths(_folders_of_queues(root / "consumequeue")) if queue_lengths is None else queue_lengths,
                geometry and geometry.queue_segment_bytes,
            ),
            index,
            _chosen(_lengths(_folders_of_queues(root / "consumequeue_ext")), None),
        )


def lengths_of(paths: Iterable[Path]) -> Iterator[int]:
    """Lengths of the files that are not empty: the creation of an empty one was interrupted. Yields one at a time."""
    return (length for path in paths if path.is_file() and (length := path.stat().st_size))


def segments_of(paths: Iterable[Path]) -> Iterator[Path]:
    """The files whose names are positions."""
    return (path for path in paths if segment_start(path.name) is not None)


def _folders_of_queues(folder: Path) -> Iterator[str]:
    for topic in _entries(folder):
        if topic.is_dir():
            yield from (queue.path for queue in _entries(topic.path))


def _entries(folder: Path | str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _lengths(folders: Iterable[Path | str]) -> Counter[int]:
    """Number of files by length, of those whose names are positions. A store has tens of thousands of them, so there is
    no `Path` for each."""
    lengths: Counter[int] = Counter()
    for folder in folders:
        for entry in _entries(folder):
            if segment_start(entry.name) is not None and entry.is_file() and (length := entry.stat().st_size):
                lengths[length] += 1
    return lengths


def _chosen(lengths: Mapping[int, int], by_mark: int | None) -> int | None:
    """The length that most files have, or the one in the mark. Among equals the greater one: a file that was cut is
    shorter."""
    if by_mark and (not lengths or by_mark in lengths):
        return by_mark
    return max(lengths, key=lambda length: (lengths[length], length), default=None)
