"""Messages that wait to be sent, in a limited amount of memory.

Without coalescing each message is a separate request, and requests overlap. With it, messages of one queue that
wait while a request is on its way leave together, as one batch: their order stays, and there is no pause for gathering.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, NamedTuple

from tallystick.client.core.errors import BufferFull, ClientError, ClosedError
from tallystick.client.core.queue import Queue
from tallystick.client.core.result import SendResult
from tallystick.client.producing.encoding import Outgoing
from tallystick.client.transport.session import Session

SendOne = Callable[[Outgoing], Awaitable[SendResult]]
SendBatch = Callable[[Sequence[Outgoing], "Lane"], Awaitable[list[SendResult]]]
Future = asyncio.Future[SendResult]
_MOST_IN_BATCH = 1024
_REQUESTS = 128
"""Separate requests on their way at the same time. RocketMQ refuses what waits in its queue for more than 200 ms."""


class Lane(NamedTuple):
    """Where messages wait for each other. `fixed`: only this queue may store them, because they are in order."""

    queue: Queue
    fixed: bool


class Outbox:
    """`limit_bytes`: the memory; `batch_bytes`: the largest batch."""

    def __init__(self, session: Session, limit_bytes: int, batch_bytes: int, one: SendOne, batch: SendBatch) -> None:
        self._session = session
        self._limit_bytes = limit_bytes
        self._batch_bytes = batch_bytes
        self._send_one = one
        self._send_batch = batch
        self._bytes = 0
        self._waiting: dict[Lane, deque[tuple[Outgoing, Future]]] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._room: deque[asyncio.Future[None]] = deque()
        self._separate: deque[tuple[Outgoing, Future]] = deque()
        self._workers = 0

    def reserve(self, size: int) -> None:
        """Takes memory. BufferFull: all of it is used. The last message may take more than what is left."""
        if self._bytes >= self._limit_bytes:
            raise BufferFull(f"{self._bytes} bytes of messages wait to be sent, {self._limit_bytes} are allowed")
        self._bytes += size

    def start(self, item: Outgoing) -> Future:
        """Sends a message, for which memory was reserved, as a separate request."""
        future: Future = asyncio.get_running_loop().create_future()
        self._separate.append((item, future))
        if self._workers < _REQUESTS:
            self._workers += 1
            self._spawn(self._work())
        return future

    def coalesce(self, item: Outgoing, lane: Lane) -> Future:
        """Sends a message, for which memory was reserved, with others of its lane."""
        future: Future = asyncio.get_running_loop().create_future()
        waiting = self._waiting.get(lane)
        if waiting is None:
            waiting = self._waiting[lane] = deque()
            self._spawn(self._drain(lane, waiting))
        waiting.append((item, future))
        return future

    async def room(self) -> None:
        """Returns when less than the whole memory is used."""
        while self._bytes >= self._limit_bytes:
            waiter = asyncio.get_running_loop().create_future()
            self._room.append(waiter)
            await waiter

    async def flush(self) -> None:
        """Returns when nothing waits. The results are in the futures."""
        while self._running:
            await asyncio.wait(set(self._running))

    async def close(self, timeout_s: float) -> None:
        """Sends what waits, for a limited time; the rest fails."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.flush()
        except TimeoutError:
            for task in list(self._running):
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._session.spawn(work, "outbox")
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _work(self) -> None:
        try:
            while self._separate:
                await self._one(*self._separate.popleft())
        except BaseException:
            while self._separate:
                item, future = self._separate.popleft()
                _fail(future, ClosedError("the client was closed before the message was sent"))
                self._release(item.size)
            raise
        finally:
            self._workers -= 1

    async def _one(self, item: Outgoing, future: Future) -> None:
        try:
            _deliver(future, await self._send_one(item))
        except ClientError as error:
            _fail(future, error)
        except BaseException:
            _fail(future, ClosedError("the client was closed before the message was confirmed"))
            raise
        finally:
            self._release(item.size)

    async def _drain(self, lane: Lane, waiting: deque[tuple[Outgoing, Future]]) -> None:
        await asyncio.sleep(0)  # messages of the same turn of the loop belong to the first batch
        taken: list[tuple[Outgoing, Future]] = []
        try:
            while waiting:
                taken = self._take(waiting)
                await self._one_batch(lane, taken)
        except BaseException:
            for item, future in (*taken, *waiting):
                if not future.done():
                    _fail(future, ClosedError("the client was closed before the message was confirmed"))
                    self._release(item.size)
            raise
        finally:
            del self._waiting[lane]

    async def _one_batch(self, lane: Lane, taken: list[tuple[Outgoing, Future]]) -> None:
        try:
            results = await self._send_batch([item for item, _ in taken], lane)
        except ClientError as error:
            for _, future in taken:
                _fail(future, error)
        else:
            for (_, future), result in zip(taken, results, strict=True):
                _deliver(future, result)
        for item, future in taken:
            if future.done():
                self._release(item.size)

    def _take(self, waiting: deque[tuple[Outgoing, Future]]) -> list[tuple[Outgoing, Future]]:
        taken = [waiting.popleft()]
        size = taken[0][0].size
        while waiting and len(taken) < _MOST_IN_BATCH and size + waiting[0][0].size <= self._batch_bytes:
            taken.append(waiting.popleft())
            size += taken[-1][0].size
        return taken

    def _release(self, size: int) -> None:
        self._bytes -= size
        while self._room and self._bytes < self._limit_bytes:
            waiter = self._room.popleft()
            if not waiter.done():
                waiter.set_result(None)


def _deliver(future: Future, result: SendResult) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: Future, error: ClientError) -> None:
    if not future.done():
        future.set_exception(error)  # asyncio logs it if the application never looks at the result
