"""Members that die, one or all at once, with what was not synced: nothing that was acknowledged is lost (D1 to D5)."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from member_lab import ASYNCHRONOUS, Group, Node, load, until

from tallystick.replication.durable import PossibleLoss
from tallystick.replication.member.settings import MemberSettings


async def _shake(group: Group, dice: random.Random, rounds: int) -> None:
    """Kills under load, and lets them come back."""
    stop = asyncio.Event()
    clients = [asyncio.create_task(load(group, dice, stop)) for _ in range(3)]
    try:
        await group.leader()
        for _ in range(rounds):
            before = len(group.acknowledged)
            await until(lambda n=before: len(group.acknowledged) > n, "puts go on")  # type: ignore[misc]
            await asyncio.sleep(dice.random() * 0.05)  # another moment each time, which the seed chooses
            victims = dice.sample(group.nodes, dice.choice([1, 1, 1, 2, 3, 3]))
            keep = dice.choice([None, 0.0, None])
            await asyncio.gather(*(node.kill(dice.getrandbits(32), keep) for node in victims))
            await asyncio.gather(*(node.start(group.addresses) for node in victims))
        await group.put_somehow(5)
    finally:
        stop.set()
        await asyncio.gather(*clients)
    assert not any(node.fatal for node in group.nodes)
    await group.level()


@pytest.mark.parametrize("seed", range(6))
async def test_power_loss_of_any_members_at_any_moment(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    async with Group(tmp_path) as group:
        await _shake(group, dice, 6)
        assert len(group.acknowledged) > 50


async def test_all_members_lose_their_power_at_once(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        for round_ in range(4):
            await group.put_somehow(20)
            acknowledged = dict(group.acknowledged)
            leader = await group.leader()
            group.stage(leader, 50)  # and some that were not acknowledged
            await asyncio.sleep(0)
            await asyncio.gather(*(node.kill(round_, 0.0) for node in group.nodes))
            await asyncio.gather(*(node.start(group.addresses) for node in group.nodes))
            await group.put_somehow()
            assert acknowledged.items() <= group.acknowledged.items()
            await group.level()


async def test_killed_members_that_keep_their_power_go_on(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        for node in group.nodes:
            await group.put_somehow(20)
            await node.kill()
            await group.put_somehow(20)
            await node.start(group.addresses)
        await group.level()


async def _cut_power_in_asynchronous_mode(group: Group) -> Node:
    """A follower that acknowledged more than it had synced, and lost it."""
    leader = await group.leader()
    node = group.nodes[(leader.id + 1) % 3]
    node.door.lie("sync", "data/")  # its syncs seem to be late
    await group.put(leader, 30)
    await until(lambda: node.up.ledger.last_index >= leader.up.committed_index)
    await node.kill(7, 0.0)
    return node


async def test_asynchronous_members_that_lost_their_power_may_have_lost_entries(tmp_path: Path) -> None:
    async with Group(tmp_path, settings=ASYNCHRONOUS) as group:
        node = await _cut_power_in_asynchronous_mode(group)
        node.door.heal()
        others = [each for each in group.nodes if each is not node]
        await node.start(group.addresses)
        assert node.loss_at_start is PossibleLoss.LOG
        await group.put_somehow(5)
        await until(lambda: node.up.status().doubt is PossibleLoss.NONE, "readmitted when it has all again")
        await group.level()
        # The mark is gone: it counts with one other, which is the majority.
        await others[0].kill()
        await group.put_somehow(5)


async def test_asynchronous_members_that_were_only_killed_are_not(tmp_path: Path) -> None:
    async with Group(tmp_path, settings=ASYNCHRONOUS) as group:
        await group.put_somehow(30)
        await asyncio.gather(*(node.kill() for node in group.nodes))
        await asyncio.gather(*(node.start(group.addresses) for node in group.nodes))
        assert [node.loss_at_start for node in group.nodes] == [PossibleLoss.NONE] * 3
        await group.put_somehow(5)
        await group.level()


@pytest.mark.parametrize("settings", [ASYNCHRONOUS])
async def test_asynchronous_groups_lose_nothing_with_a_minority(tmp_path: Path, settings: MemberSettings) -> None:
    dice = random.Random(3)
    async with Group(tmp_path, settings=settings) as group:
        for _ in range(4):
            await group.put_somehow(20)
            node = dice.choice(group.nodes)
            await node.kill(dice.getrandbits(32))
            await group.put_somehow(20)
            await node.start(group.addresses)
            assert node.loss_at_start is PossibleLoss.LOG
            await until(lambda n=node: n.up.status().doubt is PossibleLoss.NONE, "readmitted")  # type: ignore[misc]
        await group.level()
