"""A message store in memory that keeps the contract of `MessageStore`, for tests of what stands on it.

Records are real bytes (`Record.encode`) at real positions, offsets count as the store's do, delayed messages have their
time of delivery as tags code. Time is `clock.now_ms`; nothing waits. Beside the contract:

    refuse(status, times)   the next puts are answered so, and store nothing (or do, if the status means stored)
    flush()                 with `auto_flush=False`: everything so far is on disk
    crash()                 what was not flushed is gone
    trim(pos)               the log begins at `pos` now
    records(topic)          what was stored, decoded
"""

from __future__ import annotations

import asyncio
import struct
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from own_parts import OwnParts

from tallystick.store._kernel import BitTest, string_hash
from tallystick.store.formats import properties
from tallystick.store.formats.message import (
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    UNLIMITED,
    GetResult,
    GetStatus,
    Host,
    Message,
    MessageBatch,
    PutResult,
    PutStatus,
    QueryResult,
)
from tallystick.store.formats.message_id import encode_message_id
from tallystick.store.formats.record import Record
from tallystick.store.settings import StoreSettings

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
MAX_PROPERTIES = 32767
STORE_HOST = Host("127.0.0.1", 10911)


@dataclass(slots=True)
class Clock:
    """The time of a test."""

    now_ms: int = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now_ms

    def advance(self, ms: int) -> None:
        self.now_ms += ms


