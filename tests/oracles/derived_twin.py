"""Slow twins of the kernel's derived side: queues as lists, index files as bytearrays, a pull as a plain loop.

Written from the rules of RocketMQ 4.8.0 (ConsumeQueue.putMessagePositionInfo, IndexService.buildIndex,
IndexFile.putKey, DefaultMessageStore.getMessage), not from the kernel.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

from tallystick.store.formats import properties
from tallystick.store.formats.message import GetStatus
from tallystick.store.formats.record import BLANK_MAGIC, Record

UNIT = struct.Struct(">qiq")
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"


def string_hash(text: str) -> int:
    """Java's String.hashCode, over UTF-16 units."""
    data = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(data), 2):
        value = (31 * value + int.from_bytes(data[at : at + 2], "big")) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def key_hash(text: str) -> int:
    value = abs(string_hash(text))
    return 0 if value == 1 << 31 else value


def tags_code(record: Record, delay_ms: list[int]) -> int:
    table = properties.decode(record.properties)
    if record.topic == SCHEDULE_TOPIC and "DELAY" in table:
        level = min(int(table["DELAY"]), len(delay_ms))
        if level > 0:
            return record.store_timestamp_ms + delay_ms[level - 1]
    return string_hash(table.get("TAGS", ""))


@dataclass
class QueueTwin:
    """One queue: its units by number, and where it begins."""

    first: int = 0
    units: list[tuple[int, int, int]] = field(default_factory=list)
    max_physic: int = -1

    @property
    def end(self) -> int:
        return self.first + len(self.units)

    def put(self, pos: int, size: int, code: int, queue_offset: int) -> None:
        if pos + size <= self.max_physic:
            return
        if not self.units:
            self.first = queue_offset
        elif queue_offset != 0 and queue_offset < self.end:
            return
        self.max_physic = pos + size
        self.units.append((pos, size, code))

    def files(self, segment_bytes: int) -> dict[str, bytes]:
        start = self.first * 20 // segment_bytes * segment_bytes
        blank = UNIT.pack(0, 0x7FFFFFFF, 0)
        content = blank * ((self.first * 20 - start) // 20) + b"".join(UNIT.pack(*unit) for unit in self.units)
        pieces = range(0, len(content), segment_bytes)
        return {f"{start + at:020d}": content[at : at + segment_bytes].ljust(segment_bytes, b"\0") for at in pieces}


class IndexTwin:
    """All index files, as bytes."""

    def __init__(self, slots: int, entries: int) -> None:
        self.slots, self.entries = slots, entries
        self.files: list[bytearray] = []

    def _header(self, file: bytearray) -> list[int]:
        header = list(struct.unpack_from(">qqqqii", file))
        header[5] = max(header[5], 1)
        return header

    def add(self, record: Record, pos: int) -> None:
        if record.sys_flag & 0x0C == 0x0C:
            return
        if self.files and pos < self._header(self.files[-1])[3]:
            return
        table = properties.decode(record.properties)
        keys = [table["UNIQ_KEY"]] if "UNIQ_KEY" in table else []
        keys += [key for key in table.get("KEYS", "").split(" ") if key]
        for key in keys:
            self._put(key_hash(f"{record.topic}#{key}"), pos, record.store_timestamp_ms)

    def _put(self, hashed: int, pos: int, time: int) -> None:
        if not self.files or self._header(self.files[-1])[5] >= self.entries:
            file = bytearray(40 + 4 * self.slots + 20 * self.entries)
            if self.files:
                _, end_time, _, end_pos, _, _ = self._header(self.files[-1])
                if end_pos > 0:
                    struct.pack_into(">qq", file, 16, end_pos, end_pos)
                if end_time > 0:
                    struct.pack_into(">qq", file, 0, end_time, end_time)
            self.files.append(file)
        file = self.files[-1]
        begin_time, _, begin_pos, _, used, count = self._header(file)
        slot_at = 40 + 4 * (hashed % self.slots)
        (older,) = struct.unpack_from(">i", file, slot_at)
        if older <= 0 or older > count:
            older = 0
        seconds = 0 if begin_time <= 0 else min(max(int((time - begin_time) / 1000), 0), 2**31 - 1)
        struct.pack_into(">iqii", file, 40 + 4 * self.slots + 20 * count, hashed, pos, seconds, older)
        struct.pack_into(">i", file, slot_at, count)
        if count <= 1:
            begin_time, begin_pos = time, pos
        struct.pack_into(">qqqqii", file, 0, begin_time, time, begin_pos, pos, used + (older == 0), count + 1)


class DerivedTwin:
    """The derived side of a log held as a list of (position, record)."""

    def __init__(self, segment_bytes: int, slots: int, entries: int, delay_ms: list[int]) -> None:
        self.segment_bytes, self.delay_ms = segment_bytes, delay_ms
        self.queues: dict[tuple[str, int], QueueTwin] = {}
        self.index = IndexTwin(slots, entries)
        self.records: dict[int, Record] = {}

    def dispatch(self, pos: int, record: Record) -> None:
        self.records[pos] = record
        if record.sys_flag & 0x0C in (0x00, 0x08):
            queue = self.queues.setdefault((record.topic, record.queue_id), QueueTwin())
            queue.put(pos, record.size, tags_code(record, self.delay_ms), record.queue_offset)
        self.index.add(record, pos)

    def queue_files(self) -> dict[str, bytes]:
        return {
            f"{topic}/{queue_id}/{name}": content
            for (topic, queue_id), queue in self.queues.items()
            for name, content in queue.files(self.segment_bytes).items()
        }

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        most: int,
        codes: frozenset[int] | None,
        max_pos: int,
        memory_bytes: int,
        limits: tuple[int, int, int, int],
    ) -> tuple[GetStatus, int, list[int]]:
        """(status, next offset, positions of the records), for a log of which nothing was deleted."""
        queue = self.queues.get((topic, queue_id), QueueTwin())
        if not queue.units:
            return GetStatus.NO_MESSAGE_IN_QUEUE, 0, []
        if offset < queue.first:
            return GetStatus.OFFSET_TOO_SMALL, queue.first, []
        if offset == queue.end:
            return GetStatus.OFFSET_OVERFLOW_ONE, offset, []
        if offset > queue.end:
            return GetStatus.OFFSET_OVERFLOW_BADLY, 0 if queue.first == 0 else queue.end, []
        units_a_file = self.segment_bytes // 20
        stop = min(queue.end, (offset // units_a_file + 1) * units_a_file, offset + max(800, most))
        found: list[int] = []
        total = 0
        at = offset
        while at < stop:
            pos, size, code = queue.units[at - queue.first]
            in_memory = max_pos - pos <= memory_bytes
            most_bytes, most_count = limits[:2] if in_memory else limits[2:]
            if found and (most <= len(found) or total + size > most_bytes or len(found) > most_count - 1):
                break
            if codes is None or (code + 2**31) % 2**32 - 2**31 in codes:
                found.append(pos)
                total += size
            at += 1
        return (GetStatus.FOUND if found else GetStatus.NO_MATCHED_MESSAGE), at, found


def write_log(folder: Path, records: list[Record], segment_bytes: int) -> tuple[list[tuple[int, Record]], int]:
    """Stores the records one behind the other, as the commit log does. Returns them with positions, and the end."""
    placed: list[tuple[int, Record]] = []
    content = bytearray()
    for record in records:
        left = segment_bytes - len(content) % segment_bytes
        if record.size + 8 > left:
            end = len(content) + left
            content += struct.pack(">ii", left, BLANK_MAGIC)
            content += b"\xee" * (end - len(content))
        record = record._replace(pos=len(content))
        placed.append((len(content), record))
        content += record.encode()
    folder.mkdir(parents=True, exist_ok=True)
    for start in range(0, len(content), segment_bytes):
        piece = bytes(content[start : start + segment_bytes])
        (folder / f"{start:020d}").write_bytes(piece.ljust(segment_bytes, b"\0"))
    return placed, len(content)
