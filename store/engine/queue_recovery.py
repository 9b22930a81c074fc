"""Finds derived files that do not agree with the log, and builds them again from the log.

A start must be fast with tens of thousands of queues, so it does not compare units with records. It makes cheap checks,
in this order, and reads the log only if one of them fails:

1. the files: their lengths, gaps between them, and a last unit that refers to bytes behind the log's end;
2. the table of ends (`queue_table`): whether each queue begins and ends where the table says;
3. the progress mark: whether the numbers of queues and units are those of the mark;
4. only then the records: whether each record is in its queue.

Wrong queues are removed, and the log is dispatched again to these queues alone. A record contains its queue offset, so
a queue is built correctly even if the log's beginning was deleted. Placeholders replace lost records, so that the
records behind them keep their offsets. A queue without any record left continues at the offset in the table.

Unit n belongs to the record with queue offset n. No CRC covers topic, queue id and queue offset of a record. So a
damaged record can claim the place of another record, or one far ahead. During a recovery the kernel holds back each
record that does not claim its queue's next offset, until the records behind it prove which claims are right
(`queue/hold.rs`). The other records are strays: `finish` returns them, and they are reported as damage of the log.

An offset is never assigned twice: `finish` compares the ends of the queues with the table, and with the ends that the
files had before they were truncated at the mark.

No cheap check finds a wrong unit in the middle of a file. A read, `check_range` or `tally store verify` finds it. If
such a unit takes the place of a record that is dispatched again, the queue is rebuilt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tallystick.store.findings import FindingKind
from tallystick.store.formats.progress import Point, lock_time_ns
from tallystick.store.formats.queue_table import QueueTable

if TYPE_CHECKING:
    from tallystick.store._kernel import Dispatch, Stray

_AUDIT_BYTES = 64 << 20
_MOST_PLACEHOLDERS = 1 << 20
_NONE = (0, 0)

Queue = tuple[bytes, int]
Report = Callable[[FindingKind, Path, str], None]


class Suspect(NamedTuple):
    """A queue that a check found damaged. `end`: the offset behind its last trustworthy unit."""

    reason: str
    end: int = 0


class QueueRecovery:
    """Works on queues that are loaded (`load(tolerant=True)`) and whose ends are known."""

    def __init__(self, root: Path, dispatch: Dispatch, report: Report, on_progress: Callable[[int, int], None]) -> None:
        self.root = root
        self.dispatch = dispatch
        self.report = report
        self.on_progress = on_progress
        table = QueueTable.load(root)
        self.table = table if table is not None and table.lock_ns == lock_time_ns(root) else None
        """None: the file is missing or damaged, or another process opened the store after it was written."""
        self.broken: dict[Queue, str] = {}
        """The queues to build again, each with the reason."""
        self._rebuilt: dict[Queue, str] = {}
        self._ends: dict[Queue, tuple[int, int]] = {}
        self.suspects: Mapping[Queue, Suspect] = {}
        """Queues to build again even if the checks find no fault."""
        self.suspect_index = ""
        """This index file and all later ones are rebuilt even if the checks find no fault. "" if there is no such
        file."""

    def begin(self) -> None:
        """From now on the kernel holds records back until their place is proven."""
        if self.table is None:
            self.dispatch.hold(b"", -1)
        else:
            self.dispatch.hold(self.table.rows, self.table.pos)

    def note_ends(self) -> None:
        """Notes where the queues' files end, before anything is truncated."""
        self._ends = {row[:2]: (row.max_offset, row.max_pos) for row in self.dispatch.queues() if row.max_offset > 0}

    # -- what is wrong -------------------------------------------------------------------------------------------------

    def look_at_files(self, log_end: int, *, doubtful: bool) -> None:
        """Makes the first check. `doubtful`: also report faults that a power loss can leave behind durable data."""
        for fault in self.dispatch.queue_faults(log_end):
            if fault.certain or doubtful:
                self.add((fault.topic, fault.queue), fault.reason)

    def look_at_table(self, log_first: int, log_end: int) -> None:
        """Makes the second check. The queues were truncated at `log_end`; the log begins at `log_first`."""
        table = self.table
        if table is None:
            return
        # A log that ends before the table's position lost its end. Then queues that are short only for this reason are
        # rebuilt without need, but without this check missing queues would stay missing.
        # Files of a queue are deleted only when the log's beginning is. Otherwise the first files are unchanged.
        same_end, same_first = table.pos == log_end, table.log_first == log_first
        for fault in self.dispatch.compare_queues(table.rows, same_end, same_first):
            self.add((fault.topic, fault.queue), fault.reason)

    def totals_differ(self, point: Point) -> str:
        """Makes the third check: returns what differs from the mark, or "". Offsets that `finish` will reserve
        count."""
        ends = {row[:2]: row.max_offset for row in self.dispatch.queues() if row.max_offset > 0}
        if self._rebuilt and self.table is not None and self.table.pos <= point.pos:
            for topic, queue, _, end, _ in self.dispatch.compare_queues(self.table.rows, False, False):
                if (topic, queue) in self._rebuilt:
                    ends[topic, queue] = max(ends.get((topic, queue), 0), end)
        queues, units = len(ends), sum(ends.values())
        if (queues, units) == (point.queues, point.units):
            return ""
        return (
            f"{queues} queues have {units} messages; when the mark was written, {point.queues} queues had {point.units}"
        )

    def look_at_records(self, first: int, upto: int, *, missing: bool) -> None:
        """Makes the fourth check for records in [first, upto). `missing`: also report queues that do not exist."""
        pos = first
        while pos < upto:
            self.on_progress(pos, upto)
            audit = self.dispatch.audit(pos, upto, _AUDIT_BYTES)
            for wrong in audit.wrong:
                if missing or wrong.reason != "the queue is missing":
                    self.add((wrong.topic, wrong.queue), f"{wrong.reason} with queue offset {wrong.offset}")
            if audit.pos <= pos:
                return
            pos = audit.pos

    def add(self, queue: Queue, reason: str) -> None:
        """Adds a queue that has to be rebuilt."""
        self.broken.setdefault(queue, reason)

    def add_refuted(self, strays: Iterable[Stray]) -> set[Queue]:
        """Adds queues whose unit, at the place that a stray claims, leads to no record of that place: not the record is
        wrong, but the unit. Returns these queues."""
        refuted: set[Queue] = set()
        for topic, queue, offset, _, _ in strays:
            _, wrong, _ = self.dispatch.usable_units(topic, queue, offset, 1)
            if wrong >= 0:
                self.add((topic, queue), f"the unit of offset {wrong} leads to no record of this offset")
                refuted.add((topic, queue))
        return refuted

    def add_suspects(self) -> None:
        """Adds all suspects, whatever the checks say, and removes their files."""
        for queue, suspect in self.suspects.items():
            self.add(queue, suspect.reason)
        self.remove_broken()

    # -- what is done --------------------------------------------------------------------------------------------------

    def remove_broken(self) -> None:
        """The first step: what is known of broken queues must not count as known."""
        for topic, queue in self.broken:
            self.dispatch.remove_queue(topic, queue)

    def rebuild(self, dispatch_range: Callable[[int, int], None], first: int, upto: int) -> None:
        """Dispatches the log from `first` to `upto` to the broken queues alone, by `dispatch_range(first, upto)`."""
        if not self.broken:
            return
        self.remove_broken()
        self.dispatch.rebuild(list(self.broken))
        try:
            dispatch_range(first, upto)
        finally:
            self.dispatch.rebuild(None)
        self._rebuilt = self.broken | self._rebuilt
        self.broken.clear()

    def finish(self, *, complete: bool) -> list[Stray]:
        """The last step, when all of the log is dispatched: no offset that was given out is given out again. Returns
        the records that have no place where they claim one. `complete`: no part of the log will be dispatched later.

        Not earlier. The table may count a record that lies behind its position: dispatch adds a record to its queue
        before the index, and stays at the record while the index fails. A placeholder in its place would hide it.
        """
        strays = self.dispatch.settle()
        self._reserve(complete)
        rows = {row[:2]: (row.min_offset, row.max_offset) for row in self.dispatch.queues()} if self._rebuilt else {}
        for (topic, queue), reason in self._rebuilt.items():
            path = self.root / "consumequeue" / topic.decode(errors="surrogateescape") / str(queue)
            low, high = rows.get((topic, queue), _NONE)
            self.report(FindingKind.REBUILT, path, f"{high - low} units, offsets {low} to {high}; {reason}")
        self._rebuilt.clear()
        return strays

    def _reserve(self, complete: bool) -> None:
        # Of a replicated log the rest may be dispatched later, when it is known to be committed. A complete log that
        # ends before the table's position lost durable records: their offsets were given out.
        dispatched = self.dispatch.position
        if self.table is not None and (complete or self.table.pos <= dispatched):
            for topic, queue, _, end, _ in self.dispatch.compare_queues(self.table.rows, False, False):
                self.dispatch.reserve(topic, queue, end, _MOST_PLACEHOLDERS)
        for (topic, queue), suspect in self.suspects.items():
            self.dispatch.reserve(topic, queue, suspect.end, _MOST_PLACEHOLDERS)
        now = {row[:2]: (row.max_offset, row.max_pos) for row in self.dispatch.queues()}
        for (topic, queue), (end, end_pos) in self._ends.items():
            high, known_pos = now.get((topic, queue), (0, -1))
            # The record of its last unit lies in the log, and no unit names it now: it is damaged.
            if high < end and known_pos < end_pos <= dispatched:
                self.dispatch.reserve(topic, queue, end, _MOST_PLACEHOLDERS)

    # -- the index -----------------------------------------------------------------------------------------------------

    def lost_index(self, min_pos: int) -> tuple[int, str]:
        """Where in the log to index again, and why; -1: no index file is missing. Those behind a missing one go."""
        if self.suspect_index:
            return self.dispatch.drop_index_from(self.suspect_index), f"file {self.suspect_index} was damaged"
        pos, reason = self.dispatch.drop_index_from(""), "a file was damaged or unfinished"
        ends = {file.name: file.end_pos for file in self.dispatch.index_files()}
        for name, end in () if self.table is None else self.table.index_files:
            # Files grow: one that ends earlier than it did has lost entries, or its head is damaged.
            if ends.get(name, -1) < end >= min_pos:
                pos = self.dispatch.drop_index_from(name)
                return pos, f"file {name} is damaged" if name in ends else f"file {name} is missing or damaged"
        return pos, reason
