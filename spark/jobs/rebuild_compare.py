"""Compares rebuilt queues and index with the broker's, as far as the log that was read determines them.

If the store was closed and has its log from the beginning, all bytes must be equal. Two cases allow differences:

    open       the broker continues, so its files also have data after the bound, and may lack the newest data
    trimmed    retention removed the log's beginning, so its files also name expired records

Queues, unit by unit. One that names a record between the log's begin and the bound must be the rebuilt one. Any other
unit must name a record below the begin, or at or after the bound. A missing unit is `behind` if the store is open and
its record is one of the newest, otherwise a difference. In queues with extensions the tags codes are looked up on both
sides.

Index, entry by entry. Written entries never change, and they alone determine a file's chains. If a file has more
entries than were rebuilt (or fewer), the common ones must be equal bytes, each with the older entry that it names; and
each slot, followed back to the first common entry, must lead to the same one: this is the state of the file with that
number of entries. The files of a trimmed store begin at other records, so their entries have other numbers: these are
compared in their order by key hash and position, and by time in the format's unit, a second.
"""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from tallystick.spark.index_files import geometry_of, mapped_index
from tallystick.spark.jobs.findings import SETTLED
from tallystick.spark.presence import Segments
from tallystick.spark.volume import Logs, Volume
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
)
from tallystick.store.formats.segment_files import SegmentFiles, segment_start
from tallystick.store.verify.queues import queue_folders

_EMPTY = bytes(UNIT.size)
_UNITS = 3200
"""Units that are compared as one run of bytes, before single ones are compared."""
_LOOKS, _PAUSE_S = 5, 0.01
_EXT_HEAD = struct.Struct(">hqq")
Extended = tuple[int, int, int, int | None]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`volume`: the log that was read; `settled_ms`: records stored before this time have all their units and entries;
    `extended`: units may have extensions."""

    volume: Volume
    settled_ms: int
    extended: bool

    @property
    def is_open(self) -> bool:
        """Whether it may be in use, because it was not closed in order; as of the time of the bound."""
        return self.settled_ms != SETTLED


@dataclass
class Comparison:
    same: int = 0
    differing: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    beyond: int = 0
    behind: dict[str, int] = field(default_factory=dict)
    units: int = 0
    """Files that correspond one to one."""
    entries: int = 0
    to_the_byte: bool = True
    """Whether all bytes must be equal: the store is neither open nor trimmed."""

    def compared(self) -> dict[str, Any]:
        return {"queue_units": self.units, "index_entries": self.entries, "to_the_byte": self.to_the_byte}

    def add_behind(self, what: str, count: int) -> None:
        if count:
            self.behind[what] = self.behind.get(what, 0) + count


def compare(ours: Path, theirs: Path, snapshot: Snapshot) -> Comparison:
    """`ours`: the files rebuilt from the log in `snapshot`; `theirs`: the store's root. OSError."""
    found = Comparison()
    with _Records(snapshot) as records:
        mine = {(topic, queue): folder for topic, queue, folder in queue_folders(ours)}
        has = {(topic, queue): folder for topic, queue, folder in queue_folders(theirs)}
        for topic, queue in sorted(mine.keys() | has.keys()):
            with _Queue(ours, theirs, topic, queue, records, found) as pair:
                pair.compare()
        _Indexes(ours, theirs, records, found).compare()
    return found


