"""Checks the files of a store of tallystick or RocketMQ, and reports damage with its place.

The check writes nothing, so it works on read-only media. A store in use can be checked too, but may then show faults at
its moving end. The sizes of files are determined from the files. The order is:

1. the log: every record's magic, sizes, CRC and PHYSICALOFFSET, every filler; with dledger's layout also the entries'
   chain of index and term, their CRCs if they have CRCs, and their index units;
2. the ConsumeQueues: `queues.py`;
3. the index: `index.py`;
4. checkpoint and `abort`;
5. tables and files of progress: `tables.py`.

The report lists as notes, not as damage, what the next start repairs itself: a torn last write, or queues that a killed
process left behind. Bytes behind the last record that are in no queue remain from a torn write or an earlier
truncation.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from pathlib import Path

from tallystick.store import tables
from tallystick.store.engine.restoring import why_incomplete
from tallystick.store.engine.written_end import written_end
from tallystick.store.findings import FindingKind, Progress, Report
from tallystick.store.formats.checkpoint import CHECKPOINT_BYTES, StoreCheckpoint
from tallystick.store.formats.derive import has_queue_unit
from tallystick.store.formats.file_sizes import FileSizes
from tallystick.store.formats.ledger_format import (
    ENTRY_HEADER_BYTES,
    UNIT_BYTES,
    EntryHeader,
    IndexUnit,
    LedgerFormatError,
    chain_crc,
)
from tallystick.store.formats.log_walk import Step, StepKind, durable_segment, resync, walk
from tallystick.store.formats.progress import ProgressMark
from tallystick.store.formats.queue_format import IndexGeometry
from tallystick.store.formats.queue_table import QueueTable
from tallystick.store.formats.segment_files import SegmentFiles
from tallystick.store.verify.index import check_index
from tallystick.store.verify.queues import Derived, QueueOfLog, check_queues, end_known_to_queues
from tallystick.store.verify.tables import table_faults

TORN_TAIL = "a torn last write"
LEFT_OVER = "left over after the log's end"
"""Text of notes about bytes behind the log's end; the next start truncates them."""
_PROGRESS_BYTES = 8 << 20


class VerifyError(Exception):
    """There is no store in the given folder."""


@dataclass(frozen=True, slots=True)
class _Layout:
    log: Path
    entry_header_bytes: int = 0
    ledger_index: Path | None = None


def verify(
    root: Path,
    *,
    log_folder: Path | None = None,
    index_geometry: IndexGeometry | None = None,
    progress: Progress | None = None,
    queue_ends: dict[tuple[str, int], int] | None = None,
    unfinished: bool = False,
) -> Report:
    """Checks the store in `root`. Raises VerifyError if there is no store; OSError if it cannot be read.

    `log_folder`: where the log is if not in the store (storePathCommitLog). `index_geometry`: maxHashSlotNum and
    maxIndexNum, if known; otherwise they are determined from the files or the progress mark. `queue_ends` gets the
    offset behind the last trustworthy unit of each queue. `unfinished`: the caller restores or converts the store.
    """
    if not unfinished and (reason := why_incomplete(root)):
        raise VerifyError(reason)
    sizes = FileSizes.of(root)
    report = Report(str(root), clean=not (root / "abort").exists())
    layout = _layout(root, log_folder)
    report.layout = str(layout.log.relative_to(root)) if layout.log.is_relative_to(root) else str(layout.log)
    checkpoint = StoreCheckpoint.load(root / "checkpoint")
    with SegmentFiles(layout.log, sizes.log_segment_bytes) as log:
        for path, reason in log.strange:
            report.add_damage(path, 0, reason)
        for start in log.gaps:
            report.add_damage(log.path(start), 0, "the segment before this one is missing")
        known_end = end_known_to_queues(root)
        repairable_from = known_end if report.clean else durable_segment(log, checkpoint.min_timestamp_ms, 0)
        if layout.entry_header_bytes:
            repairable_from = known_end  # after any stop, dledger's layout is dispatched from what the queues know
        in_log = _LogCheck(
            log, layout, report, known_end, repairable_from, progress, _written_end(root, log, layout)
        ).run()
        derived = Derived(
            root, log, layout.entry_header_bytes, report, repairable_from, progress, sizes.queue_segment_bytes
        )
        check_queues(derived, in_log, _topics(root))
        check_index(derived, index_geometry or sizes.index, checkpoint.index_timestamp_ms)
        if queue_ends is not None:
            queue_ends |= derived.ends
    _check_checkpoint(root / "checkpoint", checkpoint, report)
    for fault in table_faults(root):
        if fault.kind is FindingKind.DAMAGE:
            report.add_damage(fault.path, 0, fault.reason)
        else:
            report.add_note(fault.path, 0, fault.reason, fault.kind)
    return report


