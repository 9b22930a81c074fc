"""Splits: ranges of one log file that begin and end at record boundaries. One task reads one split.

The magic number of a record does not show where a record begins, because a body can contain anything, even a copy of a
log. The ConsumeQueues show it: the units of each queue name records in ascending order, so a binary search finds the
first record behind a given byte with a few page reads. The record is checked before it is used. If no queue helps, the
file is one split. If a split began at a wrong place, it would not meet the end of the split before it, which is
reported as damage. So no message is read twice or silently left out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tallystick.spark.presence import Segments, told_queues
from tallystick.spark.volume import LogFile, Logs, Queue, Volume, ends_of_queues, fullest_queues
from tallystick.store._kernel import QueueEnds
from tallystick.store.formats.log_walk import StepKind, step_at
from tallystick.store.formats.queue_format import BLANK_UNIT_SIZE, UNIT
from tallystick.store.formats.segment_files import SegmentFiles

SPLIT_BYTES = 128 << 20
_MOST_SPLITS_A_TASK = 4096
_FETCHED_BYTES = 16 << 20
"""Boundaries in a store elsewhere are searched in the fullest queues with so many bytes of units together."""
_NEAR_PART = 16
"""A split may be longer by this part of its size, because its end is not searched in all queues."""
_TRIED = 8
"""Units that are tried for a boundary: one can be damaged, or name a record of another file."""


@dataclass(frozen=True, slots=True)
class Split:
    """Bytes [begin, end) of the log, within one file. `source` is the value of that column in its rows. `missing`: why
    the file does not have these bytes; empty: it has them."""

    source: str
    path: str
    file_start: int
    file_end: int
    begin: int
    end: int
    entry_header_bytes: int
    missing: str = ""

    @property
    def bytes(self) -> int:
        return self.end - self.begin


def files_of(splits: Iterable[Split]) -> dict[str, tuple[int, int]]:
    """Returns the files of splits, with their bytes and how many of them are settled: see `places.reached`."""
    files: dict[str, tuple[int, int]] = {}
    for split in sorted(splits, key=lambda each: each.end):  # nothing behind the last one is settled
        if not split.missing:
            files[split.path] = split.file_end - split.file_start, split.end - split.file_start
    return files


@dataclass(frozen=True, slots=True)
class Task:
    """Splits of one source that one task reads, one after the other; at least one."""

    splits: tuple[Split, ...]

    @property
    def source(self) -> str:
        return self.splits[0].source


def plan(
    volume: Volume, begin: int | None = None, end: int | None = None, split_bytes: int = SPLIT_BYTES
) -> list[Split]:
    """Returns the splits of [begin, end), which must be record boundaries. None: all that is kept and settled, and what
    was lost behind it. OSError."""
    begin = volume.begin if begin is None else max(begin, volume.begin)
    end = volume.end if end is None else min(end, volume.end)
    # No split crosses the bound.
    return splits_of(volume, [(begin, min(end, volume.bound)), (max(begin, volume.bound), end)], split_bytes)


def splits_of(volume: Volume, ranges: Iterable[tuple[int, int]], split_bytes: int) -> list[Split]:
    """Cuts ranges [begin, end) into splits of about that many bytes, each in one file. OSError."""
    with Boundaries(Path(volume.root), volume.fullest) as boundaries:
        return [
            Split(volume.source, file.path, file.start, file.end, low, high, file.entry_header_bytes, file.missing)
            for begin, end in ranges
            for file in volume.files
            if begin < file.end and file.start < end
            for low, high in _stretches(file, begin, end, split_bytes, boundaries)
        ]


def tasks_of(splits: Iterable[Split], split_bytes: int) -> list[Task]:
    """Groups the splits of each source, in their order, so that a task has about `split_bytes`: a task costs more than
    a small split."""
    tasks: list[Task] = []
    group: list[Split] = []
    size = 0
    for split in splits:
        full = size + split.bytes > split_bytes + split_bytes // 2 or len(group) >= _MOST_SPLITS_A_TASK
        if group and (full or split.source != group[0].source):
            tasks.append(Task(tuple(group)))
            group, size = [], 0
        group.append(split)
        size += split.bytes
    return [*tasks, Task(tuple(group))] if group else tasks


def _stretches(
    file: LogFile, begin: int, end: int, split_bytes: int, boundaries: Boundaries
) -> Iterator[tuple[int, int]]:
    low, stop = max(begin, file.start), min(end, file.end)
    while low < stop:
        high = stop
        # A small remainder belongs to the last split.
        if not file.missing and stop - low > split_bytes + split_bytes // 2:
            near = split_bytes // _NEAR_PART
            high = boundaries.behind(low + split_bytes, stop, file.entry_header_bytes, near) or stop
        yield low, high
        low = high


class Boundaries:
    """Finds record boundaries with the ConsumeQueues of the store in `root`. A context manager.

    `fullest`: the queues to search, `volume.fullest_queues`; empty: they are not known yet.
    """

    def __init__(self, root: Path, fullest: Sequence[Queue] = ()) -> None:
        self._stack = ExitStack()
        self._logs = self._stack.enter_context(Logs(root))
        self._root = root
        self._fullest_queues = fullest
        self._queues: list[Callable[[int], Sequence[int]]] | None = None

    def __enter__(self) -> Boundaries:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def behind(self, pos: int, limit: int, entry_header_bytes: int, near: int = 0) -> int | None:
        """Returns a position in [pos, limit) where a record (or its entry) begins; None: no queue has one.

        It is the nearest one that the queues show, or any within `near` bytes: then few queues are searched.
        """
        found: set[int] = set()
        for records_behind in self._fullest():
            for record in records_behind(pos + entry_header_bytes):
                boundary = record - entry_header_bytes
                if boundary < pos + near and self._begins(boundary, limit, entry_header_bytes):
                    return boundary
                found.add(boundary)
        return next((each for each in sorted(found) if self._begins(each, limit, entry_header_bytes)), None)

    def _begins(self, boundary: int, limit: int, entry_header_bytes: int) -> bool:
        """Returns whether a record (or its entry) begins at this position, which must be below `limit`."""
        return any(
            step_at(log, boundary, entry_header_bytes=header, check_crc=False).kind is StepKind.RECORD
            for log, header in self._logs.parts
            if boundary < limit and header == entry_header_bytes and log.start_of(boundary) is not None
        )

    def _fullest(self) -> Sequence[Callable[[int], Sequence[int]]]:
        """Returns functions from a position to those of some records at or behind it, for the fullest queues."""
        if self._queues is None:
            if told_queues() is None:
                fullest = self._fullest_queues or fullest_queues(ends_of_queues(self._root))
                self._queues = [partial(_first_unit, self._files(*key)) for key in fullest]
            else:
                self._queues = self._fetched(ends_of_queues(self._root))
        return self._queues

    def _fetched(self, ends: QueueEnds) -> list[Callable[[int], Sequence[int]]]:
        """The same for a store elsewhere: small queues are fetched, and a large one is searched block by block."""
        positions: list[int] = []
        found: list[Callable[[int], Sequence[int]]] = [partial(_next_of, positions)]
        for key, units in few_queues(ends):
            files = self._files(*key)
            if len(units) * UNIT.size > _FETCHED_BYTES:
                found.append(partial(_searched_unit, files, units))
            else:
                positions += _positions(files, units)
        positions.sort()
        return found

    def _files(self, topic: str, queue: int) -> Segments:
        return self._stack.enter_context(Segments(self._root / "consumequeue" / topic / str(queue)))


def few_queues(ends: QueueEnds) -> Iterator[tuple[Queue, range]]:
    """Yields the fullest queues and their units: only as many as are worth fetching, at least one. Pure."""
    known = {(each.topic, each.queue): range(each.first, each.end) for each in ends}
    left = _FETCHED_BYTES
    for key in fullest_queues(ends):
        yield key, known[key]
        left -= len(known[key]) * UNIT.size
        if left <= 0:
            return


def _positions(files: Segments, units: range) -> Iterator[int]:
    """Yields the positions of the records that these units of a queue name."""
    for start in files.starts:
        end = min(files.segment_bytes, units.stop * UNIT.size - start)
        if end > 0:
            data = files.buffer(start, end)
            named = UNIT.iter_unpack(data[: end - end % UNIT.size])
            yield from (pos for pos, size, _ in named if size != BLANK_UNIT_SIZE)


def _next_of(positions: Sequence[int], pos: int) -> Sequence[int]:
    number = bisect_left(positions, pos)
    return positions[number : number + _TRIED]


def _searched_unit(files: Segments, units: range, pos: int) -> Sequence[int]:
    """Like `_first_unit`, for a queue elsewhere: it fetches the blocks that a binary search looks at."""

    def unit(number: int) -> tuple[int, int]:
        data = files.read(number * UNIT.size, UNIT.size)
        return (-1, BLANK_UNIT_SIZE) if data is None else UNIT.unpack(data)[:2]

    number = bisect_left(units, pos, key=lambda each: unit(each)[0])
    if number == len(units):
        return ()
    found, size = unit(units[number])
    return () if size == BLANK_UNIT_SIZE else (found,)


def _first_unit(files: SegmentFiles, pos: int) -> Sequence[int]:
    """Returns the position of the first record at or behind `pos` in the queue, if it has one."""
    for start in files.starts:
        with files.units(start) as units:
            number = units.first_at(pos)
            if number < units.written:
                found, size, _ = units.unit(number)
                return () if size == BLANK_UNIT_SIZE else (found,)
    return ()