class _Records:
    """Looks up records in the log. A context manager."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.begin, self.bound = snapshot.volume.begin, snapshot.volume.bound
        self._logs = Logs(Path(snapshot.volume.root))

    def __enter__(self) -> _Records:
        return self

    def __exit__(self, *_: object) -> None:
        self._logs.__exit__()

    def may_lack(self, pos: int) -> bool:
        """Whether the unit or entries of the record at `pos` may be missing (not written yet, or expired)."""
        if not self.snapshot.is_open:
            return False
        if not any(Path(file.path).exists() for file in self.snapshot.volume.files if file.start <= pos < file.end):
            return True  # it expired during the run, and the files that name it may have been removed first
        record = self._logs.record_at(pos)
        return record is not None and record.store_timestamp_ms >= self.snapshot.settled_ms

    def is_elsewhere(self, pos: int) -> bool:
        """Whether no rebuilt record lies there."""
        return pos < self.begin or (pos >= self.bound and self.snapshot.is_open)


# -- queues ------------------------------------------------------------------------------------------------------------


class _Queue:
    """One queue on both sides. A context manager."""

    def __init__(self, ours: Path, theirs: Path, topic: str, queue: int, records: _Records, found: Comparison) -> None:
        self._name = f"consumequeue/{topic}/{queue}"
        self._records = records
        self._found = found
        self._stack = ExitStack()
        self._ours = self._open(ours / self._name, SegmentFiles)
        self._theirs = self._open(theirs / self._name, Segments)
        extension = f"consumequeue_ext/{topic}/{queue}"
        self._our_ext = self._open(ours / extension, SegmentFiles)
        self._their_ext = self._open(theirs / extension, Segments)

    def _open(self, folder: Path, kind: type[SegmentFiles]) -> SegmentFiles:
        return self._stack.enter_context(kind(folder))

    def __enter__(self) -> _Queue:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def compare(self) -> None:
        strange = [path.name for path, _ in self._theirs.strange if path.is_file() and not self._is_being_made(path)]
        self._found.differing += [f"{self._name}/{name}" for name in strange]  # of another length, or not a segment
        for start in sorted({*self._ours.starts, *self._theirs.starts}):
            path = self._theirs.path(start)
            if path.name not in strange:
                self._file(f"{self._name}/{path.name}", start)

    def _is_being_made(self, path: Path) -> bool:
        """Whether its broker has not given it its length yet: it is the newest one of an open store."""
        start = segment_start(path.name)
        return self._records.snapshot.is_open and start is not None and start >= self._theirs.end

    def _file(self, name: str, start: int) -> None:
        ours = self._ours.buffer(start) if start in self._ours.starts else None
        theirs = None
        if start in self._theirs.starts and self._theirs.segment_bytes:
            try:
                theirs = self._theirs.buffer(start)
            except FileNotFoundError:
                pass  # it expired
        length = max(0 if data is None else len(data) for data in (ours, theirs))
        compared = lacking = 0
        good, alike = True, True
        for at in range(0, length, _UNITS * UNIT.size):
            mine, has = _part(ours, at, length), _part(theirs, at, length)
            if mine == has:
                compared += len(mine) // UNIT.size - _without(mine)
                continue
            alike = False
            for unit_at in range(0, len(mine), UNIT.size):
                our, their = mine[unit_at : unit_at + UNIT.size], has[unit_at : unit_at + UNIT.size]
                if _is_record(our):
                    compared += 1
                if our == their:
                    continue
                if _is_record(our) and not _is_record(their):
                    if their != _EMPTY or not self._records.may_lack(UNIT.unpack(our)[0]):
                        good = False
                    lacking += 1
                elif not self._may_differ(our, their):
                    good = False
        self._found.units += compared
        self._found.add_behind("queue units", lacking if good else 0)
        self._found.to_the_byte &= alike
        if theirs is None and compared and lacking == compared:
            if not good:
                self._found.missing.append(name)
        elif not good:
            self._found.differing.append(name)
        elif compared or ours is not None:
            self._found.same += 1
        else:
            self._found.beyond += 1

    def _may_differ(self, our: bytes, their: bytes) -> bool:
        if not _is_record(our):
            return _is_record(their) and self._records.is_elsewhere(UNIT.unpack(their)[0])
        return self._records.snapshot.extended and _alike(
            self._extended(our, self._our_ext), self._extended(their, self._their_ext)
        )

    def _extended(self, unit: bytes, extension: SegmentFiles) -> Extended:
        """Returns (pos, size, tags code, store time or None) of a unit, with or without an extension."""
        pos, size, code = UNIT.unpack(unit)
        if code > MAX_EXT_ADDRESS:
            return pos, size, code, None
        head = extension.read(code + (1 << 63), _EXT_HEAD.size)
        if head is None:
            return pos, size, code, None
        _, code, time_ms = _EXT_HEAD.unpack(head)
        return pos, size, code, time_ms


def _part(data: mmap.mmap | None, at: int, length: int) -> bytes:
    end = min(length, at + _UNITS * UNIT.size)
    return bytes(end - at) if data is None else data[at:end].ljust(end - at, b"\0")


def _is_record(unit: bytes) -> bool:
    """Whether it names a record, so it is neither empty nor a blank unit before the first one."""
    size = int.from_bytes(unit[8:12], "big", signed=True)
    return unit != _EMPTY and not (size == BLANK_UNIT_SIZE and unit[:8] == _EMPTY[:8])


def _without(units: bytes) -> int:
    """The number of units that name no record. They stand at the beginning and at the end."""
    count = 0
    for ends in (range(0, len(units), UNIT.size), range(len(units) - UNIT.size, -1, -UNIT.size)):
        for at in ends:
            if _is_record(units[at : at + UNIT.size]):
                break
            count += 1
        else:
            return count
    return count


def _alike(ours: Extended, theirs: Extended) -> bool:
    times = {ours[3], theirs[3]} - {None}
    return ours[:3] == theirs[:3] and len(times) <= 1


# -- index -------------------------------------------------------------------------------------------------------------


class _Indexes:
    def __init__(self, ours: Path, theirs: Path, records: _Records, found: Comparison) -> None:
        self._records = records
        self._found = found
        self._ours = sorted((ours / "index").glob("*"))
        self._theirs = [path for path in sorted((theirs / "index").glob("*")) if path.is_file()]
        # A file with another number of slots or entries cannot be compared: its length differs.
        self._geometry = geometry_of(self._ours)

    def compare(self) -> None:
        if self._geometry is None:
            for path in self._theirs:
                with mapped_index(path) as data:
                    self._end(path, data is None or self._only_beyond(data, 1, None), beyond=True)
            return
        if self._begins_before():
            self._found.to_the_byte = False
            self._in_order(self._geometry)
            return
        for path, there in zip_longest(self._ours, self._theirs[: len(self._ours)]):
            with mapped_index(path) as mine, nullcontext() if there is None else mapped_index(there) as has:
                assert mine is not None, "it was just made"
                self._pair(path, mine, has, there)
        for path in self._theirs[len(self._ours) :]:
            with mapped_index(path) as has:
                self._end(path, has is None or self._only_beyond(has, 1, self._geometry), beyond=True)

    def _begins_before(self) -> bool:
        """Whether their first file has entries of expired records."""
        assert self._geometry is not None
        for path in self._theirs[:1]:
            with mapped_index(path) as data:
                if data is None:
                    return True
                first = next(_entries(data, self._geometry), None)
                return first is not None and first.pos < self._records.begin
        return False

    def _end(self, path: Path, good: bool, *, beyond: bool = False) -> None:
        if not good:
            self._found.differing.append(f"index/{path.name}")
        elif beyond:
            self._found.beyond += 1
        else:
            self._found.same += 1

    def _only_beyond(self, data: mmap.mmap, number: int, geometry: IndexGeometry | None) -> bool:
        """Whether the entries from `number` on belong to records after the bound. They are in the log's order."""
        if _header(data).next_entry <= number:
            return True
        if geometry is None or len(data) != geometry.file_bytes:
            return False
        entry = IndexEntry(*INDEX_ENTRY.unpack_from(data, geometry.entry_at(number)))
        return entry.pos >= self._records.bound and self._records.snapshot.is_open

    def _pair(self, path: Path, mine: mmap.mmap, has: mmap.mmap | None, there: Path | None) -> None:
        geometry = self._geometry
        assert geometry is not None
        count = _header(mine).next_entry
        if has is None or there is None:
            first = next(iter(_entries(mine, geometry)))
            if self._records.may_lack(first.pos):
                self._found.add_behind("index entries", count - 1)
            else:
                self._found.missing.append(f"index/{path.name}")
            return
        header = self._settled_header(has, mine)  # first: entries below its count exist, and their slots
        if len(has) == len(mine) and header == _header(mine) and _equal(mine, has):
            self._found.entries += count - 1
            self._end(there, True)
            return
        self._found.to_the_byte = False
        common = min(count, header.next_entry)
        good = (
            self._records.snapshot.is_open
            and len(has) == len(mine)
            and common >= 1
            and (common == 1 or header[:3:2] == _header(mine)[:3:2])
            and (count != header.next_entry or header == _header(mine))
            and _same_slots(mine, has, geometry, common)
            and _same_bytes(mine, has, geometry.entry_at(1), geometry.entry_at(common))
            and (header.next_entry <= count or self._only_beyond(has, count, geometry))
        )
        if good and header.next_entry < count:
            lacking = IndexEntry(*INDEX_ENTRY.unpack_from(mine, geometry.entry_at(header.next_entry)))
            good = self._records.may_lack(lacking.pos)
            self._found.add_behind("index entries", count - header.next_entry if good else 0)
        self._found.entries += common - 1
        self._end(there, good)

    def _settled_header(self, has: mmap.mmap, mine: mmap.mmap) -> IndexHeader:
        """Excludes an entry that was written but not counted in the header yet."""
        for _ in range(_LOOKS):
            header = _header(has)
            if header == _header(mine) or header.next_entry != _header(mine).next_entry:
                break
            time.sleep(_PAUSE_S)
        return header

    def _in_order(self, geometry: IndexGeometry) -> None:
        """Compares all their entries that name rebuilt records with all of ours."""
        ours = self._timed(self._ours, geometry)
        for path in self._theirs:
            with mapped_index(path) as data:
                if data is None:
                    continue
                if len(data) != geometry.file_bytes:
                    self._end(path, False)
                    continue
                good, compared = True, 0
                for entry, time_ms in _times(data, geometry):
                    if entry.pos < self._records.begin:
                        continue
                    our = next(ours, None)
                    if our is None:
                        good = self._records.is_elsewhere(entry.pos)
                        break
                    compared += 1
                    if (our[0].key_hash, our[0].pos) != (entry.key_hash, entry.pos) or abs(our[1] - time_ms) >= 1000:
                        good = False
                        break
                self._found.entries += compared
                self._end(path, good, beyond=good and not compared)
                if not good:
                    return  # the later entries no longer correspond
        rest = next(ours, None)
        if rest is not None:
            if self._records.may_lack(rest[0].pos):
                self._found.add_behind("index entries", 1 + sum(1 for _ in ours))
            else:
                self._found.missing.append(f"index: entries from position {rest[0].pos} on")

    def _timed(self, paths: list[Path], geometry: IndexGeometry) -> Iterator[tuple[IndexEntry, int]]:
        for path in paths:
            with mapped_index(path) as data:
                assert data is not None, "it was just made"
                yield from _times(data, geometry)


