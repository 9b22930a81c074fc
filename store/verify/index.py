"""Checks index files against the log: each entry must belong to a key of its record, and each chain must be intact.

The chain of a slot leads from the newest entry, which the slot contains, back to the first. So the previous entry of
the chain is always the newest one of this slot so far. The check does not report missing entries: RocketMQ itself
leaves parts of the log without index entries after a kill. It reports an index that has no file at all.
"""

from __future__ import annotations

import mmap
import sys
from array import array
from collections.abc import Collection, Sequence
from pathlib import Path

from tallystick.store.findings import Report
from tallystick.store.formats.derive import index_hash, index_keys
from tallystick.store.formats.mapped import UNREADABLE, ReadMap, unread_ranges
from tallystick.store.formats.progress import lock_time_ns
from tallystick.store.formats.queue_format import (
    INDEX_ENTRY,
    INDEX_HEADER,
    INDEX_SLOT,
    IndexEntry,
    IndexGeometry,
    IndexHeader,
)
from tallystick.store.formats.queue_table import QueueTable
from tallystick.store.formats.record import Record
from tallystick.store.verify.queues import Derived

_PROGRESS_ENTRIES = 1 << 16


def has_index_files(root: Path) -> bool:
    folder = root / "index"
    return folder.is_dir() and any(folder.iterdir())


def check_index(
    derived: Derived,
    geometry: IndexGeometry | None,
    durable_timestamp_ms: int,
    records_with_keys: int = 0,
    only: Collection[Path] | None = None,
) -> None:
    """Checks all index files. After a kill, faults in files that end after `durable_timestamp_ms` are only notes: the
    next start builds them again.

    `geometry`: from the settings; None: determine it from the files. `records_with_keys`: of the log, if there are no
    index files. `only`: the files whose entries are compared; the others were already found to be sound.
    """
    folder = derived.root / "index"
    report = derived.report
    check_missing(derived, records_with_keys, repairable=not report.clean)
    ended_ms = None
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    geometry = geometry or _geometry_of(paths)
    for path in paths:
        report.index_files += 1
        if path.stat().st_size < INDEX_HEADER.size:
            report.add_damage(path, 0, f"an index file of {path.stat().st_size} bytes")
            continue
        with ReadMap(path) as data:
            header = IndexHeader(*INDEX_HEADER.unpack_from(data))
            if only is None or path in only:
                ended_ms = _check_file(derived, path, data, header, geometry, durable_timestamp_ms, ended_ms)
            else:
                ended_ms = header.end_timestamp_ms


def _geometry_of(paths: Sequence[Path]) -> IndexGeometry | None:
    """The geometry of the files, which do not contain it: it is determined from the fullest one. None: no file has
    entries that fit its header."""
    most, geometry = 0, None
    for path in reversed(paths):
        if path.stat().st_size < INDEX_HEADER.size:
            continue
        with ReadMap(path) as data:
            count = IndexHeader(*INDEX_HEADER.unpack_from(data)).next_entry - 1
            if count > most and (found := IndexGeometry.of_file(data)) is not None:
                most, geometry = count, found
    return geometry


def _check_file(
    derived: Derived,
    path: Path,
    data: ReadMap,
    header: IndexHeader,
    geometry: IndexGeometry | None,
    durable_timestamp_ms: int,
    ended_ms: int | None,
) -> int:
    """`ended_ms`: the end of the file before it. Returns the end of this file: the store time of its last record."""
    report = derived.report
    unread = unread_ranges(data)
    for at, size in unread:
        report.add_damage(path, at, f"{UNREADABLE} ({size} bytes)")
    if unread:
        return header.end_timestamp_ms  # entries refer to each other: the others cannot be checked
    repairable = not report.clean and header.end_timestamp_ms > durable_timestamp_ms
    found = geometry or IndexGeometry.of_file(data)
    if found is None:
        if header.next_entry > 1:
            report.add(path, 0, "slots and entries do not fit the header", repairable=repairable)
        return header.end_timestamp_ms
    if len(data) != found.file_bytes:
        report.add(path, 0, f"has {len(data)} bytes instead of {found.file_bytes}", repairable=repairable)
        return header.end_timestamp_ms
    report.index_slots, report.index_entries_max = found
    check = _IndexCheck(derived, path, data, found, header, repairable, ended_ms)
    check.run()
    return check.end_ms


def check_missing(derived: Derived, records_with_keys: int, *, repairable: bool) -> None:
    """Reports files that are listed in `tally-queues` and missing, although the log has their records. Without such a
    list, reports an index that has no file although the log has records with keys. `repairable`: the next start builds
    it."""
    folder = derived.root / "index"
    table = QueueTable.load(derived.root)
    if table is not None and table.lock_ns == lock_time_ns(derived.root):
        for name, end in table.index_files:
            if end >= derived.report.min_pos and not (folder / name).exists():
                derived.report.add_damage(folder / name, 0, "the index file is missing")
    elif records_with_keys:
        reason = f"the index has no file, the log has {records_with_keys} records with keys"
        derived.report.add(folder, 0, reason, repairable=repairable)


