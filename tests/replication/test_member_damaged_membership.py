"""A membership that a member cannot read: it starts, says so, does not lead by an older one, and fetches the entry."""

from __future__ import annotations

from pathlib import Path

import pytest
from member_lab import SEGMENT_BYTES, Group, Node, State, leads, until

from tallystick.replication.durable import DiskState, PossibleLoss
from tallystick.replication.member.repair import Scrubber
from tallystick.replication.membership import AddLearner
from tallystick.replication.transport.shipping import ShipmentRefusedError

KIND, CHAIN, MAGIC, BODY = 35, 39, 3, 150


def flip(node: Node, pos: int, bits: int = 0x10) -> None:
    """Of a byte of the log, on the disk of a member that is down."""
    path = node.folder / "data" / f"{pos - pos % SEGMENT_BYTES:020}"
    data = bytearray(path.read_bytes())
    data[pos % SEGMENT_BYTES] ^= bits
    path.write_bytes(data)


async def with_a_learner(group: Group) -> tuple[int, int]:
    """The newest membership has member 3, which is not there: its entry's index and place."""
    await group.put_somehow(5)
    leader = await group.leader()
    index = await leader.up.change(AddLearner(3))
    await group.put_somehow(5)
    await group.level()
    return index, leader.up.ledger.pos_of(index)


async def _no_answer(*arguments: object) -> None:
    raise ShipmentRefusedError("told so by a test")


@pytest.mark.parametrize("offset", [MAGIC, KIND, BODY])
@pytest.mark.parametrize("applied", [True, False])
async def test_a_member_without_its_membership_waits_until_it_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offset: int, applied: bool
) -> None:
    async with Group(tmp_path) as group:
        index, pos = await with_a_learner(group)
        leader = await group.leader()
        node = next(each for each in group.nodes if each is not leader)
        await node.stop()
        node.state = node.state if applied else State()
        flip(node, pos + offset)
        with monkeypatch.context() as nobody_answers:
            nobody_answers.setattr(Scrubber, "_fetch", _no_answer)
            await node.start(group.addresses)
            assert node.loss_at_start is PossibleLoss.NONE, "it has all entries, and forgot nothing"
            last = await group.put_somehow(1)
            await until(lambda: node.up.ledger.synced_index >= last, "it takes entries")
            if offset != KIND:
                assert node.up.unreadable is not None and f"{index}" in node.up.unreadable
                assert not node.driver.raft._may_stand()
            else:
                assert node.up.status().learners == (3,), "what the entry is was noted when it was durable"
        node.damage.task.try_now()
        await until(lambda: node.up.unreadable is None and not node.damage.task.damages, "the entry is there again")
        assert node.up.status().learners == (3,) and node.up.status().membership_index == index
        await group.level()
        assert [each.index for each in node.disk.memberships][-1] == index
        leader = await group.leader()
        if leader is not node:
            await until(lambda: leader.driver.raft.peers[node.id].disk is DiskState.OK, "the leader knows")
            await leader.up.transfer(node.id)
        await until(lambda: leads(node), "it may lead")


async def test_no_member_leads_by_an_older_membership_if_all_have_lost_the_newest(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        index, pos = await with_a_learner(group)
        for node in group.nodes:
            await node.stop()
            flip(node, pos + BODY)
        for node in group.nodes:
            await node.start(group.addresses)
        for node in group.nodes:
            await until(lambda each=node: each.up.status().unrepaired, "all have said that they have no sound copy")  # type: ignore[misc]
        assert not any(leads(node) for node in group.nodes)
        (unrepaired,) = group.nodes[0].up.status().unrepaired
        assert (unrepaired.first, unrepaired.pos) == (index, pos)
        node = group.nodes[1]
        flip(node, pos + BODY)  # and the disk gives it again
        node.up.damaged(pos, pos + 10)
        await group.put_somehow(1)
        for each in group.nodes:  # a repair that found no copy is tried again later
            await until(lambda each=each: not each.up.status().unrepaired, "it has a copy again")  # type: ignore[misc]
        await group.level()


async def test_the_first_membership_is_known_without_its_entry(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        await group.put_somehow(5)
        await group.level()
        for node in group.nodes:
            await node.stop()
            flip(node, BODY)
        for node in group.nodes:
            await node.start(group.addresses)
        await group.put_somehow(5)
