"""Finds the end of a log in dledger's layout after a stop of any kind, and repairs its files.

1. Recovery first finishes what a crash interrupted: a reset or a truncation (see `mark`).
2. The scan begins at the mark's synced point. Without a mark, or with one that is not believed, it begins at the first
   entry and reads the whole log once. It checks every entry with its CRCs, and rewrites index units that differ.
3. At a place without a next entry, the log ends if the bytes there are a possible result of a stop (D8):
   - nothing sound follows, the place is behind the synced point, and a part of the entry there is missing: zeros stand
     in its place. The tail is torn or unwritten. Recovery truncates it and writes zeros;
   - everything else is damage. Recovery changes nothing: the log is sound up to there. The rest can be repaired with
     another member's bytes (`Ledger.rewrite`) or given up by a decision (`Ledger.truncate`), never silently. If the
     machine has lost power since, and a disk sector before the next sound entry contains only zeros, the loss of power
     explains the damage (`Damage.after_power_loss`): no sync covered this place, so nothing from there on was
     acknowledged. But the disk may also have lost a sector of durable entries.
4. Recovery syncs what a killed process left in the cache before any of it counts as durable.

dledger differs: it checks no body and truncates at the first invalid entry (dledger 0.2.2,
DLedgerMmapFileStore.recover). A log that dledger wrote has no mark and no CRCs: it is read completely, once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.replication.ledger.mark import FILE_NAME as MARK_NAME
from tallystick.replication.ledger.mark import EntryPoint, Flags, LedgerMark, newest_memberships
from tallystick.store._kernel import find_entry, walk_entries
from tallystick.store.engine.inherited import sync_files
from tallystick.store.engine.zeroing import zero_behind
from tallystick.store.finding_log import FindingLog
from tallystick.store.findings import Finding, FindingKind
from tallystick.store.formats.ledger_format import (
    ENTRY_HEADER_BYTES,
    UNIT_BYTES,
    EntryHeader,
    EntryKind,
    IndexUnit,
    LedgerFormatError,
)
from tallystick.store.formats.mapped import UNREADABLE
from tallystick.store.formats.progress import NO_BOOT_ID
from tallystick.store.formats.segment_files import SegmentFiles, has_data, segment_name, segment_start

if TYPE_CHECKING:
    from tallystick.store._kernel import Door, WalkedEntries

_UNWRITTEN = "unwritten"
_SECTOR_BYTES = 512
# The entry behind a broken one begins within the size of the largest entry plus a filler. A hole from a power loss can
# be wider, but then nothing behind it counts.
_SEARCH_BYTES = 16 << 20
_ZEROS = bytes(1 << 16)


class LedgerError(Exception):
    """The log cannot be opened as it is, and nothing was changed; `path` is the file or folder with the problem."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path


@dataclass(frozen=True, slots=True)
class Damage:
    """Entry `index`, which should be at `pos`, is missing or damaged. `next_index` is the next sound entry, or the last
    one that is known to have been durable."""

    index: int
    pos: int
    reason: str
    next_index: int
    after_power_loss: bool = False
    """A loss of power explains it. Then nothing from this entry on was acknowledged."""
    at_end: bool = False
    """It is the log's last entry. It was written completely, so the member may have acknowledged it."""


@dataclass(slots=True)
class RecoveredLedger:
    """What recovery found and did."""

    mark: LedgerMark
    """The mark as saved at the end of recovery: flags, base, and the synced point with everything that was found."""
    base: EntryPoint
    end: EntryPoint
    """The point behind the last sound entry."""
    clean: bool
    """The last stop was clean."""
    from_mark: bool = False
    walked_from: int = 0
    """The scan of the log began at this byte."""
    memberships: tuple[int, ...] = ()
    damage: Damage | None = None
    findings: list[Finding] = field(default_factory=list)
    """The problems and what was done about them, in the order of events; `damage` is not among them."""


