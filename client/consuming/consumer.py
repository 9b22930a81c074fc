"""The consumer of an application: a member of a group, and an asynchronous iterator of messages."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypedDict, Unpack

from tallystick.client.consuming.allocation import STRATEGIES, Strategy
from tallystick.client.consuming.assignment import Assignment
from tallystick.client.consuming.delivery import Batch, Delivery
from tallystick.client.consuming.filters import ALL, Filter, Sql, subscription
from tallystick.client.consuming.info import running_info
from tallystick.client.consuming.locks import Locks
from tallystick.client.consuming.membership import Membership
from tallystick.client.consuming.progress import GroupProgress, LocalProgress, Progress
from tallystick.client.consuming.pulling import Queues, Start, now_ms, retry_topic
from tallystick.client.consuming.reader import Limits, Reader
from tallystick.client.consuming.returning import Returning
from tallystick.client.consuming.window import Window
from tallystick.client.core.codecs import BYTES, Codec
from tallystick.client.core.errors import ClientError, ClosedError, ConfigurationError
from tallystick.client.transport.connection import Served
from tallystick.client.transport.routes import Queue
from tallystick.client.transport.session import Session
from tallystick.client.wire import fastjson
from tallystick.client.wire.codes import RequestCode, ResponseCode
from tallystick.client.wire.command import Command

_COMMIT_S = 5.0
_ORDERED_RETRY_S = 1.0
_AGAIN_S = 5.0
"""After how many seconds a message is handed out again that could not be sent back."""
Handler = Callable[[Delivery], Awaitable[Any]]


class ConsumerOptions(TypedDict, total=False):
    """The options of a consumer. All members of a group must agree about `where`, `ordered` and `strategy`."""

    where: Filter
    """`Tags(...)` or `Sql(...)` (all messages)."""
    start: Start | datetime
    """Where a group begins in a queue for which it has no offset (`Start.LAST`)."""
    concurrency: int
    """Messages that the application has at the same time (20). With `ordered`: queues from which it has one."""
    ordered: bool
    """Whether the messages of a queue are handed out one after the other, each after the one before it is settled."""
    broadcast: bool
    """Whether this consumer gets the messages of all queues, whatever other members of the group get."""
    offsets_file: str | os.PathLike[str]
    """For a broadcast: where the offsets are kept."""
    strategy: Literal["AVG", "CONSISTENT_HASH"]
    """How members share queues (AVG)."""
    max_retries: int
    """Repetitions after which a message becomes a dead letter (16; in an ordered consumer without limit)."""
    prefetch: int
    """Messages of a queue that are pulled and not settled (1000)."""
    prefetch_bytes: int
    """The same in bytes (64 MiB)."""
    pull_count: int
    """Messages of a pull (32). Brokers have their own limit."""
    wait: float
    """Seconds for which a broker waits for messages (15)."""
    drain: float
    """Seconds in which `close` waits for messages that are being processed (30)."""
    codec: Codec[Any]
    """How bodies become values (`BYTES`)."""


class Consumer:
    """Made by `Client.consumer`; an asynchronous context manager, and an iterator of its messages.

    Each message must be settled: by `Delivery.process`, or by `ack`, `retry` or `dead_letter`. Messages are delivered
    at least once: again after a failure, and when queues move between members.
    """

    def __init__(self, session: Session, group: str, topic: str, **options: Unpack[ConsumerOptions]) -> None:
        if not group or not topic:
            raise ConfigurationError("a consumer needs the names of a group and a topic")
        self.group = group
        self.topic = topic
        self._session = session
        self._where = options.get("where", ALL)
        self._version = now_ms()
        self._start = options.get("start", Start.LAST)
        self._ordered = options.get("ordered", False)
        self._broadcast = options.get("broadcast", False)
        self._concurrency = options.get("concurrency", 20)
        if self._concurrency < 1:
            raise ConfigurationError("concurrency is 1 or more")
        self._max_retries = options.get("max_retries", 1 << 30 if self._ordered else 16)
        self._drain_s = options.get("drain", 30.0)
        self._codec = options.get("codec", BYTES)
        self._queues = Queues(session, group)
        self._returning = Returning(session, self._queues, group, self._max_retries)
        limits = Limits(
            options.get("prefetch", 1000),
            options.get("prefetch_bytes", 64 << 20),
            options.get("pull_count", 32),
            options.get("wait", 15.0),
        )
        self._assignment = Assignment(
            session,
            group,
            self._progress(options.get("offsets_file")),
            Locks(session, group) if self._ordered and not self._broadcast else None,
            self._reader_factory(limits),
            ordered=self._ordered,
            on_change=self._wake_all,
        )
        self._membership = Membership(session, group, self._topics(), self._strategy(options), self._assignment.apply)
        self._turn: deque[Window] = deque()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._out = 0
        self._processing = 0
        self._idle = asyncio.Event()
        self._tasks: list[asyncio.Task[Any]] = []
        self._handler: Handler | None = None
        self._begun_ms = 0
        self._closing = False

    # --- life ---

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        await self.close()

    async def start(self) -> None:
        """Joins the group. Returns when the client has its first queues, or after some seconds without.

        Refused: a broker does not accept the filter. ValueError: this client has a consumer of the group.
        """
        if self._tasks or self._closing:
            raise ClosedError("a consumer is started once")
        self._begun_ms = now_ms()
        try:
            await self._session.routes.get(self.topic)
            if isinstance(self._where, Sql):
                await self._check_filter()
        except ClientError as error:
            if isinstance(self._where, Sql):
                raise
            self._session.problem(self.topic, f"the topic cannot be consumed now: {error}")
        await self._session.add_member(self.group, self)
        self._tasks = [
            self._session.spawn(self._membership.run(), f"membership in {self.group}"),
            self._session.spawn(self._commits(), f"commits of {self.group}"),
        ]
        try:
            await asyncio.wait_for(self._membership.assigned.wait(), self._session.timeout_s)
        except TimeoutError:
            pass  # the topic does not exist yet, or no broker answers: the attempts continue in the background

    async def close(self) -> None:
        """Hands out nothing more, waits for messages that are being processed, commits, and leaves the group."""
        if self._closing:
            return
        self._closing = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._assignment.stop_reading()
        self._wake_all()
        if self._processing:
            try:
                await asyncio.wait_for(self._idle.wait(), self._drain_s)
            except TimeoutError:
                self._session.problem(self.group, f"messages were still processed after {self._drain_s:g} s")
        await self._assignment.release_all()
        await self._session.remove_member(self.group)

    # --- messages ---

    def __aiter__(self) -> AsyncIterator[Delivery]:
        return self

    async def __anext__(self) -> Delivery:
        return (await self._next(1))[0]

    async def batches(self, size: int = 32) -> AsyncGenerator[Batch, None]:
        """Iterates over batches: the messages that are ready, at least one and at most `size`, of one queue."""
        while True:
            try:
                yield Batch(await self._next(size))
            except StopAsyncIteration:
                return

    async def run(self, handler: Handler) -> None:
        """Calls `handler` for each message, `concurrency` of them at the same time, until the consumer is closed or
        this call is cancelled. A message is consumed if its call succeeds (`Delivery.process`)."""
        self._handler = handler

        async def work() -> None:
            async for message in self:
                async with message.process():
                    await handler(message)

        async with asyncio.TaskGroup() as group:
            for _ in range(self._concurrency):
                group.create_task(work())

    async def _next(self, count: int) -> list[Delivery]:
        while True:
            if self._closing:
                raise StopAsyncIteration
            taken = self._take(count)
            if taken:
                return taken
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake(1)  # it was this one's turn
                raise

    def _take(self, count: int) -> list[Delivery]:
        count = min(count, self._concurrency - self._out) if not self._ordered else count
        if count < 1 or self._out >= self._concurrency:
            return []
        now_s = asyncio.get_running_loop().time()
        for _ in range(len(self._turn)):
            window = self._turn[0]
            self._turn.rotate(-1)
            if not window.can_take(now_s):
                continue
            taken = window.take(count)
            self._out += 1 if self._ordered else len(taken)
            for message in taken:
                message.hand_out(self)
            return taken
        return []

    def _wake(self, count: int) -> None:
        while self._waiters and count:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1

    def _wake_all(self) -> None:
        self._turn = deque(reader.window for reader in self._assignment.readers.values())
        self._wake(len(self._waiters))

    # --- what deliveries report ---

    def settled(self, message: Delivery) -> None:
        """A delivery is finished."""
        window = message.window
        window.settle(message)
        self._left(window)

    def released(self, message: Delivery, delay_s: float) -> None:
        """A delivery will be handed out again, by this consumer if its queue stays here."""
        if delay_s:
            asyncio.get_running_loop().call_later(delay_s, self._put_back, message)
        else:
            self._put_back(message)

    async def sent_back(self, message: Delivery, delay_level: int) -> None:
        """A delivery goes back to its broker; in an ordered consumer it stays, unless its attempts are used up."""
        again = message.attempts < self._max_retries and delay_level >= 0
        if again and (self._ordered or self._broadcast):
            message.attempts += 1
            self.released(message, _ORDERED_RETRY_S)
            return
        if self._broadcast:
            self._session.problem(self.group, f"{message} is given up after {message.attempts + 1} attempts")
            self.settled(message)
            return
        try:
            await self._returning.send_back(message, delay_level if again else -1)
        except ClientError as error:
            self._session.problem(self.group, f"{message} cannot be sent back and is tried here again: {error}")
            self.released(message, _AGAIN_S)
        except BaseException:
            self.released(message, 0.0)
            raise
        else:
            self.settled(message)

    def decoded(self, body: bytes) -> Any:
        """The value of a body."""
        return self._codec.decode(body)

    def processing(self, change: int) -> None:
        """Counts deliveries that are being processed."""
        self._processing += change
        if not self._processing:
            self._idle.set()
        else:
            self._idle.clear()

    def _put_back(self, message: Delivery) -> None:
        window = message.window
        window.put_back(message)
        self._left(window)

    def _left(self, window: Window) -> None:
        """The application has one message less."""
        if not self._ordered or not window.out:
            self._out -= 1
        self._wake(1)
        self._assignment.has_space(window)

    # --- control ---

    @property
    def queues(self) -> list[Queue]:
        """The queues that this consumer has now, without those of messages that were sent back."""
        return sorted(queue for queue in self._assignment.readers if queue.topic == self.topic)

    def pause(self, queues: Iterable[Queue] | None = None) -> None:
        """Hands out nothing of these queues, or of all; the queues stay with this consumer."""
        self._set_paused(queues, True)

    def resume(self, queues: Iterable[Queue] | None = None) -> None:
        """Ends `pause`."""
        self._set_paused(queues, False)

    def _set_paused(self, queues: Iterable[Queue] | None, paused: bool) -> None:
        wanted = set(queues) if queues is not None else None
        for queue, reader in self._assignment.readers.items():
            if wanted is None or queue in wanted:
                reader.window.paused = paused
                reader.has_space()
        self._wake_all()

    async def seek(self, queue: Queue, to: int | Start | datetime) -> None:
        """Continues a queue at another offset, which is committed. Messages that the application has now are settled
        without effect. ClosedError: the queue is not with this consumer. Errors of requests as usual."""
        offset = to if isinstance(to, int) else await self._queues.begin(queue, to)
        await self._assignment.seek({queue: offset})

    async def commit(self) -> None:
        """Commits the offsets of what is settled. ClientError: of one of those that could not be committed."""
        failed = await self._assignment.commit()
        for error in failed.values():
            raise error

    async def _commits(self) -> None:
        while True:
            await asyncio.sleep(_COMMIT_S)
            for queue, error in (await self._assignment.commit()).items():
                self._session.problem(str(queue), f"its offset cannot be committed now: {error}")

    # --- what brokers see, and ask ---

    def heartbeat(self) -> dict[str, Any]:
        """The entry of `consumerDataSet`."""
        start = self._start
        return {
            "consumeFromWhere": start.value if isinstance(start, Start) else "CONSUME_FROM_TIMESTAMP",
            "consumeType": "CONSUME_PASSIVELY",
            "groupName": self.group,
            "messageModel": "BROADCASTING" if self._broadcast else "CLUSTERING",
            "subscriptionDataSet": [
                subscription(topic, self._where if topic == self.topic else ALL, self._version)
                for topic in self._topics()
            ],
            "unitMode": False,
        }

    def members_changed(self) -> None:
        """A broker reports that the members of the group changed. A member that takes a queue over reads its committed
        offset soon, so what is settled is committed now."""
        self._membership.changed()
        if self._tasks and not self._closing:
            self._session.spawn(self._assignment.commit(), f"commit of {self.group}")

    def asked(self, request: Command) -> Served:
        """Serves a request about the group."""
        if request.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
            return self._reset(request)
        if request.code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
            table = {_key(queue): reader.window.committable for queue, reader in self._assignment.readers.items()}
            return request.reply(body=fastjson.dumps({"messageQueueTable": table}))
        if request.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            info = running_info(
                self._assignment.readers, self.heartbeat(), ordered=self._ordered, begun_ms=self._begun_ms
            )
            return request.reply(body=fastjson.dumps(info))
        return request.reply(
            ResponseCode.SYSTEM_ERROR, remark="this consumer hands messages out, and consumes none directly"
        )

    async def _reset(self, request: Command) -> Command:
        topic = (request.ext or {}).get("topic")
        table = fastjson.loads(request.body).get("offsetTable") or {}
        found = {
            Queue(str(key["topic"]), str(key["brokerName"]), int(key["queueId"])): int(offset)
            for key, offset in fastjson.object_keys(table).items()
        }
        mine = {queue: offset for queue, offset in found.items() if queue in self._assignment.readers}
        self._session.problem(self.group, f"an administrator reset the offsets of {len(mine)} queues of topic {topic}")
        await self._assignment.seek(mine)
        return request.reply()

    # --- how it is put together ---

    def _topics(self) -> list[str]:
        return [self.topic] if self._broadcast else [self.topic, retry_topic(self.group)]

    def _strategy(self, options: Mapping[str, Any]) -> Strategy | None:
        name = options.get("strategy", "AVG")
        if name not in STRATEGIES:
            raise ConfigurationError(f"the strategy is one of {', '.join(STRATEGIES)}, not {name}")
        return None if self._broadcast else STRATEGIES[name]

    def _progress(self, offsets_file: str | os.PathLike[str] | None) -> Progress:
        if not self._broadcast:
            return GroupProgress(self._queues, self._start)
        if offsets_file is None:
            raise ConfigurationError("a broadcast keeps its offsets in a file: offsets_file=...")
        return LocalProgress(Path(offsets_file), self._queues, self._start)

    def _reader_factory(self, limits: Limits) -> Callable[[Window], Reader]:
        def make(window: Window) -> Reader:
            where = self._where if window.queue.topic == self.topic else ALL
            return Reader(self._session, self._queues, window, where, self._version, limits, self._arrived)

        return make

    def _arrived(self, window: Window, messages: list[Delivery]) -> None:
        self._wake(1 if self._ordered else len(messages))

    async def _check_filter(self) -> None:
        body = {
            "clientId": self._session.client_id,
            "group": self.group,
            "subscriptionData": subscription(self.topic, self._where, self._version),
        }
        for addresses in self._session.routes.brokers.values():
            command = Command(RequestCode.CHECK_CLIENT_CONFIG, body=fastjson.dumps(body))
            if (address := addresses.get(0)) is not None:
                await self._session.connections.ask(address, command, self._session.timeout_s)
                return


def _key(queue: Queue) -> fastjson.JsonObjectKey:
    return fastjson.JsonObjectKey({"brokerName": queue.broker, "queueId": queue.id, "topic": queue.topic})
