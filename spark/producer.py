"""Sends messages to brokers, in batches, for a task of the sink. Without Spark.

One request at a time is on its way to each queue, so messages of a queue are stored in the order of their rows, also if
a request is repeated.

A request is repeated for a limited time if there is no answer, or a temporary refusal. Without an answer its messages
may have been stored: if it is repeated then, they are counted as possibly doubled.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tallystick.node.core.client import ClusterClient, QueueAddress, RequestRefusedError
from tallystick.node.remoting.client import RemotingClient
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import Command
from tallystick.node.remoting.errors import RemotingError
from tallystick.spark.outgoing import Outgoing
from tallystick.spark.protocol_access import ProtocolAccess
from tallystick.store import fastjson
from tallystick.store._kernel import string_hash
from tallystick.store.clock import wall_ms
from tallystick.store.formats.sending import BATCH_PROPERTIES, send_fields

STORED = {
    ResponseCode.SUCCESS: "",
    ResponseCode.FLUSH_DISK_TIMEOUT: "unsynced",
    ResponseCode.FLUSH_SLAVE_TIMEOUT: "unsynced",
    ResponseCode.SLAVE_NOT_AVAILABLE: "unsynced",
}
"""Answers of a broker that stored the messages."""
TEMPORARY = frozenset(
    (
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.FLOW_CONTROL,
    )
)
"""Refusals that can end: the broker is busy, starts, or does not lead its group."""
MOST_MESSAGES = 4096
PENDING_BYTES = 16 << 20
"""Bytes of messages that wait until their batch is full, of all queues together."""
_DELAYED_AT_A_TIME = 64
_PAUSES_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)


class SendError(Exception):
    """Messages could not be sent. The message says why, which ones, and whether the broker may have stored them."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where and how to send. One of `nameserver` and `broker` is given, as host:port."""

    nameserver: str | None
    broker: str | None
    group: str
    batch_bytes: int
    timeout_s: float
    retry_s: float
    access: ProtocolAccess = ProtocolAccess()  # noqa: RUF009 -- frozen


@dataclass(slots=True)
class Sent:
    """What a task sent: messages that were stored, of them those that may be stored twice, and those that the broker
    did not confirm as synced or copied to a slave."""

    messages: int = 0
    requests: int = 0
    doubled: int = 0
    unsynced: int = 0

    def add(self, other: Sent) -> None:
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass(slots=True)
class _Route:
    """The queues of a topic. `turn` counts the batches without an order key."""

    queues: list[QueueAddress]
    turn: itertools.count[int]


@dataclass(slots=True)
class _Pending:
    """Messages of one topic, and of one queue if they have an order key (`number`)."""

    topic: str
    number: int | None
    messages: list[Outgoing] = field(default_factory=list)
    bytes: int = 0


