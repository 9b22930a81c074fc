"""Finds the end of the log after any kind of stop, and makes the derived files agree with the log.

There are two procedures. The short one continues from the progress mark (`progress`): it truncates the queues at the
mark's position, and reads and dispatches the log from there. Without a valid mark, recovery follows RocketMQ's steps:

1. The file `abort` tells whether the last stop was a clean shutdown.
2. Index: after a kill, files newer than the checkpoint's index time are removed. (RocketMQ never rebuilds the early
part
   of a removed file; tallystick builds the index again from where the file began.)
3. Each queue finds its own end; M is the greatest log position in any queue.
4. The log. After a clean shutdown, its last three segments are checked record by record. After a kill, the walk starts
   at the newest segment whose first record is durable everywhere according to the checkpoint. It dispatches the
   records; queues and index ignore records that they already have.
5. Everything behind the end is truncated: later segments are removed, and units of records at or behind the end too.
6. Queues determine their min offsets from the log's first segment.
7. The log is dispatched from M to its end.

The log ends where the walk finds bytes that are not a record, as in RocketMQ; mostly this is a torn last write. But if
a sound and durable record follows that the queues contain, the log was damaged later. Then nothing is truncated:
recovery reports the damage with its place, the walk continues behind it, and damaged records are never served. The same
applies below the position in the progress mark or in the table of queues' ends, whatever follows: the log was written
up to there, so bytes that are not a record are damage. The log does not end before that position, even if all bytes
behind it are zeros.

Unlike RocketMQ, recovery zeroes the truncated part of a segment. Otherwise a new record could end just where an old one
begins, and the next recovery would accept the old one. A log that lacks a segment in its middle is refused, not
truncated.

Source: DefaultMessageStore.load, CommitLog.recoverNormally / recoverAbnormally of RocketMQ 4.8.0; DLedger's logs always
are recovered as after a clean shutdown (DLedgerCommitLog.recover).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.store import _kernel
from tallystick.store.engine.queue_recovery import QueueRecovery, Suspect
from tallystick.store.engine.read_ahead import read_ahead
from tallystick.store.engine.written_end import mark_end, written_end
from tallystick.store.engine.zeroing import zero_behind
from tallystick.store.finding_log import FindingLog
from tallystick.store.findings import Finding, FindingKind
from tallystick.store.formats.checkpoint import StoreCheckpoint
from tallystick.store.formats.derive import has_queue_unit
from tallystick.store.formats.ledger_format import ENTRY_HEADER_BYTES
from tallystick.store.formats.log_walk import Step, damaged_record, durable_segment, resync
from tallystick.store.formats.mapped import UNREADABLE
from tallystick.store.formats.progress import FILE_NAME as MARK_NAME
from tallystick.store.formats.progress import Geometry, Point, ProgressMark
from tallystick.store.formats.queue_geometry import size_of_another_setting
from tallystick.store.formats.segment_files import SegmentFiles, has_data
from tallystick.store.settings import StoreSettings

if TYPE_CHECKING:
    from tallystick.store._kernel import Dispatch, Door, Stray

# One call of the kernel: about a tenth of a second without the GIL.
_RUN_BYTES = 64 << 20
_UNWRITTEN = "unwritten"
_ZEROS = bytes(1 << 16)
# A damaged acknowledged record looks the same as a write that was not synced when the power failed.
_AFTER_RESTART = (
    "; the machine was restarted after these bytes were written. If it lost power, this can be a write that had not "
    "reached the disk and was not acknowledged with SYNC_FLUSH"
)


class RecoveryError(Exception):
    """The store cannot be opened in its state, and nothing was changed. `path`: the file or folder with the fault."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path


