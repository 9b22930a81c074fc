"""Producers of delayed messages and of transactions, for a group whose leader changes under them.

Each message is sent once. If it was stored, which the end of the run shows, it must arrive. The outcome of a
transaction is decided before it is sent. Its producer ends it at once, or not at all, or gets no answer; then the
leader checks it (check-back), and the producer answers with the same outcome. So that every leader knows the producer,
it sends a heartbeat once a second.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable

from lab.deferred import Deferred, Fate
from lab.group_sender import PRODUCER_GROUP, GroupSender, Post, unique_key
from lab.history import History, Queue
from lab.ledger import HALF_TOPIC, SCHEDULE_TOPIC, digest

from tallystick.node.remoting.client import RemotingClient
from tallystick.node.remoting.codes import RequestCode
from tallystick.node.remoting.command import FLAG_ONEWAY, Command, HeaderType
from tallystick.node.remoting.connection import Connection
from tallystick.node.remoting.errors import RemotingError
from tallystick.store import fastjson
from tallystick.store.formats import properties
from tallystick.store.formats.message import TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK

DEFERRED_TOPIC, DEFERRED_QUEUES = "group-deferred", 2
DELAYS_MS = {1: 1_000, 2: 5_000}
"""Levels that are used; RocketMQ's first two."""
STORED_IN: list[Queue] = [*((SCHEDULE_TOPIC, level - 1) for level in DELAYS_MS), (HALF_TOPIC, 0)]
SETTINGS = ("transactionTimeOut=2000", "transactionCheckInterval=3000")
"""Of brokers, for checks to come within a run."""

_SENDERS = 2  # of each sort
_REST_S = 0.1
_ROLLBACK, _SILENT = 0.3, 0.2
_END_S = 3.0
_PRESENT_S = 1.0


class DeferredSenders:
    """All of one run. What they send is in `history.deferred` before it is sent."""

    def __init__(self, history: History, label: str, seed: int) -> None:
        self._history, self._label, self._seed = history, label, seed
        self._numbers = itertools.count()
        self._fates: dict[str, Fate] = {}  # by UNIQ_KEY
        self._client = RemotingClient(
            {RequestCode.CHECK_TRANSACTION_STATE: self._on_check}, name="group.deferred", connect_timeout_s=1.0
        )
        self._broker: Callable[[], str] = str

    def start(
        self, tasks: asyncio.TaskGroup, broker: Callable[[], str], stop: asyncio.Event
    ) -> list[asyncio.Task[None]]:
        """Begins to send to `broker()`, who leads, until `stop`."""
        self._broker = broker
        works = [work for work in (self._delay, self._transact) for _ in range(_SENDERS)]
        return [tasks.create_task(self._send_on(number, work, stop)) for number, work in enumerate(works)]

    async def answer(self, broker: Callable[[], str]) -> None:
        """Is there for checks, until it is cancelled."""
        body = fastjson.dumps({"clientID": "group-deferred", "producerDataSet": [{"groupName": PRODUCER_GROUP}]})
        try:
            while True:
                try:
                    await self._client.call(broker(), Command(RequestCode.HEART_BEAT, body=body), _PRESENT_S)
                except RemotingError:
                    pass  # told again
                await asyncio.sleep(_PRESENT_S)
        finally:
            await self._client.close(grace_s=0.0)

    async def _send_on(
        self, number: int, work: Callable[[random.Random, GroupSender], Awaitable[None]], stop: asyncio.Event
    ) -> None:
        rng = random.Random(f"{self._seed} {self._label} deferred {number}")
        sender = GroupSender(f"deferred-{number}", self._history, rng.choice((HeaderType.JSON, HeaderType.ROCKETMQ)))
        try:
            while not stop.is_set():
                await work(rng, sender)
                await asyncio.sleep(rng.uniform(0, _REST_S))
        finally:
            await sender.close()

    def _message(self, rng: random.Random, stored_in: Queue, fate: Fate, delay_ms: int = 0) -> tuple[Deferred, bytes]:
        key = f"{self._label}.d{next(self._numbers)}"
        body = f"{key}|".encode() + rng.randbytes(rng.choice((0, 50, 400)))
        queue = DEFERRED_TOPIC, rng.randrange(DEFERRED_QUEUES)
        deferred = Deferred(key, digest(body), queue, stored_in, fate, delay_ms)
        self._history.deferred.append(deferred)
        return deferred, body

    async def _delay(self, rng: random.Random, sender: GroupSender) -> None:
        level, delay_ms = rng.choice(list(DELAYS_MS.items()))
        deferred, body = self._message(rng, (SCHEDULE_TOPIC, level - 1), Fate.DELAYED, delay_ms)
        pairs = {properties.DELAY: str(level)}
        await sender.send(self._broker(), Post(deferred.queue, [(deferred.key, body)], deferred.stored_in, pairs))

    async def _transact(self, rng: random.Random, sender: GroupSender) -> None:
        fate = Fate.ROLLBACK if rng.random() < _ROLLBACK else Fate.COMMIT
        deferred, body = self._message(rng, (HALF_TOPIC, 0), fate)
        unique = unique_key(deferred.key)
        self._fates[unique] = fate
        pairs = {properties.TRAN_MSG: "true", properties.PGROUP: PRODUCER_GROUP}
        post = Post(deferred.queue, [(deferred.key, body)], deferred.stored_in, pairs, TRANSACTION_PREPARED)
        broker = self._broker()
        half = await sender.send(broker, post)
        if half is None or rng.random() < _SILENT:
            return
        try:
            await self._client.call(broker, _end(unique, half.queue_offset, half.pos, fate, checked=False), _END_S)
        except RemotingError:
            pass  # the leader will check it

    async def _on_check(self, connection: Connection, command: Command) -> None:
        ext = command.ext or {}
        unique = ext["transactionId"]
        end = _end(
            unique, int(ext["tranStateTableOffset"]), int(ext["commitLogOffset"]), self._fates[unique], checked=True
        )
        connection.oneway(end)


def _end(unique: str, queue_offset: int, pos: int, fate: Fate, *, checked: bool) -> Command:
    ext = {
        "producerGroup": PRODUCER_GROUP,
        "tranStateTableOffset": str(queue_offset),
        "commitLogOffset": str(pos),
        "commitOrRollback": str(TRANSACTION_COMMIT if fate is Fate.COMMIT else TRANSACTION_ROLLBACK),
        "fromTransactionCheck": str(checked).lower(),
        "msgId": unique,
        "transactionId": unique,
    }
    return Command(RequestCode.END_TRANSACTION, flag=FLAG_ONEWAY if checked else 0, ext=ext)
