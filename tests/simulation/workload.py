"""What clients do while things go wrong: producers send, consumers read and commit, each by its own dice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from simulation.audit import position_of
from simulation.clients import COMMIT, ROLLBACK, Client, Outgoing
from simulation.oracle import LATE_S, Fate, Oracle, Queue, Sent
from simulation.tables import Place
from simulation.violation import ViolationError
from tallystick.node.remoting.codes import ResponseCode
from tallystick.node.remoting.errors import RemotingError

REFUSALS = frozenset((
    ResponseCode.TOPIC_NOT_EXIST,
    ResponseCode.MESSAGE_ILLEGAL,
    ResponseCode.NO_PERMISSION,
    ResponseCode.SERVICE_NOT_AVAILABLE,
))  # fmt: skip
"""Answers that say that nothing was stored. Any other but SUCCESS leaves it open."""
_WAITS_MS = (20, 500, 3_000, 12_000)
_DELAYS_S = (0.0, 1.0, 5.0, 10.0)
_BATCH_BYTES = 15_000


@dataclass
class Habits:
    """Of the clients of one run."""

    producers: int = 2
    consumers: int = 1
    topics: int = 4
    """So many topics take most of the messages."""
    new_topic: float = 0.05
    """How often a message goes to a topic that no message went to before."""
    pause_s: float = 0.02
    messages: int = 100
    """At most so many between two faults."""
    burst: float = 0.1
    """How often a producer sends many at once."""
    batch: float = 0.0
    transaction: float = 0.0
    delay: float = 0.0
    timer: float = 0.0
    admin_pause_s: float = 2.0
    commits: float = 0.0
    """How often a consumer says how far it is."""
    resets: float = 0.0
    """How often it goes back, and says so."""
    ordered: int = 0
    """Consumers that lock queues."""
    large: float = 0.05
    queues: int = 2


class Workload:
    """All clients of a run. `target(dice)` is a broker's name and address now."""

    def __init__(
        self,
        clients: list[Client],
        oracle: Oracle,
        habits: Habits,
        dice: Random,
        target: Callable[[Random], tuple[str, str]],
    ) -> None:
        self.oracle = oracle
        self.habits = habits
        self._clients = clients
        self._dice = dice
        self._target = target
        self._count = 0
        self._allowed = 0
        self._more = asyncio.Event()
        self._topics = [f"T{number}" for number in range(habits.topics)]
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self.problems: list[str] = []

    def start(self) -> None:
        """Every client begins."""
        for number, client in enumerate(self._clients):
            dice = Random(self._dice.getrandbits(64))
            work = self._produce if number < self.habits.producers else self._consume
            self._tasks.append(client.run(work(client, dice)))

    def allow(self, messages: int) -> None:
        """So many more are sent. Producers that have no more wait: what a run costs is bounded."""
        self._allowed = self._count + messages
        self._more.set()

    async def stop(self) -> None:
        """No new request is made; those in progress are waited for."""
        self._stopping = True
        self._more.set()
        await asyncio.gather(*self._tasks)

    # --- producing ---

    async def _produce(self, client: Client, dice: Random) -> None:
        while not self._stopping:
            if self._count >= self._allowed:
                self._more.clear()
                await self._more.wait()
                continue
            chance = dice.random()
            if chance < self.habits.burst:
                await asyncio.gather(*(self._send_one(client, dice) for _ in range(dice.randrange(2, 30))))
            elif chance < self.habits.burst + self.habits.batch:
                await self._send_batch(client, dice)
            elif chance < self.habits.burst + self.habits.batch + self.habits.transaction:
                await self._transaction(client, dice)
            else:
                await self._send_one(client, dice)
            await asyncio.sleep(dice.expovariate(1 / self.habits.pause_s))

    def _message(self, dice: Random, *, half: bool = False) -> Outgoing:
        self._count += 1
        new = dice.random() < self.habits.new_topic
        topic = f"New{self._count}" if new else dice.choice(self._topics)
        size = dice.randrange(2000, 15_000) if dice.random() < self.habits.large else dice.randrange(0, 300)
        key = f"K{self._count:08d}"
        body = key.encode() + dice.randbytes(size)
        delay = dice.randrange(1, 4) if not half and dice.random() < self.habits.delay else 0
        queue_id = dice.randrange(self.habits.queues)
        tag = dice.choice(("", "a", "b"))
        plain = not half and not delay
        wait_ms = dice.choice(_WAITS_MS) if plain and self.habits.timer and dice.random() < self.habits.timer else 0
        return Outgoing(key, topic, queue_id, body, tag, delay, wait_ms, half)

    async def _send_one(self, client: Client, dice: Random) -> None:
        name, address = self._target(dice)
        sent = self.oracle.sending(name, self._message(dice))
        if await send(client, address, sent, self.oracle) and sent.handle and dice.random() < 0.3:
            await asyncio.sleep(dice.random() * sent.message.wait_ms / 1000)
            await recall(client, self._target_of(name), sent)

    def _target_of(self, broker: str) -> str:
        while True:
            name, address = self._target(self._dice)
            if name == broker:
                return address

    async def _send_batch(self, client: Client, dice: Random) -> None:
        name, address = self._target(dice)
        first = replace(self._message(dice), delay_level=0, wait_ms=0)
        messages = [first]
        for _ in range(dice.randrange(1, 8)):
            plain = replace(self._message(dice), delay_level=0, wait_ms=0)
            messages.append(replace(plain, topic=first.topic, queue_id=first.queue_id))
        if sum(len(message.body) for message in messages) > _BATCH_BYTES:
            messages = [replace(message, body=message.body[:100]) for message in messages]
        sents = [self.oracle.sending(name, message) for message in messages]
        trace, loop = client.loop.trace, client.loop
        try:
            answer = await client.send_batch(address, messages)
        except RemotingError as error:
            code, said = -1, str(error)
        else:
            code, said = answer.code, answer.remark or ""
        if code != ResponseCode.SUCCESS:
            trace.note(loop.now, f"batch of {first.key} to {sents[0].queue}: {code} {said}")
            for sent in sents:
                sent.fate = Fate.REFUSED if code in REFUSALS else Fate.UNKNOWN
            return
        fields = answer.ext or {}
        offset, ids = int(fields["queueOffset"]), fields["msgId"].split(",")
        trace.note(loop.now, f"batch of {first.key} is {offset} of {sents[0].queue}, {len(ids)} messages")
        for number, (sent, message_id) in enumerate(zip(sents, ids, strict=True)):
            self.oracle.acknowledge(sent, offset + number, position_of(message_id), loop.now)

    async def _transaction(self, client: Client, dice: Random) -> None:
        name, address = self._target(dice)
        sent = self.oracle.sending(name, self._message(dice, half=True))
        sent.anywhere = sent.hidden = True
        sent.due = float("inf")
        if not await send(client, address, sent, self.oracle):
            return
        half_offset, sent.offset = sent.offset, -1
        await asyncio.sleep(dice.expovariate(1 / 0.1))
        if dice.random() < 0.2:
            return  # the producer forgets it
        decision = COMMIT if dice.random() < 0.7 else ROLLBACK
        sent.hidden = decision == ROLLBACK
        sent.fate = Fate.UNKNOWN
        try:
            answer = await client.end_transaction(address, sent.message.key, sent.pos, half_offset, decision)
        except RemotingError as error:
            client.loop.trace.note(client.loop.now, f"end of {sent.message.key}: {error}")
            return
        client.loop.trace.note(client.loop.now, f"end of {sent.message.key}, {decision}: {answer.code}")
        if answer.code == ResponseCode.SUCCESS and decision == COMMIT:
            sent.fate, sent.due = Fate.ACKNOWLEDGED, client.loop.now
            sent.acknowledged_at = client.loop.now

    # --- consuming ---

    async def _consume(self, client: Client, dice: Random) -> None:
        offsets: dict[Queue, int] = {}
        while not self._stopping:
            topic, queue_id = dice.choice(self._topics), dice.randrange(self.habits.queues)
            name, address = self._target(dice)
            at = offsets.get((name, topic, queue_id), 0)
            try:
                read = await client.pull(address, "readers", topic, queue_id, at, wait_s=dice.choice((0.0, 1.0, 5.0)))
            except RemotingError:
                await asyncio.sleep(0.2)
                continue
            if read.records:
                offsets[name, topic, queue_id] = read.next_offset
                if dice.random() < self.habits.commits:
                    await self._commit(client, name, address, (topic, queue_id), read.next_offset)
                if dice.random() < self.habits.resets:
                    back = offsets[name, topic, queue_id] = dice.randrange(read.next_offset + 1)
                    await self._commit(client, name, address, (topic, queue_id), back, reset=True)
            await asyncio.sleep(dice.expovariate(1 / self.habits.pause_s))

    async def _commit(
        self, client: Client, broker: str, address: str, queue: tuple[str, int], offset: int, *, reset: bool = False
    ) -> None:
        group = client.process.name
        offsets, place = self.oracle.offsets, (broker, group, *queue)
        (offsets.resetting if reset else offsets.trying)(place, offset)
        try:
            answer = await client.commit(address, group, *queue, offset)
        except RemotingError as error:
            client.loop.trace.note(client.loop.now, f"commit of {group} at {queue}, {offset}: {error}")
            return
        client.loop.trace.note(client.loop.now, f"commit of {group} at {queue}, {offset} by {address}: {answer.code}")
        if answer.code == ResponseCode.SUCCESS:
            offsets.took(place, offset, client.loop.now)
            if reset:
                offsets.was_reset(place, offset, client.loop.now)
                await self._read_back(client, address, place, offset)

    async def _read_back(self, client: Client, address: str, place: Place, offset: int) -> None:
        """What was set back is set back at once, as long as nothing is wrong."""
        if not self.oracle.offsets.quiet:
            return
        try:
            found = await client.committed(address, *place[1:])
        except RemotingError:
            return
        if found != offset and self.oracle.offsets.quiet:
            raise ViolationError("O2", f"the offset of {place} was set back to {offset}, and is {found}")


