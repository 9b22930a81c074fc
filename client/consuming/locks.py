"""Locks of queues: an ordered consumer reads a queue only while its broker keeps the others away from it.

A broker keeps a lock for 60 seconds. This side trusts it for 30 seconds after it asked, and asks every 10 seconds. A
lock that ran out is a lock that another member may have had: the queue is then given up, and read from its committed
offset when it is locked again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from tallystick.client.core.errors import ClientError
from tallystick.client.core.queue import Queue
from tallystick.client.transport.session import Session
from tallystick.client.wire import fastjson
from tallystick.client.wire.codes import RequestCode
from tallystick.client.wire.command import Command

RENEW_S = 10.0
TRUSTED_S = 30.0


class Locks:
    """The locks of one group."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group
        self._turn = asyncio.Lock()  # a broker may serve two requests in any order: the last one must be right

    async def lock(self, queues: Iterable[Queue]) -> dict[Queue, float]:
        """Locks queues, or renews their locks. Returns until when each lock can be trusted, by the loop's clock;
        -1: another member has it. Queues of brokers that do not answer are left out."""
        async with self._turn:
            return await self._lock(queues)

    async def _lock(self, queues: Iterable[Queue]) -> dict[Queue, float]:
        found: dict[Queue, float] = {}
        for broker, some in _by_broker(queues).items():
            asked_s = asyncio.get_running_loop().time()
            try:
                answer = await self._ask(RequestCode.LOCK_BATCH_MQ, broker, some)
                rows = fastjson.loads(answer.body)["lockOKMQSet"]
                locked = {(str(row["topic"]), str(row["brokerName"]), int(row["queueId"])) for row in rows}
            except (ClientError, ValueError, KeyError, TypeError):
                continue
            found |= {queue: asked_s + TRUSTED_S if tuple(queue) in locked else -1 for queue in some}
        return found

    async def unlock(self, queues: Iterable[Queue]) -> None:
        """Gives locks back. One that cannot be given back runs out."""
        async with self._turn:
            for broker, some in _by_broker(queues).items():
                try:
                    await self._ask(RequestCode.UNLOCK_BATCH_MQ, broker, some)
                except ClientError:
                    continue

    async def _ask(self, code: int, broker: str, queues: list[Queue]) -> Command:
        address = self._session.routes.master(broker)
        if address is None:
            raise ClientError(f"broker {broker} has no master at present")
        body = {
            "clientId": self._session.client_id,
            "consumerGroup": self._group,
            "mqSet": [{"brokerName": each.broker, "queueId": each.id, "topic": each.topic} for each in queues],
        }
        command = Command(code, body=fastjson.dumps(body))
        return await self._session.connections.ask(address, command, self._session.timeout_s)


def _by_broker(queues: Iterable[Queue]) -> dict[str, list[Queue]]:
    found: dict[str, list[Queue]] = {}
    for queue in queues:
        found.setdefault(queue.broker, []).append(queue)
    return found
