"""Three members at work: they elect, replicate, hand over, and are the same to the byte."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest
from member_lab import QUICK, Group, Node, until

from tallystick.replication.effects import Role
from tallystick.replication.member.errors import (
    ChangeError,
    MemberError,
    NotAcceptingError,
    OutcomeUnknownError,
    ReadError,
    TransferError,
)
from tallystick.replication.membership import AddLearner
from tallystick.store.formats.ledger_format import EntryKind


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


async def test_a_leader_that_stops_fails_no_pending_request(tmp_path: Path) -> None:
    """Leadership is only handed to a voter that answered within an election timeout, so that one is longer here than a
    busy machine keeps a process waiting."""
    settings = replace(QUICK, raft=replace(QUICK.raft, election_timeout_seconds=3.0))
    async with Group(tmp_path, settings=settings) as group:
        for _ in range(5):
            leader = await group.leader()
            puts = [asyncio.create_task(group.put(leader, 3)) for _ in range(20)]
            await asyncio.sleep(0)
            await leader.stop()
            await asyncio.gather(*puts)
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
        assert not any(node.unknown for node in group.nodes)
        await group.level()


async def test_what_a_leader_without_a_majority_took_in_is_unknown(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        leader = await group.leader()
        await group.put(leader, 5)
        await asyncio.gather(*(node.kill() for node in group.nodes if node is not leader))
        last, _ = group.stage(leader, 5)
        with pytest.raises(OutcomeUnknownError):
            await leader.up.committed(last)
        assert leader.unknown == 1
        with pytest.raises(ReadError):
            await leader.up.read()
        with pytest.raises(TransferError):
            await leader.up.transfer()
        with pytest.raises(NotAcceptingError):
            leader.up.propose(EntryKind.METADATA, b"{}")


async def test_a_learner_follows_and_does_not_count(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        leader = await group.leader()
        new = Node(3, tmp_path)
        group.addresses[3] = ("127.0.0.1", new.port)
        await new.start(group.addresses)
        for node in group.nodes:
            node.up.set_addresses(group.addresses)
        await leader.up.change(AddLearner(3))
        with pytest.raises(ChangeError):
            await leader.up.change(AddLearner(3))
        await group.put(leader, 20)
        await group.level([*group.nodes, new])
        assert new.up.status().learners == (3,)
        voters = [node for node in group.nodes if node is not leader]
        await asyncio.gather(*(node.kill() for node in voters))
        await until(lambda: not leader.up.accepting, "with a learner alone there is no majority")
        await new.kill()


async def test_status_names_who_is_where(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        leader = await group.leader()
        await group.put(leader, 20)
        await group.level()
        gone = next(node for node in group.nodes if node is not leader)
        await gone.kill()
        await group.put(leader, 20, 1000)
        status = leader.up.status()
        assert (status.role, status.leader, status.voters) == (Role.LEADER, leader.id, (0, 1, 2))
        assert status.ready and status.accepting and status.membership_committed
        assert status.commit_index == status.applied_index == max(group.acknowledged)
        lags = {peer.member: peer.lag_bytes or 0 for peer in status.peers}
        assert lags[gone.id] > 20_000
        await until(lambda: {p.member: p.lag_bytes for p in leader.up.status().peers}[3 - leader.id - gone.id] == 0)
        await until(lambda: not {p.member: p.connected for p in leader.up.status().peers}[gone.id])


async def test_a_leader_keeps_the_log_for_a_member_that_catches_up(tmp_path: Path) -> None:
    """Without it the member would need a snapshot: all of the state instead of some entries."""
    async with Group(tmp_path) as group:
        await group.put_somehow(100)
        await group.level()
        leader = await group.leader()
        peer = next(iter(leader.driver.raft.peers.values()))
        end = leader.up.ledger.end_of(3)
        was, peer.match_index, peer.acked_at = peer.match_index, 3, time.monotonic()
        kept = leader.up.keep_from()
        peer.match_index = was
        assert kept == end < leader.up.keep_from()


async def test_a_member_keeps_the_entries_that_are_in_no_saved_state(tmp_path: Path) -> None:
    """D10: after a crash they are applied again from the log."""
    async with Group(tmp_path) as group:
        await group.put_somehow(100)
        last = await group.level()
        member = group.nodes[0].up
        ledger = member.ledger
        for saved, kept in ((-1, 0), (3, ledger.end_of(3)), (last + 10, member.committed_pos)):
            member.saved_index = lambda index=saved: index  # type: ignore[misc]
            assert member.keep_from() == kept


async def test_a_membership_that_is_not_committed_is_shown_as_that(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        await group.put_somehow(3)
        leader = await group.leader()
        assert leader.up.status().membership_committed
        for node in [node for node in group.nodes if node is not leader]:
            await node.kill()
        change = asyncio.ensure_future(leader.up.change(AddLearner(7)))
        await until(lambda: 7 in leader.up.status().learners or change.done())
        if not change.done():  # else it had noticed already that it is alone
            assert not leader.up.status().membership_committed
        await leader.kill()
        with pytest.raises(MemberError):
            await change


async def test_a_read_that_waits_when_its_member_stops_fails(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        await group.put_somehow(3)
        leader = await group.leader()
        for node in [node for node in group.nodes if node is not leader]:
            await node.kill()
        read = asyncio.ensure_future(leader.up.read())
        await asyncio.sleep(0)
        await leader.kill()
        with pytest.raises(ReadError):
            async with asyncio.timeout(10):
                await read