@dataclass(slots=True)
class Recovered:
    """What recovery found and did. Positions are bytes in the log."""

    min_pos: int = 0
    end_pos: int = 0
    """Appends continue here."""
    clean: bool = True
    """Whether the last stop was a clean shutdown."""
    from_mark: bool = False
    """Whether the progress mark was used."""
    start_pos: int = 0
    """The walk over the log began here."""
    dispatched_from: int = 0
    """Dispatch continued from here after recovery."""
    records: int = 0
    """Number of records that the walk read."""
    store_timestamp_ms: int = 0
    """Store time of the log's last record; 0 if unknown."""
    committed_pos: int = 0
    """For a replicated log: everything up to here is committed and dispatched."""
    findings: list[Finding] = field(default_factory=list)
    """All faults, and how recovery handled them, in order."""

    def damaged_ranges(self) -> list[tuple[int, int]]:
        """Damaged ranges of the log that dispatch skipped: first byte and end of each."""
        found = (finding for finding in self.findings if finding.kind is FindingKind.DAMAGE and finding.pos >= 0)
        return sorted({(finding.pos, finding.pos + max(1, finding.size)) for finding in found})


@dataclass(frozen=True, slots=True)
class Suspects:
    """Derived files that a check of the whole store found damaged. They are rebuilt from the log even if a start
    would not notice the damage."""

    queues: Mapping[tuple[bytes, int], Suspect] = field(default_factory=dict)
    """By topic and queue id."""
    index_from: str = ""
    """The first damaged index file; it and all later ones are rebuilt. "" if all are sound."""


@dataclass(frozen=True, slots=True)
class KeptLog:
    """A replicated log. It is recovered already; only its derived files are recovered here."""

    end_pos: int
    committed_pos: int
    """It was committed at least up to here, and so was everything that was dispatched."""


def log_layout(root: Path, settings: StoreSettings) -> tuple[Path, int]:
    """Where the log's segments are, and how many bytes precede each record there (dledger's layout: 48)."""
    if settings.enableDLegerCommitLog:
        return root / f"dledger-{settings.dLegerSelfId}" / "data", ENTRY_HEADER_BYTES
    return settings.commit_log_folder, 0


def open_dispatch(
    door: Door,
    root: Path,
    log_folder: Path,
    settings: StoreSettings,
    entry_header_bytes: int,
) -> Dispatch:
    """The queues and the index in `root` for the log in `log_folder`. Neither is read yet."""
    return _kernel.Dispatch(
        door,
        str(root),
        str(log_folder),
        log_segment_bytes=settings.mappedFileSizeCommitLog,
        queue_segment_bytes=settings.queue_segment_bytes,
        index_slots=settings.maxHashSlotNum,
        index_entries=settings.maxIndexNum,
        index_enabled=settings.messageIndexEnable,
        delay_ms=settings.delay_levels_ms(),
        max_open_files=settings.maxOpenQueueFiles,
        entry_header_bytes=entry_header_bytes,
        ext_segment_bytes=settings.mappedFileSizeConsumeQueueExt if settings.enableConsumeQueueExt else 0,
    )


def geometry_of(settings: StoreSettings) -> Geometry:
    """The file sizes that a progress mark depends on."""
    return Geometry(
        settings.mappedFileSizeCommitLog,
        settings.queue_segment_bytes,
        settings.maxHashSlotNum,
        settings.maxIndexNum,
        ENTRY_HEADER_BYTES if settings.enableDLegerCommitLog else 0,
    )


def recover(
    root: Path,
    settings: StoreSettings,
    dispatch: Dispatch,
    door: Door,
    *,
    clean: bool | None = None,
    on_loaded: Callable[[Recovered], None] | None = None,
    kept: KeptLog | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    findings: FindingLog | None = None,
    suspects: Suspects | None = None,
) -> Recovered:
    """Recovers the store in `root` and dispatches all of its log; see the docstring of the module.

    Blocks: after a kill without a mark perhaps for minutes. `dispatch`: new, not loaded. `clean`: whether the last stop
    was a clean shutdown; None: look for the file `abort`. `on_loaded` is called before the rest of the log is
    dispatched. `kept`: the log is replicated; only its derived files are recovered, from committed records.
    `on_progress(pos, end)` is called regularly with the position of the walk and the position where it will end.
    `findings` gets each finding at once, also those before an error. `suspects`: derived files known to be damaged.
    Raises RecoveryError, OSError or DamageError if the store cannot be opened.
    """
    folder, entry_header_bytes = log_layout(root, settings)
    with SegmentFiles(folder, settings.mappedFileSizeCommitLog) as log:
        clean = not (root / "abort").exists() if clean is None else clean
        findings = findings or FindingLog(root)
        recovery = _Recovery(root, settings, dispatch, door, log, entry_header_bytes, clean, kept, findings)
        if on_progress is not None:
            recovery.on_progress = on_progress
        if suspects is not None:
            recovery.queues.suspects, recovery.queues.suspect_index = suspects.queues, suspects.index_from
        found = recovery.run()
        if on_loaded is not None:
            on_loaded(found)
        recovery.finish()
        dispatch.correct_min_offsets(found.min_pos)
        return found


