"""A group of three real processes follows a master under `kill -9`, and takes its place: nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest
from copying_lab import tables
from following_lab import masters_records
from group_lab import NAME, GroupLab, until
from rocketmq_master import LogMaker, RocketmqMaster
from tally_process import tally

from tallystick.node.core.client import ClusterClient, QueueAddress
from tallystick.store.formats.record import Record

pytestmark = pytest.mark.process

SEGMENT = 1 << 18
SETTINGS = ("brokerRole=SLAVE", "groupElectionTimeoutMills=600", "groupHeartbeatMills=60")


async def copy_of(lab: GroupLab, number: int) -> dict[str, Any]:
    """The copy of a member, from its GET /node."""
    _, text = await asyncio.to_thread(lab.members[number].get, "/node")
    found: dict[str, Any] = json.loads(text)["copy"] or {}
    return found


async def caught_up(lab: GroupLab, master: RocketmqMaster) -> int:
    """The leader, when the group has committed the whole log of the master."""

    async def look() -> int | None:
        for number in lab.members:
            found = await copy_of(lab, number)
            if found.get("state") == "following" and found["safePos"] == master.end and not found["tablesError"]:
                return number
        return None

    return await until("the group has the log", look)


async def bodies(client: ClusterClient, address: str) -> dict[tuple[int, int], bytes]:
    """Every message of topic T at a member, by queue id and offset."""
    found: dict[tuple[int, int], bytes] = {}
    for queue_id in range(4):
        queue = QueueAddress("T", NAME, address, queue_id)
        offset, end = await client.offset_range(queue)
        while offset < end:
            pulled = await client.pull(queue, offset, group="reader")
            for record in pulled.records:
                assert isinstance(record, Record)
                assert (queue_id, record.queue_offset) not in found
                found[queue_id, record.queue_offset] = record.body
            assert pulled.next_offset > offset
            offset = pulled.next_offset
    return found


def promote(lab: GroupLab, number: int, *more: str) -> tuple[int, str]:
    """Exit status and output of `tally promote` at a member."""
    answer = tally("promote", *more, "--http", lab.members[number].places["http"], cwd=lab.folder)
    return answer.returncode, answer.stdout + answer.stderr


async def test_members_are_killed_while_the_group_follows_and_is_promoted(tmp_path: Path) -> None:
    rng = random.Random(5)
    with GroupLab(tmp_path / "group", *SETTINGS) as lab:
        maker = LogMaker(tmp_path / "made", SEGMENT)
        master = await RocketmqMaster(maker.add(300), SEGMENT, name=NAME, part_bytes=2000).start(lab.nameserver)
        master.tables = tables(1)
        try:
            for turn in range(4):
                await caught_up(lab, master)
                victim = await lab.leader_of_any() if turn % 2 == 0 else rng.randrange(3)
                master.grow(maker.add_transactions(10, seed=turn, apart=300))
                await asyncio.sleep(rng.random() / 20)  # anywhere in the transfer
                lab.kill(victim)
                master.grow(maker.add_batch(20))
                lab.start(victim)
            leader = await caught_up(lab, master)
            other = next(number for number in lab.members if number != leader)
            status, text = await asyncio.to_thread(promote, lab, other)
            assert status == 1 and f"n{leader} leads: ask the leader" in text
            promoting = asyncio.create_task(asyncio.to_thread(promote, lab, leader))
            await asyncio.sleep(rng.random() / 2)
            lab.kill(leader)
            await promoting
            lab.start(leader)

            async def promoted() -> int | None:
                number = await lab.leader_of_any()
                status, _ = await asyncio.to_thread(promote, lab, number)
                return number if status == 0 else None

            await until("the group is promoted", promoted)
            assert not master.grow(b"")
            expected = {
                (record.queue_id, record.queue_offset): record.body
                for record in masters_records(master.log)
                if record.topic == "T"
            }
            async with ClusterClient(lab.nameserver) as client:
                leader = await lab.leader()
                await lab.master(client, leader)
                await lab.ready()
                for number in lab.members:

                    async def same(address: str = lab.address(number)) -> bool | None:
                        return await bodies(client, address) == expected or None

                    await until(f"n{number} has each message of the master once", same)
                ends = {queue_id: max(o for q, o in expected if q == queue_id) + 1 for queue_id in range(4)}
                for queue_id, end in ends.items():
                    queue = QueueAddress("T", NAME, lab.address(leader), queue_id)
                    assert (await client.send(queue, b"new"))[1] == end
        finally:
            await master.close()