def _layout(root: Path, log_folder: Path | None) -> _Layout:
    if not root.is_dir():
        raise VerifyError(f"{root} is no folder")
    ledgers = sorted(path for path in root.glob("dledger-*/data") if path.is_dir())
    if log_folder is None and len(ledgers) > 1:
        raise VerifyError(f"{root} has more than one dledger folder: {', '.join(path.parent.name for path in ledgers)}")
    folder = log_folder or (ledgers[0] if ledgers else root / "commitlog")
    if not folder.is_dir():
        raise VerifyError(f"{root} is no store: neither commitlog nor dledger-*/data is in it")
    if folder in ledgers:
        return _Layout(folder, ENTRY_HEADER_BYTES, folder.parent / "index")
    return _Layout(folder)


class _LogCheck:
    def __init__(
        self,
        log: SegmentFiles,
        layout: _Layout,
        report: Report,
        known_end: int,
        repairable_from: int,
        progress: Progress | None,
        written_end: int,
    ) -> None:
        self.log = log
        self.layout = layout
        self.report = report
        self.known_end = known_end
        self.repairable_from = repairable_from
        self.progress = progress
        self.written_end = written_end
        self.queues: dict[tuple[str, int], QueueOfLog] = {}
        self.last_entry: EntryHeader | None = None

    def run(self) -> dict[tuple[str, int], QueueOfLog]:
        log, report = self.log, self.report
        report.log_segment_bytes, report.segments = log.segment_bytes, len(log.starts)
        report.min_pos = report.end_pos = log.first
        ledger_index = SegmentFiles(self.layout.ledger_index or Path("/nonexistent"))
        with ledger_index:
            pos: int | None = log.first
            while pos is not None:
                pos = self._stretch(pos, ledger_index)
            self._end(ledger_index)
        return self.queues

    def _stretch(self, pos: int, ledger_index: SegmentFiles) -> int | None:
        """Walks to the next damage. Returns where to continue behind it; None at the log's end."""
        next_progress = pos
        for step in walk(self.log, pos, entry_header_bytes=self.layout.entry_header_bytes):
            if self.progress and step.pos >= next_progress:
                self.progress("log", step.pos - self.log.first, self.log.end - self.log.first)
                next_progress = step.pos + _PROGRESS_BYTES
            if step.kind in (StepKind.END, StepKind.DAMAGE):
                return self._stop(step)
            if step.kind is StepKind.RECORD:
                self._record(step)
            if step.kind is StepKind.FILLER:
                self.report.fillers += 1
            elif step.entry is not None:
                self._entry(step.entry, ledger_index)
            self.report.end_pos = step.pos + step.size
        raise AssertionError("a walk ends with END or DAMAGE")

    def _record(self, step: Step) -> None:
        record = step.record
        assert record is not None, "a RECORD step has one"
        self.report.records += 1
        newest_ms = max(self.report.last_store_timestamp_ms, record.store_timestamp_ms)  # clocks are set back
        self.report.last_store_timestamp_ms = newest_ms
        if has_queue_unit(record):
            queue = self.queues.setdefault((record.topic, record.queue_id), QueueOfLog())
            odd = queue.add(record, step.pos >= self.repairable_from)
            if odd:  # a topic that was removed and created again counts from 0
                self.report.add_note(*self._place(step.pos), f"{record.topic} queue {record.queue_id}: {odd}")

    def _entry(self, entry: EntryHeader, ledger_index: SegmentFiles) -> None:
        report, before = self.report, self.last_entry
        report.ledger_entries += 1
        self.last_entry = entry
        if before is not None and entry.log_index != before.log_index + 1:
            report.add_damage(*self._place(entry.pos), f"entry {entry.log_index} follows entry {before.log_index}")
        if before is not None and entry.term < before.term:
            report.add_damage(*self._place(entry.pos), f"term {entry.term} follows term {before.term}")
        if before is not None and entry.log_index == before.log_index + 1:
            self._chain(entry, before)
        at = entry.log_index * UNIT_BYTES
        data = ledger_index.read(at, UNIT_BYTES)
        start = ledger_index.start_of(at)
        if data is None or start is None:
            report.add_damage(ledger_index.folder, 0, f"there is no file for the unit of entry {entry.log_index}")
            return
        try:
            unit: IndexUnit | None = IndexUnit.decode(data)
        except LedgerFormatError:
            unit = None
        if unit != IndexUnit.of(entry):
            # dledger writes index units again at its next start, from the first one that does not fit.
            report.add_note(ledger_index.path(start), at - start, f"the unit of entry {entry.log_index} is {unit}")

    def _chain(self, entry: EntryHeader, before: EntryHeader) -> None:
        if entry.chain_crc == 0:
            if before.chain_crc:
                reason = f"entry {entry.log_index} has no CRC, and the one before has"
                self.report.add_damage(*self._place(entry.pos), reason)
        elif chain_crc(entry.encode(), before.chain_crc) != entry.chain_crc:
            self.report.add_damage(*self._place(entry.pos), f"the chain CRC of entry {entry.log_index} differs")

    def _stop(self, step: Step) -> int | None:
        behind = resync(self.log, step.pos, entry_header_bytes=self.layout.entry_header_bytes)
        if step.pos < self.written_end and (behind is None or behind.pos >= self.written_end):
            return self._damaged_end(step)
        if step.kind is StepKind.END and behind is None:
            return None
        if behind is None:
            self.report.add_note(*self._place(step.pos), f"{step.reason}: {TORN_TAIL}, the log ends here")
            return None
        if 0 <= self.known_end <= step.pos >= self.written_end:
            self.report.add_note(*self._place(step.pos), f"{LEFT_OVER}: records that no queue knows")
            return None
        reason = step.reason if step.kind is StepKind.DAMAGE else f"{step.reason} bytes between records"
        reason = f"{reason}; the next sound record is at {behind.pos}"
        self.report.add_damage(*self._place(step.pos), reason, size=behind.pos - step.pos, pos=step.pos)
        if self.report.end_pos <= behind.pos:
            self.report.end_pos = behind.pos
        return behind.pos

    def _damaged_end(self, step: Step) -> int:
        """No sound record shows where the damage ends. The log was written up to a known position, and continues
        there."""
        reason = "unwritten bytes" if step.kind is StepKind.END else step.reason
        reason = f"{reason}; the log was written up to {self.written_end}"
        self.report.add_damage(*self._place(step.pos), reason, size=self.written_end - step.pos, pos=step.pos)
        self.report.end_pos = self.written_end
        return self.written_end

    def _end(self, ledger_index: SegmentFiles) -> None:
        """Checks that dledger's index has no unit behind the last entry."""
        if self.last_entry is None:
            return
        at = (self.last_entry.log_index + 1) * UNIT_BYTES
        start = ledger_index.start_of(at)
        data = ledger_index.read(at, UNIT_BYTES)
        if start is not None and data is not None and data.strip(b"\0"):
            place = ledger_index.path(start), at - start
            self.report.add(
                *place, f"a unit follows that of the last entry {self.last_entry.log_index}", repairable=True
            )

    def _place(self, pos: int) -> tuple[Path, int]:
        start = self.log.start_of(pos)
        return (self.log.folder, 0) if start is None else (self.log.path(start), pos - start)