class _IndexCheck:
    def __init__(
        self,
        derived: Derived,
        path: Path,
        data: mmap.mmap,
        geometry: IndexGeometry,
        header: IndexHeader,
        repairable: bool,
        first_from_ms: int | None,
    ) -> None:
        self.derived = derived
        self.report: Report = derived.report
        self.path = path
        self.data = data
        self.geometry = geometry
        self.header = header
        self.repairable = repairable
        self.first_from_ms = first_from_ms
        self.newest = array("i", bytes(4 * geometry.slots))
        self.used = 0
        self.record_pos = -1  # of the record in `record`: neighbouring entries mostly have the same one
        self.record: Record | None = None
        self.reason = ""
        self.hashes: frozenset[int] = frozenset()
        # Of the records: a wrong time in the header is one fault, and the entries are right.
        self.begin_ms, self.end_ms = header.begin_timestamp_ms, header.end_timestamp_ms

    def run(self) -> None:
        header, geometry = self.header, self.geometry
        if not 0 <= header.next_entry <= geometry.entries:
            self._add(36, f"the next entry is {header.next_entry} of {geometry.entries}")
            return
        if header.next_entry > 1:
            self._ends()
        for number in range(1, header.next_entry):
            if self.derived.progress and number % _PROGRESS_ENTRIES == 0:
                self.derived.progress(f"index {self.path.name}", number, header.next_entry)
            self.report.index_entries += 1
            at = geometry.entry_at(number)
            entry = IndexEntry(*INDEX_ENTRY.unpack_from(self.data, at))
            in_chain = self._chain(number, entry)  # also for a wrong entry: the next ones of its slot lead back to it
            if reason := self._entry(number, entry) or in_chain:
                self._add(at, f"entry {number} {reason}")
        self._slots()

    def _ends(self) -> None:
        """Checks the positions and times of the first and the last entry in the header. A search selects files by these
        times."""
        header = self.header
        ends = (
            (0, 1, header.begin_timestamp_ms, 16, header.begin_pos),
            (8, header.next_entry - 1, header.end_timestamp_ms, 24, header.end_pos),
        )
        for time_at, number, timestamp_ms, pos_at, pos in ends:
            entry = IndexEntry(*INDEX_ENTRY.unpack_from(self.data, self.geometry.entry_at(number)))
            if entry.pos != pos:
                self._add(pos_at, f"the header says byte {pos} of the log, entry {number} names {entry.pos}")
            elif self.report.min_pos <= pos < self.report.end_pos:
                record, _ = self.derived.record_at(pos)
                if record is not None and record.store_timestamp_ms != timestamp_ms:
                    stored_ms = record.store_timestamp_ms
                    if time_at:
                        self.end_ms = stored_ms
                    else:
                        self.begin_ms = stored_ms
                    self._add(
                        time_at, f"the header says {timestamp_ms}, the record of entry {number} was stored {stored_ms}"
                    )

    def _add(self, at: int, reason: str) -> None:
        self.report.add(self.path, at, reason, repairable=self.repairable)

    def _entry(self, number: int, entry: IndexEntry) -> str:
        if entry.key_hash < 0:
            return f"has the hash {entry.key_hash}"
        if entry.pos < self.report.min_pos:
            return ""  # expired: the record is deleted
        if entry.pos >= self.report.end_pos:
            return f"names a record at {entry.pos}, the log ends at {self.report.end_pos}"
        if entry.pos != self.record_pos:
            self.record_pos = entry.pos
            self.record, self.reason = self.derived.record_at(entry.pos)
            self.hashes = frozenset()
            if self.record is not None:
                keys = index_keys(self.record, self.record.property_table())
                self.hashes = frozenset(index_hash(self.record.topic, key) for key in keys)
        if self.record is None:
            return f"names position {entry.pos}, where no sound record begins: {self.reason}"
        if entry.key_hash not in self.hashes:
            return f"has the hash {entry.key_hash}, but no key of the record at {entry.pos} has this hash"
        # The first entry is added before the header has its time, so it counts from the end of the previous file.
        begin_ms = self.first_from_ms if number == 1 else self.begin_ms
        if begin_ms is None:
            return ""
        seconds = (self.record.store_timestamp_ms - begin_ms) // 1000 if begin_ms > 0 else 0
        if entry.seconds != min(max(seconds, 0), 2**31 - 1):
            return f"says {entry.seconds} s after the file's begin, the record at {entry.pos} {seconds} s"
        return ""

    def _chain(self, number: int, entry: IndexEntry) -> str:
        slot = entry.key_hash % self.geometry.slots if entry.key_hash >= 0 else 0
        before = self.newest[slot]
        self.newest[slot] = number
        self.used += before == 0
        if entry.previous != before:
            return f"goes back to entry {entry.previous}, the chain's entry before it is {before}"
        return ""

    def _slots(self) -> None:
        at = self.geometry.slot_at(0)
        slots = array("i", self.data[at : at + INDEX_SLOT.size * self.geometry.slots])
        if sys.byteorder == "little":
            slots.byteswap()
        if slots != self.newest:
            for slot, (there, wanted) in enumerate(zip(slots, self.newest, strict=True)):
                if there != wanted:
                    self._add(self.geometry.slot_at(slot), f"slot {slot} names entry {there} instead of {wanted}")
        if self.used != self.header.slot_count:
            self._add(32, f"the header counts {self.header.slot_count} slots in use, there are {self.used}")
