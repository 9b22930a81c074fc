"""Finds the end of a log in dledger's layout after a stop of any kind, and makes its files whole again.

1. What a crash left half done is finished first: a reset, a cut (see `mark`).
2. The walk begins at the mark's synced point, or, without a mark that is believed, at the first entry: then all of the
   log is read once. Every entry is checked with its CRCs; index units that differ from the data are written anew.
3. Where the next entry should be and none is, the log ends, if what lies there can be what a stop leaves (D8):
   - nothing sound follows, and the place is behind the synced point: a torn or unwritten tail. It is cut, to zeros;
   - something sound follows, the machine lost its power since, and a disk sector between the two was never written: no
     sync covered this place, so none covered what follows, and nobody was told that it is safe. It is cut as well;
   - anything else is damage. Nothing is changed then: the log is whole up to there, and what is behind can be written
     again with a peer's bytes (`Ledger.rewrite`) or given up by a decision (`Ledger.truncate`), never in silence.
4. What a killed process left in the cache is synced before anything of it counts as durable.

Unlike dledger, which checks no body and cuts at the first entry that it does not like (dledger 0.2.2,
DLedgerMmapFileStore.recover). A log that dledger wrote has no mark and no CRCs: it is read whole, once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.replication.ledger.mark import FILE_NAME as MARK_NAME
from tallystick.replication.ledger.mark import EntryPoint, Flags, LedgerMark, newest_memberships
from tallystick.store._kernel import find_entry, walk_entries
from tallystick.store.finding_log import FindingLog
from tallystick.store.findings import Finding, FindingKind
from tallystick.store.inherited import sync_files
from tallystick.store.ledger_format import (
    ENTRY_HEADER_BYTES,
    UNIT_BYTES,
    EntryHeader,
    EntryKind,
    IndexUnit,
    LedgerFormatError,
)
from tallystick.store.mapped import UNREADABLE
from tallystick.store.progress import NO_BOOT_ID
from tallystick.store.segment_files import SegmentFiles, has_data, segment_name, segment_start
from tallystick.store.zeroing import zero_behind

if TYPE_CHECKING:
    from tallystick.store._kernel import Door, WalkedEntries

_UNWRITTEN = "unwritten"
_SECTOR_BYTES = 512
# An entry that follows a broken one begins within the largest entry and a segment's filler; a hole that power loss made
# may be wider, but then nothing behind it counts either.
_SEARCH_BYTES = 16 << 20
_ZEROS = bytes(1 << 16)


class LedgerError(Exception):
    """The log cannot be opened as it is, and nothing was changed; `path` is the file or folder that is the reason."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path


@dataclass(frozen=True, slots=True)
class Damage:
    """The entry `index`, which should be at `pos`, is not there as it was; `next_index`: of a sound one behind it, or
    of the last one known to have been durable."""

    index: int
    pos: int
    reason: str
    next_index: int