def _written_end(root: Path, log: SegmentFiles, layout: _Layout) -> int:
    if layout.entry_header_bytes:
        return -1
    return written_end(root, log.segment_bytes, log.end, ProgressMark.load(root), QueueTable.load(root))


def _topics(root: Path) -> frozenset[str] | None:
    """Topics of config/topics.json; None if the file does not exist or is not valid."""
    try:
        table = tables.decode((root / "config" / "topics.json").read_bytes())
    except (OSError, tables.DamagedTableError):
        return None
    topics = table.get("topicConfigTable")
    return frozenset(topics) if isinstance(topics, dict) else None


def _check_checkpoint(path: Path, checkpoint: StoreCheckpoint, report: Report) -> None:
    report.checkpoint = {
        "physicMsgTimestamp": checkpoint.physic_timestamp_ms,
        "logicsMsgTimestamp": checkpoint.logics_timestamp_ms,
        "indexMsgTimestamp": checkpoint.index_timestamp_ms,
    }
    try:
        size = path.stat().st_size
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise
        report.add_note(path, 0, "there is no checkpoint")
        return
    if size != CHECKPOINT_BYTES:
        report.add_damage(path, 0, f"has {size} bytes instead of {CHECKPOINT_BYTES}")
    for at, (name, timestamp_ms) in enumerate(report.checkpoint.items()):
        if timestamp_ms < 0:
            report.add_damage(path, 8 * at, f"{name} is {timestamp_ms}")
        elif timestamp_ms > report.last_store_timestamp_ms and report.records:
            reason = (
                f"messages stored until {timestamp_ms} were durable, the log ends at {report.last_store_timestamp_ms}"
            )
            report.add_damage(path, 8 * at, f"{name}: {reason}")
