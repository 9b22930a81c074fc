"""What one task reads: a stretch of one log file that begins with a record and ends with one.

Where a record begins in the middle of a file is not guessed from its magic number: a body may hold anything, even a
copy of a log. The ConsumeQueues know: their units name records, each queue in ascending order, so halving finds the
first record behind a given byte in a few page reads. The record is looked at before it is believed. Where no queue
helps, the file is one split. A split that began at a wrong place would not be met by the end of the one before it, and
that is damage: never is a message read twice or left out in silence.
"""

from __future__ import annotations

import bisect
import mmap
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tallystick.spark.presence import Segments
from tallystick.spark.volume import LogFile, Logs, Volume
from tallystick.store.log_walk import StepKind, step_at
from tallystick.store.queue_format import BLANK_UNIT_SIZE, UNIT, units_written
from tallystick.store.segment_files import SegmentFiles
from tallystick.store.verify_queues import queue_folders

SPLIT_BYTES = 128 << 20
_MAX_QUEUES = 256
"""Asked for a boundary: the nearest record behind a byte is in some queue, and one of the fullest is near enough."""


@dataclass(frozen=True, slots=True)
class Split:
    """Bytes [begin, end) of the log, within one file; `source` is what its rows are marked with."""

    source: str
    path: str
    file_start: int
    file_end: int
    begin: int
    end: int
    entry_header_bytes: int

    @property
    def bytes(self) -> int:
        return self.end - self.begin


def plan(
    volume: Volume, begin: int | None = None, end: int | None = None, split_bytes: int = SPLIT_BYTES
) -> list[Split]:
    """Splits of [begin, end), both boundaries themselves; None: all that is kept and settled. OSError."""
    begin = volume.begin if begin is None else max(begin, volume.begin)
    end = volume.bound if end is None else min(end, volume.bound)
    with Boundaries(Path(volume.root)) as boundaries:
        return [
            Split(volume.source, file.path, file.start, file.end, low, high, file.entry_header_bytes)
            for file in volume.files
            for low, high in _stretches(file, begin, end, split_bytes, boundaries)
        ]


def _stretches(
    file: LogFile, begin: int, end: int, split_bytes: int, boundaries: Boundaries
) -> Iterator[tuple[int, int]]:
    low, stop = max(begin, file.start), min(end, file.end)
    while low < stop:
        high = stop
        if stop - low > split_bytes + split_bytes // 2:  # a small rest is not worth a task
            high = boundaries.behind(low + split_bytes, stop, file.entry_header_bytes) or stop
        yield low, high
        low = high


class Boundaries:
    """Where records begin, as the queues of the store in `root` know it. A context manager."""

    def __init__(self, root: Path) -> None:
        self._stack = ExitStack()
        self._logs = self._stack.enter_context(Logs(root))
        self._root = root
        self._queues: list[SegmentFiles] | None = None

    def __enter__(self) -> Boundaries:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def behind(self, pos: int, limit: int, entry_header_bytes: int) -> int | None:
        """A position in [pos, limit) where a record (or its entry) begins, near `pos`; None: no queue knows one."""
        for record in sorted({_first_unit(queue, pos + entry_header_bytes) for queue in self._fullest()} - {-1}):
            boundary = record - entry_header_bytes
            for log, header in self._logs.parts:
                if boundary >= limit or header != entry_header_bytes or log.start_of(boundary) is None:
                    continue
                if step_at(log, boundary, entry_header_bytes=header, check_crc=False).kind is StepKind.RECORD:
                    return boundary
        return None

    def _fullest(self) -> Sequence[SegmentFiles]:
        if self._queues is None:
            every = [Segments(folder) for _, _, folder in queue_folders(self._root)]
            every.sort(key=lambda files: files.end - files.first, reverse=True)
            self._queues = [self._stack.enter_context(files) for files in every[:_MAX_QUEUES] if files.starts]
        return self._queues


def _first_unit(files: SegmentFiles, pos: int) -> int:
    """The first record at or behind `pos` that the queue names; -1: it names none."""
    for start in files.starts:
        data = files.buffer(start)
        count = units_written(data)
        if count and UNIT.unpack_from(data, (count - 1) * UNIT.size)[0] >= pos:
            return _named(data, bisect.bisect_left(range(count), pos, key=partial(_named, data)))
    return -1


def _named(data: mmap.mmap, number: int) -> int:
    pos, size, _ = UNIT.unpack_from(data, number * UNIT.size)
    return -1 if size == BLANK_UNIT_SIZE else int(pos)
