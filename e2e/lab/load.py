"""Producers that send a mix of messages over several connections, and note what was acknowledged.

Kinds: plain, batch, delayed, transactions that are committed, rolled back or left alone, and messages that a new group
of consumers sends back. A part of all sends goes to topics that do not exist yet. Headers of both forms.
The seed decides what each sender sends; how their messages interleave is up to the machine.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass

from lab.ledger import HALF_TOPIC, SCHEDULE_TOPIC, Ledger, Place

from tallystick.node.core.client import ClusterClient
from tallystick.node.remoting.client import RemotingClient
from tallystick.node.remoting.codes import RequestCode
from tallystick.node.remoting.command import Command, HeaderType
from tallystick.node.remoting.errors import RemotingError
from tallystick.store.formats import properties, sending
from tallystick.store.formats.message import TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from tallystick.store.formats.message_id import decode_message_id

TOPICS = {"crash-a": 4, "crash-b": 2, "crash-c": 1}  # with their numbers of queues
GROUP = "crash-producer"
_KINDS = {"plain": 60, "batch": 12, "delayed": 10, "commit": 10, "rollback": 5, "undecided": 3, "back": 4}
NEW_TOPIC_QUEUES = 4
_DELAY_LEVEL = 1  # one second
_ANSWER_S = 30.0


@dataclass(frozen=True, slots=True)
class Shape:
    """How many connections, how many senders share each, and how long a sender rests between messages at most."""

    connections: int
    senders: int
    rest_s: float
    new_topics: float = 0.05
    """The part of sends that go to a new topic."""


async def create_topics(broker: str) -> None:
    """RemotingError: it could not be done."""
    async with ClusterClient("", timeout_s=_ANSWER_S) as client:
        for topic, queues in TOPICS.items():
            await client.create_topic(broker, topic, queues)


async def run_load(broker: str, ledger: Ledger, label: str, shape: Shape, seed: int, stop: asyncio.Event) -> None:
    """Sends until the broker is gone or `stop` is set. `label` begins the ids of all messages of this load."""
    clients = [RemotingClient(name=f"crash.{number}") for number in range(shape.connections)]
    senders = [
        _Sender(broker, client, ledger, f"{label}.{number}.{each}", shape, seed)
        for number, client in enumerate(clients)
        for each in range(shape.senders)
    ]
    try:
        await asyncio.gather(*(sender.run(stop) for sender in senders))
    finally:
        for client in clients:
            await client.close(grace_s=0.0)


class _Sender:
    """One message, or one batch, at a time."""

    def __init__(
        self, broker: str, client: RemotingClient, ledger: Ledger, label: str, shape: Shape, seed: int
    ) -> None:
        self._broker, self._client, self._ledger = broker, client, ledger
        self._label, self._shape = label, shape
        self._last_pos: int | None = None  # of the newest acknowledged plain message
        self._rng = random.Random(f"{seed} {label}")
        self._count = 0
        self._header = self._rng.choice((HeaderType.JSON, HeaderType.ROCKETMQ))

    async def run(self, stop: asyncio.Event) -> None:
        kinds, weights = list(_KINDS), list(_KINDS.values())
        while not stop.is_set():
            kind = self._rng.choices(kinds, weights)[0]
            topic, queue_id = self._queue()
            try:
                match kind:
                    case "batch":
                        await self._batch(topic, queue_id)
                    case "commit" | "rollback" | "undecided":
                        await self._transaction(topic, queue_id, kind)
                    case "back":
                        await self._back()
                    case _:
                        await self._single(topic, queue_id, kind)
            except RemotingError:
                return  # the broker was killed: that is why we are here
            if self._shape.rest_s:
                await asyncio.sleep(self._rng.uniform(0, self._shape.rest_s))

    def _queue(self) -> tuple[str, int]:
        """Where the next message goes: one of the topics, or a new one."""
        if self._rng.random() < self._shape.new_topics:
            return f"new-{self._label}-{self._count}".replace(".", "-"), self._rng.randrange(NEW_TOPIC_QUEUES)
        topic = self._rng.choice(list(TOPICS))
        return topic, self._rng.randrange(TOPICS[topic])

    def _message(self, topic: str) -> tuple[str, bytes, dict[str, str]]:
        """A new message's id, body and properties."""
        self._count += 1
        name = f"{self._label}.{self._count}"
        size = self._rng.choice((0, 20, 100, 300, 600)) if self._rng.random() < 0.98 else self._rng.randrange(30_000)
        body = f"{name}|".encode() + self._rng.randbytes(size)
        unique = f"{name:>32}".replace(" ", "0").upper()
        pairs = {properties.UNIQ_KEY: unique, properties.WAIT: "true"}
        if self._rng.random() < 0.5:
            pairs[properties.KEYS] = f"k-{name} half"
        if self._rng.random() < 0.5:
            pairs[properties.TAGS] = self._rng.choice("ABC")
        self._ledger.send(name, body, topic, unique)
        return name, body, pairs

    async def _send(
        self, topic: str, queue_id: int, body: bytes, pairs: dict[str, str], *, sys_flag: int = 0, batch: bool = False
    ) -> dict[str, str] | None:
        """The answer's fields; None: it was refused."""
        ext = send_fields(GROUP, topic, queue_id, pairs, sys_flag=sys_flag, batch=batch)
        code = RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2
        answer = await self._call(Command(code, ext=ext, body=body, header_type=self._header))
        if answer is not None:
            self._ledger.rows.add(topic)
            self._ledger.destinations.add((topic, queue_id))
        return answer

    async def _back(self) -> None:
        """A consumer of a new group sends the last message back, to the group's retry topic."""
        if self._last_pos is None:
            return
        self._count += 1
        group = f"back-{self._label}-{self._count}".replace(".", "-")
        ext = {
            "offset": str(self._last_pos),
            "group": group,
            "delayLevel": str(_DELAY_LEVEL),
            "maxReconsumeTimes": "16",
        }
        command = Command(RequestCode.CONSUMER_SEND_MSG_BACK, ext=ext, header_type=self._header)
        if await self._call(command) is not None:
            self._ledger.rows.add(f"%RETRY%{group}")
            self._ledger.kinds["back"] += 1

    async def _call(self, command: Command) -> dict[str, str] | None:
        answer = await self._client.call(self._broker, command, _ANSWER_S)
        if answer.code != 0:
            self._ledger.refused[f"{answer.code} {answer.remark}"] += 1
            await asyncio.sleep(0.01)  # busy or out of time: not again at once
            return None
        return answer.ext or {}

    async def _single(self, topic: str, queue_id: int, kind: str) -> None:
        name, body, pairs = self._message(topic)
        delayed = kind == "delayed"
        if delayed:
            pairs[properties.DELAY] = str(_DELAY_LEVEL)
        answer = await self._send(topic, queue_id, body, pairs)
        if answer is not None:
            where = (SCHEDULE_TOPIC, _DELAY_LEVEL - 1) if delayed else (topic, queue_id)
            place = _place(*where, answer)
            self._ledger.acknowledge(name, place, kind)
            if not delayed:
                self._last_pos = place.pos
            if delayed:
                self._ledger.delayed.add(name)

    async def _batch(self, topic: str, queue_id: int) -> None:
        messages = [self._message(topic) for _ in range(self._rng.randint(2, 12))]
        body = b"".join(batch_entry(body, pairs) for _, body, pairs in messages)
        answer = await self._send(topic, queue_id, body, {properties.WAIT: "true"}, batch=True)
        if answer is not None:
            first = int(answer["queueOffset"])
            ids = answer["msgId"].split(",")
            assert len(ids) == len(messages), "an id for each message of the batch"
            for number, ((name, _, _), message_id) in enumerate(zip(messages, ids, strict=True)):
                place = Place(topic, queue_id, first + number, decode_message_id(message_id)[1])
                self._ledger.acknowledge(name, place, "batch")

    async def _transaction(self, topic: str, queue_id: int, decision: str) -> None:
        name, body, pairs = self._message(topic)
        pairs |= {properties.TRAN_MSG: "true", properties.PGROUP: GROUP}
        answer = await self._send(topic, queue_id, body, pairs, sys_flag=TRANSACTION_PREPARED)
        if answer is None:
            return
        place = _place(HALF_TOPIC, 0, answer)
        self._ledger.acknowledge(name, place, "half")
        if decision == "undecided":
            return
        ext = {
            "producerGroup": GROUP,
            "tranStateTableOffset": str(place.queue_offset),
            "commitLogOffset": str(place.pos),
            "commitOrRollback": str(TRANSACTION_COMMIT if decision == "commit" else TRANSACTION_ROLLBACK),
            "fromTransactionCheck": "false",
            "msgId": pairs[properties.UNIQ_KEY],
        }
        ended = await self._call(Command(RequestCode.END_TRANSACTION, ext=ext, header_type=self._header))
        if ended is not None:
            (self._ledger.committed if decision == "commit" else self._ledger.rolled_back).add(name)
            self._ledger.kinds[decision] += 1


def send_fields(
    group: str, topic: str, queue_id: int, pairs: dict[str, str], *, sys_flag: int = 0, batch: bool = False
) -> dict[str, str]:
    """Returns the fields of a send (310, 320) by a producer of this group, with these properties, made now."""
    text, now_ms = properties.encode(pairs), time.time_ns() // 1_000_000
    return sending.send_fields(group, topic, queue_id, text, now_ms, sys_flag=sys_flag, is_batch=batch)


def pull_fields(group: str, topic: str, offset: int) -> dict[str, str]:
    """Returns the fields of a pull (11) of queue 0, of all tags, which is answered at once."""
    return {
        "consumerGroup": group,
        "topic": topic,
        "queueId": "0",
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }


def batch_entry(body: bytes, pairs: dict[str, str]) -> bytes:
    """Returns a message with these properties as a part of a batch."""
    return sending.batch_part(body, properties.encode(pairs).encode())


def _place(topic: str, queue_id: int, answer: dict[str, str]) -> Place:
    return Place(topic, queue_id, int(answer["queueOffset"]), decode_message_id(answer["msgId"])[1])
