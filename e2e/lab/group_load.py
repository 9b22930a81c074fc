"""Clients of a group that note all they do: senders, readers, and a probe that sends at a steady pace.

Each asks the name server who leads, as real clients do, only more often. A message that was not acknowledged is sent
again under its key, most of the time; so the history has retries, duplicates that are allowed, and attempts whose
outcome nobody learned. The seed decides what each sender sends; how clients interleave is up to the machine.

The probe measures: it begins a send every 20 ms whatever became of those before, so that nothing it waits for hides
when the group serves again.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from lab.history import History, Item, Outcome, Queue, Read, Reading, Send
from lab.ledger import body_id, digest
from lab.load import batch_entry

from tallystick.node.client import ClusterClient, QueueAddress, RequestRefusedError
from tallystick.node.remoting.client import RemotingClient
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import Command, HeaderType
from tallystick.node.remoting.errors import RemotingBusyError, RemotingError
from tallystick.store import properties
from tallystick.store.message_id import decode_message_id
from tallystick.store.record import Record

TOPICS = {"group-a": 4, "group-b": 2, "group-c": 1}  # with their numbers of queues
PROBE_TOPIC = "group-probe"
QUEUES: list[Queue] = [
    (topic, queue_id) for topic, queues in {**TOPICS, PROBE_TOPIC: 1}.items() for queue_id in range(queues)
]
SEND_S = 3.0  # what the Java client gives a send by default, all its tries together

# With these codes a broker says that it has not stored the message and never will. Every other refusal is a doubt.
CERTAIN = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
    }
)

_GROUP = "group-faults"
_LOOK_S = 0.02
_PROBE_PERIOD_S = 0.02
_PROBES_AT_A_TIME = 400
_SENDERS = 10
_REST_S = 0.04
_READER_REST_S = 0.03
_PULL_S = 3.0
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

    def __init__(self, nameserver: str) -> None:
        self._client = ClusterClient(nameserver, timeout_s=1.0)
        self.address = ""
        self.known = asyncio.Event()

    async def follow(self) -> None:
        """Until it is cancelled."""
        try:
            while True:
                try:
                    self.address = next(iter((await self._client.masters()).values()), self.address)
                    if self.address:
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
        self.route = Route(nameserver)
        self.deliveries: list[Delivery] = []
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
            try:
                yield
            finally:
                self._stop.set()
            await asyncio.wait(working)
            following.cancel()

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
        sender = _Sender(f"sender-{number}", self.history, rng.choice((HeaderType.JSON, HeaderType.ROCKETMQ)))
        try:
            while not self._stop.is_set():
                topic = rng.choice(list(TOPICS))
                queue = topic, rng.randrange(TOPICS[topic])
                many = rng.randint(2, 8) if rng.random() < _BATCH else 1
                messages = [self._message(rng) for _ in range(many)]
                while not await sender.send(self.route.address, queue, messages):
                    if self._stop.is_set() or rng.random() > _ANOTHER_TRY:
                        break
                    await asyncio.sleep(rng.uniform(0, 2 * _LOOK_S))
                await asyncio.sleep(rng.uniform(0, _REST_S))
        finally:
            await sender.close()

    async def _probe(self) -> None:
        rng = random.Random(f"{self._seed} {self._label} probe")
        sender = _Sender("probe", self.history, HeaderType.JSON)
        under_way: set[asyncio.Task[None]] = set()
        next_s = time.monotonic()
        try:
            while not self._stop.is_set():
                if len(under_way) < _PROBES_AT_A_TIME:
                    task = asyncio.create_task(self._deliver(sender, self._message(rng)))
                    under_way.add(task)
                    task.add_done_callback(under_way.discard)
                next_s = max(next_s + _PROBE_PERIOD_S, time.monotonic() - 1.0)
                await asyncio.sleep(max(0.0, next_s - time.monotonic()))
            if under_way:
                await asyncio.wait(under_way)
        finally:
            for task in under_way:
                task.cancel()
            await sender.close()

    async def _deliver(self, sender: _Sender, message: tuple[str, bytes]) -> None:
        delivery = Delivery(time.monotonic())
        self.deliveries.append(delivery)
        while time.monotonic() - delivery.invoked_s < SEND_S:
            delivery.tries += 1
            left_s = SEND_S - (time.monotonic() - delivery.invoked_s)
            if await sender.send(self.route.address, (PROBE_TOPIC, 0), [message], max(0.1, left_s)):
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
                        pulled = await client.pull(where, asked, group=f"{_GROUP}-{name}")
                    except RemotingError:
                        break  # it is away, or does not know the topic yet: later
                    items = tuple(_item(record) for record in pulled.records)
                    if items or pulled.next_offset != asked:
                        read = Read(name, queue, asked, items, pulled.next_offset, invoked_s, time.monotonic(), broker)
                        self.history.reads.append(read)
                    at[queue] = asked + len(items)
                await asyncio.sleep(_READER_REST_S)


class _Sender:
    """One connection to each broker that ever led; one attempt a call."""

    def __init__(self, name: str, history: History, header: HeaderType) -> None:
        self._name, self._history, self._header = name, history, header
        self._client = RemotingClient(name=f"group.{name}", connect_timeout_s=1.0)

    async def close(self) -> None:
        await self._client.close(grace_s=0.0)

    async def send(
        self, broker: str, queue: Queue, messages: list[tuple[str, bytes]], timeout_s: float = SEND_S
    ) -> bool:
        """One attempt for all of them together, noted; whether they were acknowledged."""
        invoked_s = time.monotonic()
        outcome, reason, offset, positions = Outcome.UNKNOWN, "cancelled", -1, list[int]()
        try:
            outcome, reason, offset, positions = await self._attempt(broker, queue, messages, timeout_s)
        finally:  # an attempt that was cut short may have been stored
            ended_s = time.monotonic()
            for number, (key, body) in enumerate(messages):
                place = (offset + number, positions[number]) if positions else (-1, -1)
                self._history.sends.append(
                    Send(self._name, queue, key, digest(body), invoked_s, ended_s, outcome, *place, broker, reason)
                )
        return outcome is Outcome.OK

    async def _attempt(
        self, broker: str, queue: Queue, messages: list[tuple[str, bytes]], timeout_s: float
    ) -> tuple[Outcome, str, int, list[int]]:
        """Outcome, reason, first offset in the queue, positions in the log."""
        begin_s = time.monotonic()
        try:
            link = await self._client.connection(broker)
        except RemotingError:
            return Outcome.REFUSED, "no link", -1, []
        try:
            left_s = max(0.0, timeout_s - (time.monotonic() - begin_s))
            answer = await link.call(self._command(queue, messages), left_s)
        except RemotingBusyError:
            return Outcome.REFUSED, "our own limit", -1, []
        except RemotingError as error:
            return Outcome.UNKNOWN, type(error).__name__, -1, []
        if answer.code != ResponseCode.SUCCESS:
            outcome = Outcome.REFUSED if answer.code in CERTAIN else Outcome.UNKNOWN
            return outcome, f"{answer.code} {(answer.remark or '')[:80]}", -1, []
        fields = answer.ext or {}
        positions = [decode_message_id(each)[1] for each in fields["msgId"].split(",")]
        assert len(positions) == len(messages), "an id for each message"
        return Outcome.OK, "", int(fields["queueOffset"]), positions

    def _command(self, queue: Queue, messages: list[tuple[str, bytes]]) -> Command:
        entries = [(body, _pairs(key)) for key, body in messages]
        batch = len(entries) > 1
        body, pairs = entries[0]
        if batch:
            body, pairs = b"".join(batch_entry(*entry) for entry in entries), {properties.WAIT: "true"}
        ext = {
            "a": _GROUP,
            "b": queue[0],
            "c": "TBW102",
            "d": "4",
            "e": str(queue[1]),
            "f": "0",
            "g": str(time.time_ns() // 1_000_000),
            "h": "0",
            "i": properties.encode(pairs),
            "j": "0",
            "k": "false",
            "m": "true" if batch else "false",
        }
        code = RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2
        return Command(code, ext=ext, body=body, header_type=self._header)


def _pairs(key: str) -> dict[str, str]:
    return {properties.UNIQ_KEY: f"{key:>32}".replace(" ", "0").upper(), properties.WAIT: "true"}


def _item(record: Record) -> Item:
    return Item(record.queue_offset, body_id(record.body), digest(record.body), record.pos)


async def create_topics(broker: str) -> None:
    """RemotingError: it could not be done."""
    async with ClusterClient("", timeout_s=30.0) as client:
        for topic, queues in {**TOPICS, PROBE_TOPIC: 1}.items():
            ext = {"topic": topic, "readQueueNums": str(queues), "writeQueueNums": str(queues)}
            ext |= {"defaultTopic": "TBW102", "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0"}
            await client.call(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, ext | {"order": "false"})


async def read_all(broker: str) -> dict[Queue, Reading]:
    """Every queue from end to end, by one member at rest. RemotingError."""
    final = {}
    async with ClusterClient("", timeout_s=30.0) as client:
        for queue in QUEUES:
            where = QueueAddress(queue[0], "", broker, queue[1])
            low, high = await client.offset_range(where)
            items: list[Item] = []
            while low + len(items) < high:
                pulled = await client.pull(where, low + len(items), group=f"{_GROUP}-final")
                if not pulled.records:
                    raise RequestRefusedError(
                        broker, ResponseCode.PULL_NOT_FOUND, f"{queue}: nothing at {low + len(items)} below {high}"
                    )
                items += [_item(record) for record in pulled.records]
            final[queue] = Reading(low, tuple(items))
    return final
