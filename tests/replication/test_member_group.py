"""Three members at work: they elect, replicate, hand over, and are the same to the byte."""

from __future__ import annotations

import asyncio
from pathlib import Path

from member_lab import Group, until

from tallystick.replication.durable import EntryKind


async def test_a_group_elects_and_replicates(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        leader = await group.leader()
        for count in (1, 5, 50):
            await group.put(leader, count)
        index = leader.up.propose(EntryKind.METADATA, b'{"topics": {}}')
        await leader.up.committed(index)
        await group.level()
        assert all(node.state.applied == [(index, b'{"topics": {}}')] for node in group.nodes)


async def test_one_member_alone_leads_itself(tmp_path: Path) -> None:
    async with Group(tmp_path, 1) as group:
        leader = await group.leader()
        await group.put(leader, 10)
        await leader.stop()
        await leader.start(group.addresses)
        await group.put(await group.leader(), 10)
        await group.level()


async def test_two_members_need_each_other(tmp_path: Path) -> None:
    async with Group(tmp_path, 2) as group:
        leader = await group.leader()
        await group.put(leader, 10)
        other = next(node for node in group.nodes if node is not leader)
        await other.kill()
        await until(lambda: not leader.up.accepting, "a leader without a majority stops")
        await other.start(group.addresses)
        await group.put_somehow(10)
        await group.level()


async def test_a_stop_in_order_hands_leadership_over(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        leader = await group.leader()
        await group.put(leader, 10)
        await leader.stop()
        await group.put(await group.leader(), 10)
        await leader.start(group.addresses)
        await group.level()


async def test_reads_wait_for_what_was_committed_before(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        leader = await group.leader()
        await group.put(leader, 10)
        pos = leader.up.committed_pos
        for node in group.nodes:
            assert await node.up.read() >= pos
            assert node.up.committed_pos >= pos


async def test_transfer_under_load_without_a_failed_proposal(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        await group.leader()
        failed: list[BaseException] = []
        stop = asyncio.Event()

        async def client() -> None:
            while not stop.is_set():
                leaders = [node for node in group.nodes if node.up.accepting]
                if leaders:
                    try:
                        await group.put(leaders[0], 3)
                    except Exception as error:
                        failed.append(error)
                await asyncio.sleep(0)

        clients = [asyncio.create_task(client()) for _ in range(4)]
        for _ in range(5):
            leader = await group.leader()
            target = group.nodes[(leader.id + 1) % 3]
            before = len(group.acknowledged)
            assert await leader.up.transfer(target.id) == target.id
            await until(lambda n=before: len(group.acknowledged) > n + 30, "puts go on")  # type: ignore[misc]
        stop.set()
        await asyncio.gather(*clients)
        assert not failed
        await group.level()
