"""The producer of an application."""

from __future__ import annotations

import asyncio
import uuid
from asyncio import CancelledError
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack

from tallystick.client.core.codecs import BYTES, Codec
from tallystick.client.core.errors import ClosedError, ConfigurationError, Timeout
from tallystick.client.core.message import Message, Stored, plain_body
from tallystick.client.core.queue import Queue
from tallystick.client.core.result import SendResult
from tallystick.client.core.unique_key import UniqueKeys
from tallystick.client.observing.observer import Observers, SendEnd, Sending
from tallystick.client.producing.encoding import Outgoing, outgoing
from tallystick.client.producing.outbox import Future, Lane, Outbox
from tallystick.client.producing.sender import Sender
from tallystick.client.producing.trace_topic import observers
from tallystick.client.transport.session import Session
from tallystick.client.wire import properties as names
from tallystick.client.wire.codes import RequestCode
from tallystick.client.wire.command import Command

_REPLY = "reply"


class Reply:
    """The answer to a request that was sent as a message."""

    __slots__ = ("body", "properties")

    def __init__(self, body: bytes, properties: dict[str, str]) -> None:
        self.body = body
        self.properties = properties


class ProducerOptions(TypedDict, total=False):
    """The options of a producer."""

    timeout: float
    """Seconds in which a message is sent, repetitions included (15)."""
    compress_above: int
    """Bytes of a body above which it is compressed (4096)."""
    max_message_bytes: int
    """The largest body (4 MiB). Brokers have their own limit."""
    buffer_bytes: int
    """Memory of messages that wait after `send_nowait` (32 MiB)."""
    coalesce: bool
    """Whether messages that wait may leave as batches, which are faster; each is stored as if it had been sent alone,
    but without compression (False)."""
    batch_bytes: int
    """The largest request of several messages (512 KiB)."""
    codec: Codec[Any]
    """How values become bodies (`BYTES`)."""
    on_send: Callable[[Message], None]
    """Called with each message before it is encoded. It may change its properties."""
    trace: bool | str
    """Whether what is sent is noted in RocketMQ's topic of message traces, or the name of such a topic (False)."""


