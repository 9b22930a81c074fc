"""Clients of a group that note all they do: senders of all kinds, readers, and a probe that sends at a steady pace.

Each asks the name server who leads, as real clients do, only more often. A message that was not acknowledged is sent
again under its key, most of the time; so the history has retries, duplicates that are allowed, and attempts whose
outcome is unknown. The seed decides what each sender sends; how clients interleave is up to the machine.

The probe measures: it begins a send every 20 ms whatever became of those before, so that nothing it waits for hides
when the group serves again.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from lab.deferred import Unrest, missing
from lab.deferred_load import DEFERRED_QUEUES, DEFERRED_TOPIC, STORED_IN, DeferredSenders
from lab.group_sender import PRODUCER_GROUP, SEND_S, GroupSender, Post, steadily
from lab.history import History, Item, Outcome, Queue, Read, Reading
from lab.ledger import body_id, digest

from tallystick.node.core.client import ClusterClient, QueueAddress, RequestRefusedError
from tallystick.node.remoting.codes import ResponseCode
from tallystick.node.remoting.command import HeaderType
from tallystick.node.remoting.errors import RemotingError
from tallystick.store.formats.record import Record

TOPICS = {"group-a": 4, "group-b": 2, "group-c": 1}  # with their numbers of queues
PROBE_TOPIC = "group-probe"
ALL_TOPICS = {**TOPICS, PROBE_TOPIC: 1, DEFERRED_TOPIC: DEFERRED_QUEUES}
QUEUES: list[Queue] = [(topic, queue_id) for topic, queues in ALL_TOPICS.items() for queue_id in range(queues)]

_LOOK_S = 0.02
_PROBE_PERIOD_S = 0.02
_PROBES_AT_A_TIME = 400
_SENDERS = 10
_REST_S = 0.04
_READER_REST_S = 0.03
_PULL_S = 3.0
_CHANGE_S = 3.0  # in which the change happened that the name server tells of
_DELIVERY_S = 90.0  # a check of transactions may wait for two rounds, and for a producer to be known again
_BATCH = 0.1
_ANOTHER_TRY = 0.9


@dataclass(slots=True)
class Delivery:
    """A message of the probe, over all its tries."""

    invoked_s: float
    acknowledged_s: float | None = None
    tries: int = 0


class Route:
    """Where the leader is by the name server; kept fresh for all clients of a run."""

    def __init__(self, nameserver: str, on_change: Callable[[], None]) -> None:
        self._client = ClusterClient(nameserver, timeout_s=1.0)
        self._on_change = on_change
        self.address = ""
        self.known = asyncio.Event()

    async def follow(self) -> None:
        """Until it is cancelled."""
        try:
            while True:
                try:
                    address = next(iter((await self._client.masters()).values()), self.address)
                    if address != self.address:
                        self.address = address
                        self._on_change()
                        self.known.set()
                except RemotingError:
                    pass  # asked again at once; senders go on with what they know
                await asyncio.sleep(_LOOK_S)
        finally:
            await self._client.__aexit__(None, None, None)


class Clients:
    """All clients of one group. `members`: addresses for readers that stay with one member, leading or not."""

    def __init__(self, nameserver: str, members: Sequence[str], history: History, label: str, seed: int) -> None:
        self.history = history
        self.route = Route(nameserver, self._note_change)
        self.deliveries: list[Delivery] = []
        self.delivered_s: float | None = None
        """How long after the last send all had come that was to come later; None: not in time."""
        self._members, self._label, self._seed = members, label, seed
        self._stop = asyncio.Event()
        self._numbers = itertools.count()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Senders, readers and the probe at work; leaving it lets each finish what it does."""
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(self.route.follow())
            await self.route.known.wait()
            working = [tasks.create_task(self._send_many(number)) for number in range(_SENDERS)]
            working += [tasks.create_task(self._read_on(f"n{i}", each)) for i, each in enumerate(self._members)]
            working += [tasks.create_task(self._read_on("leader", "")), tasks.create_task(self._probe())]
            deferred = DeferredSenders(self.history, self._label, self._seed)
            answering = tasks.create_task(deferred.answer(lambda: self.route.address))
            working += deferred.start(tasks, lambda: self.route.address, self._stop)
            try:
                yield
                self._stop.set()
                await asyncio.wait(working)
                await self._all_delivered()
            finally:
                self._stop.set()
            await asyncio.wait(working)
            following.cancel()
            answering.cancel()

    async def _all_delivered(self) -> None:
        """What is to come later has come, or will not: the check of the history tells."""
        begin_s = time.monotonic()
        queues = [*STORED_IN, *((DEFERRED_TOPIC, queue_id) for queue_id in range(DEFERRED_QUEUES))]
        while time.monotonic() - begin_s < _DELIVERY_S:
            try:
                if not missing(self.history.deferred, await read_all(self.route.address, queues)):
                    self.delivered_s = time.monotonic() - begin_s
                    return
            except RemotingError:
                pass  # asked again
            await asyncio.sleep(0.5)

    def _note_change(self) -> None:
        """Also without a fault: a machine that is slow for a second changes leaders."""
        now_s = time.time()
        self.history.unrest.append(Unrest(now_s - _CHANGE_S, now_s, guessed=True))

    # -- what the probe saw --------------------------------------------------------------------------------------------

    def served_again(self, since_s: float) -> float | None:
        """When the first probe that was begun after that moment was acknowledged; None: none is yet."""
        first = None
        for send in reversed(self.history.sends):  # in the order in which they ended
            if send.ended_s <= since_s:
                break
            if send.outcome is Outcome.OK and send.client == "probe" and send.invoked_s > since_s:
                first = send.ended_s
        return first

    def acknowledged_probes(self) -> list[float]:
        """When each probe was acknowledged."""
        return [each.acknowledged_s for each in self.deliveries if each.acknowledged_s is not None]

    def failed_probes(self, begin_s: float, end_s: float) -> int:
        """How many that were begun in that time were not acknowledged within the time that a send has."""
        return sum(
            1
            for each in self.deliveries
            if begin_s <= each.invoked_s <= end_s
            and (each.acknowledged_s is None or each.acknowledged_s - each.invoked_s > SEND_S)
        )

    def repeated_probes(self, begin_s: float, end_s: float) -> int:
        """How many of that time needed more than one try."""
        return sum(1 for each in self.deliveries if begin_s <= each.invoked_s <= end_s and each.tries > 1)

    # -- clients -------------------------------------------------------------------------------------------------------

    def _message(self, rng: random.Random) -> tuple[str, bytes]:
        """Key and body, which begins with the key."""
        key = f"{self._label}.{next(self._numbers)}"
        size = rng.choice((0, 20, 100, 300, 600)) if rng.random() < 0.95 else rng.randrange(30_000)
        return key, f"{key}|".encode() + rng.randbytes(size)

    async def _send_many(self, number: int) -> None:
        rng = random.Random(f"{self._seed} {self._label} {number}")
        sender = GroupSender(f"sender-{number}", self.history, rng.choice((HeaderType.JSON, HeaderType.ROCKETMQ)))
        try:
            while not self._stop.is_set():
                topic = rng.choice(list(TOPICS))
                queue = topic, rng.randrange(TOPICS[topic])
                many = rng.randint(2, 8) if rng.random() < _BATCH else 1
                messages = [self._message(rng) for _ in range(many)]
                while not await sender.send(self.route.address, Post(queue, messages)):
                    if self._stop.is_set() or rng.random() > _ANOTHER_TRY:
                        break
                    await asyncio.sleep(rng.uniform(0, 2 * _LOOK_S))
                await asyncio.sleep(rng.uniform(0, _REST_S))
        finally:
            await sender.close()

    async def _probe(self) -> None:
        rng = random.Random(f"{self._seed} {self._label} probe")
        sender = GroupSender("probe", self.history, HeaderType.JSON)
        try:
            await steadily(
                lambda: self._deliver(sender, self._message(rng)),
                self._stop,
                period_s=_PROBE_PERIOD_S,
                most=_PROBES_AT_A_TIME,
            )
        finally:
            await sender.close()

    async def _deliver(self, sender: GroupSender, message: tuple[str, bytes]) -> None:
        delivery = Delivery(time.monotonic())
        self.deliveries.append(delivery)
        while time.monotonic() - delivery.invoked_s < SEND_S:
            delivery.tries += 1
            left_s = SEND_S - (time.monotonic() - delivery.invoked_s)
            if await sender.send(self.route.address, Post((PROBE_TOPIC, 0), [message]), max(0.1, left_s)):
                delivery.acknowledged_s = time.monotonic()
                return
            await asyncio.sleep(_LOOK_S)

    async def _read_on(self, name: str, address: str) -> None:
        """Each queue from its begin, as messages come."""
        at = dict.fromkeys(QUEUES, 0)
        async with ClusterClient("", timeout_s=_PULL_S) as client:
            while not self._stop.is_set():
                for queue in QUEUES:
                    asked, broker = at[queue], address or self.route.address
                    invoked_s = time.monotonic()
                    try:
                        where = QueueAddress(queue[0], "", broker, queue[1])
                        pulled = await client.pull(where, asked, group=f"{PRODUCER_GROUP}-{name}")
                    except RemotingError:
                        break  # it is away, or does not know the topic yet: later
                    items = tuple(_item(record) for record in pulled.records)
                    if items or pulled.next_offset != asked:
                        read = Read(name, queue, asked, items, pulled.next_offset, invoked_s, time.monotonic(), broker)
                        self.history.reads.append(read)
                    at[queue] = asked + len(items)
                await asyncio.sleep(_READER_REST_S)


