"""Consumption of a group over HTTP: consumers of `tallystick.client` that this process holds for its callers.

    receive ─▶ deliveries, each with a receipt and a deadline ─▶ acknowledge: consumed, retry, dead letter
                                                              ─▶ the deadline: retry, as for a consumer that failed

A consumer is a member of its group until no request has come for `IDLE_S` and no receipt is open. What it holds in
memory is bounded: `_MOST_OPEN` messages that callers have, and `_PREFETCH_BYTES` of each queue that it reads ahead.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from tallystick.client import Batch, Client, ClientError, Consumer, Delivery, Start
from tallystick.console.api.problems import ProblemError

IDLE_S = 120.0
MOST_CONSUMERS = 32
"""Of the whole process."""
_MOST_OPEN = 1000
_PREFETCH, _PREFETCH_BYTES = 64, 256 << 10
_DRAIN_S = 0.0
_log = logging.getLogger("tallystick.console")


@dataclass(slots=True)
class Consumers:
    """The number of consumers of the process."""

    count: int = 0


@dataclass(frozen=True, slots=True)
class Held:
    """A message that a caller has. `deadline_s`: monotonic."""

    receipt: str
    delivery: Delivery
    deadline_s: float


class Receiver:
    """One consumer with its open receipts."""

    def __init__(self, client: Client, consumer: Consumer) -> None:
        self._client = client
        self.consumer = consumer
        self.open: dict[str, Held] = {}
        self.used_s = time.monotonic()
        self._waiting = 0

    @property
    def topic(self) -> str:
        return self.consumer.topic

    @property
    def is_idle(self) -> bool:
        """Whether it can be closed."""
        return not self.open and not self._waiting and time.monotonic() - self.used_s >= IDLE_S

    async def receive(
        self, most: int, wait_s: float, invisible_s: float, stopping: asyncio.Event, is_there: Callable[[], bool]
    ) -> list[Held]:
        """Returns at most `most` messages, and waits at most `wait_s` seconds for the first one.

        `stopping` ends the wait. `is_there`: whether the caller still waits; if not, the messages are for the next one.
        """
        room = _MOST_OPEN - len(self.open)
        if room < 1:
            raise ProblemError("busy", f"{_MOST_OPEN} messages of this group wait for their acknowledgement")
        self._waiting += 1
        try:
            deliveries = await self._take(min(most, room), wait_s, stopping)
        finally:
            self._waiting -= 1
            self.used_s = time.monotonic()
        if not is_there():
            for delivery in deliveries:
                delivery.release()
            return []
        held = [Held(secrets.token_urlsafe(12), each, self.used_s + invisible_s) for each in deliveries]
        self.open.update((each.receipt, each) for each in held)
        return held

    async def _take(self, most: int, wait_s: float, stopping: asyncio.Event) -> list[Delivery]:
        stop = asyncio.ensure_future(stopping.wait())
        async with aclosing(self.consumer.batches(most)) as batches:
            taking: asyncio.Future[Batch | None] = asyncio.ensure_future(anext(batches, None))
            try:
                ends: set[asyncio.Future[Any]] = {taking, stop}
                await asyncio.wait(ends, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                for delivery in await _result(taking):
                    delivery.release()
                raise
            finally:
                stop.cancel()
            return await _result(taking)

    async def settle(self, receipts: Iterable[str], result: str) -> dict[str, str | None]:
        """Returns for each receipt what went wrong: None: nothing. A receipt that is not open is missing."""
        found = [held for receipt in dict.fromkeys(receipts) if (held := self.open.pop(receipt, None)) is not None]
        self.used_s = time.monotonic()
        errors = await asyncio.gather(*(_settled(held.delivery, result) for held in found))
        return {held.receipt: error for held, error in zip(found, errors, strict=True)}

    async def expire(self) -> None:
        """Sends messages back whose deadline is over."""
        now_s = time.monotonic()
        late = [receipt for receipt, held in self.open.items() if held.deadline_s <= now_s]
        if late:
            used_s = self.used_s
            await self.settle(late, "retry")
            self.used_s = used_s

    async def close(self) -> None:
        """Leaves the group. Messages with open receipts are delivered again, by another member."""
        self.open.clear()
        await self._client.release(self.consumer)


class Receivers:
    """The consumers of one client."""

    def __init__(self, client: Client, consumers: Consumers) -> None:
        self._client = client
        self._consumers = consumers
        self._found: dict[str, Receiver] = {}
        self._starting = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._found)

    async def get(self, group: str, topic: str, start: Start) -> Receiver:
        """Returns the consumer of a group, which it makes if there is none. ClientError; ProblemError: 409, 503."""
        async with self._starting:
            found = self._found.get(group)
            if found is not None:
                if found.topic != topic:
                    raise ProblemError(
                        "conflict",
                        f"this server consumes {found.topic} for the group {group}; a group has one topic here",
                    )
                found.used_s = time.monotonic()
                return found
            if self._consumers.count >= MOST_CONSUMERS:
                raise ProblemError("busy", f"this server has {MOST_CONSUMERS} consumers", headers={"Retry-After": "30"})
            await self._check(group, topic)
            consumer = self._client.consumer(
                group,
                topic,
                start=start,
                concurrency=_MOST_OPEN,
                prefetch=_PREFETCH,
                prefetch_bytes=_PREFETCH_BYTES,
                drain=_DRAIN_S,
            )
            try:
                await consumer.start()
            except BaseException:
                await self._client.release(consumer)
                raise
            self._consumers.count += 1
            receiver = self._found[group] = Receiver(self._client, consumer)
            return receiver

    def find(self, group: str) -> Receiver | None:
        """Returns the consumer of a group; None: there is none."""
        return self._found.get(group)

    async def sweep(self) -> None:
        """Ends deadlines and consumers whose time is over. Call it once a second."""
        for group, receiver in list(self._found.items()):
            await receiver.expire()
            if receiver.is_idle:
                await self._close(group)

    async def close(self) -> None:
        """Ends all consumers."""
        for group in list(self._found):
            await self._close(group)

    async def _close(self, group: str) -> None:
        receiver = self._found.pop(group)
        self._consumers.count -= 1
        try:
            await receiver.close()
        except ClientError as error:
            _log.warning("the consumer of %s did not leave its group in order: %s", group, error)

    async def _check(self, group: str, topic: str) -> None:
        """A consumer only logs that it may not read: a caller should see it as the answer."""
        pull = self._client.pull(topic, group=group)
        queues = await pull.queues()
        if queues:
            await pull.committed(queues[0])


async def _result(taking: asyncio.Future[Batch | None]) -> list[Delivery]:
    if not taking.done():
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
    if taking.cancelled():
        return []
    found = taking.result()
    return [] if found is None else list(found)


async def _settled(delivery: Delivery, result: str) -> str | None:
    try:
        if result == "consumed":
            await delivery.ack()
        elif result == "retry":
            await delivery.retry()
        else:
            await delivery.dead_letter()
    except ClientError as error:
        return str(error)
    return None