class Producer:
    """Sends the messages of one task. An async context manager; `sent` is complete after `flush`.

    `turn`: the number of the queue that gets the first batch, so that tasks with one batch each use all queues.
    """

    def __init__(self, target: Target, turn: int = 0) -> None:
        self._turn = turn
        self.sent = Sent()
        self._target = target
        access = target.access
        self._client = RemotingClient(
            name="sink", connect_timeout_s=target.timeout_s, sign=access.sign, tls=access.context
        )
        self._names = ClusterClient(
            target.nameserver or "", timeout_s=target.timeout_s, sign=access.sign, tls=access.context
        )
        self._routes: dict[str, _Route] = {}
        self._pending: dict[tuple[str, int | None, bool], _Pending] = {}
        self._pending_bytes = 0
        self._busy: dict[tuple[str, str, int], asyncio.Task[None]] = {}

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._busy.values():
            task.cancel()
        await asyncio.gather(*self._busy.values(), return_exceptions=True)
        await self._client.close()
        await self._names.__aexit__(None, None, None)

    async def send(self, messages: Iterable[Outgoing]) -> None:
        """Takes messages; most of them are on their way when it returns. SendError."""
        for message in messages:
            number = None
            if message.order_key is not None:
                route = self._routes.get(message.topic) or await self._route(message.topic)
                number = abs(string_hash(message.order_key.encode())) % len(route.queues)
            key = message.topic, number, message.delayed
            pending = self._pending.get(key)
            if pending is None:
                pending = self._pending[key] = _Pending(message.topic, number)
            size = len(message.part)
            if pending.messages and pending.bytes + size > self._target.batch_bytes:
                await self._dispatch(key)
                pending = self._pending[key] = _Pending(message.topic, number)
            pending.messages.append(message)
            pending.bytes += size
            self._pending_bytes += size
            if len(pending.messages) >= MOST_MESSAGES:
                await self._dispatch(key)
            elif self._pending_bytes > PENDING_BYTES:
                for each in list(self._pending):
                    await self._dispatch(each)

    async def flush(self) -> None:
        """Returns when the brokers have stored all messages. SendError."""
        for key in list(self._pending):
            await self._dispatch(key)
        await asyncio.gather(*self._busy.values())
        self._busy.clear()

    async def _dispatch(self, key: tuple[str, int | None, bool]) -> None:
        """Starts to send what is pending, as soon as its queue is free."""
        pending = self._pending.pop(key)
        self._pending_bytes -= pending.bytes
        route = self._routes.get(pending.topic) or await self._route(pending.topic)
        number = next(route.turn) if pending.number is None else pending.number
        queue = route.queues[number % len(route.queues)]
        place = queue.topic, queue.broker_name, queue.queue_id
        if (before := self._busy.pop(place, None)) is not None:
            await before
        for done in [each for each, task in self._busy.items() if task.done()]:
            self._busy.pop(done).result()  # its error ends the task now
        self._busy[place] = asyncio.create_task(self._deliver(queue, pending, delayed=key[2]))
        await asyncio.sleep(0)  # the request leaves before the next rows are encoded

    async def _deliver(self, queue: QueueAddress, pending: _Pending, *, delayed: bool) -> None:
        messages, keep_queue = pending.messages, pending.number is not None
        if not delayed:
            await self._batch(queue, messages, keep_queue)
            return
        for begin in range(0, len(messages), _DELAYED_AT_A_TIME):
            some = messages[begin : begin + _DELAYED_AT_A_TIME]
            await asyncio.gather(*(self._batch(queue, [message], keep_queue) for message in some))

    async def _batch(self, queue: QueueAddress, messages: Sequence[Outgoing], keep_queue: bool) -> None:
        """Sends a batch. If the broker calls it illegal, its halves: the message that is illegal is named."""
        try:
            await self._request(queue, messages, keep_queue)
        except RequestRefusedError as error:
            if error.code != ResponseCode.MESSAGE_ILLEGAL or len(messages) == 1:
                raise SendError(_told(str(error), messages)) from error
            middle = len(messages) // 2
            await self._batch(queue, messages[:middle], keep_queue)
            await self._batch(queue, messages[middle:], keep_queue)

    async def _request(self, queue: QueueAddress, messages: Sequence[Outgoing], keep_queue: bool) -> None:
        """Sends one request until a broker stored it. RequestRefusedError: it never will; SendError: the time is up."""
        deadline_s = time.monotonic() + self._target.retry_s
        in_doubt = False
        for attempt in itertools.count():
            left_s = max(0.1, min(self._target.timeout_s, deadline_s - time.monotonic()))
            connected = False
            try:
                async with asyncio.timeout(left_s):
                    await self._client.connection(queue.address)
                connected = True
                answer = await self._client.call(queue.address, self._command(queue, messages), left_s)
            except (RemotingError, TimeoutError) as error:
                problem = str(error) or f"{queue.address}: no connection within {left_s:g} s"
                in_doubt |= connected
            else:
                if answer.code in STORED:
                    self._count(len(messages), in_doubt, STORED[ResponseCode(answer.code)] == "unsynced")
                    return
                refused = RequestRefusedError(queue.address, answer.code, answer.remark)
                if answer.code not in TEMPORARY:
                    if in_doubt:
                        raise SendError(_told(str(refused), messages, in_doubt=True))
                    raise refused
                problem = str(refused)
                in_doubt |= answer.code == ResponseCode.SYSTEM_ERROR
            pause_s = _PAUSES_S[min(attempt, len(_PAUSES_S) - 1)]
            if time.monotonic() + pause_s >= deadline_s:
                raise SendError(_told(f"{problem}, for {self._target.retry_s:g} s", messages, in_doubt=in_doubt))
            await asyncio.sleep(pause_s)
            queue = await self._elsewhere(queue, keep_queue)

    def _count(self, messages: int, in_doubt: bool, unsynced: bool) -> None:
        self.sent.add(Sent(messages, 1, messages if in_doubt else 0, messages if unsynced else 0))

    def _command(self, queue: QueueAddress, messages: Sequence[Outgoing]) -> Command:
        group = self._target.group
        if len(messages) == 1:
            (single,) = messages
            ext = send_fields(group, queue.topic, queue.queue_id, single.properties, wall_ms())
            return Command(RequestCode.SEND_MESSAGE_V2, ext=ext, body=single.body)
        ext = send_fields(group, queue.topic, queue.queue_id, BATCH_PROPERTIES, wall_ms(), is_batch=True)
        body = b"".join([message.part for message in messages])
        return Command(RequestCode.SEND_BATCH_MESSAGE, ext=ext, body=body)

    async def _elsewhere(self, queue: QueueAddress, keep_queue: bool) -> QueueAddress:
        """Returns where to send a request again: the same queue at its broker's present address. Without an order key,
        it is a queue of another broker, if there is one."""
        try:
            queues = await self._queues(queue.topic)
        except (RemotingError, SendError):
            return queue
        others = [each for each in queues if each.broker_name != queue.broker_name]
        if others and not keep_queue:
            return others[queue.queue_id % len(others)]
        same = (each for each in queues if (each.broker_name, each.queue_id) == (queue.broker_name, queue.queue_id))
        return next(same, queue)

    async def _route(self, topic: str) -> _Route:
        """Asks for the queues of a topic, for a limited time. SendError: it does not exist, or may not be written."""
        deadline_s = time.monotonic() + self._target.retry_s
        for attempt in itertools.count():
            try:
                found = self._routes[topic] = _Route(await self._queues(topic), itertools.count(self._turn))
                return found
            except RequestRefusedError as error:
                if error.code not in TEMPORARY:
                    raise SendError(f"topic {topic}: {error}") from error
                problem: RemotingError = error
            except RemotingError as error:
                problem = error
            pause_s = _PAUSES_S[min(attempt, len(_PAUSES_S) - 1)]
            if time.monotonic() + pause_s >= deadline_s:
                raise SendError(f"topic {topic}: {problem}, for {self._target.retry_s:g} s") from problem
            await asyncio.sleep(pause_s)
        raise AssertionError("the loop returns or raises")

    async def _queues(self, topic: str) -> list[QueueAddress]:
        """Returns the writable queues of a topic, in the order of RocketMQ's clients. RemotingError, SendError."""
        broker = self._target.broker
        if broker is None:
            queues = await self._names.queues(topic, writable=True)
        else:
            answer = await self._names.call(broker, RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
            places: list[Any] = list(fastjson.object_keys(fastjson.loads(answer.body)["offsetTable"]))
            queues = [QueueAddress(topic, place["brokerName"], broker, place["queueId"]) for place in places]
            queues.sort(key=lambda queue: (queue.broker_name, queue.queue_id))
        if not queues:
            raise SendError(f"topic {topic} has no queue that may be written")
        return queues


def _told(problem: str, messages: Sequence[Outgoing], *, in_doubt: bool = False) -> str:
    first, last = messages[0].unique_key, messages[-1].unique_key
    which = f"the message {first}" if len(messages) == 1 else f"{len(messages)} messages, {first} to {last}"
    doubt = ", and may have been stored" if in_doubt else ""
    return f"{problem}: {which} of topic {messages[0].topic} were not confirmed{doubt}"
