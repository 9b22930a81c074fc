"""Consumers that read queues in order: each locks a queue, asks again while it reads, and gives it back.

    K1  no two clients hold the lock of one queue at the same time

Locks are kept in memory and live 60 s, so a fault (a restart, another leader) ends the rule for the locks before it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from simulation.clients import Client
from simulation.violation import ViolationError
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.errors import RemotingError

GROUP = "ordered"
_LIVES_S = 55.0
"""60 s by the broker's clock, which may run a little faster."""
Place = tuple[str, int]
"""Broker and queue id, of one topic."""


@dataclass
class Locks:
    """Who was told that it holds which queue, and since when."""

    held: dict[Place, tuple[str, float, Any]] = field(default_factory=dict)
    quiet: bool = True

    def fault(self) -> None:
        """The holder of a lock may lose it now."""
        self.quiet = False
        self.held.clear()

    def granted(self, place: Place, client: str, asked_at: float, server: Any) -> None:
        """A broker said yes to a request of `asked_at`. ViolationError: another client holds the lock."""
        if not self.quiet:
            return
        owner, since, by = self.held.get(place, (client, asked_at, server))
        if owner != client and by is server and asked_at < since + _LIVES_S:
            raise ViolationError(
                "K1", f"{place} was granted to {owner} at {since:.6f} and to {client} at {asked_at:.6f}"
            )
        self.held[place] = client, asked_at, server


class OrderedConsumer:
    """One client. `server(broker)`: the process that serves for a broker, and its address."""

    def __init__(
        self, client: Client, name: str, dice: Random, locks: Locks, server: Callable[[str], tuple[Any, str]]
    ) -> None:
        self._client = client
        self._name = name
        self._dice = dice
        self._locks = locks
        self._server = server

    async def work(self, brokers: list[str], stopping: Callable[[], bool], pause_s: float) -> None:
        """Locks, asks again and unlocks until `stopping()`."""
        while not stopping():
            place = self._dice.choice(brokers), self._dice.randrange(2)
            await self._ask(place, RequestCode.LOCK_BATCH_MQ)
            await asyncio.sleep(self._dice.expovariate(1 / pause_s))
            if self._dice.random() < 0.5:
                await self._ask(place, RequestCode.UNLOCK_BATCH_MQ)

    async def _ask(self, place: Place, code: int) -> None:
        broker, queue_id = place
        server, address = self._server(broker)
        queue = {"topic": "T0", "brokerName": broker, "queueId": queue_id}
        body = json.dumps({"consumerGroup": GROUP, "clientId": self._name, "mqSet": [queue]}).encode()
        loop = self._client.loop
        asked_at = loop.now
        held = self._locks.held.get(place)
        if code == RequestCode.UNLOCK_BATCH_MQ and held is not None and held[0] == self._name:
            del self._locks.held[place]  # from now on the broker may free it at any time
        try:
            answer = await self._client.call(address, code, {}, body)
        except RemotingError:
            return
        if code == RequestCode.LOCK_BATCH_MQ and answer.code == ResponseCode.SUCCESS:
            granted = json.loads(answer.body)["lockOKMQSet"]
            loop.trace.note(loop.now, f"{self._name} asked for the lock of {place}: {bool(granted)}")
            if granted and self._server(broker)[0] is server:
                self._locks.granted(place, self._name, asked_at, server)