@dataclass(slots=True)
class RecoveredLedger:
    """What recovery found and did."""

    mark: LedgerMark
    """As saved at the end of recovery: flags, base, the synced point (all that was found)."""
    base: EntryPoint
    end: EntryPoint
    """Behind the last sound entry."""
    clean: bool
    """The last stop was in order."""
    from_mark: bool = False
    walked_from: int = 0
    """The walk over the log began at this byte."""
    memberships: tuple[int, ...] = ()
    damage: Damage | None = None
    findings: list[Finding] = field(default_factory=list)
    """What was wrong, and what was done about it, in the order of events; `damage` is not among them."""


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
    """Brings the log in `folder` (with `data/` and `index/`) into order; see the module's head. Blocks.

    `boot_id`: of this start of the machine. `store_id`: of a log that has no mark yet; the mark's own otherwise.
    `findings`: gets each finding at once, also those before an error.
    LedgerError, OSError.
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
            raise LedgerError(folder, f"the log was made with {was}, not {segment_bytes} and {index_segment_bytes}")
        self.had_mark = old is not None
        self.mark = old or LedgerMark(segment_bytes, index_segment_bytes, store_id)
        # Without a boot id on either side nobody knows whether the cache was lost.
        self.power_lost = old is not None and (old.boot_id != boot_id or boot_id == NO_BOOT_ID)

    def run(self) -> RecoveredLedger:
        clean = Flags.CLEAN in self.mark.flags
        last_boot_id = self.mark.boot_id
        self._finish_reset()
        self._finish_cut()
        if Flags.REINDEX in self.mark.flags:
            # What is read of it may be in the cache only, for good: a file that was never synced has to be new.
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
        # (A damaged log that was to be indexed again has an index up to the damage now: all that it shows.)
        # A damaged log keeps its old point: what it promised was lost, and has to be missed by the next start, too.
        synced = self.mark.synced if damage is not None and self.had_mark else end
        self.mark = self.mark.save(
            self.door,
            self.folder,
            # What a power loss left behind the damage is judged when that is mended.
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
        """Of the log's data, from byte `pos` on."""
        offset = pos % self.segment_bytes
        self._report(FindingKind.CUT, self.data / segment_name(pos - offset), reason, offset=offset, pos=pos)

    # -- what was interrupted ------------------------------------------------------------------------------------------

    def _finish_reset(self) -> None:
        if Flags.RESETTING not in self.mark.flags:
            return
        reason = f"the log was reset to begin at byte {self.mark.base.pos}, and that had not finished"
        self._report(FindingKind.REMOVED, self.folder, reason)
        empty_folders(self.door, self.folder)
        self.mark = self.mark.save(self.door, self.folder, flags=self.mark.flags & Flags.REINDEX)

    def _finish_cut(self) -> None:
        if Flags.CUTTING not in self.mark.flags:
            return
        point = self.mark.synced
        self._report_cut(point.pos, f"the log was cut behind entry {point.index}, and that had not finished")
        # The files behind the cut may be of any length, and some of them missing.
        for path in segments_from(self.data, point.pos):
            remove(self.door, path)
        self._zero(self.data, point.pos, self.segment_bytes)
        self._cut_index(point.index + 1)
        sync_files(self.door, self.index)
        self.mark = self.mark.save(self.door, self.folder, flags=self.mark.flags & Flags.REINDEX)

    # -- where to begin ------------------------------------------------------------------------------------------------

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
            reason = "it is shorter than a segment and empty: it was being made"
            self._report(FindingKind.REMOVED, path, reason)
            remove(self.door, path)
        wrong = [(path, reason) for path, reason in data.strange if path not in unfinished and path.is_file()]
        if self.had_mark and len(wrong) == 1 and self._is_shortened(wrong[0][0], last):
            # A version before this one cut a file by shortening it, and gave it its length back in a second step.
            reason = "a cut of the log had not finished: the file gets its full length again"
            self._report(FindingKind.REPAIRED, wrong[0][0], reason)
            self.door.create(wrong[0][0], self.segment_bytes, True)
            self.door.sync(wrong[0][0])
            wrong = []
        for path, reason in wrong:
            raise LedgerError(path, f"{reason}: that is not what the log was written with")
        data = SegmentFiles(self.data, self.segment_bytes)
        for start in [start for start in data.starts if start + self.segment_bytes <= self.mark.base.pos]:
            self._report(FindingKind.REMOVED, data.path(start), "it lies before the log's beginning", pos=start)
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
        """The base, where the walk begins, and whether the mark says so."""
        base, synced = self.mark.base, self.mark.synced
        if not self.had_mark:
            base = self._base_of(data)
            return base, base, False
        if data.starts and data.first > base.pos:
            raise LedgerError(data.path(data.first), f"the log begins at {base.pos}, and that segment is missing")
        if synced.index == base.index:
            return base, base, True
        reason = "the index is made again" if Flags.REINDEX in self.mark.flags else self._disbelief(data, synced)
        if not reason:
            return base, synced, True
        self._report(FindingKind.MARK, self.folder / MARK_NAME, f"all of the log is read: {reason}", pos=synced.pos)
        return base, base, False

    def _base_of(self, data: SegmentFiles) -> EntryPoint:
        """Of a log that has no mark: its first entry says what came before."""
        if not data.starts:
            return EntryPoint()
        head = data.read(data.first, ENTRY_HEADER_BYTES)
        try:
            first = EntryHeader.decode(head or b"")
        except LedgerFormatError:
            return EntryPoint(pos=data.first)
        return EntryPoint(first.log_index - 1, -1, 0, data.first)

    def _disbelief(self, data: SegmentFiles, point: EntryPoint) -> str:
        """Why the entry before `point` is not the one that the mark names; "": it is."""
        place, offset = divmod(point.index * UNIT_BYTES, self.index_segment_bytes)
        path = self.index / segment_name(place * self.index_segment_bytes)
        try:
            with path.open("rb") as file:
                file.seek(offset)
                unit = IndexUnit.decode(file.read(UNIT_BYTES))
            header = EntryHeader.decode(data.read(unit.pos, ENTRY_HEADER_BYTES) or b"")
        except (OSError, LedgerFormatError) as error:
            return f"entry {point.index} is not found: {error}"
        if IndexUnit.of(header) != unit or header.log_index != point.index:
            return f"the index has another entry {point.index} than the data"
        if (header.term, header.chain_crc) != (point.term, point.chain):
            return f"entry {point.index} is another one than it was"
        end = header.pos + header.size
        if point.pos != end and point.pos != -(-end // self.segment_bytes) * self.segment_bytes:
            return f"entry {point.index} ends at {end}, not at {point.pos}"
        return ""

    # -- the walk ------------------------------------------------------------------------------------------------------

    def _walk(self, data: SegmentFiles, base: EntryPoint, start: EntryPoint) -> tuple[EntryPoint, Damage | None]:
        # The entry before the base is known only if a mark told of it.
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
        """Whether the log ends at `end`, or is damaged there."""
        reason = walked.stopped or "the files end"
        synced = self.mark.synced
        behind = find_entry(self.data, self.segment_bytes, walked.pos, end.index + 1, _SEARCH_BYTES)
        if self.had_mark and end.index < synced.index:
            next_index = behind[1] if behind is not None else synced.index
            return Damage(end.index + 1, walked.pos, reason, next_index)
        if behind is None and reason == UNREADABLE:
            # Entries may stand there that this member has acknowledged: it must not count for them.
            return Damage(end.index + 1, walked.pos, reason, end.index + 1)
        if behind is None:
            return None
        if self.power_lost and walked.pos >= synced.pos and self._has_lost_sector(data, walked.pos, behind[0]):
            reason = f"{reason}: the machine lost power before this was durable, and so before what follows was"
            self._report_cut(walked.pos, reason)
            return None
        return Damage(end.index + 1, walked.pos, reason, behind[1])

    def _has_lost_sector(self, data: SegmentFiles, pos: int, behind: int) -> bool:
        """A sector of [pos, behind) was never written: it is zeros, from where an entry's magic would stand on."""
        begin = pos
        while begin < behind:
            end = begin - begin % _SECTOR_BYTES + _SECTOR_BYTES
            part = data.read(begin, end - begin) if end <= behind else None
            if part is not None and len(part) >= 4 and not any(part):
                return True
            begin = end
        return False

    # -- the index -----------------------------------------------------------------------------------------------------

    def _check_units(self, first: int, units: bytes) -> None:
        """Makes the index say what the data says of the entries from `first` on."""
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
        """Removes index files that are too long to be written into, and those below the first entry."""
        for path in sorted(self.index.iterdir() if self.index.is_dir() else ()):
            start = segment_start(path.name)
            too_long = path.stat().st_size > self.index_segment_bytes
            if start is not None and (too_long or start + self.index_segment_bytes <= first * UNIT_BYTES):
                self._report(FindingKind.REMOVED, path, "it is no part of the index of this log")
                remove(self.door, path)

    def _cut_index(self, first: int) -> None:
        """No units from entry `first` on."""
        for path in segments_from(self.index, first * UNIT_BYTES):
            remove(self.door, path)
        self._zero(self.index, first * UNIT_BYTES, self.index_segment_bytes)

    # -- the tail ------------------------------------------------------------------------------------------------------

    def _cut_tail(self, data: SegmentFiles, end: EntryPoint) -> None:
        """Nothing but zeros behind the end; later segments go, from the last one on, so that no gap can be left."""
        for start in reversed(data.starts):
            if start > end.pos or (start == end.pos and end.index < 0):
                if has_data(data.path(start), 0, len(_ZEROS)):
                    self._report_cut(start, "the file lies behind the log's end")
                remove(self.door, data.path(start))
        # The process writes in order: after its death a torn entry is all that can stand behind the end. Power loss
        # keeps no order. (Reading a gigabyte of allocated blocks that were never written takes seconds.)
        whole = self.power_lost or not self.had_mark
        if self._zero(self.data, end.pos, self.segment_bytes, self.segment_bytes if whole else _SEARCH_BYTES):
            self._report_cut(end.pos, "the bytes behind the log's end are no whole entry; they are zeroed")
        self._cut_index(end.index + 1)

    def _zero(self, folder: Path, pos: int, file_bytes: int, limit: int | None = None) -> bool:
        """Zeroes the file that holds byte `pos` from there on, if there is anything in `limit` bytes; durably."""
        start = pos - pos % file_bytes
        path = folder / segment_name(start)
        if not path.is_file() or not has_data(path, pos - start, limit or file_bytes):
            return False
        zero_behind(self.door, path, pos - start)
        return True


_ENTRIES_A_TURN = 1 << 16


def segments_from(folder: Path, pos: int) -> list[Path]:
    """Segment files that begin at or behind `pos`, last one first, of whatever length."""
    paths = folder.iterdir() if folder.is_dir() else ()
    found = [path for path in paths if (start := segment_start(path.name)) is not None and start >= pos]
    return sorted(found, reverse=True)


def remove(door: Door, path: Path) -> None:
    """Removes a file, durably."""
    door.remove(path)
    door.sync_dir(path.parent)


def empty_folders(door: Door, folder: Path) -> None:
    """Removes all data and index of the log in `folder`."""
    for part in ("data", "index"):
        for path in segments_from(folder / part, 0):
            remove(door, path)
