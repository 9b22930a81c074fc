"""No room on any member's disk: the group keeps a leader, refuses messages by the protocol, and takes what is small.

fill all ─▶ no member is "ok" ─▶ sends 14, offsets, locks and topics taken ─▶ kill -9 of the leader ─▶ the same
         ─▶ started again on its full disk ─▶ leadership has not wandered ─▶ room again ─▶ sends acknowledged
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from pathlib import Path

from lab.damage import fill
from lab.group import Group, Member
from lab.group_load import Clients
from lab.ledger import Problems
from lab.measurements import Measurements
from lab.schedule import Fault
from lab.waiting import leader_of, served_again, until, whole

from tallystick.node.core.client import ClusterClient, QueueAddress, RequestRefusedError
from tallystick.node.remoting.codes import RequestCode
from tallystick.node.remoting.errors import RemotingError
from tallystick.store import fastjson

_NOTICED_S = 60.0
_WORKS_S = 20.0
_STEADY_S = 8.0
_REFUSED = 14  # SERVICE_NOT_AVAILABLE
_TOPIC, _READERS = "FullAll", "full-all-readers"


class FullAll:
    def __init__(self, group: Group, clients: Clients, measured: Measurements, problems: Problems) -> None:
        self._group, self._clients, self._measured, self._problems = group, clients, measured, problems
        self._offset = 0

    async def run(self, fault: Fault) -> str:
        """To its end. ProcessError: something of it never came to pass."""
        draw = random.Random(fault.draw)
        leader = await leader_of(self._group)
        async with ClusterClient("", timeout_s=10.0) as client:
            await client.create_topic(leader.address, _TOPIC, 1)
        fillers: list[Path] = []
        begin_s = time.monotonic()
        try:
            fillers += await asyncio.gather(*(asyncio.to_thread(fill, member.folder) for member in self._group.members))
            await until(self._group, self._all_short, _NOTICED_S, "every member reports that its disk is not ok")
            noticed_s = time.monotonic() - begin_s
            first = await self._works("with all disks full")
            term = first.status().term
            await asyncio.sleep(_STEADY_S)
            second = await self._works("after some seconds")
            if (second.number, second.status().term) != (first.number, term):
                self._problems.add(f"leadership changed on full disks: {first.name} in {term}, now {second.status()}")
            killed_s = time.monotonic()
            second.kill()
            third = await self._works("after kill -9 of the leader on full disks")
            elected_s = time.monotonic() - killed_s
            await asyncio.sleep(draw.uniform(0.0, 2.0))
            second.launch()
            await until(
                self._group, lambda: len(self._group.statuses()) == 3, _NOTICED_S, "a member starts on a full disk"
            )
            await self._works("with all members, including the killed one")
        finally:
            for filler in fillers:
                filler.unlink()
        room_s = time.monotonic()
        back_s = await served_again(self._group, self._clients, room_s, fault.kind)
        self._measured.add("served again, after all disks had space again", back_s)
        self._measured.add("leader on full disks, after kill -9", elected_s)
        await whole(self._group)
        return (
            f"noticed after {noticed_s:.1f} s, {third.name} led {elected_s:.2f} s after kill -9 of {second.name}, "
            f"served again {back_s:.1f} s after there was space"
        )

    def _all_short(self) -> bool:
        statuses = self._group.statuses()
        return len(statuses) == len(self._group.members) and all(each.disk != "ok" for each in statuses.values())

    async def _works(self, when: str) -> Member:
        """Until a leader does all that it should, asked from outside; the leader. ProcessError, by `until`."""
        begin_s = time.monotonic()
        why = "no member leads"
        while time.monotonic() - begin_s < _WORKS_S:
            leader = await asyncio.to_thread(self._group.leader)
            if leader is not None:
                try:
                    why = await self._ask(leader) or ""
                except (RemotingError, OSError) as error:
                    why = str(error)
                if not why:
                    return leader
            await asyncio.sleep(0.2)
        self._problems.add(f"{when}: {why}")
        return await leader_of(self._group)

    async def _ask(self, leader: Member) -> str | None:
        """What does not work, None: all does."""
        self._offset += 1
        queue = QueueAddress(_TOPIC, "", leader.address, 0)
        where = {"consumerGroup": _READERS, "topic": _TOPIC, "queueId": "0"}
        locked = [{"topic": _TOPIC, "brokerName": "b", "queueId": 0}]
        lock = {"consumerGroup": _READERS, "clientId": "c", "mqSet": locked}
        async with ClusterClient("", timeout_s=10.0) as client:
            await client.create_topic(leader.address, f"{_TOPIC}-{uuid.uuid4().hex[:8]}", 1)
            await client.offset_range(queue)
            commit = where | {"commitOffset": str(self._offset)}
            await client.call(leader.address, RequestCode.UPDATE_CONSUMER_OFFSET, commit)
            answer = await client.call(leader.address, RequestCode.QUERY_CONSUMER_OFFSET, where)
            if (answer.ext or {}).get("offset") != str(self._offset):
                return f"the offset is {answer.ext}, but {self._offset} was committed"
            await client.call(leader.address, RequestCode.LOCK_BATCH_MQ, {}, fastjson.dumps(lock))
            try:
                await client.send(queue, b"x" * 512)
            except RequestRefusedError as refused:
                if refused.code != _REFUSED or not any(word in str(refused) for word in ("disk", "room")):
                    return f"a send is answered {refused}"
            else:
                return "a send is acknowledged"
        return None