def _item(record: Record) -> Item:
    name = body_id(record.body)
    return Item(record.queue_offset, name, digest(record.body), record.pos, record.store_timestamp_ms)


async def create_topics(broker: str) -> None:
    """RemotingError: it could not be done."""
    async with ClusterClient("", timeout_s=30.0) as client:
        for topic, queues in ALL_TOPICS.items():
            await client.create_topic(broker, topic, queues)


async def read_all(broker: str, queues: Iterable[Queue] = (*QUEUES, *STORED_IN)) -> dict[Queue, Reading]:
    """Queues from end to end, by one member. RemotingError."""
    final = {}
    async with ClusterClient("", timeout_s=30.0) as client:
        for queue in queues:
            where = QueueAddress(queue[0], "", broker, queue[1])
            low, high = await client.offset_range(where)
            items: list[Item] = []
            while low + len(items) < high:
                pulled = await client.pull(where, low + len(items), group=f"{PRODUCER_GROUP}-final")
                if not pulled.records:
                    raise RequestRefusedError(
                        broker,
                        ResponseCode.PULL_NOT_FOUND,
                        f"{queue}: no message at {low + len(items)}, although the queue ends at {high}",
                    )
                items += [_item(record) for record in pulled.records]
            final[queue] = Reading(low, tuple(items))
    return final
