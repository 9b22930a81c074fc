"""Compares records with the units of their ConsumeQueues, and with the records to which they refer.

This is the fast pass: it proves that queues are sound. The kernel compares all units that the records of a range
require, and most queues are proven then. The records of the other queues are read again: units with an extension, of
delayed messages, and those that differ are compared here. What is not proven then either is judged by the code of
`tally store verify`, in the same words (`audit_judge.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import groupby
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from tallystick.spark.jobs.findings import Difference, Findings
from tallystick.spark.presence import Segments
from tallystick.spark.scan import SplitScan, Wanted
from tallystick.spark.splits import Split
from tallystick.spark.volume import Logs, Volume, ends_of_queues
from tallystick.store import _kernel
from tallystick.store._kernel import QueueEnd, QueueFile, RequiredUnits
from tallystick.store.formats.derive import SCHEDULE_TOPIC
from tallystick.store.formats.log_walk import step_at
from tallystick.store.formats.message import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE
from tallystick.store.formats.queue_format import BLANK_UNIT_SIZE, MAX_EXT_ADDRESS, UNIT
from tallystick.store.formats.segment_files import SegmentFiles, has_data
from tallystick.store.verify.queues import EXT_UNIT, QueueOfLog

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
_EMPTY = bytes(UNIT.size)
_MOST_OPEN = 256
"""Queues whose files are open at the same time: each map takes a descriptor."""
_MOST_TOPICS = 16
"""With more topics, a filter on them costs more than the other records."""
Queue = tuple[str, int]
Delays = dict[tuple[int, int], Counter[int]]
"""Number of units by their delay in ms, by level and queue id of the schedule topic."""


class QueueAudit:
    """Checks ranges of one store, in the log's order. A context manager.

    `settled_ms`: records stored from then on may not have their units yet. `differences`: the wrong units that it saw,
    by queue; they are judged once more. `suspects`: the queues that it could not prove to be sound.
    """

    DELAYED = ("queue_id", "queue_offset", "physical_offset", "store_timestamp_ms", "tags", "properties")
    COLUMNS = ("topic", "queue_id", "queue_offset", "physical_offset", "size", "sys_flag", "tags", "store_timestamp_ms")

    def __init__(self, root: str, source: str, settled_ms: int, findings: Findings) -> None:
        self.root = Path(root)
        self.source = source
        self.settled_ms = settled_ms
        self.findings = findings
        self.queues: dict[Queue, QueueOfLog] = {}
        self.suspects: set[Queue] = set()
        self.differences: dict[Queue, Findings] = {}
        self.delays: Delays = {}
        self._logs = Logs(self.root)
        self._files: dict[tuple[str, int], Segments] = {}
        self._codes: dict[str | None, int] = {None: 0}

    def __enter__(self) -> QueueAudit:
        return self

    def __exit__(self, *_: object) -> None:
        self._logs.__exit__()
        for files in self._files.values():
            files.close()

    def check_all(self, split: Split, units: RequiredUnits) -> None:
        """Checks the records of a range. `units`: what the kernel found about them."""
        unproven = set()
        for each in units.queues:
            key = each.topic, each.queue
            self.queues[key] = QueueOfLog(each.records, each.first_offset, each.last_offset, each.repairable_offset)
            if not each.in_order:
                self.suspects.add(key)  # a unit may have lost its record
            if not each.proven:
                unproven.add(key)
        self._outcomes(units.committed)
        topics = sorted({topic for topic, _ in unproven})
        if topics:
            wanted = Wanted(topics=tuple(topics)) if len(topics) <= _MOST_TOPICS else Wanted()
            for batch in SplitScan(split, self.COLUMNS, wanted, check_crc=True):
                self._check_batch(batch, unproven)
        if SCHEDULE_TOPIC in topics:
            for batch in SplitScan(split, self.DELAYED, Wanted(topics=(SCHEDULE_TOPIC,))):
                self.check_deliveries(batch)

    def _check_batch(self, batch: pa.RecordBatch, queues: Collection[Queue]) -> None:
        kind = pc.bit_wise_and(batch.column("sys_flag"), TRANSACTION_MASK)
        queued = pc.or_(pc.equal(kind, TRANSACTION_NONE), pc.equal(kind, TRANSACTION_COMMIT))
        table = pa.Table.from_batches([batch]).filter(queued)
        # The sort is stable, so the records of a queue keep their order.
        table = table.take(pc.sort_indices(table, sort_keys=[("topic", "ascending"), ("queue_id", "ascending")]))
        keys = zip(table["topic"].to_pylist(), table["queue_id"].to_pylist(), strict=True)
        begin = 0
        for key, rows in groupby(keys):
            count = sum(1 for _ in rows)
            if key in queues:
                self._check_queue(*key, table.slice(begin, count))
            begin += count

    def _check_queue(self, topic: str, queue: int, rows: pa.Table) -> None:
        offsets = rows["queue_offset"].to_pylist()
        positions, sizes = rows["physical_offset"].to_pylist(), rows["size"].to_pylist()
        times = rows["store_timestamp_ms"].to_pylist()
        in_order = offsets == list(range(offsets[0], offsets[0] + len(offsets)))
        codes = self._codes_of(topic, rows)
        wanted = [UNIT.pack(*unit) for unit in zip(positions, sizes, codes, strict=True)]
        files = self._open(topic, queue)
        if in_order:
            there = files.read(offsets[0] * UNIT.size, len(offsets) * UNIT.size)
            if there == b"".join(wanted):
                return
        for number, offset in enumerate(offsets):
            there = files.read(offset * UNIT.size, UNIT.size)
            if there != wanted[number]:
                self._differs(topic, queue, files, offset, wanted[number], times[number])

    def _differs(self, topic: str, queue: int, files: Segments, offset: int, wanted: bytes, time: int) -> None:
        pos, size, code = UNIT.unpack(wanted)
        at = offset * UNIT.size
        start = files.start_of(at)
        file = files.folder if start is None else files.path(start)
        place = (self.source, "queue", str(file), 0 if start is None else at - start)
        there = files.read(at, UNIT.size)  # again: a recent unit may have been written in between
        if there is None or there == _EMPTY:
            if time >= self.settled_ms:
                self.findings.add_behind("queue units")
            else:
                self._suspect(topic, queue, Difference(*place, f"unit {offset} is missing; its record is at {pos}"))
            return
        has_pos, has_size, has_code = UNIT.unpack(there)
        if (has_pos, has_size) == (pos, size):  # and the code, if it is a time or an extension's address
            extended = self._extended(topic, queue, has_code, time)
            if extended == code:
                return
            reason = f"has tags code {has_code if extended is None else extended}, the record at {pos} has {code}"
        else:
            reason = f"names {has_size} bytes at {has_pos}, the record has {size} at {pos}"
        self._suspect(topic, queue, Difference(*place, f"unit {offset} {reason}"))

    def _suspect(self, topic: str, queue: int, difference: Difference) -> None:
        self.suspects.add((topic, queue))
        self.differences.setdefault((topic, queue), Findings()).add(difference)

    def _codes_of(self, topic: str, rows: pa.Table) -> list[int]:
        codes = []
        for tag in rows["tags"].to_pylist():
            if tag not in self._codes:
                self._codes[tag] = _kernel.string_hash(tag.encode())
            codes.append(self._codes[tag])
        if topic == SCHEDULE_TOPIC:  # their code is a time, see `check_deliveries`
            columns = (rows[name].to_pylist() for name in ("queue_id", "queue_offset", "store_timestamp_ms"))
            for number, (queue, offset, time) in enumerate(zip(*columns, strict=True)):
                there = self._open(topic, queue).read(offset * UNIT.size, UNIT.size)
                if there is not None:
                    code = UNIT.unpack(there)[2]
                    extended = self._extended(topic, queue, code, time)
                    codes[number] = code if extended is None else extended
        return codes

    def check_deliveries(self, batch: pa.RecordBatch) -> None:
        """Delayed records: a unit's code is the time of delivery. Counts the delays of each level; `wrong_delays`
        judges them when all are known."""
        for queue, offset, pos, time, tag, pairs in zip(*(column.to_pylist() for column in batch), strict=True):
            properties = dict(pairs)
            level = _level(properties.get("DELAY"))
            if level > 0 and "REAL_TOPIC" not in properties:
                reason = "a delayed message does not name its topic (REAL_TOPIC)"
                self.findings.add(Difference(self.source, "delay", "", pos, reason))
            there = self._open(SCHEDULE_TOPIC, queue).read(offset * UNIT.size, UNIT.size)
            if there in (None, _EMPTY):
                continue
            code = self._extended(SCHEDULE_TOPIC, queue, UNIT.unpack(there)[2], time)
            if level > 0 and code is not None:
                self.delays.setdefault((level, queue), Counter())[code - time] += 1
            elif code is None or code != self._tag_code(tag):
                self.suspects.add((SCHEDULE_TOPIC, queue))

    def _outcomes(self, committed: Iterable[tuple[int, int]]) -> None:
        """The record of a committed transaction, given with the position of its half message, must name this message,
        unless that has expired."""
        for pos, half in committed:
            for log, header in self._logs.parts:
                if half and log.start_of(half - header) is not None:
                    record = step_at(log, half - header, entry_header_bytes=header, check_crc=False).record
                    if record is None or record.topic != HALF_TOPIC:
                        reason = f"the half message of a committed message should be at {half}, but there is none"
                        self.findings.add(Difference(self.source, "transaction", "", pos, reason))

    def _tag_code(self, tag: str | None) -> int:
        if tag not in self._codes:
            self._codes[tag] = _kernel.string_hash(tag.encode()) if tag else 0
        return self._codes[tag]

    def _extended(self, topic: str, queue: int, code: int, time: int) -> int | None:
        """The tags code, or that of the extension unit at this address. None: there is no valid one of this time."""
        if code > MAX_EXT_ADDRESS:
            return code
        data = self._open(topic, queue, "consumequeue_ext").read(code + (1 << 63), EXT_UNIT.size)
        if data is None:
            return None
        size, extended, store_ms, map_bytes = EXT_UNIT.unpack(data)
        is_valid = map_bytes >= 0 and size == EXT_UNIT.size + map_bytes and store_ms == time
        return int(extended) if is_valid else None

    def _open(self, topic: str, queue: int, kind: str = "consumequeue") -> Segments:
        key = (f"{kind}/{topic}", queue)
        files = self._files.get(key)
        if files is None:
            if len(self._files) >= _MOST_OPEN:
                self._files.pop(next(iter(self._files))).close()
            files = self._files[key] = Segments(self.root / kind / topic / str(queue))
        return files


def _level(text: str | None) -> int:
    try:
        return max(0, int(text or 0))
    except ValueError:
        return 0


def suspicious_ends(
    volume: Volume, queues: Mapping[Queue, QueueOfLog], segment_bytes: int | None, *, whole: bool, closed: bool
) -> set[Queue]:
    """Returns the queues with units, or files, that no record of the log explains, and the queues without a folder.

    `whole`: nothing is behind the bound, so that units must not name anything there. `closed`: no broker writes them.
    """
    root = Path(volume.root)
    folders = set()
    found = {key for key, each in queues.items() if each.records != each.last_offset - each.first_offset + 1}
    for end in ends_of_queues(root)[0]:
        key = end.topic, end.queue
        folders.add(key)
        if _is_complete(end, queues.get(key), segment_bytes):
            continue
        with Segments(root / "consumequeue" / end.topic / str(end.queue), segment_bytes) as files:
            try:
                if _is_suspicious(files, volume, queues.get(key), whole=whole, closed=closed):
                    found.add(key)
            except FileNotFoundError:
                continue  # expired
    return found | (queues.keys() - folders)


def _is_complete(end: QueueEnd, records: QueueOfLog | None, segment_bytes: int | None) -> bool:
    """Whether a queue has units of exactly these records, which the log has in their order, and nothing else."""
    return (
        end.regular
        and end.segment_bytes == segment_bytes
        and records is not None
        and (end.first, end.end) == (records.first_offset, records.last_offset + 1)
    )


def _is_suspicious(
    files: SegmentFiles, volume: Volume, records: QueueOfLog | None, *, whole: bool, closed: bool
) -> bool:
    if files.strange or files.gaps or files.segment_bytes % UNIT.size:
        return True
    end = 0
    for start in files.starts:
        base = start // UNIT.size
        with files.units(start) as units:
            count = units.written
            end = base + count
            first, last = (end, end) if records is None else (records.first_offset, records.last_offset + 1)
            unexplained = units.read(0, max(min(first - base, count), 0)) + _read_from(units, max(last - base, 0))
        for pos, size, _ in UNIT.iter_unpack(unexplained):
            if volume.begin <= pos and (whole or pos + size <= volume.bound) and size != BLANK_UNIT_SIZE:
                return True
            if pos < 0 or size <= 0:
                return True
        if start != files.starts[-1]:
            if count * UNIT.size < files.segment_bytes:
                return True
        elif closed and has_data(files.path(start), count * UNIT.size, files.segment_bytes):
            return True
    return whole and records is not None and records.last_offset >= end


def _read_from(units: QueueFile, first: int) -> bytes:
    return units.read(first, units.written - first) if first < units.written else b""