async def send(client: Client, address: str, sent: Sent, oracle: Oracle) -> bool:
    """Sends one message and notes its fate; whether it was acknowledged."""
    trace, key = client.loop.trace, sent.message.key
    if sent.message.delay_level:
        sent.anywhere = sent.repeats = True
    if sent.message.wait_ms:
        sent.anywhere = True
    try:
        answer = await client.send(address, sent.message)
    except RemotingError as error:
        sent.fate = Fate.UNKNOWN
        trace.note(client.loop.now, f"{key} to {sent.queue}: {error}")
        return False
    if answer.code != ResponseCode.SUCCESS:
        sent.fate = Fate.REFUSED if answer.code in REFUSALS else Fate.UNKNOWN
        trace.note(client.loop.now, f"{key} to {sent.queue}: {answer.code} {answer.remark}")
        return False
    fields = answer.ext or {}
    offset, pos = int(fields["queueOffset"]), position_of(fields["msgId"])
    trace.note(client.loop.now, f"{key} is {offset} of {sent.queue}, at {pos}")
    oracle.acknowledge(sent, offset, pos, client.loop.now)
    if sent.message.delay_level:
        sent.due = client.loop.now + _DELAYS_S[sent.message.delay_level] + LATE_S
    if sent.message.wait_ms:
        sent.due = client.loop.now + sent.message.wait_ms / 1000 + LATE_S
        sent.handle = fields["recallHandle"]
    return True


async def recall(client: Client, address: str, sent: Sent) -> None:
    """Takes a timer back, and notes what became of it."""
    trace, key = client.loop.trace, sent.message.key
    try:
        answer = await client.recall(address, sent.message.topic, sent.handle)
    except RemotingError as error:
        sent.due = float("inf")
        trace.note(client.loop.now, f"recall of {key}: {error}")
        return
    trace.note(client.loop.now, f"recall of {key}: {answer.code} {answer.remark}")
    if answer.code == ResponseCode.SUCCESS:
        sent.recalled = True
        sent.due = float("inf")
    elif answer.code != ResponseCode.ILLEGAL_OPERATION:
        sent.due = float("inf")
