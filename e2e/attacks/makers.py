"""A group of three whose members are killed (`kill -9`) at random, while sends make topics and returns make groups.

Workers send one message each to topics that do not exist yet, at any member that runs (followers pass on). Some are
given back in the name of a consumer group that does not exist yet, which makes its row and its retry topic. Meanwhile
random members die, one at a time and now and then two, and start again.

Required when all is quiet: at every member each topic and group whose message was acknowledged exists, with the same
row everywhere; each acknowledged message is at its offset there; what was given back came to its retry topic.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

from attacks.arena import Arena
from lab.group import Group, Member

from tallystick.node.core.client import ClusterClient, QueueAddress
from tallystick.node.remoting.codes import RequestCode
from tallystick.node.remoting.errors import RemotingError
from tallystick.store import fastjson

_SECONDS, _WORKERS, _SEED = 180.0, 6, 12
_UP_S, _DOWN_S, _BOTH = (1.0, 5.0), (0.2, 2.5), 0.25
_GIVEN_BACK = 0.3
_SETTLED_S = 120.0


class Makers:
    """Acknowledged data: topics with the offset of their message in queue 0, and groups."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.rng = random.Random(_SEED)
        self.topics: dict[str, int] = {}
        self.groups: set[str] = set()
        self.doubts = 0
        self.kills = 0
        self.over = asyncio.Event()

    def somebody(self) -> Member | None:
        """Returns a running member."""
        running = [member for member in self.group.members if member.alive]
        return self.rng.choice(running) if running else None

    async def work(self, number: int) -> None:
        """One worker: a new topic with each send."""
        count = 0
        async with ClusterClient("", timeout_s=5) as client:
            while not self.over.is_set():
                count += 1
                member = self.somebody()
                if member is None:
                    await asyncio.sleep(0.05)
                    continue
                topic = f"made-{number}-{count}"
                try:
                    queue = QueueAddress(topic, "", member.address, 0)
                    _, offset = await client.send(queue, f"{topic}|".encode())
                    self.topics[topic] = offset
                    if self.rng.random() < _GIVEN_BACK:
                        await self._give_back(client, queue, offset)
                except (RemotingError, OSError):
                    self.doubts += 1
                    await asyncio.sleep(0.05)

    async def _give_back(self, client: ClusterClient, queue: QueueAddress, offset: int) -> None:
        pulled = await client.pull(queue, offset, group="reader", wait_s=1)
        if not pulled.records:
            return  # this member does not know yet that it is committed
        group = f"of-{queue.topic}"
        ext = {"offset": str(pulled.records[0].pos), "group": group, "delayLevel": "1", "maxReconsumeTimes": "16"}
        await client.call(queue.address, RequestCode.CONSUMER_SEND_MSG_BACK, ext)
        self.groups.add(group)

    async def kill(self, seconds: float) -> None:
        """Kills and starts members until the time is over."""
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            await asyncio.sleep(self.rng.uniform(*_UP_S))
            victims = self.rng.sample(self.group.members, 2 if self.rng.random() < _BOTH else 1)
            for victim in victims:
                victim.kill()
                self.kills += 1
            await asyncio.sleep(self.rng.uniform(*_DOWN_S))
            for victim in victims:
                victim.launch()


async def run(arena: Arena) -> None:
    group = Group(arena.work / "group", ("mappedFileSizeCommitLog=1048576", "mappedFileSizeConsumeQueue=2000"))
    makers = Makers(group)
    try:
        await asyncio.to_thread(group.start)
        workers = [asyncio.create_task(makers.work(number)) for number in range(_WORKERS)]
        await makers.kill(_SECONDS * min(1.0, arena.scale))
        makers.over.set()
        await asyncio.gather(*workers)
        settled = await asyncio.to_thread(group.wait, group.is_at_rest, _SETTLED_S, "the group is at rest")
        arena.figure("kills; topics and groups acknowledged; unknown results", [
            makers.kills, len(makers.topics), len(makers.groups), makers.doubts,
        ])  # fmt: skip
        arena.figure("seconds until the group was at rest", round(settled, 1))
        for member in group.members:
            await _check(arena, makers, member)
        # Pulls make the row of their group, so rows are compared behind all pulls.
        await asyncio.to_thread(group.wait, group.is_at_rest, _SETTLED_S, "the group is at rest again")
        rows = [await _rows(member) for member in group.members]
        for topics, groups in rows[1:]:
            differing = sorted({*_differing(rows[0][0], topics), *_differing(rows[0][1], groups)})
            arena.check(not differing, f"members have different rows for {len(differing)} names: {differing[:5]}")
        await asyncio.to_thread(group.stop)
    finally:
        group.kill()


async def _rows(member: Member) -> tuple[dict[str, Any], dict[str, Any]]:
    """The topics and groups of this member."""
    async with ClusterClient("", timeout_s=30) as client:
        answer = await client.call(member.address, RequestCode.GET_ALL_TOPIC_CONFIG, {})
        topics = fastjson.loads(answer.body)["topicConfigTable"]
        answer = await client.call(member.address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {})
        return topics, fastjson.loads(answer.body)["subscriptionGroupTable"]


def _differing(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    return [name for name in {*one, *other} if one.get(name) != other.get(name)]


async def _check(arena: Arena, makers: Makers, member: Member) -> None:
    """Checks that this member has all acknowledged data."""
    topics, groups = await _rows(member)
    async with ClusterClient("", timeout_s=30) as client:
        missing = [name for name in makers.topics if name not in topics]
        arena.check(not missing, f"{member.name} lacks {len(missing)} topics: {missing[:5]}")
        retries = [f"%RETRY%{name}" for name in makers.groups]
        absent = [name for name in makers.groups if name not in groups]
        absent += [name for name in retries if name not in topics]
        arena.check(not absent, f"{member.name} lacks {len(absent)} groups or retry topics: {absent[:5]}")
        lost = []
        for topic, offset in makers.topics.items():
            pulled = await client.pull(QueueAddress(topic, "", member.address, 0), offset, group="check")
            if not pulled.records or pulled.records[0].body != f"{topic}|".encode():
                lost.append(topic)
        arena.check(not lost, f"{member.name}: {len(lost)} acknowledged messages cannot be read: {lost[:5]}")
        late = []
        for topic in retries:
            low, high = await client.offset_range(QueueAddress(topic, "", member.address, 0))
            if high - low < 1:
                late.append(topic)
        arena.check(
            not late, f"{member.name}: {len(late)} messages that were sent back were never delivered: {late[:5]}"
        )
