"""Compares records with the units of their ConsumeQueues, and with the records to which they refer.

The expected units of a batch's records of one queue are compared as bytes; only where those differ are units compared
one by one.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from tallystick.spark.jobs.findings import Difference, Findings
from tallystick.spark.presence import Segments
from tallystick.spark.volume import Logs, Volume
from tallystick.store import _kernel
from tallystick.store.formats.derive import SCHEDULE_TOPIC
from tallystick.store.formats.log_walk import step_at
from tallystick.store.formats.message import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE
from tallystick.store.formats.queue_format import BLANK_UNIT_SIZE, MAX_EXT_ADDRESS, UNIT, units_written
from tallystick.store.verify.queues import queue_folders

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
_EMPTY = bytes(UNIT.size)
_EXT_CODE_AT = 2


@dataclass(frozen=True)
class QueueSpan:
    """Queue offsets of a queue's records in some range of the log: [first, last], and the number of records."""

    first: int
    last: int
    count: int

    def joined(self, other: QueueSpan) -> QueueSpan:
        return QueueSpan(min(self.first, other.first), max(self.last, other.last), self.count + other.count)


class QueueAudit:
    """Checks batches of one store, in the log's order. A context manager."""

    DELAYED = ("queue_id", "queue_offset", "physical_offset", "store_timestamp_ms", "properties")
    COLUMNS = (
        *("topic", "queue_id", "queue_offset", "physical_offset", "size", "sys_flag", "tags", "store_timestamp_ms"),
        "prepared_transaction_offset",
    )

    def __init__(self, root: str, source: str, settled_ms: int, findings: Findings) -> None:
        self.root = Path(root)
        self.source = source
        self.settled_ms = settled_ms
        self.findings = findings
        self.spans: dict[tuple[str, int], QueueSpan] = {}
        self._stack = ExitStack()
        self._logs = self._stack.enter_context(Logs(self.root))
        self._files: dict[tuple[str, int], Segments] = {}
        self._delays: dict[str, int] = {}
        self._codes: dict[str | None, int] = {None: 0}

    def __enter__(self) -> QueueAudit:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def check(self, batch: pa.RecordBatch) -> None:
        kind = pc.bit_wise_and(batch.column("sys_flag"), TRANSACTION_MASK)
        queued = pc.or_(pc.equal(kind, TRANSACTION_NONE), pc.equal(kind, TRANSACTION_COMMIT))
        table = pa.Table.from_batches([batch])
        self._outcomes(table.filter(pc.equal(kind, TRANSACTION_COMMIT)))
        table = table.filter(queued)
        keys = table.group_by(["topic", "queue_id"], use_threads=False).aggregate([])
        for topic, queue in zip(keys["topic"].to_pylist(), keys["queue_id"].to_pylist(), strict=True):
            mask = pc.and_(pc.equal(table["topic"], topic), pc.equal(table["queue_id"], queue))
            self._check_queue(topic, queue, table.filter(mask))

    def _check_queue(self, topic: str, queue: int, rows: pa.Table) -> None:
        offsets = rows["queue_offset"].to_pylist()
        span = QueueSpan(min(offsets), max(offsets), len(offsets))
        known = self.spans.get((topic, queue))
        self.spans[topic, queue] = span if known is None else known.joined(span)
        positions, sizes = rows["physical_offset"].to_pylist(), rows["size"].to_pylist()
        codes = self._codes_of(topic, rows)
        wanted = [UNIT.pack(*unit) for unit in zip(positions, sizes, codes, strict=True)]
        files = self._open(topic, queue)
        if span.last - span.first + 1 == len(offsets) and offsets == sorted(offsets):
            there = files.read(span.first * UNIT.size, len(offsets) * UNIT.size)
            if there == b"".join(wanted):
                return
        times = rows["store_timestamp_ms"].to_pylist()
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
        what = f"{topic} queue {queue}, unit {offset}"
        there = files.read(at, UNIT.size)  # again: a recent unit may have been written in between
        if there is None or there == _EMPTY:
            if time >= self.settled_ms:
                self.findings.add_behind("queue units")
            else:
                self.findings.add(Difference(*place, f"{what} is missing; its record is at {pos}"))
            return
        has_pos, has_size, has_code = UNIT.unpack(there)
        if (has_pos, has_size) == (pos, size):  # and the code, if it is a time or an extension's address
            has_code = self._code(topic, queue, has_code)
            if has_code == code:
                return
            reason = f"has tags code {has_code}, the record at {pos} has {code}"
        else:
            reason = f"names {has_size} bytes at {has_pos}, the record has {size} at {pos}"
        self.findings.add(Difference(*place, f"{what}: {reason}"))

    def _codes_of(self, topic: str, rows: pa.Table) -> list[int]:
        codes = []
        for tag in rows["tags"].to_pylist():
            if tag not in self._codes:
                self._codes[tag] = _kernel.string_hash(tag.encode())
            codes.append(self._codes[tag])
        if topic == SCHEDULE_TOPIC:  # their code is a time, see `check_deliveries`
            for number, (queue, offset) in enumerate(zip(rows["queue_id"], rows["queue_offset"], strict=True)):
                there = self._open(topic, queue.as_py()).read(offset.as_py() * UNIT.size, UNIT.size)
                codes[number] = 0 if there is None else self._code(topic, queue.as_py(), UNIT.unpack(there)[2])
        return codes

    def check_deliveries(self, batch: pa.RecordBatch) -> None:
        """Delayed records: a unit's code is the time of delivery, so all units of a level must have the delay of the
        first."""
        for queue, offset, pos, time, pairs in zip(*(column.to_pylist() for column in batch), strict=True):
            properties = dict(pairs)
            level = properties.get("DELAY", "")
            if not level.isdigit() or level == "0":
                continue
            if "REAL_TOPIC" not in properties:
                self.findings.add(
                    Difference(self.source, "delay", "", pos, "a delayed message does not name its topic (REAL_TOPIC)")
                )
            there = self._open(SCHEDULE_TOPIC, queue).read(offset * UNIT.size, UNIT.size)
            if there in (None, _EMPTY):
                continue
            delay = self._code(SCHEDULE_TOPIC, queue, UNIT.unpack(there)[2]) - time
            usual = self._delays.setdefault(level, delay)
            if delay != usual:
                reason = f"a message of delay level {level} waits {delay} ms, other messages of this level {usual} ms"
                self.findings.add(Difference(self.source, "delay", "", pos, reason))

    def _outcomes(self, committed: pa.Table) -> None:
        """The record of a committed transaction must name its half message, unless that has expired."""
        for pos, half in zip(
            committed["physical_offset"].to_pylist(), committed["prepared_transaction_offset"].to_pylist(), strict=True
        ):
            for log, header in self._logs.parts:
                if half and log.start_of(half - header) is not None:
                    record = step_at(log, half - header, entry_header_bytes=header, check_crc=False).record
                    if record is None or record.topic != HALF_TOPIC:
                        reason = f"the half message of a committed message should be at {half}, but there is none"
                        self.findings.add(Difference(self.source, "transaction", "", pos, reason))

    def _code(self, topic: str, queue: int, code: int) -> int:
        return self._extended(topic, queue, code) if code <= MAX_EXT_ADDRESS else code

    def _extended(self, topic: str, queue: int, code: int) -> int:
        extension = self._open(topic, queue, "consumequeue_ext")
        data = extension.read(code + (1 << 63) + _EXT_CODE_AT, 8)
        return code if data is None else int.from_bytes(data, "big", signed=True)

    def _open(self, topic: str, queue: int, kind: str = "consumequeue") -> Segments:
        key = (f"{kind}/{topic}", queue)
        if key not in self._files:
            folder = self.root / kind / topic / str(queue)
            self._files[key] = Segments(folder)
            self._stack.enter_context(self._files[key])
        return self._files[key]


def check_ends(volume: Volume, spans: dict[tuple[str, int], QueueSpan], findings: Findings) -> None:
    """Reports units that name a position below the bound where the log has no record of the queue."""
    for topic, queue, folder in queue_folders(Path(volume.root)):
        span = spans.get((topic, queue))
        with Segments(folder) as files:
            for start in files.starts:
                try:
                    data = files.buffer(start)
                except FileNotFoundError:
                    continue  # expired
                count, base = units_written(data), start // UNIT.size
                first, last = (base + count, base + count) if span is None else (span.first, span.last + 1)
                before, behind = range(min(first - base, count)), range(max(last - base, 0), count)
                for number in (*before, *behind):
                    pos, size, _ = UNIT.unpack_from(data, number * UNIT.size)
                    if volume.begin <= pos and pos + size <= volume.bound and size != BLANK_UNIT_SIZE:
                        what = f"{topic} queue {queue}, unit {base + number}"
                        reason = f"{what} names {size} bytes at {pos}, but no record of this queue is there"
                        place = (str(files.path(start)), number * UNIT.size)
                        findings.add(Difference(volume.source, "queue", *place, reason))