def _header(data: mmap.mmap) -> IndexHeader:
    header = IndexHeader(*INDEX_HEADER.unpack_from(data))
    return header._replace(next_entry=max(1, header.next_entry))


def _entries(data: mmap.mmap, geometry: IndexGeometry) -> Iterator[IndexEntry]:
    last = min(_header(data).next_entry, geometry.entries)
    for number in range(1, last):
        yield IndexEntry(*INDEX_ENTRY.unpack_from(data, geometry.entry_at(number)))


def _times(data: mmap.mmap, geometry: IndexGeometry) -> Iterator[tuple[IndexEntry, int]]:
    begin_ms = _header(data).begin_timestamp_ms
    for entry in _entries(data, geometry):
        yield entry, begin_ms + 1000 * entry.seconds


def _equal(mine: mmap.mmap, has: mmap.mmap) -> bool:
    return _same_bytes(mine, has, 0, len(mine))


def _same_bytes(mine: mmap.mmap, has: mmap.mmap, begin: int, end: int) -> bool:
    step = 1 << 20
    return all(mine[at : min(end, at + step)] == has[at : min(end, at + step)] for at in range(begin, end, step))


def _same_slots(mine: mmap.mmap, has: mmap.mmap, geometry: IndexGeometry, common: int) -> bool:
    """Whether both have the same chains, of the entries below `common`."""
    step = INDEX_SLOT.size << 14
    end = geometry.slot_at(geometry.slots)
    for begin in range(geometry.slot_at(0), end, step):
        ours, theirs = mine[begin : min(end, begin + step)], has[begin : min(end, begin + step)]
        if ours != theirs:
            for at in range(0, len(ours), INDEX_SLOT.size):
                pair = INDEX_SLOT.unpack_from(ours, at)[0], INDEX_SLOT.unpack_from(theirs, at)[0]
                if pair[0] != pair[1] and _older(mine, geometry, pair[0], common) != _older(
                    has, geometry, pair[1], common
                ):
                    return False
    return True


def _older(data: mmap.mmap, geometry: IndexGeometry, number: int, common: int) -> int:
    """Returns the first entry of a chain below `common`, going back from entry `number`. A chain that does not go back
    is broken."""
    while number >= common:
        if number >= geometry.entries:
            return -1
        previous = IndexEntry(*INDEX_ENTRY.unpack_from(data, geometry.entry_at(number))).previous
        if previous >= number:
            return -1
        number = previous
    return number
