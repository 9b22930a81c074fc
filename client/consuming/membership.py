"""Which queues a member of a group has: it computes its part whenever members or queues may have changed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from tallystick.client.consuming.allocation import Strategy
from tallystick.client.core.errors import ClientError, NotFound
from tallystick.client.core.queue import Queue
from tallystick.client.transport.routes import Route
from tallystick.client.transport.session import Session
from tallystick.client.wire import fastjson
from tallystick.client.wire.codes import RequestCode
from tallystick.client.wire.command import Command

_EVERY_S = 20.0
_SOON_S = 0.25

Apply = Callable[[str, list[Queue]], Awaitable[bool]]
"""Gets a topic and the queues of it that this member should have. Returns whether it has exactly these now."""


class Membership:
    """Computes the queues of one consumer. `strategy` is None for a broadcast: each member has all queues."""

    def __init__(
        self, session: Session, group: str, topics: list[str], strategy: Strategy | None, apply: Apply
    ) -> None:
        self._session = session
        self._group = group
        self._topics = topics
        self._strategy = strategy
        self._apply = apply
        self._changed = asyncio.Event()
        self.assigned = asyncio.Event()
        """Set when the consumer had its queues of the first topic for the first time."""

    def changed(self) -> None:
        """Members or queues may have changed."""
        self._changed.set()

    async def run(self) -> None:
        """Runs until it is cancelled."""
        pause_s = _SOON_S
        while True:
            self._changed.clear()
            done = [await self._once(topic) for topic in self._topics]
            if done[0]:
                self.assigned.set()
            pause_s = _EVERY_S if all(done) else min(2 * pause_s, _EVERY_S)
            try:
                async with asyncio.timeout(pause_s):
                    await self._changed.wait()
                pause_s = _SOON_S
            except TimeoutError:
                pause_s = _SOON_S if all(done) else pause_s

    async def _once(self, topic: str) -> bool:
        """Returns whether the topic needs no further attempt soon."""
        try:
            route = await self._session.routes.get(topic)
        except NotFound:
            return False  # it may be created at any time
        except ClientError:
            return False
        queues = sorted(route.read)
        if self._strategy is None:
            return await self._apply(topic, queues)
        try:
            members = await self._members(route)
        except ClientError:
            return False  # the queues stay as they are
        if self._session.client_id not in members:
            await self._session.heartbeat()  # the broker has restarted, or its first heartbeat did not arrive
            return False
        return await self._apply(topic, self._strategy(self._session.client_id, queues, sorted(members)))

    async def _members(self, route: Route) -> list[str]:
        """Asks a broker of a topic for the ids of the members. ClientError: none of them says it."""
        addresses = [address for each in route.brokers.values() if (address := each.get(0))]
        random.shuffle(addresses)
        addresses.sort(key=self._session.connections.is_open, reverse=True)
        problem: ClientError = NotFound("name server", 17, f"topic {route.topic} has no broker at present")
        for address in addresses:
            command = Command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext={"consumerGroup": self._group})
            try:
                answer = await self._session.connections.ask(address, command, self._session.timeout_s)
                return [str(each) for each in fastjson.loads(answer.body)["consumerIdList"]]
            except ClientError as error:
                problem = error
            except (ValueError, KeyError, TypeError):
                return []
        if problem.code is not None:  # a broker answered that the group has no member
            return []
        raise problem