def recover(
    folder: Path,
    segment_bytes: int,
    index_segment_bytes: int,
    door: Door,
    *,
    boot_id: bytes,
    store_id: bytes,
    findings: FindingLog | None = None,
) -> RecoveredLedger:
    """Recovers the log in `folder` (with `data/` and `index/`); see the module's docstring. Blocks.

    `boot_id`: identifies this boot of the machine. `store_id`: for a log without a mark; otherwise the mark's is used.
    `findings`: receives each finding at once, also those before an error.
    Raises LedgerError or OSError.
    """
    findings = findings or FindingLog(folder)
    return _Recovery(folder, segment_bytes, index_segment_bytes, door, boot_id, store_id, findings).run()


class _Recovery:
    def __init__(
        self,
        folder: Path,
        segment_bytes: int,
        index_segment_bytes: int,
        door: Door,
        boot_id: bytes,
        store_id: bytes,
        findings: FindingLog,
    ) -> None:
        self.folder, self.data, self.index = folder, folder / "data", folder / "index"
        self.segment_bytes, self.index_segment_bytes = segment_bytes, index_segment_bytes
        self.door = door
        self.boot_id = boot_id
        self.findings = findings
        self.found: list[Finding] = []
        self.memberships: tuple[int, ...] = ()
        self.rewritten_units = 0
        old = LedgerMark.load(folder)
        if old is not None and (old.segment_bytes, old.index_segment_bytes) != (segment_bytes, index_segment_bytes):
            was = f"segments of {old.segment_bytes} and {old.index_segment_bytes} bytes"
            raise LedgerError(folder, f"the log was created with {was}, not {segment_bytes} and {index_segment_bytes}")
        self.had_mark = old is not None
        self.mark = old or LedgerMark(segment_bytes, index_segment_bytes, store_id)
        # If one of the boot ids is unknown, it is unknown whether the cache was lost.
        self.power_lost = old is not None and (old.boot_id != boot_id or boot_id == NO_BOOT_ID)

    def run(self) -> RecoveredLedger:
        clean = Flags.CLEAN in self.mark.flags
        last_boot_id = self.mark.boot_id
        self._finish_reset()
        self._finish_cut()
        if Flags.REINDEX in self.mark.flags:
            # The index in the cache may differ from the disk for good: files that were never synced must be created
            # again.
            for path in segments_from(self.index, 0):
                remove(self.door, path)
        with self._data_files() as data:
            base, start, from_mark = self._start(data)
            if not from_mark:
                self._remove_useless_index(base.index + 1)
            self.memberships = self.mark.memberships if from_mark else ()
            end, damage = self._walk(data, base, start)
            if damage is None:
                self._cut_tail(data, end)
        if self.rewritten_units:
            reason = f"{self.rewritten_units} units differed from the log's entries"
            self._report(FindingKind.REBUILT, self.index, reason)
        self.memberships = tuple(index for index in self.memberships if index <= end.index)
        if not clean or end != start or not from_mark:
            sync_files(self.door, self.data)
        sync_files(self.door, self.index)
        # If the index of a damaged log was to be rebuilt, it now reaches up to the damage, like all that the log shows.
        # A damaged log keeps its old point: the next start must also detect that promised entries are lost.
        synced = self.mark.synced if damage is not None and self.had_mark else end
        self.mark = self.mark.save(
            self.door,
            self.folder,
            # The effects of a power loss behind the damage are judged when the damage is repaired.
            boot_id=self.boot_id if damage is None else last_boot_id,
            flags=Flags.NONE,
            base=base,
            synced=synced,
            memberships=self.memberships,
        )
        clean = clean or (not self.had_mark and end == base)
        return RecoveredLedger(self.mark, base, end, clean, from_mark, start.pos, self.memberships, damage, self.found)

    def _report(self, kind: FindingKind, path: Path, reason: str, *, offset: int = 0, pos: int = -1) -> None:
        finding = Finding(self.findings.name_of(path), offset, reason, kind, pos=pos)
        self.found.append(finding)
        self.findings.report(finding)

    def _report_cut(self, pos: int, reason: str) -> None:
        """Reports that the log's data is truncated from byte `pos` on."""
        offset = pos % self.segment_bytes
        self._report(FindingKind.CUT, self.data / segment_name(pos - offset), reason, offset=offset, pos=pos)

    # -- interrupted changes -------------------------------------------------------------------------------------------

    def _finish_reset(self) -> None:
        if Flags.RESETTING not in self.mark.flags:
            return
        reason = f"an interrupted reset of the log to byte {self.mark.base.pos} was finished"
        self._report(FindingKind.REMOVED, self.folder, reason)
        empty_folders(self.door, self.folder)
        self.mark = self.mark.save(self.door, self.folder, flags=self.mark.flags & Flags.REINDEX)

    def _finish_cut(self) -> None:
        if Flags.CUTTING not in self.mark.flags:
            return
        point = self.mark.synced
        self._report_cut(point.pos, f"an interrupted truncation after entry {point.index} was finished")
        # The files behind this point can have any length, and some can be missing.
        for path in segments_from(self.data, point.pos):
            remove(self.door, path)
        self._zero(self.data, point.pos, self.segment_bytes)
        self._cut_index(point.index + 1)
        sync_files(self.door, self.index)
        self.mark = self.mark.save(self.door, self.folder, flags=self.mark.flags & Flags.REINDEX)

    # -- where the scan begins -----------------------------------------------------------------------------------------

    def _data_files(self) -> SegmentFiles:
        data = SegmentFiles(self.data, self.segment_bytes)
        last = data.starts[-1] if data.starts else -1
        unfinished = [
            path
            for path, _ in data.strange
            if (start := segment_start(path.name)) is not None
            and start > last
            and path.stat().st_size < self.segment_bytes
            and not has_data(path, 0, self.segment_bytes)
        ]
        for path in sorted(unfinished, reverse=True):
            reason = "it is shorter than a segment and empty: its creation was interrupted"
            self._report(FindingKind.REMOVED, path, reason)
            remove(self.door, path)
        wrong = [(path, reason) for path, reason in data.strange if path not in unfinished and path.is_file()]
        if self.had_mark and len(wrong) == 1 and self._is_shortened(wrong[0][0], last):
            # An earlier version truncated a file by shortening it, and restored its length in a second step.
            reason = "a truncation of the log was interrupted: the file gets its full length again"
            self._report(FindingKind.REPAIRED, wrong[0][0], reason)
            self.door.create(wrong[0][0], self.segment_bytes, True)
            self.door.sync(wrong[0][0])
            wrong = []
        for path, reason in wrong:
            raise LedgerError(path, f"{reason}: the log was written with another size")
        data = SegmentFiles(self.data, self.segment_bytes)
        for start in [start for start in data.starts if start + self.segment_bytes <= self.mark.base.pos]:
            self._report(FindingKind.REMOVED, data.path(start), "it is before the log's start", pos=start)
            remove(self.door, data.path(start))
            data.starts.remove(start)
        for start in data.gaps:
            if start in data.starts[1:]:
                raise LedgerError(data.path(start), "the segment before this one is missing")
        return data

    def _is_shortened(self, path: Path, last: int) -> bool:
        start = segment_start(path.name)
        return start is not None and start > last and path.stat().st_size < self.segment_bytes

    def _start(self, data: SegmentFiles) -> tuple[EntryPoint, EntryPoint, bool]:
        """The base, where the scan begins, and whether the mark determined that."""
        base, synced = self.mark.base, self.mark.synced
        if not self.had_mark:
            base = self._base_of(data)
            return base, base, False
        if data.starts and data.first > base.pos:
            raise LedgerError(data.path(data.first), f"the log begins at {base.pos}, but that segment is missing")
        if synced.index == base.index:
            return base, base, True
        reason = "the index is rebuilt" if Flags.REINDEX in self.mark.flags else self._disbelief(data, synced)
        if not reason:
            return base, synced, True
        self._report(FindingKind.MARK, self.folder / MARK_NAME, f"the whole log is read: {reason}", pos=synced.pos)
        return base, base, False

    def _base_of(self, data: SegmentFiles) -> EntryPoint:
        """The base of a log without a mark: its first entry states what came before."""
        if not data.starts:
            return EntryPoint()
        head = data.read(data.first, ENTRY_HEADER_BYTES)
        try:
            first = EntryHeader.decode(head or b"")
        except LedgerFormatError:
            return EntryPoint(pos=data.first)
        return EntryPoint(first.log_index - 1, -1, 0, data.first)

    def _disbelief(self, data: SegmentFiles, point: EntryPoint) -> str:
        """Why the entry before `point` is not the one that the mark names; "" if it is."""
        place, offset = divmod(point.index * UNIT_BYTES, self.index_segment_bytes)
        path = self.index / segment_name(place * self.index_segment_bytes)
        try:
            with path.open("rb") as file:
                file.seek(offset)
                unit = IndexUnit.decode(file.read(UNIT_BYTES))
            header = EntryHeader.decode(data.read(unit.pos, ENTRY_HEADER_BYTES) or b"")
        except (OSError, LedgerFormatError) as error:
            return f"cannot find entry {point.index}: {error}"
        if IndexUnit.of(header) != unit or header.log_index != point.index:
            return f"entry {point.index} differs between index and data"
        if (header.term, header.chain_crc) != (point.term, point.chain):
            return f"entry {point.index} differs from the one in the mark"
        end = header.pos + header.size
        if point.pos != end and point.pos != -(-end // self.segment_bytes) * self.segment_bytes:
            return f"entry {point.index} ends at {end}, not at {point.pos}"
        return ""

    # -- the scan ------------------------------------------------------------------------------------------------------

    def _walk(self, data: SegmentFiles, base: EntryPoint, start: EntryPoint) -> tuple[EntryPoint, Damage | None]:
        # Only a mark knows the entry before the base.
        chain = start.chain if self.had_mark or start.index < 0 else None
        point, pos = start, start.pos
        while True:
            walked = walk_entries(
                self.data, self.segment_bytes, pos, point.index + 1, point.term, chain, _ENTRIES_A_TURN
            )
            if walked.next_index > point.index + 1:
                self._check_units(point.index + 1, walked.units)
                found = [index for index, kind, _, _ in walked.special if kind == EntryKind.MEMBERSHIP]
                self.memberships = newest_memberships(self.memberships, found)
                point = EntryPoint(
                    walked.next_index - 1,
                    walked.last_term,
                    walked.last_chain,
                    walked.end,
                    walked.last_store_timestamp_ms,
                )
                chain = walked.last_chain
            pos = walked.pos
            if walked.done:
                return point, self._judge(data, walked, point)

    def _judge(self, data: SegmentFiles, walked: WalkedEntries, end: EntryPoint) -> Damage | None:
        """Decides whether the log ends at `end` or is damaged there."""
        reason = walked.stopped or "the files end"
        synced = self.mark.synced
        behind = find_entry(self.data, self.segment_bytes, walked.pos, end.index + 1, _SEARCH_BYTES)
        if self.had_mark and end.index < synced.index:
            next_index = behind[1] if behind is not None else synced.index
            return Damage(end.index + 1, walked.pos, reason, next_index)
        if behind is None and reason == UNREADABLE:
            # There may be entries that this member has acknowledged: it must not count for them.
            return Damage(end.index + 1, walked.pos, reason, end.index + 1)
        if behind is None:
            complete = self.had_mark and not self._may_be_torn(data, walked.pos)
            return Damage(end.index + 1, walked.pos, reason, end.index + 1, at_end=True) if complete else None
        lost_sector = (
            self.power_lost and walked.pos >= synced.pos and self._has_lost_sector(data, walked.pos, behind[0])
        )
        return Damage(end.index + 1, walked.pos, reason, behind[1], lost_sector)

    def _has_lost_sector(self, data: SegmentFiles, pos: int, behind: int) -> bool:
        """Whether a sector of [pos, behind) was never written: it is all zeros from where an entry's magic would be."""
        begin = pos
        while begin < behind:
            end = begin - begin % _SECTOR_BYTES + _SECTOR_BYTES
            part = data.read(begin, end - begin) if end <= behind else None
            if part is not None and len(part) >= 4 and not any(part):
                return True
            begin = end
        return False

    def _may_be_torn(self, data: SegmentFiles, pos: int) -> bool:
        """Whether zeros stand where a part of the entry at `pos` would be. A kill leaves the entry's first bytes, and a
        loss of power any of its sectors. Neither leaves other bytes than those that were written."""
        left = self.segment_bytes - pos % self.segment_bytes
        head = data.read(pos, min(ENTRY_HEADER_BYTES, left)) or b""
        try:
            size = EntryHeader.decode(head).size
        except LedgerFormatError:
            size = len(head)
        entry = data.read(pos, min(size, left)) or b"\0"
        sectors = [0, *range(_SECTOR_BYTES - pos % _SECTOR_BYTES, len(entry), _SECTOR_BYTES), len(entry)]
        return entry[-1] == 0 or any(not any(entry[begin:end]) for begin, end in pairwise(sectors))

    # -- the index -----------------------------------------------------------------------------------------------------

    def _check_units(self, first: int, units: bytes) -> None:
        """Rewrites units of the index, from entry `first` on, that differ from the data."""
        at, place = 0, first * UNIT_BYTES
        while at < len(units):
            start = place - place % self.index_segment_bytes
            part = units[at : at + start + self.index_segment_bytes - place]
            path = self.index / segment_name(start)
            if not path.is_file() or path.stat().st_size != self.index_segment_bytes:
                self.door.create(path, self.index_segment_bytes, True)
            with path.open("rb") as file:
                file.seek(place - start)
                have = file.read(len(part))
            if have != part:
                self.door.write(path, place - start, part)
                pairs = zip(range(0, len(part), UNIT_BYTES), range(0, len(have), UNIT_BYTES), strict=True)
                self.rewritten_units += sum(part[a : a + UNIT_BYTES] != have[b : b + UNIT_BYTES] for a, b in pairs)
            at += len(part)
            place += len(part)

    def _remove_useless_index(self, first: int) -> None:
        """Removes index files that are too long to be written to, and those below the first entry."""
        for path in sorted(self.index.iterdir() if self.index.is_dir() else ()):
            start = segment_start(path.name)
            too_long = path.stat().st_size > self.index_segment_bytes
            if start is not None and (too_long or start + self.index_segment_bytes <= first * UNIT_BYTES):
                self._report(FindingKind.REMOVED, path, "it does not belong to the index of this log")
                remove(self.door, path)

    def _cut_index(self, first: int) -> None:
        """Removes the units from entry `first` on."""
        for path in segments_from(self.index, first * UNIT_BYTES):
            remove(self.door, path)
        self._zero(self.index, first * UNIT_BYTES, self.index_segment_bytes)

    # -- the tail ------------------------------------------------------------------------------------------------------

    def _cut_tail(self, data: SegmentFiles, end: EntryPoint) -> None:
        """Leaves only zeros behind the end. Later segments are removed, the last one first, so that no gap can
        remain."""
        for start in reversed(data.starts):
            if start > end.pos or (start == end.pos and end.index < 0):
                if has_data(data.path(start), 0, len(_ZEROS)):
                    self._report_cut(start, "the file begins after the log's end")
                remove(self.door, data.path(start))
        # The process writes in order: after a kill only a torn entry can be behind the end. A power loss keeps no
        # order. (Reading a gigabyte of allocated blocks that were never written takes seconds.)
        whole = self.power_lost or not self.had_mark
        if self._zero(self.data, end.pos, self.segment_bytes, self.segment_bytes if whole else _SEARCH_BYTES):
            self._report_cut(end.pos, "the bytes after the log's end are not a complete entry; they are set to zero")
        self._cut_index(end.index + 1)

    def _zero(self, folder: Path, pos: int, file_bytes: int, limit: int | None = None) -> bool:
        """Durably writes zeros from byte `pos` to the end of its file, if `limit` bytes contain data; whether it
        did."""
        start = pos - pos % file_bytes
        path = folder / segment_name(start)
        if not path.is_file() or not has_data(path, pos - start, limit or file_bytes):
            return False
        zero_behind(self.door, path, pos - start)
        return True


_ENTRIES_A_TURN = 1 << 16


def segments_from(folder: Path, pos: int) -> list[Path]:
    """Segment files that begin at or behind `pos`, last one first, of any length."""
    paths = folder.iterdir() if folder.is_dir() else ()
    found = [path for path in paths if (start := segment_start(path.name)) is not None and start >= pos]
    return sorted(found, reverse=True)


def remove(door: Door, path: Path) -> None:
    """Durably removes a file."""
    door.remove(path)
    door.sync_dir(path.parent)


def empty_folders(door: Door, folder: Path) -> None:
    """Removes all data and index files of the log in `folder`."""
    for part in ("data", "index"):
        for path in segments_from(folder / part, 0):
            remove(door, path)