class FakeStore(OwnParts):
    """See the module."""

    timers = None  # messages that ask for a time are stored, and never delivered

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        host: Host = STORE_HOST,
        settings: StoreSettings | None = None,
        auto_flush: bool = True,
    ) -> None:
        self.clock = clock or Clock()
        self.settings = settings or StoreSettings()
        self.host = host
        self.auto_flush = auto_flush
        self.watched: set[tuple[str, int]] = set()
        self.on_arrival: Callable[[list[tuple[str, int]]], None] | None = None
        self.max_pos = self.min_pos = 0
        self._flushed = 0
        self._log: dict[int, bytes] = {}
        self._units: defaultdict[tuple[str, int], list[tuple[int, int, int]]] = defaultdict(list)
        self._minimum: defaultdict[tuple[str, int], int] = defaultdict(int)
        self._refusals: deque[PutStatus] = deque()
        self._damaged: set[int] = set()

    # -- what tests do -------------------------------------------------------------------------------------------------

    def refuse(self, status: PutStatus, times: int = 1) -> None:
        self._refusals.extend([status] * times)

    def accept(self) -> None:
        """Forget refusals that were not used."""
        self._refusals.clear()

    def flush(self) -> None:
        self._flushed = self.max_pos

    def crash(self) -> None:
        kept = [Record.decode(data) for pos, data in self._log.items() if pos < self.flushed_pos]
        self.max_pos = self.flushed_pos
        self._log.clear()
        self._units.clear()
        self._refusals.clear()
        for record in kept:
            self._log[record.pos] = record.encode()
            self._dispatch(record)

    def trim(self, pos: int) -> None:
        self.min_pos = pos
        for start in [start for start in self._log if start < pos]:
            del self._log[start]
        for queue, units in self._units.items():
            self._minimum[queue] = sum(unit[0] < pos for unit in units)

    def damage(self, pos: int) -> None:
        """The record at `pos` can no longer be read."""
        self._damaged.add(pos)

    def records(self, topic: str | None = None, queue_id: int | None = None) -> list[Record]:
        decoded = (Record.decode(data) for data in self._log.values())
        return [record for record in decoded if topic in (None, record.topic) and queue_id in (None, record.queue_id)]

    # -- the contract --------------------------------------------------------------------------------------------------

    async def put(self, message: Message) -> PutResult:
        status, detail = self._status([message.properties], [message.body], message.topic)
        if not status.stored:
            await asyncio.sleep(0)
            return PutResult(status, detail=detail)
        record = self._append(message, message.body, message.properties, message.flag)
        await asyncio.sleep(0)
        message_id = encode_message_id(record.store_host, record.pos)
        return PutResult(status, record.pos, record.size, record.queue_offset, message_id, record.store_timestamp_ms)

    async def put_all(self, messages: Sequence[Message], *, makes_room: bool = False) -> list[PutResult]:
        return [await self.put(message) for message in messages]

    async def put_batch(self, batch: MessageBatch) -> PutResult:
        parts = decode_batch(batch.body)
        if not parts:
            return PutResult(PutStatus.MESSAGE_ILLEGAL, detail="an empty batch")
        texts = [own + ("" if not own or own.endswith("\x02") else "\x02") + batch.properties for _, _, own in parts]
        status, detail = self._status(texts, [body for _, body, _ in parts], batch.topic)
        if not status.stored:
            return PutResult(status, detail=detail)
        message = Message(
            batch.topic,
            batch.queue_id,
            b"",
            sys_flag=batch.sys_flag,
            born_timestamp_ms=batch.born_timestamp_ms,
            born_host=batch.born_host,
            reconsume_times=batch.reconsume_times,
        )
        records = [self._append(message, body, text, flag) for (flag, body, _), text in zip(parts, texts, strict=True)]
        await asyncio.sleep(0)
        first = records[0]
        ids = ",".join(record.message_id for record in records)
        size = sum(record.size for record in records)
        return PutResult(status, first.pos, size, first.queue_offset, ids, first.store_timestamp_ms, count=len(records))

    def get_message(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        *,
        codes: frozenset[int] | None = None,
        accept: Callable[[int, bytes], bool] | None = None,
        bits: BitTest | None = None,
        most_accepts: int = UNLIMITED,
    ) -> GetResult:
        low, high = self.min_offset(topic, queue_id), self.max_offset(topic, queue_id)
        if high == 0:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
        if offset < low:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, low, low, high)
        if offset == high:
            return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
        if offset > high:
            return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, low if low == 0 else high, low, high)
        found: list[bytes] = []
        following = offset
        for pos, _, code in self._units[topic, queue_id][offset:]:
            if len(found) >= max_messages:
                break
            if accept is not None and not most_accepts:
                break
            following += 1
            if codes is not None and (code + 2**31) % 2**32 - 2**31 not in codes:
                continue
            data = self._log[pos]
            most_accepts -= accept is not None
            if accept is not None and not accept(code, Record.decode(data).properties.encode()):
                continue
            found.append(data)
        status = GetStatus.FOUND if found else GetStatus.NO_MATCHED_MESSAGE
        return GetResult(status, following, low, high, len(found), b"".join(found))

    def max_offset(self, topic: str, queue_id: int) -> int:
        return len(self._units.get((topic, queue_id), ()))

    def min_offset(self, topic: str, queue_id: int) -> int:
        return self._minimum.get((topic, queue_id), 0)

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        low, high = self.min_offset(topic, queue_id), self.max_offset(topic, queue_id)
        times = [abs(self.store_time(topic, queue_id, offset) - timestamp_ms) for offset in range(low, high)]
        return low + times.index(min(times)) if times else 0

    def store_time(self, topic: str, queue_id: int, offset: int) -> int:
        units = self.units(topic, queue_id, offset, 1)
        data = self.message_at(units[0][0]) if units else None
        return -1 if data is None else Record.decode(data).store_timestamp_ms

    def earliest_store_time(self, topic: str, queue_id: int) -> int:
        return self.store_time(topic, queue_id, self.min_offset(topic, queue_id))

    def message_at(self, pos: int) -> bytes | None:
        return None if pos in self._damaged else self._log.get(pos)

    def query(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> QueryResult:
        found = [
            record.encode()
            for record in self.records(topic)
            if begin_ms <= record.store_timestamp_ms <= end_ms
            and key in (record.property_table().get("UNIQ_KEY"), *record.property_table().get("KEYS", "").split(" "))
        ]
        return QueryResult(self.clock.now_ms, self.max_pos, found[-max_count:])

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> list[tuple[int, int, int]]:
        if offset < self.min_offset(topic, queue_id):
            return []
        return self._units.get((topic, queue_id), [])[offset : offset + count]

    def usable_units(self, topic: str, queue_id: int, offset: int, count: int) -> list[tuple[int, int, int]]:
        return self.units(topic, queue_id, offset, count)

    def names(self) -> list[tuple[str, int]]:
        return list(self._units)

    def is_in_memory(self, topic: str, queue_id: int, offset: int) -> bool:
        return True

    def watch(self, topic: str, queue_id: int) -> None:
        self.watched.add((topic, queue_id))

    def unwatch(self, topic: str, queue_id: int) -> None:
        self.watched.discard((topic, queue_id))

    def remove_topic(self, topic: str) -> None:
        for queue in [queue for queue in self._units if queue[0] == topic]:
            del self._units[queue]

    async def save_progress(self) -> None:
        pass

    def clean_unused_topics(self, keep: set[str]) -> dict[str, int]:
        return {topic: self.max_offset(topic, queue_id) for topic, queue_id in self._units if topic not in keep}

    def delete_expired_segments(self) -> None: ...

    def clean_expired_queues(self) -> int:
        return 0

    def refusal(self) -> str | None:
        return "a test says so" if self._refusals else None

    def runtime_info(self) -> dict[str, str]:
        return {"commitLogMinOffset": str(self.min_pos), "commitLogMaxOffset": str(self.max_pos)}

    @property
    def writable(self) -> bool:
        return not self._refusals

    @property
    def flushed_pos(self) -> int:
        return self.max_pos if self.auto_flush else self._flushed

    @property
    def staged_pos(self) -> int:
        return self.max_pos

    @property
    def dispatched_pos(self) -> int:
        return self.max_pos

    @property
    def dispatch_behind_bytes(self) -> int:
        return 0

    # -- inside --------------------------------------------------------------------------------------------------------

    def _status(self, texts: list[str], bodies: list[bytes], topic: str) -> tuple[PutStatus, str]:
        if self._refusals:
            return self._refusals.popleft(), "a test says so"
        if any(len(text.encode()) > MAX_PROPERTIES for text in texts):
            return PutStatus.MESSAGE_ILLEGAL, "properties too long"
        size = sum(len(text.encode()) + len(body) for text, body in zip(texts, bodies, strict=True))
        if size + 91 + len(topic) > self.settings.maxMessageSize:
            return PutStatus.MESSAGE_ILLEGAL, "message too long"
        return PutStatus.PUT_OK, ""

    def _append(self, message: Message, body: bytes, text: str, flag: int) -> Record:
        queued = _takes_offset(message.sys_flag)
        record = Record(
            topic=message.topic,
            queue_id=message.queue_id,
            body=body,
            properties=text,
            flag=flag,
            sys_flag=message.sys_flag,
            queue_offset=self.max_offset(message.topic, message.queue_id) if queued else 0,
            pos=self.max_pos,
            born_timestamp_ms=message.born_timestamp_ms,
            born_host=message.born_host,
            store_timestamp_ms=self.clock.now_ms,
            store_host=message.store_host or self.host,
            reconsume_times=message.reconsume_times,
            prepared_transaction_offset=message.prepared_transaction_offset,
        )
        data = record.encode()
        self._log[record.pos] = data
        self.max_pos += len(data)
        self._dispatch(record)
        queue = record.topic, record.queue_id
        if queue in self.watched and self.on_arrival is not None:
            self.on_arrival([queue])
        return record

    def _dispatch(self, record: Record) -> None:
        if _takes_offset(record.sys_flag):
            unit = (record.pos, record.size, self._tags_code(record))
            self._units[record.topic, record.queue_id].append(unit)

    def _tags_code(self, record: Record) -> int:
        names = properties.decode(record.properties)
        if record.topic == SCHEDULE_TOPIC and (level := int(names.get(properties.DELAY, 0))) > 0:
            delays = self.settings.delay_levels_ms()
            return record.store_timestamp_ms + delays[min(level, len(delays)) - 1]
        tag = names.get(properties.TAGS)
        return string_hash(tag.encode()) if tag else 0


def _takes_offset(sys_flag: int) -> bool:
    return sys_flag & TRANSACTION_MASK not in (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)


_BATCH_HEAD = struct.Struct(">iiiii")  # size, magic, crc, flag, body size


def encode_batch(messages: list[tuple[int, bytes, str]]) -> bytes:
    """The client's encoding of a batch: each (flag, body, properties)."""
    parts = []
    for flag, body, text in messages:
        encoded = text.encode()
        size = _BATCH_HEAD.size + len(body) + 2 + len(encoded)
        parts.append(_BATCH_HEAD.pack(size, 0, 0, flag, len(body)) + body)
        parts.append(len(encoded).to_bytes(2, "big") + encoded)
    return b"".join(parts)


def decode_batch(data: bytes) -> list[tuple[int, bytes, str]]:
    """The inverse of `encode_batch`."""
    messages, at = [], 0
    while at < len(data):
        _, _, _, flag, size = _BATCH_HEAD.unpack_from(data, at)
        at += _BATCH_HEAD.size
        body, at = data[at : at + size], at + size
        length = int.from_bytes(data[at : at + 2], "big")
        messages.append((flag, body, data[at + 2 : at + 2 + length].decode()))
        at += 2 + length
    return messages
