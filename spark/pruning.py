"""Leaves out the ranges of a log that cannot contain what a filter asks for, before they are read.

    filter                         what names the records, or excludes a range
    store times                    the store times of records at intervals, then a bisection at both edges
    topic, with queue, offsets     the units of the ConsumeQueues
    and tags
    keys                           the entries of the index files

The scanner still applies the whole filter to what it reads, so a range too many changes no result. A range too few
would. Therefore a filter prunes nothing if the files that it needs have gaps, or are missing; and the end of the log
that queues or index do not reach yet is always read. What remains is trust in sound files: a unit or an entry that was
lost inside a file hides its record from a pruned read, as it hides it from consumers and from queries by key. `audit`
finds such losses, and the option `pruning=false` reads the whole log.

Store times normally ascend, but a clock can be set back. An interval whose end is older than its begin is always read,
and each interval counts as `CLOCK_SLACK_MS` longer at both ends.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tallystick.spark.index_files import geometry_of, mapped_index
from tallystick.spark.presence import Segments, bring, told_queues
from tallystick.spark.scan import Int64Range, Wanted
from tallystick.spark.splits import Boundaries
from tallystick.spark.volume import LogFile, Logs, Volume
from tallystick.store._kernel import key_hash, string_hash
from tallystick.store.formats.derive import SCHEDULE_TOPIC
from tallystick.store.formats.mapped import ReadMap
from tallystick.store.formats.queue_format import (
    BLANK_UNIT_SIZE,
    INDEX_ENTRY,
    INDEX_HEADER,
    INDEX_SLOT,
    MAX_EXT_ADDRESS,
    UNIT,
    IndexEntry,
    IndexGeometry,
    IndexHeader,
    units_written,
)
from tallystick.store.verify.queues import queue_folders

Range = tuple[int, int]
"""[begin, end) of the log; both are boundaries of records."""

STORE_TIMES = "store times"
CLOCK_SLACK_MS = 600_000
"""A clock that is set back by less than this hides no record."""
_SAMPLES_A_FILE = 16
_EDGE_BYTES = 1 << 20
"""A bisection for a time ends at this distance."""
_GAP_BYTES = 4096
"""Ranges that are nearer to each other become one: a page is read as a whole."""
_MOST_UNITS = 1_000_000
"""With more units, reading the log in its order is faster."""
_FEW_UNITS = 4096
"""They are in some pages, which need not be read ahead."""
_MOST_LOOKS = 200_000
"""Searches in index files (topics x keys x files); with more, reading the log is faster."""
_MOST_CHAIN = 1_000_000


@dataclass(frozen=True, slots=True)
class Pruned:
    """What is left to read of a volume. `by`: the filters that left something out."""

    ranges: tuple[Range, ...]
    by: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        return _bytes(self.ranges)


def pruned(volume: Volume, wanted: Wanted) -> Pruned:
    """Returns the ranges of the settled log that can have records of the filter, and what was lost behind it. OSError.

    A filter leaves nothing out of a log with missing bytes: the reader reports all of them.
    """
    ranges: list[Range] = [(volume.begin, volume.bound)] if volume.begin < volume.bound else []
    lost: list[Range] = [(volume.bound, volume.end)] if volume.bound < volume.end else []
    by: list[str] = []
    if not ranges or lost or any(file.missing and file.start < volume.bound for file in volume.files):
        return Pruned((*ranges, *lost))
    with _Pruner(volume) as pruner:
        for name, find in pruner.finders(wanted):
            if (found := find()) is None:
                continue
            left = intersection(ranges, found)
            if name != STORE_TIMES and 2 * _bytes(left) > _bytes(ranges):
                continue  # many small reads of most of the log cost more than one of all
            ranges, by = left, [*by, name]
    return Pruned(tuple(ranges), tuple(by))


def _bytes(ranges: Iterable[Range]) -> int:
    return sum(end - begin for begin, end in ranges)


def intersection(one: Sequence[Range], other: Sequence[Range]) -> list[Range]:
    """Returns what both have. Each is ascending, without overlaps."""
    found: list[Range] = []
    at = 0
    for begin, end in one:
        while at < len(other) and other[at][1] <= begin:
            at += 1
        each = at
        while each < len(other) and other[each][0] < end:
            found.append((max(begin, other[each][0]), min(end, other[each][1])))
            each += 1
    return found


def difference(ranges: Iterable[Range], without: Sequence[Range]) -> list[Range]:
    """Returns the first without the second. Each is ascending, without overlaps."""
    found: list[Range] = []
    for begin, end in ranges:
        for low, high in without:
            if begin < high and low < end:
                if begin < low:
                    found.append((begin, low))
                begin = high
        if begin < end:
            found.append((begin, end))
    return found


def union(ranges: Iterable[Range], gap: int = 0) -> list[Range]:
    """Returns the ranges in ascending order. Those that overlap, or are at most `gap` apart, become one."""
    found: list[Range] = []
    for begin, end in sorted(ranges):
        if found and begin <= found[-1][1] + gap:
            found[-1] = found[-1][0], max(found[-1][1], end)
        elif begin < end:
            found.append((begin, end))
    return found


class _Pruner:
    """Looks into the files of one store. A context manager."""

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self._root = Path(volume.root)
        self._boundaries = Boundaries(self._root, volume.fullest)
        self._logs = Logs(self._root)

    def __enter__(self) -> _Pruner:
        return self

    def __exit__(self, *_: object) -> None:
        self._logs.__exit__()
        self._boundaries.__exit__()

    def finders(self, wanted: Wanted) -> Iterator[tuple[str, Callable[[], list[Range] | None]]]:
        """Yields the name of each filter, and a function that returns its ranges; None: it can exclude nothing."""
        if wanted.store_times_ms is not None:
            yield STORE_TIMES, partial(self._by_time, wanted.store_times_ms)
        if wanted.keys is not None:
            yield "keys", partial(self._by_key, wanted.keys, wanted.topics)
        if wanted.topics is not None:
            yield "queues", partial(self._by_queue, wanted)

    # -- store times ---------------------------------------------------------------------------------------------------

    def _by_time(self, times: Int64Range) -> list[Range] | None:
        low, high = times[0] - CLOCK_SLACK_MS, times[1] + CLOCK_SLACK_MS
        samples = list(self._samples())
        kept: list[Range] = []
        ends = [*samples[1:], (self._volume.bound, None)]
        for (begin, first), (end, last) in zip(samples, ends, strict=True):
            if first is None or (last is not None and last < first):
                kept.append((begin, end))
                continue
            if first > high or (last is not None and last < low):
                continue
            if first < low:
                begin = self._edge(begin, end, low)[0]
            if last is None or last > high:
                end = self._edge(begin, end, high + 1)[1]
            kept.append((begin, end))
        return union(kept)

    def _samples(self) -> Iterator[tuple[int, int | None]]:
        """Yields positions in the log, from its begin on, with the store times there; None: it is not known."""
        for file in self._volume.files:
            stop = min(file.end, self._volume.bound)
            if file.start >= stop:
                return
            yield file.start, self._time_at(file.start, file)
            step = max((stop - file.start) // _SAMPLES_A_FILE, 4 * _EDGE_BYTES)
            last = file.start
            for near in range(file.start + step, stop, step):
                pos = self._boundaries.behind(near, stop, file.entry_header_bytes)
                if pos is not None and pos > last:
                    last = pos
                    yield pos, self._time_at(pos, file)

    def _edge(self, begin: int, end: int, time: int) -> Range:
        """Narrows [begin, end), whose first record is older than `time`: returns the last position known to be older,
        and the first known not to be (or `end`)."""
        file = next(each for each in self._volume.files if each.start <= begin < each.end)
        low, high = begin, end
        while high - low > _EDGE_BYTES:
            pos = self._boundaries.behind((low + high) // 2, high, file.entry_header_bytes)
            if pos is None or (there := self._time_at(pos, file)) is None:
                break
            low, high = (pos, high) if there < time else (low, pos)
        return low, high

    def _time_at(self, pos: int, file: LogFile) -> int | None:
        record = self._logs.record_at(pos + file.entry_header_bytes)
        return None if record is None else record.store_timestamp_ms

    # -- queues --------------------------------------------------------------------------------------------------------

    def _by_queue(self, wanted: Wanted) -> list[Range] | None:
        topics = wanted.topics or ()
        folders = [
            (topic, queue, folder)
            for topic, queue, folder in queue_folders(self._root)
            if topic in topics and (wanted.queues is None or queue in wanted.queues)
        ]
        if {topic for topic, _, _ in folders} != set(topics):
            return None  # the topic does not exist, or its queues were lost
        known = self._volume.queues_end
        if known is None:  # the broker gave the bound
            known = self._logs.known_to_queues()
        if known is None:
            return None
        ranges: list[Range] = [(min(known, self._volume.bound), self._volume.bound)]
        told = told_queues()
        ends = {} if told is None else {(each.topic, each.queue): each.end for each in told.ends}
        left = _MOST_UNITS
        codes = None if wanted.tags is None else {string_hash(tag.encode()) for tag in wanted.tags}
        for topic, queue, folder in folders:
            with Segments(folder) as files:
                if files.gaps or files.strange or not files.starts:
                    return None
                own_codes = None if topic == SCHEDULE_TOPIC else codes
                units = _Units(files, wanted.queue_offsets, own_codes, ends.get((topic, queue)))
                if units.begins_late(self._volume.begin):
                    return None
                left -= units.count
                if left < 0:
                    return None
                ranges += self._records(units)
        return union(ranges, _GAP_BYTES)

    def _records(self, units: Iterable[tuple[int, int]]) -> Iterator[Range]:
        """Yields the ranges of records, given as (position, size), that are settled and kept."""
        files = self._volume.files
        at = 0
        for pos, size in units:
            if not self._volume.begin <= pos < self._volume.bound:
                continue
            if not files[at].start <= pos < files[at].end:
                at = next(number for number, file in enumerate(files) if file.start <= pos < file.end)
            yield pos - files[at].entry_header_bytes, min(pos + size, self._volume.bound)

    # -- keys ----------------------------------------------------------------------------------------------------------

    def _by_key(self, keys: Sequence[str], topics: Sequence[str] | None) -> list[Range] | None:
        folder = self._root / "index"
        paths = sorted(folder.iterdir()) if folder.is_dir() else []
        told = told_queues()
        geometry = geometry_of(paths) if told is None or told.index is None else IndexGeometry(*told.index)
        if geometry is None:
            return None
        names = topics if topics is not None else sorted({topic for topic, _, _ in queue_folders(self._root)})
        if not names or len(names) * len(keys) * len(paths) > _MOST_LOOKS:
            return None
        hashes = {key_hash(f"{topic}#{key}".encode()) for topic in names for key in keys}
        places: set[int] = set()
        end = self._volume.begin
        ranges: list[Range] = []
        for path in paths:
            with mapped_index(path, INDEX_HEADER.size) as data:
                if data is None or len(data) != geometry.file_bytes:
                    return None
                data.madvise(mmap.MADV_RANDOM)  # otherwise each look reads megabytes around it from the disk
                header = IndexHeader(*INDEX_HEADER.unpack_from(data))
                if header.next_entry <= 1:
                    continue
                if header.begin_pos > end:
                    ranges.append((end, header.begin_pos))  # no file knows what is there
                end = max(end, header.end_pos)
                if (found := _positions(path, data, geometry, hashes)) is None:
                    return None
                places |= found
        ranges.append((end, self._volume.bound))
        return union([*self._settled(ranges), *self._records(self._sized(places))], _GAP_BYTES)

    def _settled(self, ranges: Iterable[Range]) -> Iterator[Range]:
        """Yields the settled part of ranges between records: an entry of dledger begins before its record."""
        for ends in ranges:
            begin, end = (self._entry_of(pos) for pos in ends)
            if begin < end:
                yield begin, end

    def _entry_of(self, pos: int) -> int:
        """Returns the begin of the entry whose record is at `pos`, within what is kept and settled."""
        for file in self._volume.files:
            if file.start < pos < file.end and pos != self._volume.bound:
                return max(pos - file.entry_header_bytes, file.start)
        return max(self._volume.begin, min(pos, self._volume.bound))

    def _sized(self, places: Iterable[int]) -> Iterator[tuple[int, int]]:
        for pos in sorted(places):
            record = self._logs.record_at(pos)
            if record is not None:
                yield pos, record.size


class _Units:
    """The units of a queue, as (position, size): those in a range of queue offsets, with one of these tags codes.

    `end`: the queue offset behind the last one, if it is known.
    """

    def __init__(
        self, files: Segments, offsets: Int64Range | None, codes: Collection[int] | None, end: int | None
    ) -> None:
        self._files = files
        self._codes = codes
        first, most = files.first // UNIT.size, files.end // UNIT.size
        end = most if end is None else min(end, most)
        self._low = first if offsets is None else max(first, offsets[0])
        self._high = end if offsets is None else min(end, offsets[1] + 1)

    def begins_late(self, begin: int) -> bool:
        """Whether an earlier file is missing whose records the log still has from `begin` on: retention keeps the file
        with the last older unit."""
        if not self._files.starts or self._files.first == 0:
            return False
        data = self._files.read(self._files.first, UNIT.size)
        pos, size, _ = UNIT.unpack(data or bytes(UNIT.size))
        return bool(size != BLANK_UNIT_SIZE and pos >= begin)

    def _file(self, start: int, needed: int) -> ReadMap:
        data = self._files.buffer(start, needed)
        if self.count < _FEW_UNITS:
            data.madvise(mmap.MADV_RANDOM)  # otherwise each look reads the whole file from the disk
        return data

    @property
    def count(self) -> int:
        """At most so many units."""
        return max(0, self._high - self._low)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for start in self._files.starts:
            first = start // UNIT.size
            low = max(self._low - first, 0)
            if self._high <= first or low * UNIT.size >= self._files.segment_bytes:
                continue
            data = self._file(start, (self._high - first) * UNIT.size)
            high = min(self._high - first, units_written(data))
            for number in range(low, high):
                pos, size, code = UNIT.unpack_from(data, number * UNIT.size)
                if size != BLANK_UNIT_SIZE and (self._codes is None or code in self._codes or code <= MAX_EXT_ADDRESS):
                    yield pos, size


def _positions(path: Path, data: ReadMap, geometry: IndexGeometry, hashes: Iterable[int]) -> set[int] | None:
    """Returns the positions of the entries with one of these hashes; None: a chain is damaged or too long."""
    found: set[int] = set()

    def unpacked(kind: struct.Struct, at: int) -> tuple[int, ...]:
        bring(path, at, at + kind.size)
        return kind.unpack_from(data, at)

    for wanted in hashes:
        (number,) = unpacked(INDEX_SLOT, geometry.slot_at(wanted % geometry.slots))
        for _ in range(_MOST_CHAIN):
            if number == 0:
                break
            if not 0 < number < geometry.entries:
                return None
            entry = IndexEntry(*unpacked(INDEX_ENTRY, geometry.entry_at(number)))
            if entry.key_hash == wanted:
                found.add(entry.pos)
            if entry.previous >= number:
                return None
            number = entry.previous
        else:
            return None
    return found
