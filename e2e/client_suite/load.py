"""Ordered messages for a mixed group, while members change and the broker is killed."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field

from lab.peer import Peer

from client_suite.members import JavaMember, PythonMember, complaints, everything_is_processed
from client_suite.systems import System
from tallystick.client import Client, ClientError, Unknown

_QUEUES = 8
_KEYS = 24
_PATIENCE_S = 180.0
_JAVA_S = 22.0
"""The Java client asks for its locks every 20 seconds, and consumes nothing of a queue before."""


@dataclass(slots=True)
class Sent:
    """What the producer knows: `unknown` are messages whose result no broker told."""

    acknowledged: set[str] = field(default_factory=set)
    unknown: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    """Errors of messages that are not stored. The producer has a minute: no failure of a broker takes so long."""
    twice: int = 0


async def load(system: System, peer: Peer, *, kills: int, strategy: str, seed: int) -> list[str]:
    """Returns what is wrong."""
    topic = f"load-{strategy.lower()}-{seed}"
    group = f"{topic}-group"
    chance = random.Random(seed)
    async with Client(system.nameserver, **system.access.client()) as client:
        await _create(client, topic)
        members: list[PythonMember | JavaMember] = [
            PythonMember(f"python-{number}", system, group, topic, strategy) for number in range(3)
        ]
        java = await asyncio.to_thread(JavaMember, peer, system.nameserver, group, topic, strategy)
        members.append(java)
        sent, stop = Sent(), asyncio.Event()
        try:
            for member in members[:3]:
                assert isinstance(member, PythonMember)
                await member.start()
            sending = asyncio.create_task(_send(client, topic, sent, stop))
            await _disturb(system, members, group, topic, strategy, kills, chance)
            stop.set()
            await sending
            await everything_is_processed(members, sent.acknowledged, _PATIENCE_S)
        finally:
            stop.set()
            for member in members:
                if isinstance(member, PythonMember):
                    await member.stop()
            java.stop()
    seen = [each for member in members for each in member.seen]
    shares = {member.name: len(member.seen) for member in members}
    print(f"  {len(sent.acknowledged)} acknowledged, {sent.twice} perhaps twice, {sent.unknown} unknown, {shares}")
    wrong = complaints(seen, sent.acknowledged)
    wrong += [f"not sent, {count} times: {error}" for error, count in sent.failed.items()]
    if strategy != "AVG":  # a ring of hashes may give a member no queue
        return wrong
    return wrong + [f"{name} processed no message" for name, count in shares.items() if not count]


async def _create(client: Client, topic: str) -> None:
    route = await client.route("TBW102")
    for addresses in route.brokers.values():
        ext = {
            **{"topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(_QUEUES), "writeQueueNums": str(_QUEUES)},
            **{"perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"},
        }
        await client.ask(addresses[0], 17, ext)


async def _send(client: Client, topic: str, sent: Sent, stop: asyncio.Event) -> None:
    """Sends messages of each key one after the other, with pauses; notes which are acknowledged."""
    async with client.producer("load-pg", timeout=60.0) as producer:

        async def one(key: int) -> None:
            number = 0
            while not stop.is_set():
                body = f"{key}:{number}"
                try:
                    result = await producer.send(topic, body.encode(), order_key=str(key))
                    sent.acknowledged.add(body)
                    sent.twice += result.maybe_twice
                except Unknown:
                    sent.unknown += 1
                except ClientError as error:
                    sent.failed[str(error)] += 1
                number += 1
                await asyncio.sleep(0.02)

        await asyncio.gather(*(one(key) for key in range(_KEYS)))


async def _disturb(
    system: System,
    members: list[PythonMember | JavaMember],
    group: str,
    topic: str,
    strategy: str,
    kills: int,
    chance: random.Random,
) -> None:
    await asyncio.sleep(_JAVA_S)
    leaving = members[chance.randrange(3)]
    assert isinstance(leaving, PythonMember)
    await leaving.stop()
    await asyncio.sleep(2)
    joining = PythonMember("python-3", system, group, topic, strategy)
    members.append(joining)
    await joining.start()
    await asyncio.sleep(_JAVA_S)
    for _ in range(kills):
        begin_s = time.monotonic()
        await asyncio.to_thread(system.kill)
        await asyncio.sleep(chance.uniform(0, 2))
        await asyncio.to_thread(system.restart)
        print(f"  killed, and complete again after {time.monotonic() - begin_s:.1f} s")
        await asyncio.sleep(5)
    await asyncio.sleep(_JAVA_S)