class Producer:
    """Sends messages. Made by `Client.producer`; an asynchronous context manager, which sends what waits at its end.

    A message is given as a `Message`, or as a topic, a body and the other fields of `Message` by name.
    """

    def __init__(self, session: Session, group: str, **options: Unpack[ProducerOptions]) -> None:
        if not group:
            raise ConfigurationError("the name of the producer's group is empty")
        self.group = group
        self._session = session
        self._timeout_s = options.get("timeout", 15.0)
        self._compress_above = options.get("compress_above", 4096)
        self._max_message_bytes = options.get("max_message_bytes", 4 << 20)
        self._batch_bytes = options.get("batch_bytes", 512 << 10)
        self._coalesce = options.get("coalesce", False)
        self._codec = options.get("codec", BYTES)
        self._on_send = options.get("on_send")
        self.observers: Observers = observers(session, options.get("trace", False))
        self._keys = UniqueKeys(session.client_id.partition("@")[0])
        self._sender = Sender(session, group)
        buffer_bytes = options.get("buffer_bytes", 32 << 20)
        self._outbox = Outbox(session, buffer_bytes, self._batch_bytes, self._send_one, self._send_lane)
        self._locks: dict[Queue, asyncio.Lock] = {}
        self._announced = False
        self._closed = False

    async def __aenter__(self) -> Self:
        await self._announce()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Sends what waits, for at most the timeout, and takes the producer back."""
        if not self._closed:
            self._closed = True
            await self._outbox.close(self._timeout_s)
            await self.observers.close()
            if self._announced:
                await self._session.remove_producer(self.group)

    async def send(
        self, message: Message | str, body: Any = None, *, timeout: float | None = None, **fields: Any
    ) -> SendResult:
        """Sends a message and returns when a broker stored it.

        ConfigurationError: it cannot be sent. Refused, NotStored, ConnectionFailed: it is not stored. Unknown: it may
        be. If the call is cancelled, it is not known either.
        """
        made = self.message(message, body, fields)
        if not self.observers:
            return await self._send_one(self.encode(made), timeout)
        with self._observed([made]) as sent:
            sent.append(await self._send_one(self.encode(made), timeout))
        return sent[0]

    async def send_batch(
        self, messages: Sequence[Message], *, timeout: float | None = None, queue: int | None = None
    ) -> list[SendResult]:
        """Sends messages of one topic in as few requests as possible, all to one queue. Returns a result for each, in
        their order. Each request is stored as a whole or not at all. Errors as in `send`: some may be stored then."""
        if not messages:
            return []
        with self._observed(messages) as sent:
            sent += await self._send_batch(messages, timeout or self._timeout_s, queue)
        return sent

    async def _send_batch(self, messages: Sequence[Message], timeout_s: float, queue: int | None) -> list[SendResult]:
        items = [self.encode(self.message(message, None, {}), compress=False) for message in messages]
        if len({item.message.topic for item in items}) > 1:
            raise ConfigurationError("the messages of a batch have one topic")
        if any(item.message.has_delay for item in items):
            raise ConfigurationError("a message with a delay cannot be a part of a batch")
        keys = {item.message.order_key for item in items}
        if len(keys) > 1:
            raise ConfigurationError("the messages of a batch go to one queue, so they have one order key or none")
        target: Queue | None = None
        if keys != {None} or queue is not None:
            first = items[0].message
            first.queue = queue if queue is not None else first.queue
            target = await self._sender.queue_of(first, timeout_s)
        results: list[SendResult] = []
        for some in _split(items, self._batch_bytes):
            results += await self._in_order(some, target, timeout_s)
        return results

    def send_nowait(self, message: Message | str, body: Any = None, **fields: Any) -> Future:
        """Begins to send a message and returns a future of its result. BufferFull: too much waits, see `room`.

        ConfigurationError: the message cannot be sent; or it has an order key, and the queues of its topic are not
        known yet (`prepare`).
        """
        made = self.message(message, body, fields)
        if not self.observers:
            return self._begin(made)
        end = self.observers.sending(Sending(self._session.client_id, self.group, [made]))
        try:
            future = self._begin(made)
        except BaseException as error:
            end((), error)
            raise
        future.add_done_callback(lambda done: _tell(end, done))
        return future

    def _begin(self, message: Message) -> Future:
        item = self.encode(message, compress=not self._coalesce)
        if self._closed:
            raise ClosedError("the producer is closed")
        lane = self._lane(message)
        if lane is None and message.order_key is not None:
            raise ConfigurationError(f"call prepare({message.topic!r}) before messages with an order key")
        self._outbox.reserve(item.size)
        if self._coalesce and lane is not None and not message.has_delay:
            return self._outbox.coalesce(item, lane)
        return self._outbox.start(item)

    async def prepare(self, topic: str) -> None:
        """Asks for the queues of a topic, and connects to nothing else. NotFound, ConnectionFailed, NoAnswer."""
        await self._sender.route(topic, self._timeout_s)

    async def room(self) -> None:
        """Returns when `send_nowait` has room for a message: back-pressure for a loop that sends."""
        await self._outbox.room()

    async def flush(self) -> None:
        """Returns when nothing that `send_nowait` took is waiting. The futures have the results."""
        await self._outbox.flush()

    async def request(self, message: Message | str, body: Any = None, *, timeout: float = 3.0, **fields: Any) -> Reply:
        """Sends a message and waits for the reply of a consumer (`Producer.reply`, or a Java client).

        Timeout: no reply came within `timeout` seconds; the message was sent. Other errors as in `send`.
        """
        await self._announce()
        correlation_id = str(uuid.uuid4())
        extra = {
            names.CORRELATION_ID: correlation_id,
            names.REPLY_TO_CLIENT: self._session.client_id,
            names.TTL: str(int(timeout * 1000)),
        }
        made = self.message(message, body, fields)
        future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()

        def deliver(found: Command) -> None:
            if not future.done():
                future.set_result(found)

        self._session.expect_reply(correlation_id, deliver)
        try:
            async with asyncio.timeout(timeout):
                with self._observed([made]) as sent:
                    sent.append(await self._send_one(self.encode(made, extra=extra), timeout))
                found = await future
        except Timeout:
            raise
        except TimeoutError:
            raise Timeout(f"topic {made.topic}", f"no reply within {timeout:g} s") from None
        finally:
            self._session.expect_reply(correlation_id, None)
        ext = found.ext or {}
        return Reply(plain_body(found.body, int(ext.get("sysFlag", "0"))), names.decode(ext.get("properties", "")))

    async def reply(self, request: Stored, body: Any, *, timeout: float | None = None) -> SendResult:
        """Answers a message that was sent with `request`. ConfigurationError: it was not. Errors as in `send`."""
        found = request.properties
        cluster, to = found.get(names.CLUSTER), found.get(names.REPLY_TO_CLIENT)
        if not cluster or not to or names.CORRELATION_ID not in found:
            raise ConfigurationError(f"{request} asks for no reply")
        extra = {names.MSG_TYPE: _REPLY, names.REPLY_TO_CLIENT: to}
        extra |= {name: found[name] for name in (names.CORRELATION_ID, names.TTL) if name in found}
        made = self.message(Message(f"{cluster}_REPLY_TOPIC", self._codec.encode(body)), None, {})
        with self._observed([made]) as sent:
            items = [self.encode(made, extra=extra)]
            sent += await self._sender.send(items, timeout or self._timeout_s, code=RequestCode.SEND_REPLY_MESSAGE_V2)
        return sent[0]

    # --- how messages are sent ---

    def message(self, message: Message | str, body: Any, fields: dict[str, Any]) -> Message:
        """Returns a message that is given in one of both ways. ConfigurationError: it is given in neither."""
        if isinstance(message, str):
            return Message(message, self._codec.encode(body), **fields)
        if body is not None or fields:
            raise ConfigurationError("give either a Message, or a topic, a body and the other fields")
        return message

    def encode(self, message: Message, *, compress: bool = True, extra: dict[str, str] | None = None) -> Outgoing:
        """Checks and encodes a message. `extra`: properties of the client. ConfigurationError: it cannot be sent."""
        if self._on_send is not None:
            self._on_send(message)
        above = self._compress_above if compress else self._max_message_bytes
        return outgoing(message, message.unique_key or self._keys.next(), self._max_message_bytes, above, extra)

    async def send_encoded(self, item: Outgoing) -> SendResult:
        """Sends what `encode` returned. Errors as in `send`."""
        return await self._send_one(item)

    @contextmanager
    def _observed(self, messages: Sequence[Message]) -> Iterator[list[SendResult]]:
        """The block sends messages and adds their results to the list."""
        sent: list[SendResult] = []
        if not self.observers:
            yield sent
            return
        end = self.observers.sending(Sending(self._session.client_id, self.group, messages))
        try:
            yield sent
        except BaseException as error:
            end(sent, error)
            raise
        end(sent, None)

    async def _send_one(self, item: Outgoing, timeout: float | None = None) -> SendResult:
        timeout_s = timeout or self._timeout_s
        target = None
        if item.message.order_key is not None:
            loop = asyncio.get_running_loop()
            begin_s = loop.time()
            target = await self._sender.queue_of(item.message, timeout_s)
            timeout_s = max(0.001, timeout_s - (loop.time() - begin_s))
        return (await self._in_order([item], target, timeout_s))[0]

    async def _in_order(self, items: Sequence[Outgoing], queue: Queue | None, timeout_s: float) -> list[SendResult]:
        """Sends to a queue as soon as no other request with an order is on its way there: a repetition of a request
        would otherwise come after later messages."""
        if queue is None:
            return await self._sender.send(items, timeout_s)
        lock = self._locks.get(queue)
        if lock is None:
            lock = self._locks[queue] = asyncio.Lock()
        async with lock:
            return await self._sender.send(items, timeout_s, queue=queue)

    async def _send_lane(self, items: Sequence[Outgoing], lane: Lane) -> list[SendResult]:
        if lane.fixed:
            return await self._in_order(items, lane.queue, self._timeout_s)
        return await self._sender.send(items, self._timeout_s, first_queue=lane.queue)

    def _lane(self, message: Message) -> Lane | None:
        """Returns where a message waits; None: the route of its topic is not known yet, so it is sent alone."""
        queue = self._sender.known_queue(message)
        return None if queue is None else Lane(queue, message.order_key is not None or message.queue is not None)

    async def _announce(self) -> None:
        if self._closed:
            raise ClosedError("the producer is closed")
        if not self._announced:
            self._announced = True
            await self._session.add_producer(self.group)


def _tell(end: SendEnd, future: Future) -> None:
    error = CancelledError() if future.cancelled() else future.exception()
    end((), error) if error is not None else end((future.result(),), None)


def _split(items: Sequence[Outgoing], limit_bytes: int) -> list[list[Outgoing]]:
    """Splits a batch into requests of limited size."""
    parts: list[list[Outgoing]] = [[]]
    size = 0
    for item in items:
        if parts[-1] and size + item.size > limit_bytes:
            parts.append([])
            size = 0
        parts[-1].append(item)
        size += item.size
    return parts
