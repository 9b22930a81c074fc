"""Checks the log of a store: every byte of it, and in dledger's layout also the entries and their index units."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tallystick.store import _kernel
from tallystick.store._kernel import QueuesOfLog
from tallystick.store.findings import Progress, Report
from tallystick.store.formats.ledger_format import EntryHeader
from tallystick.store.formats.segment_files import SegmentFiles

TORN_TAIL = "a torn last write"
LEFT_OVER = "left over after the log's end"
"""Text of notes about bytes behind the log's end; the next start truncates them. The kernel writes these notes."""


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
    entry before `begin`. `count_keys`: whether to count the records with keys. `ends` (the first and the last entry, if
    there are entries) and `records_with_keys` are results.
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
        self.before = before
        self.ends: tuple[EntryHeader, EntryHeader] | None = None
        self.records_with_keys = 0

    def run(self) -> QueuesOfLog:
        """Returns the records of each queue. Sets the report's end of the log. OSError."""
        report = self.report
        with SegmentFiles(self.layout.ledger_index or Path("/nonexistent")) as ledger_index:
            checked = _kernel.check_log(
                self.log.for_kernel(),
                self.begin,
                end=self.end,
                entry_header_bytes=self.layout.entry_header_bytes,
                ledger_index=ledger_index.for_kernel(),
                known_end=self.known_end,
                repairable_from=self.repairable_from,
                written_end=self.written_end,
                before=None if self.before is None else self.before.encode(),
                count_keys=self.count_keys,
                progress=self.progress and partial(self.progress, "log"),
            )
        report.take(checked.findings)
        report.records += checked.records
        report.fillers += checked.fillers
        report.ledger_entries += checked.entries
        report.end_pos = checked.end
        report.last_store_timestamp_ms = max(report.last_store_timestamp_ms, checked.last_store_ms)
        self.records_with_keys += checked.records_with_keys
        if checked.first_entry is not None and checked.last_entry is not None:
            self.ends = EntryHeader.decode(checked.first_entry), EntryHeader.decode(checked.last_entry)
        return checked.queues
