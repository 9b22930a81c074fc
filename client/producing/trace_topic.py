"""Message traces in a topic, as RocketMQ's clients write them: mqadmin and consoles show them.

Records wait in memory and leave together, in the background. What cannot be stored within some seconds is dropped, and
so is a record that finds the memory full: a trace never delays a message.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any
from uuid import uuid4

from tallystick.client.core.errors import ClientError
from tallystick.client.core.message import Message
from tallystick.client.core.result import SendResult, SendStatus
from tallystick.client.core.unique_key import UniqueKeys
from tallystick.client.observing.observer import (
    Consuming,
    Ending,
    Observer,
    Observers,
    Processed,
    ProcessEnd,
    SendEnd,
    Sending,
)
from tallystick.client.observing.records import Kind, Record, begun, ended, published, transaction_ended
from tallystick.client.producing.encoding import outgoing
from tallystick.client.producing.sender import Sender
from tallystick.client.transport.session import Session
from tallystick.client.wire import properties as names

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
TRACE_GROUP = "_INNER_TRACE_PRODUCER"
LIMIT_RECORDS = 2048
LIMIT_BYTES = 4 << 20
_GATHER_S = 0.2
_RECORDS = 100
_MESSAGE_BYTES = 100_000
_KEY_BYTES = 16_000
"""Of the keys of a message, which are properties: they have at most 32 767 bytes."""
_MAX_BYTES = 4 << 20
_COMPRESS_ABOVE = 4096
_TIMEOUT_S = 5.0


def observers(session: Session, trace: bool | str) -> Observers:
    """Returns the observers of a producer or consumer: those of its client, and with `trace` a topic of traces. True:
    RocketMQ's; a name: another one."""
    if not trace:
        return Observers(session.observers)
    sender = Sender(session, TRACE_GROUP)
    keys = UniqueKeys(session.client_id.partition("@")[0])

    async def send(message: Message) -> None:
        await sender.send([outgoing(message, keys.next(), _MAX_BYTES, _COMPRESS_ABOVE)], _TIMEOUT_S)

    topic = TRACE_TOPIC if trace is True else trace
    return Observers((*session.observers, TraceTopic(session, topic, send)))


class TraceTopic(Observer):
    """Writes traces to a topic. `send` stores a message; ClientError: it could not."""

    def __init__(self, session: Session, topic: str, send: Callable[[Message], Awaitable[Any]]) -> None:
        self._session = session
        self._topic = topic
        self._send = send
        self._records: deque[Record] = deque()
        self._bytes = 0
        self._writer: asyncio.Task[Any] | None = None
        self._full = asyncio.Event()
        self._failing = False
        self.dropped = 0
        """The records that were not stored."""

    # --- what is observed ---

    def sending(self, what: Sending) -> SendEnd | None:
        begun_ms = _now_ms()

        def end(results: Sequence[SendResult], error: BaseException | None) -> None:
            cost_ms = (_now_ms() - begun_ms) // max(1, len(results))
            for message, result in zip(what.messages, results, strict=False):
                if result.region is not None and message.topic != self._topic:
                    self._add(self._published(what, message, result, begun_ms, cost_ms))

        return end

    def _published(self, what: Sending, message: Message, result: SendResult, begun_ms: int, cost_ms: int) -> Record:
        kind = Kind.HALF if what.half else Kind.DELAYED if message.has_delay else Kind.NORMAL
        return published(
            message,
            group=what.group,
            region=result.region or "",
            unique_key=result.unique_key,
            message_id=result.message_id,
            broker=self._session.routes.master(result.queue.broker) or "",
            begun_ms=begun_ms,
            cost_ms=cost_ms,
            kind=kind,
            success=result.status is SendStatus.OK,
            client_id=what.client_id,
        )

    def processing(self, what: Consuming) -> ProcessEnd | None:
        messages = [
            each
            for each in what.messages
            if each.topic != self._topic and each.properties.get(names.TRACE_ON) != "false"
        ]
        if not messages:
            return None
        begun_ms, request, group = _now_ms(), uuid4().hex.upper(), what.group
        for message in messages:
            self._add(begun(message, group=group, request=request, now_ms=begun_ms, client_id=what.client_id))

        def end(how: Processed, error: BaseException | None) -> None:
            if how is not Processed.CANCELLED:
                now_ms = _now_ms()
                cost_ms = (now_ms - begun_ms) // len(messages)
                for message in messages:
                    self._add(ended(message, how, group=group, request=request, now_ms=now_ms, cost_ms=cost_ms))

        return end

    def ending(self, what: Ending) -> None:
        self._add(transaction_ended(what, now_ms=_now_ms()))

    async def close(self) -> None:
        """Stores what waits, for a limited time."""
        self._full.set()
        if self._writer is not None:
            await asyncio.wait([self._writer], timeout=_TIMEOUT_S)

    # --- storing ---

    def _add(self, record: Record) -> None:
        if len(self._records) >= LIMIT_RECORDS or self._bytes + record.size > LIMIT_BYTES or self._session.closed:
            self._drop(1, "the memory for traces is full")
            return
        self._records.append(record)
        self._bytes += record.size
        if len(self._records) >= _RECORDS:
            self._full.set()
        if self._writer is None or self._writer.done():
            self._writer = self._session.spawn(self._write(), f"traces to {self._topic}")

    async def _write(self) -> None:
        while self._records:
            try:
                await asyncio.wait_for(self._full.wait(), _GATHER_S)
            except TimeoutError:
                pass  # few records: they have waited for long enough
            self._full.clear()
            taken = list(self._records)
            self._records.clear()
            self._bytes = 0
            for message, count in _messages(self._topic, taken):
                try:
                    await self._send(message)
                    self._failing = False
                except ClientError as error:
                    self._drop(count, str(error))

    def _drop(self, count: int, reason: str) -> None:
        self.dropped += count
        if not self._failing:
            self._failing = True
            self._session.problem(self._topic, f"traces of messages are dropped: {reason}")


def _messages(topic: str, records: Sequence[Record]) -> Iterator[tuple[Message, int]]:
    """Returns the messages for records, those of a region together, and how many records each has."""
    by_region: dict[str, list[Record]] = {}
    for record in records:
        by_region.setdefault(record.region, []).append(record)
    for some in by_region.values():
        part: list[Record] = []
        size = key_size = 0
        for record in some:
            more = sum(len(key.encode("utf-8", "surrogateescape")) + 1 for key in record.keys)
            if part and (size + len(record.text) > _MESSAGE_BYTES or key_size + more > _KEY_BYTES):
                yield _message(topic, part), len(part)
                part, size, key_size = [], 0, 0
            part.append(record)
            size += len(record.text)
            key_size += more
        yield _message(topic, part), len(part)


def _message(topic: str, records: Sequence[Record]) -> Message:
    keys = dict.fromkeys(key for record in records for key in record.keys)
    return Message(
        topic, "".join(record.text for record in records).encode("utf-8", "surrogateescape"), keys=list(keys)
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
