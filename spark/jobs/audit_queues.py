"""Compares records with the units of their ConsumeQueues, and with the records to which they refer.

This is the fast pass: it proves that queues are sound. The expected units of a batch's records of one queue are
compared as bytes; only where those differ are units compared one by one. What it cannot prove is judged by the code of
`tally store verify`, in the same words (`audit_judge.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from tallystick.spark.jobs.findings import Difference, Findings
from tallystick.spark.presence import Segments
from tallystick.spark.volume import Logs, Volume
from tallystick.store import _kernel
from tallystick.store.formats.derive import SCHEDULE_TOPIC
from tallystick.store.formats.log_walk import step_at
from tallystick.store.formats.mapped import ReadMap
from tallystick.store.formats.message import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE
from tallystick.store.formats.queue_format import BLANK_UNIT_SIZE, MAX_EXT_ADDRESS, UNIT, units_written
from tallystick.store.formats.segment_files import SegmentFiles, data_ranges
from tallystick.store.verify.queues import EXT_UNIT, QueueOfLog, queue_folders

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
_EMPTY = bytes(UNIT.size)
Queue = tuple[str, int]
Delays = dict[tuple[int, int], Counter[int]]
"""Number of units by their delay in ms, by level and queue id of the schedule topic."""


class QueueAudit:
    """Checks batches of one store, in the log's order. A context manager.

    `settled_ms`: records stored from then on may not have their units yet; `repairable_from`: the next start dispatches
    the records from this position on again. `differences`: the wrong units that it saw, by queue; they are judged once
    more. `suspects`: the queues that it could not prove to be sound.
    """

    DELAYED = ("queue_id", "queue_offset", "physical_offset", "store_timestamp_ms", "tags", "properties")
    COLUMNS = (
        *("topic", "queue_id", "queue_offset", "physical_offset", "size", "sys_flag", "tags", "store_timestamp_ms"),
        "prepared_transaction_offset",
    )

    def __init__(
        self, root: str, source: str, settled_ms: int, findings: Findings, repairable_from: int = 1 << 62
    ) -> None:
        self.root = Path(root)
        self.source = source
        self.settled_ms = settled_ms
        self.findings = findings
        self.repairable_from = repairable_from
        self.queues: dict[Queue, QueueOfLog] = {}
        self.suspects: set[Queue] = set()
        self.differences: dict[Queue, Findings] = {}
        self.delays: Delays = {}
        self._stack = ExitStack()
        self._logs = self._stack.enter_context(Logs(self.root))
        self._files: dict[tuple[str, int], Segments] = {}
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
        positions, sizes = rows["physical_offset"].to_pylist(), rows["size"].to_pylist()
        times = rows["store_timestamp_ms"].to_pylist()
        in_order = offsets == list(range(offsets[0], offsets[0] + len(offsets)))
        self._count(topic, queue, offsets, positions, times, in_order)
        codes = self._codes_of(topic, rows)
        wanted = [UNIT.pack(*unit) for unit in zip(positions, sizes, codes, strict=True)]
        files = self._open(topic, queue)
        if in_order:
            there = files.read(offsets[0] * UNIT.size, len(offsets) * UNIT.size)
            if there == b"".join(wanted):
                return
        else:
            self.suspects.add((topic, queue))  # a unit may have lost its record
        for number, offset in enumerate(offsets):
            there = files.read(offset * UNIT.size, UNIT.size)
            if there != wanted[number]:
                self._differs(topic, queue, files, offset, wanted[number], times[number])

    def _count(
        self, topic: str, queue: int, offsets: list[int], positions: list[int], times: list[int], in_order: bool
    ) -> None:
        """Counts the records, as `QueueOfLog.add` does one by one."""
        repairable = [
            pos >= self.repairable_from or time >= self.settled_ms for pos, time in zip(positions, times, strict=True)
        ]
        if in_order:
            first = offsets[repairable.index(True)] if any(repairable) else -1
            found = QueueOfLog(len(offsets), offsets[0], offsets[-1], first)
        else:
            found = QueueOfLog()
            for offset, is_repairable in zip(offsets, repairable, strict=True):
                one = QueueOfLog(1, offset, offset, offset if is_repairable else -1)
                found = found.joined(one)
        known = self.queues.get((topic, queue))
        self.queues[topic, queue] = found if known is None else known.joined(found)

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
        if key not in self._files:
            folder = self.root / kind / topic / str(queue)
            self._files[key] = Segments(folder)
            self._stack.enter_context(self._files[key])
        return self._files[key]


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
    folders = set()
    found = {key for key, each in queues.items() if each.records != each.last_offset - each.first_offset + 1}
    for topic, queue, folder in queue_folders(Path(volume.root)):
        folders.add((topic, queue))
        with Segments(folder, segment_bytes) as files:
            try:
                if _is_suspicious(files, volume, queues.get((topic, queue)), whole=whole, closed=closed):
                    found.add((topic, queue))
            except FileNotFoundError:
                continue  # expired
    return found | (queues.keys() - folders)


def _is_suspicious(
    files: SegmentFiles, volume: Volume, records: QueueOfLog | None, *, whole: bool, closed: bool
) -> bool:
    if files.strange or files.gaps or files.segment_bytes % UNIT.size:
        return True
    end = 0
    for start in files.starts:
        data = files.buffer(start)
        count, base = units_written(data), start // UNIT.size
        end = base + count
        first, last = (end, end) if records is None else (records.first_offset, records.last_offset + 1)
        for number in (*range(min(first - base, count)), *range(max(last - base, 0), count)):
            pos, size, _ = UNIT.unpack_from(data, number * UNIT.size)
            if volume.begin <= pos and (whole or pos + size <= volume.bound) and size != BLANK_UNIT_SIZE:
                return True
            if pos < 0 or size <= 0:
                return True
        if start != files.starts[-1]:
            if count * UNIT.size < len(data):
                return True
        elif closed and not _is_empty(files, data, start, count):
            return True
    return whole and records is not None and records.last_offset >= end


def _is_empty(files: SegmentFiles, data: ReadMap, start: int, count: int) -> bool:
    """Whether only zeros follow the units of a file."""
    return not any(data[begin:stop].strip(b"\0") for begin, stop in data_ranges(files.path(start), count * UNIT.size))
