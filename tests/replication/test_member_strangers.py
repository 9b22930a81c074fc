"""A stranger at the members' ports, without TLS: what it says ends no member, and what it did ends with it."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from member_lab import Group, Node, until
from stranger import Line, any_message

from tallystick.replication.bounds import TERM_MAX
from tallystick.replication.messages import PreVoteReply
from tallystick.replication.transport.handshake import Identity, Lane

MESSAGES = 1500


def speaker(number: int) -> Identity:
    return Identity("cluster", "group", number)


async def works(group: Group) -> None:
    """No member has ended or is poisoned: all are level, and a message is acknowledged."""
    assert [node.fatal for node in group.nodes] == [[]] * len(group.nodes)
    await group.put_somehow(3)
    await group.level()
    await until(lambda: all(node.up.status().doubt == 0 for node in group.nodes), "no member is in doubt")
    for node in group.nodes:
        status = node.up.status()
        assert 0 < status.term < TERM_MAX - (1 << 40)
        assert not status.removed
        record = node.disk.vote.record
        assert record.term == status.term


async def test_the_frame_that_destroyed_a_group_ends_its_connection(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        await group.put_somehow(3)
        await group.nodes[2].kill()
        for target in (0, 1):
            line = await Line.open(group.nodes[target].port, speaker(2), target, Lane.CONTROL)
            assert line.welcome
            line.send(PreVoteReply(2, target, 2**63 - 1, 5, 7, granted=True))
            await until(lambda line=line: line.closed, "its connection is closed")  # type: ignore[misc]
            await line.close()
        await group.nodes[2].start(group.addresses)
        await works(group)


@pytest.mark.parametrize("seed", range(3))
async def test_a_stranger_in_the_place_of_a_member_that_is_down_poisons_nothing(tmp_path: Path, seed: int) -> None:
    """Every kind of message, each number near the group's own or at a bound."""
    dice = random.Random(seed)
    async with Group(tmp_path) as group:
        await group.put_somehow(3)
        away = dice.randrange(3)
        await group.nodes[away].kill()
        there = [node for node in group.nodes if node.id != away]
        await asyncio.gather(*(babble(node, away, random.Random(seed * 3 + node.id)) for node in there))
        await group.nodes[away].start(group.addresses)
        await works(group)


async def babble(node: Node, away: int, dice: random.Random) -> None:
    lines: dict[Lane, Line] = {}
    try:
        for _ in range(MESSAGES):
            status = node.up.status()
            message = any_message(dice, away, node.id, status.term, status.last_index)
            lane = dice.choice(list(Lane))
            line = lines.get(lane)
            if line is None or line.closed:
                line = lines[lane] = await Line.open(node.port, speaker(away), node.id, lane)
            line.send(message)
            if dice.random() < 0.1:
                await asyncio.sleep(0.001)
    finally:
        for line in lines.values():
            await line.close()
