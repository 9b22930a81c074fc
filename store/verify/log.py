"""Checks the log of a store: every byte of it, and in dledger's layout also the entries and their index units."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tallystick.store.findings import Progress, Report
from tallystick.store.formats.derive import has_queue_unit, index_keys
from tallystick.store.formats.ledger_format import UNIT_BYTES, EntryHeader, IndexUnit, LedgerFormatError, chain_crc
from tallystick.store.formats.log_walk import Step, StepKind, resync, walk
from tallystick.store.formats.segment_files import SegmentFiles
from tallystick.store.verify.queues import QueueOfLog

TORN_TAIL = "a torn last write"
LEFT_OVER = "left over after the log's end"
"""Text of notes about bytes behind the log's end; the next start truncates them."""
_PROGRESS_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a log is. `ledger_index`: the folder of dledger's index; None in the plain layout."""

    log: Path
    entry_header_bytes: int = 0
    ledger_index: Path | None = None


class LogCheck:
    """Checks a log, or the part [`begin`, `end`) of it. `end`: None for all of it.

    `known_end`: the greatest end of a record that a queue names. `written_end`: up to where the log was certainly
    written. `repairable_from`: the next start dispatches the log again from here. `before`: in dledger's layout, the
    entry before `begin`. `count_keys`: whether to count the records with keys. `queues`, `first_entry` and `last_entry`
    are results.
    """

    def __init__(
        self,
        log: SegmentFiles,
        layout: Layout,
        report: Report,
        known_end: int,
        repairable_from: int,
        progress: Progress | None = None,
        written_end: int = -1,
        *,
        begin: int | None = None,
        end: int | None = None,
        before: EntryHeader | None = None,
        count_keys: bool = False,
    ) -> None:
        self.log = log
        self.layout = layout
        self.report = report
        self.known_end = known_end
        self.repairable_from = repairable_from
        self.progress = progress
        self.written_end = written_end
        self.begin = log.first if begin is None else begin
        self.end = end
        self.count_keys = count_keys
        self.queues: dict[tuple[str, int], QueueOfLog] = {}
        self.last_entry = before
        self.first_entry: EntryHeader | None = None
        self.records_with_keys = 0

    def run(self) -> dict[tuple[str, int], QueueOfLog]:
        """Returns the records of each queue. Sets the report's end of the log."""
        self.report.end_pos = self.begin
        with SegmentFiles(self.layout.ledger_index or Path("/nonexistent")) as ledger_index:
            pos: int | None = self.begin
            while pos is not None and (self.end is None or pos < self.end):
                pos = self._stretch(pos, ledger_index)
            if self.end is None:
                self._end(ledger_index)
        return self.queues

    def _stretch(self, pos: int, ledger_index: SegmentFiles) -> int | None:
        """Walks to the next damage. Returns where to continue behind it; None at the log's end."""
        next_progress = pos
        for step in walk(self.log, pos, entry_header_bytes=self.layout.entry_header_bytes):
            if self.progress and step.pos >= next_progress:
                self.progress("log", step.pos - self.log.first, self.log.end - self.log.first)
                next_progress = step.pos + _PROGRESS_BYTES
            if self.end is not None and step.pos >= self.end:
                return None
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
        if self.count_keys and index_keys(record, record.property_table()):
            self.records_with_keys += 1
        if has_queue_unit(record):
            queue = self.queues.setdefault((record.topic, record.queue_id), QueueOfLog())
            odd = queue.add(record, step.pos >= self.repairable_from)
            if odd:  # a topic that was removed and created again counts from 0
                self.report.add_note(*self._place(step.pos), f"{record.topic} queue {record.queue_id}: {odd}")

    def _entry(self, entry: EntryHeader, ledger_index: SegmentFiles) -> None:
        report, before = self.report, self.last_entry
        report.ledger_entries += 1
        self.first_entry = self.first_entry or entry
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
            place = ledger_index.path(start), at - start
            report.add_note(*place, f"the unit of entry {entry.log_index} is {unit}", repairable=True)

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
        if self.log.start_of(step.pos) is None:
            reason = "no file has these bytes"
        else:
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
        return (self.log.path(pos), 0) if start is None else (self.log.path(start), pos - start)