class _Recovery:
    def __init__(
        self,
        root: Path,
        settings: StoreSettings,
        dispatch: Dispatch,
        door: Door,
        log: SegmentFiles,
        entry_header_bytes: int,
        clean: bool,
        kept: KeptLog | None,
        findings: FindingLog,
    ) -> None:
        self.root = root
        self.settings = settings
        self.dispatch = dispatch
        self.door = door
        self.log = log
        self.entry_header_bytes = entry_header_bytes
        self.kept = kept
        self.findings = findings
        self.checkpoint = StoreCheckpoint.load(root / "checkpoint")
        self.cache_lost = False  # recovery continues from a mark, and the machine was restarted since
        self.known_end = -1  # M: the greatest log position in the queues before anything was truncated
        self.written_end = -1  # the log was written up to here, whatever the files contain there now
        self.rebuilt_index = ""  # the part of a damaged index that dispatch builds again
        self.found = Recovered(clean=clean)
        self.queues = QueueRecovery(root, dispatch, self._report, lambda pos, end: self.on_progress(pos, end))
        self.on_progress: Callable[[int, int], None] = lambda pos, end: None

    def run(self) -> Recovered:
        found = self.found
        if self.kept is None:
            self._check_files()
        mark = ProgressMark.load(self.root)
        if self.kept is None and not self.entry_header_bytes:
            self.written_end = written_end(self.root, self.log.segment_bytes, self.log.end, mark, self.queues.table)
        self._check_queue_size(mark)
        read_ahead(self.root / "consumequeue")
        self.dispatch.load(tolerant=True, tolerant_index=True)
        self.queues.begin()
        if not self.log.starts:
            self._forget_everything()
            return found
        found.min_pos = self.log.first
        if not self._from_mark(mark):
            self._distrust(mark)
            if self.kept is not None:
                self._derive_from(self.kept)
            elif found.clean or self.entry_header_bytes:
                self._after_orderly_stop()
            else:
                self._after_kill()
        if self.kept is None:
            self._cut_log()
        else:
            self._trim_index(self.kept.end_pos)
        self.dispatch.correct_min_offsets(found.min_pos)
        self.dispatch.start(found.dispatched_from)
        return found

    def _report(self, kind: FindingKind, path: Path, reason: str, *, offset: int = 0, size: int = 0) -> None:
        self._keep_finding(Finding(self.findings.name_of(path), offset, reason, kind, size))

    def _report_log(self, kind: FindingKind, pos: int, reason: str, size: int = 0) -> None:
        """Of the log, at byte `pos`."""
        start = self.log.start_of(pos)
        path, offset = (self.log.folder, 0) if start is None else (self.log.path(start), pos - start)
        self._keep_finding(Finding(self.findings.name_of(path), offset, reason, kind, size, pos))

    def _keep_finding(self, finding: Finding) -> None:
        self.found.findings.append(finding)
        self.findings.report(finding)

    # -- files ---------------------------------------------------------------------------------------------------------

    def _check_files(self) -> None:
        for path, reason in self.log.strange:
            if self._is_unfinished(path):
                self._report(FindingKind.REMOVED, path, f"{reason}, and it is empty: its creation was interrupted")
                self._remove(path)
            elif path.is_file():
                raise RecoveryError(
                    path, f"{reason}: mappedFileSizeCommitLog differs from the size with which the log was written"
                )
        for start in self.log.gaps:
            raise RecoveryError(self.log.path(start), "the segment before this one is missing")

    def _check_queue_size(self, mark: ProgressMark | None) -> None:
        """Checks lengths of files. Files of a wrong length are damaged and are rebuilt, unless the setting is
        wrong. An index of another size is rebuilt in any case: the log contains everything."""
        expected = self.settings.queue_segment_bytes
        table = self.queues.table
        known = {
            0 if mark is None else mark.geometry.queue_segment_bytes,
            0 if table is None else table.queue_segment_bytes,
        }
        folder = self.root / "consumequeue"
        if expected in known or not (size := size_of_another_setting(folder, expected)):
            return
        raise RecoveryError(
            folder,
            f"its files have {size} bytes, and mappedFileSizeConsumeQueue asks for {expected}. Set it to {size}; or "
            "remove the folder, and the queues are rebuilt from the log",
        )

    def _is_unfinished(self, path: Path) -> bool:
        """Removes a last segment that is too short because its creation was interrupted: it never had a record."""
        last = not self.log.starts or path.name > self.log.path(self.log.starts[-1]).name
        return (
            path.is_file()
            and last
            and path.stat().st_size < self.log.segment_bytes
            and not has_data(path, 0, self.log.segment_bytes)
        )

    def _forget_everything(self) -> None:
        """Removes queues and index if there is no log: they refer to nothing."""
        if self.dispatch.queues():
            reason = f"there is no log in {self.log.folder}"
            self._report(FindingKind.REMOVED, self.root / "consumequeue", reason)
        self._remove_mark()
        self.dispatch.destroy_queues()
        self.dispatch.drop_index_after(-1)
        if self.kept is not None:
            # A member that installed a snapshot has no entries yet, and its log does not begin at 0.
            self.found.min_pos = self.found.dispatched_from = self.kept.end_pos
            self._keep(self.kept, self.kept.end_pos)
        self.dispatch.start(self.found.dispatched_from)

    def _remove(self, path: Path) -> None:
        self.door.remove(str(path))
        self.door.sync_dir(str(path.parent))

    def _remove_mark(self) -> None:
        # This is the first change: a recovery that is killed must not leave a mark that is valid again by chance.
        if (self.root / MARK_NAME).exists():
            self._remove(self.root / MARK_NAME)

    def _distrust(self, mark: ProgressMark | None) -> None:
        """Makes sure that no start continues from the mark. If this start is killed, the next one can still read from
        it how far the log was written."""
        known = self.kept is None and mark_end(self.root, self.log.segment_bytes, self.log.end, mark) > 0
        if mark is None or not known:
            self._remove_mark()
            return
        for _ in range(2):  # in both slots
            mark = mark.without_anchors()
            mark.save(self.door, self.root)

    # -- the short way -------------------------------------------------------------------------------------------------

    def _from_mark(self, mark: ProgressMark | None) -> bool:
        if mark is None:
            return False
        point, cache_lost, reason = mark.judge(self.root, geometry_of(self.settings), self.log.read)
        if not reason and not self.log.first <= point.pos <= self.log.end:
            reason = f"its position {point.pos} is not in the log"
        if not reason and self.kept is not None and point.pos > self.kept.end_pos:
            reason = f"the log ends at {self.kept.end_pos}, before its position {point.pos}"
        if reason:
            self._report(FindingKind.MARK, self.root / MARK_NAME, reason)
            return False
        self.found.from_mark, self.cache_lost = True, cache_lost
        self._cut_derived(point, cache_lost)
        self.found.store_timestamp_ms = point.store_timestamp_ms
        if self.kept is not None:
            self.found.start_pos = self.found.dispatched_from = point.pos
            self._keep(self.kept, point.pos)
            return True
        self.found.end_pos = self._dispatch_walk(point.pos)
        self.found.dispatched_from = self.found.end_pos
        return True

    def _cut_derived(self, point: Point, cache_lost: bool) -> None:
        """Restores queues and index as of the mark: truncates later units, and builds missing ones again from the
        log."""
        self._recover_queues()
        self.dispatch.truncate_queues(point.pos)
        queues, first = self.queues, self.log.first
        queues.look_at_files(point.pos, doubtful=False)
        queues.look_at_table(first, point.pos)
        queues.remove_broken()
        differs = queues.totals_differ(point)
        if differs and not (queues.broken and queues.table is not None and queues.table.pos == point.pos):
            queues.look_at_files(point.pos, doubtful=True)
            table_pos = -1 if queues.table is None else queues.table.pos
            lacking = sum(row.max_offset > 0 for row in self.dispatch.queues()) + len(queues.broken) < point.queues
            queues.look_at_records(max(first, min(table_pos, point.pos)), point.pos, missing=lacking)
        queues.rebuild(self._dispatch_between, first, point.pos)
        if differs and (differs := queues.totals_differ(point)):
            self._report(
                FindingKind.DAMAGE, self.root / "consumequeue", f"{differs}; the log does not have the missing ones"
            )
        if self.settings.messageIndexEnable:
            self._restore_index(point, cache_lost)

    def _restore_index(self, point: Point, cache_lost: bool) -> None:
        # After a power loss the newest file may be incomplete: only the entries that the mark counted are durable.
        if cache_lost and not self.dispatch.trim_index(point.index_name, point.index_count):
            self.queues.lost_index(self.log.first)  # an older file may be missing, too
            self._index_again(self.dispatch.drop_index_from(point.index_name), point.pos, "its newest file is missing")
            return
        lost_pos, reason = self.queues.lost_index(self.log.first)
        counts = {file.name: file.next_entry for file in self.dispatch.index_files()}
        if lost_pos < 0 and point.index_name and counts.get(point.index_name, -1) < point.index_count:
            what = "has lost entries" if point.index_name in counts else "is missing"
            lost_pos, reason = self.dispatch.drop_index_from(point.index_name), f"file {point.index_name} {what}"
        if lost_pos < 0 and (name := self._behind_a_gap(point)):
            lost_pos, reason = self.dispatch.drop_index_from(name), f"a file before {name} is missing"
        if lost_pos >= 0:
            self._index_again(lost_pos, point.pos, reason)

    def _behind_a_gap(self, point: Point) -> str:
        """Returns the first index file that was created after the mark, and does not continue the one before it; "" if
        there is none. The mark does not count these files, and dispatch adds nothing before the end of the newest."""
        start = max(point.pos, self.log.first)
        for file in self.dispatch.index_files():
            if file.name > point.index_name:
                upto = file.begin_pos - self.entry_header_bytes
                if start < upto and self.dispatch.count_not_indexed(start, upto):
                    return file.name
                start = file.end_pos - self.entry_header_bytes
            elif file.name == point.index_name:
                start = file.end_pos - self.entry_header_bytes
        return ""

    def _index_again(self, pos: int, upto: int, reason: str) -> None:
        start = min(max(pos - self.entry_header_bytes, self.log.first), upto)
        self.dispatch.rebuild([], index=True)
        try:
            self._dispatch_between(start, upto)
        finally:
            self.dispatch.rebuild(None)
        self._report(FindingKind.REBUILT, self.root / "index", f"from byte {start} of the log on; {reason}")

    def _dispatch_between(self, first: int, upto: int) -> None:
        """Dispatches the records in between, and skips damaged ones."""
        self.dispatch.start(first)
        while (pos := self.dispatch.position) < upto:
            self.on_progress(pos, upto)
            # An entry's CRC covers topic, queue and offset too: what it does not vouch for is in no queue until it is
            # repaired.
            result = self.dispatch.run(upto, _RUN_BYTES, self.kept is not None)
            if result.stopped is not None or result.pos == pos:
                step = resync(self.log, result.pos, entry_header_bytes=self.entry_header_bytes)
                if step is None or step.pos >= upto:
                    if result.pos < upto:
                        # Everything here is committed or below the log's end, so it is damage.
                        self._pass_over(result.pos, upto, result.stopped or _UNWRITTEN)
                    return
                self._pass_over(result.pos, step.pos, result.stopped or _UNWRITTEN)

    def _pass_over(self, pos: int, behind: int, reason: str) -> None:
        """Continues behind a damaged range. Queue offsets of the records lost in it are not assigned again."""
        self._report_log(FindingKind.DAMAGE, pos, reason, behind - pos)
        self.dispatch.note_lost(pos, behind - pos)
        # Damaged records whose fields are readable keep their queue offsets.
        place = pos
        while place < behind:
            record = damaged_record(self.log, place, behind, self.entry_header_bytes)
            if record is None:
                break
            size = self.entry_header_bytes + record.size
            self.dispatch.claim_lost(place, size)
            place += size
        self.dispatch.start(behind)

    # -- RocketMQ's way ------------------------------------------------------------------------------------------------

    def _after_orderly_stop(self) -> None:
        dropped_pos = self._drop_index()
        self._recover_queues()
        self.found.start_pos = pos = self.log.starts[max(0, len(self.log.starts) - 3)]
        while True:
            result = _kernel.scan(
                str(self.log.folder),
                self.log.segment_bytes,
                pos,
                self.settings.checkCRCOnRecover,
                self.entry_header_bytes,
            )
            self._count(result.records, result.last_store_timestamp_ms)
            pos = result.end
            if (behind := self._behind_damage(pos, result.stopped)) is None:
                break
            self._pass_over(pos, behind, result.stopped or _UNWRITTEN)
            pos = behind
        self.found.end_pos = pos
        ends = {row[:2]: row.max_offset for row in self.dispatch.queues()}
        self._cut_queues()
        for row in self.dispatch.queues():
            if row.max_offset < ends[row[:2]]:
                self.queues.add(row[:2], f"the units from offset {row.max_offset} on name bytes after the log's end")
        self._set_queues_right(pos)
        known = self._queues_end()
        known = known if dropped_pos is None else min(known, dropped_pos)
        self.found.dispatched_from = max(known, self.found.min_pos, 0)
        self.queues.rebuild(self._dispatch_between, self.log.first, self.found.dispatched_from)

    def _set_queues_right(self, log_end: int) -> None:
        """Checks without a mark: files and table."""
        self.queues.look_at_files(log_end, doubtful=True)
        self.queues.look_at_table(self.log.first, log_end)
        self.queues.remove_broken()

    def _after_kill(self) -> None:
        dropped_pos = self._drop_index()
        self._recover_queues()
        start = self._durable_segment()
        if dropped_pos is not None:
            start = min(start, dropped_pos)
        # A queue that lacks units from before the start of the walk would get later ones at wrong offsets.
        self._set_queues_right(self.log.end)
        self.queues.rebuild(self._dispatch_between, self.log.first, start)
        self.found.end_pos = self._dispatch_walk(start)
        self._cut_queues()
        self._set_queues_right(self.found.end_pos)
        self.queues.rebuild(self._dispatch_between, self.log.first, self.found.end_pos)
        self.found.dispatched_from = self.found.end_pos

    def _derive_from(self, kept: KeptLog) -> None:
        """Continues where the queues end; after a kill from a durable segment on, because queues may end at different
        positions.

        Records in queues are committed, so dispatching them again changes nothing. (RocketMQ takes the greatest end of
        a queue, and loses units that other queues lack.)"""
        dropped_pos = self._drop_index()
        self._recover_queues()
        self.found.end_pos = kept.end_pos
        self._cut_queues()
        self._set_queues_right(kept.end_pos)
        self._keep(kept, self._queues_end())
        known = self._queues_end() if self.found.clean else self._durable_segment()
        known = known if dropped_pos is None else min(known, dropped_pos)
        self.found.start_pos = self.found.dispatched_from = max(known, self.found.min_pos, 0)
        self.queues.rebuild(self._dispatch_between, self.log.first, self.found.dispatched_from)

    def _keep(self, kept: KeptLog, dispatched: int) -> None:
        self.found.end_pos = kept.end_pos
        self.found.committed_pos = min(max(kept.committed_pos, dispatched), kept.end_pos)

    def _drop_index(self) -> int | None:
        """Removes index files that are damaged and, after a kill, those that were not durable. Returns the position in
        the log from which to build the index again; None if nothing was removed."""
        if not self.settings.messageIndexEnable:
            return None
        lost_pos, reason = self.queues.lost_index(self.log.first)
        is_told = True
        if lost_pos < 0 and self.log.starts and not self.dispatch.index_files():
            lost_pos, reason = self.log.first, "all its files are missing"
            # A process that was killed soon after its first message may not have written the first file.
            is_told = self.found.clean or self.checkpoint.index_timestamp_ms > 0
        pos = -1 if self.found.clean else self.dispatch.drop_index_after(self.checkpoint.index_timestamp_ms)
        if lost_pos >= 0:
            pos = lost_pos if pos < 0 else min(pos, lost_pos)
            self.rebuilt_index = f"from byte {pos} of the log on; {reason}" if is_told else ""
        elif pos >= 0:
            reason = f"files that were not durable after a kill are rebuilt from byte {pos} of the log on"
            self._report(FindingKind.REMOVED, self.root / "index", reason)
        return None if pos < 0 else max(pos - self.entry_header_bytes, self.found.min_pos)

    def _durable_segment(self) -> int:
        safe_index = self.settings.messageIndexEnable and self.settings.messageIndexSafe
        limit_ms = self.checkpoint.min_timestamp_index_ms if safe_index else self.checkpoint.min_timestamp_ms
        return durable_segment(self.log, limit_ms, self.entry_header_bytes)

    def _cut_queues(self) -> None:
        if self.known_end >= self.found.end_pos:
            self.dispatch.truncate_queues(self.found.end_pos)

    def _recover_queues(self) -> None:
        self.known_end = self.dispatch.recover_queues()
        self.queues.note_ends()
        self.queues.add_suspects()

    def _queues_end(self) -> int:
        return max((queue.max_pos for queue in self.dispatch.queues()), default=-1)

    # -- the log -------------------------------------------------------------------------------------------------------

    def _dispatch_walk(self, pos: int) -> int:
        """Checks and dispatches records from `pos` on. Returns the log's end."""
        self.found.start_pos = pos
        self.dispatch.start(pos)
        while True:
            self.on_progress(pos, self.log.end)
            result = self.dispatch.run(self.log.end, _RUN_BYTES, self.settings.checkCRCOnRecover)
            self._count(result.records, result.last_store_timestamp_ms)
            if result.stopped is not None or result.pos in (pos, self.log.end):
                behind = self._behind_damage(result.pos, result.stopped)
                if behind is None:
                    return result.pos
                # From a mark the walk begins at what was durable before the restart.
                why = _AFTER_RESTART if self.cache_lost else ""
                self._pass_over(result.pos, behind, (result.stopped or _UNWRITTEN) + why)
            pos = self.dispatch.position

    def finish(self) -> None:
        """Dispatches from `dispatched_from` to the end, skips damaged records, and reports what was rebuilt."""
        end = self.found.end_pos if self.kept is None else self.found.committed_pos
        self._dispatch_between(self.dispatch.position, end)
        complete = self.kept is None and bool(self.log.starts)  # without a log there are no queues either
        for topic, queue, offset, pos, size in self._settle(complete=complete):
            name = topic.decode(errors="backslashreplace")
            reason = f"the record claims offset {offset} of ConsumeQueue {name}/{queue}, and cannot be placed there"
            self._report_log(FindingKind.DAMAGE, pos, reason, size)
        if self.rebuilt_index and self.dispatch.index_files():  # no message may have a key
            self._report(FindingKind.REBUILT, self.root / "index", self.rebuilt_index)

    def _settle(self, *, complete: bool) -> list[Stray]:
        """Places the last records; returns those without a place. A queue whose wrong unit takes a record's place is
        built again."""
        strays, reached = self.queues.finish(complete=complete), self.dispatch.position
        refuted = self.queues.add_refuted(strays)
        if not refuted:
            return strays
        self.queues.begin()
        self.queues.rebuild(self._dispatch_between, self.log.first, reached)
        self.dispatch.start(reached)
        rest = [stray for stray in strays if stray[:2] not in refuted]
        return rest + self.queues.finish(complete=complete)

    def _count(self, records: int, store_timestamp_ms: int) -> None:
        self.found.records += records
        if records:
            self.found.store_timestamp_ms = store_timestamp_ms

    def _behind_damage(self, pos: int, reason: str | None) -> int | None:
        """Where the walk continues if the bytes at `pos` are damage inside the log; None if the log ends there."""
        if pos >= self.log.end:
            return None
        reason = reason or _UNWRITTEN  # the kernel calls zeros at the beginning of a segment no reason
        if pos < self.written_end and reason != UNREADABLE:
            step = resync(self.log, pos, entry_header_bytes=self.entry_header_bytes)
            return self.written_end if step is None else min(step.pos, self.written_end)
        if self.found.clean and self.known_end == pos and reason != UNREADABLE:
            # At the clean shutdown everything was dispatched, and the log ended here: the rest was truncated before.
            step = resync(self.log, pos, entry_header_bytes=self.entry_header_bytes)
            if step is not None:
                text = f"{reason}: the log ended here; sound records from byte {step.pos} on precede a truncation"
                self._report_log(FindingKind.CUT, pos, text)
            return None
        step = resync(self.log, pos, self._belongs_here, entry_header_bytes=self.entry_header_bytes)
        if step is not None:
            return step.pos
        if reason == UNREADABLE:
            # Acknowledged records may be there. Truncation would destroy what the disk may be able to read later.
            start = self.log.start_of(pos)
            path = self.log.folder if start is None else self.log.path(start)
            raise RecoveryError(
                path,
                f"{UNREADABLE} from byte {pos - (start or 0)} on, and the log may continue there; nothing was "
                "truncated. Repair the disk, or copy the store to another disk and decide which records to give up",
            )
        return None

    def _belongs_here(self, step: Step) -> bool:
        """Whether a sound record behind damage belongs to this log, and was not left by an earlier truncation.

        RocketMQ does not erase what it truncates, and overwrites only a part of it. Records that are left are older
        than the new ones, and their queue offsets were assigned again.
        """
        record = step.record
        assert record is not None, "resync gives records only"
        if step.pos + step.size <= self.known_end:
            return True
        if record.store_timestamp_ms < self.found.store_timestamp_ms:
            return False
        if not has_queue_unit(record):
            return True
        _, next_offset = self.dispatch.offsets(record.topic.encode(errors="surrogateescape"), record.queue_id)
        return record.queue_offset >= next_offset

    def _cut_log(self) -> None:
        """Removes the segments behind the end of the log, and zeroes the rest of the last one."""
        end = self.found.end_pos
        self._trim_index(end)
        # Begin with the last one: a power loss must not leave a gap.
        for start in [start for start in reversed(self.log.starts) if start > end]:
            if has_data(self.log.path(start), 0, len(_ZEROS)):  # a record would stand at its begin
                self._report_log(FindingKind.CUT, start, "the file begins after the log's end", self.log.segment_bytes)
            self.dispatch.forget_log_segment(start)
            self._remove(self.log.path(start))
        last = self.log.start_of(end)
        if last is not None:
            self._zero_behind(self.log.path(last), end - last)
            self.dispatch.forget_log_segment(last)

    def _trim_index(self, end: int) -> None:
        if any(file.end_pos >= end for file in self.dispatch.index_files()):
            # RocketMQ leaves such entries; it then adds no new records to the index until they reach this position.
            self.dispatch.trim_index_at(end)
            lost_pos = self.dispatch.drop_index_from("")  # the newest file was damaged where it was truncated
            if lost_pos >= 0:
                self._index_again(lost_pos, self.found.dispatched_from, "its newest file was damaged")

    def _zero_behind(self, path: Path, offset: int) -> None:
        """Zeroes a segment from `offset` on, if there may be any data."""
        # The first read of a gigabyte of allocated blocks takes seconds, even if nothing was ever written to them. The
        # process writes in order, so after a kill there can only be one torn record. A power loss keeps no order.
        limit = self.settings.maxMessageSize + len(_ZEROS) if self.found.from_mark else self.log.segment_bytes
        dirty = has_data(path, offset, limit)
        if dirty:
            reason = "the bytes after the log's end are not a complete record; they are set to zero"
            self._report_log(FindingKind.CUT, self.found.end_pos, reason)
        if dirty or self.cache_lost:
            zero_behind(self.door, path, offset)
