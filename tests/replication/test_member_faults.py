"""What befalls one member: a cut network, an emptied or full or damaged disk, a log that begins later than its own."""

from __future__ import annotations

import asyncio
import errno
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from member_lab import PATIENCE_S, QUICK, SEGMENT_BYTES, Group, Node, leads, until
from transport_lab import Proxy

from tallystick.replication.durable import DiskState, PossibleLoss
from tallystick.replication.effects import LossDetected
from tallystick.replication.ledger.mark import EntryPoint
from tallystick.replication.ledger.vote import VoteRecord
from tallystick.replication.member.errors import (
    DiskError,
    MemberError,
    NotAcceptingError,
    OutcomeUnknownError,
)
from tallystick.replication.member.room import Room
from tallystick.replication.member.settings import MemberSettings
from tallystick.replication.membership import AddLearner, Membership, Promote, Remove
from tallystick.replication.transport import Lane
from tallystick.store._kernel import Door
from tallystick.store.findings import FindingKind
from tallystick.store.formats.ledger_format import EntryKind


def others(group: Group, node: Node) -> list[Node]:
    return [each for each in group.nodes if each is not node]


# -- the network -------------------------------------------------------------------------------------------------------


START = EntryPoint(-1, -1, 0, 0)
PATIENT = replace(QUICK, raft=replace(QUICK.raft, append_timeout_seconds=600.0))
"""A lost message is not sent again during a test, unless the core is notified."""


def narrow(settings: MemberSettings) -> MemberSettings:
    return replace(
        settings, transport=replace(settings.transport, bulk_queue_bytes=1 << 16, payload_max_bytes=64 << 20)
    )


async def test_appends_that_a_full_lane_refused_are_sent_when_there_is_room(tmp_path: Path) -> None:
    group = Group(tmp_path, 2, narrow(PATIENT))
    for node in group.nodes:
        node.segment_bytes = 1 << 20
    async with group:
        leader = await group.leader()
        await group.put(leader, 1)
        async with asyncio.timeout(PATIENCE_S):
            await group.put(leader, 2_000, 16_000)
        lanes = leader.driver.connections.transport.status()[0].lanes
        assert lanes[Lane.BULK].sent.dropped_full > 0, "else this shows nothing"
        await group.level()


async def test_a_lane_that_drains_interrupts_nothing(tmp_path: Path) -> None:
    """It was full, but nothing was refused: what is on its way arrives, and is not sent twice."""
    large = replace(PATIENT, raft=replace(PATIENT.raft, max_append_bytes=32 << 20))
    group = Group(tmp_path, 2, narrow(large))
    for node in group.nodes:
        node.segment_bytes = 1 << 26
    async with group, Proxy(0) as proxy:
        leader = await group.leader()
        other = others(group, leader)[0]
        await group.put(leader, 1)
        proxy.target = other.port
        leader.up.set_addresses({**group.addresses, other.id: ("127.0.0.1", proxy.port)})
        await until(lambda: leader.driver.connections.transport.status()[0].lanes[Lane.BULK].connected)
        await group.put(leader, 1)
        proxy.paused.add(Lane.BULK)
        frames = leader.driver.connections.transport.status()[0].lanes[Lane.BULK].sent.frames
        last, bodies = group.stage(leader, 1_500, 16_000)
        await until(lambda: leader.driver.connections.transport.status()[0].lanes[Lane.BULK].queued_bytes > 1 << 16)
        proxy.resume()
        async with asyncio.timeout(PATIENCE_S):
            await leader.up.committed(last)
        group.acknowledge(last, bodies)
        assert leader.driver.connections.transport.status()[0].lanes[Lane.BULK].sent.frames == frames + 1
        await group.level()


async def test_a_leader_that_is_cut_off_stops_and_follows(tmp_path: Path) -> None:
    async with Group(tmp_path) as group, Proxy(0) as a, Proxy(0) as b, Proxy(0) as c:
        # Each member is reached through its own proxy, so that one member can be cut off from all.
        proxies = [a, b, c]
        for node, proxy in zip(group.nodes, proxies, strict=True):
            proxy.target = node.port
        addresses = {node.id: ("127.0.0.1", proxy.port) for node, proxy in zip(group.nodes, proxies, strict=True)}
        for node in group.nodes:
            node.up.set_addresses(addresses)
        await group.put_somehow(20)
        old = await group.leader()

        # It is cut off in both directions.
        nowhere = {each.id: ("127.0.0.1", 1) for each in others(group, old)}
        proxies[old.id].refuse = True
        proxies[old.id].cut()
        old.up.set_addresses(nowhere)
        last, _ = group.stage(old, 10)  # not acknowledged
        with pytest.raises(OutcomeUnknownError):
            await old.up.committed(last)
        assert old.unknown == 1
        new = await group.leader(among=others(group, old))
        await group.put(new, 30)

        proxies[old.id].refuse = False
        old.up.set_addresses(addresses)
        await group.level()
        assert old.truncated, "its uncommitted entries must be truncated"
        assert not leads(old)


# -- the disk ----------------------------------------------------------------------------------------------------------


async def test_an_emptied_member_is_readmitted_and_filled(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        await group.put_somehow(300, 500)
        await group.put_somehow(300, 500)
        node = others(group, await group.leader())[0]
        await node.kill(1)
        shutil.rmtree(node.folder)
        node.door = Door(record=True)
        await node.start(group.addresses)
        assert node.loss_at_start is PossibleLoss.VOTES
        await until(lambda: node.up.status().doubt is PossibleLoss.NONE, "readmitted")
        await group.level()
        assert node.up.status().voters == (0, 1, 2), "the first membership came with the log"
        await node.kill(2)
        await node.start(group.addresses)
        assert node.loss_at_start is PossibleLoss.NONE
        await group.level()
        # It may lead again.
        leader = await group.leader()
        await until(lambda: {p.member: p.doubt for p in leader.up.status().peers}[node.id] is PossibleLoss.NONE)
        await leader.up.transfer(node.id)
        await group.put(await group.leader(among=[node]), 5)


async def test_members_with_different_bootstrap_settings_do_not_form_a_group(tmp_path: Path) -> None:
    group = Group(tmp_path)
    try:
        for node, voters in zip(group.nodes, [{0, 1, 2}, {0, 1, 2}, {0, 2}], strict=True):
            await node.start(group.addresses, Membership.of(voters))
        await until(lambda: any(node.up.refused_ranges for node in group.nodes), "entries that continue another log")
        assert group.nodes[2].up.committed_index <= 0, "the member must not commit with the others under any leader"
        assert any(node.up.last_error for node in group.nodes)
    finally:
        await group.__aexit__()


def flip(node: Node, pos: int) -> None:
    path = node.folder / "data" / f"{pos - pos % SEGMENT_BYTES:020}"
    with path.open("r+b") as file:
        file.seek(pos % SEGMENT_BYTES)
        byte = file.read(1)[0]
        file.seek(pos % SEGMENT_BYTES)
        file.write(bytes([byte ^ 0x10]))


@pytest.mark.parametrize("offset", [4, 30, 45, 200])
async def test_a_flipped_byte_in_a_sealed_segment_is_fetched_again(tmp_path: Path, offset: int) -> None:
    async with Group(tmp_path) as group:
        for _ in range(4):
            await group.put_somehow(100, 500)
        await group.level()
        for node in group.nodes:
            before = (node.folder / "data" / f"{0:020}").read_bytes()
            flip(node, node.up.ledger.pos_of(60) + offset)
            assert (node.folder / "data" / f"{0:020}").read_bytes() != before
            assert await node.up.scrub() >= 1
            assert (node.folder / "data" / f"{0:020}").read_bytes() == before
            assert await node.up.scrub() == 0
        await group.level()


async def test_a_member_whose_copy_is_damaged_too_is_passed_over(tmp_path: Path) -> None:
    """A sound copy at any member is enough."""
    async with Group(tmp_path) as group:
        for _ in range(4):
            await group.put_somehow(100, 500)
        await group.level()
        first, second, third = group.nodes
        before = (third.folder / "data" / f"{0:020}").read_bytes()
        for node in (first, second):
            flip(node, third.up.ledger.pos_of(60) + 200)
        assert await first.up.scrub() >= 1
        assert (first.folder / "data" / f"{0:020}").read_bytes() == before
        assert list((first.folder / "repair").glob("*")) == [], "what was fetched is removed"
        kinds = [each.kind for each in first.up.ledger.findings.listed()]
        assert kinds == [FindingKind.DAMAGE, FindingKind.REPAIRED]


async def test_a_leader_repairs_what_it_cannot_send(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        for _ in range(4):
            await group.put_somehow(100, 500)
        await group.level()
        leader = await group.leader()
        flip(leader, leader.up.ledger.pos_of(60) + 100)
        node = others(group, leader)[0]
        await node.kill()
        shutil.rmtree(node.folder)
        node.door = Door(record=True)
        await node.start(group.addresses)
        await until(lambda: node.up.status().doubt is PossibleLoss.NONE, "readmitted, with all that the others have")
        await group.level()
        assert leads(leader), "no other member had to lead"


async def test_damage_that_no_member_can_repair_is_named(tmp_path: Path) -> None:
    async with Group(tmp_path, 1) as group:
        for _ in range(4):
            await group.put_somehow(100, 500)
        node = group.nodes[0]
        flip(node, node.up.ledger.pos_of(60) + 100)
        with pytest.raises(DiskError, match="entry 60"):
            await node.up.scrub()


async def test_damage_found_at_a_start_is_fetched_again_and_does_not_count_meanwhile(tmp_path: Path) -> None:
    settings = replace(QUICK, mark_interval_seconds=1000.0)  # the start reads all that came since the one before
    async with Group(tmp_path, settings=settings) as group:
        for _ in range(4):
            await group.put_somehow(100, 500)
        await group.level()
        node = others(group, await group.leader())[0]
        pos = node.up.ledger.pos_of(60)
        await node.kill()
        flip(node, pos + 100)
        await node.start(group.addresses)
        assert node.loss_at_start is PossibleLoss.LOG
        assert not node.fatal
        await until(lambda: node.up.status().doubt is PossibleLoss.NONE, "readmitted")
        await group.level()


@pytest.mark.parametrize("lost", [1, 40])
async def test_what_looks_like_the_end_of_the_log_is_known_to_the_leader(
    tmp_path: Path, lost: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A flipped byte in the last entry is a torn tail to the next start, if no mark has come since (D8)."""
    settings = replace(QUICK, mark_interval_seconds=1000.0)
    async with Group(tmp_path, settings=settings) as group:
        await group.put_somehow(100, 500)
        await group.level()
        leader = await group.leader()
        node = others(group, leader)[0]
        ledger = node.up.ledger
        last = ledger.last_index - lost + 1
        begin, end = ledger.pos_of(last), ledger.end_of(ledger.last_index)
        await node.kill()
        if lost == 1:
            flip(node, begin + 100)
        else:
            with (node.folder / "data" / f"{0:020}").open("r+b") as file:
                file.seek(begin)
                file.write(bytes(end - begin))
        await node.start(group.addresses)
        assert (node.loss_at_start, node.up.ledger.last_index) == (PossibleLoss.NONE, last - 1), "nothing to be seen"
        await group.level()
        told = f"n{node.id}: the log ends at entry {last - 1}, but the leader knows of entry {last + lost - 1} here:"
        assert [record for record in caplog.messages if record.startswith(told)]
        await until(lambda: node.up.status().doubt is PossibleLoss.NONE, "readmitted")
        assert leads(leader)


async def test_a_member_whose_mark_was_lost_may_have_lost_data(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        await group.put_somehow(100)
        node = others(group, await group.leader())[0]
        await node.kill()
        (node.folder / "tally-ledger").unlink()
        await node.start(group.addresses)
        assert node.loss_at_start is not PossibleLoss.NONE
        await until(lambda: node.up.status().doubt is PossibleLoss.NONE, "readmitted")
        await group.level()


async def test_a_loss_of_a_running_member_is_noted_durably(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        await group.put_somehow(20)
        node = others(group, await group.leader())[0]
        node.disk.loss_detected(LossDetected(10))
        await node.kill(1)
        assert (record := VoteRecord.load(node.folder)) is not None
        assert record.possible_loss is PossibleLoss.LOG
        await node.start(group.addresses)
        await until(lambda: node.up.status().doubt is PossibleLoss.NONE, "readmitted")
        await group.level()


async def test_a_lone_member_does_not_cut_off_what_is_damaged(tmp_path: Path) -> None:
    async with Group(tmp_path, 1) as group:
        for _ in range(4):
            await group.put_somehow(100, 500)
        node = group.nodes[0]
        pos = node.up.ledger.pos_of(60)
        await node.kill()
        flip(node, pos + 100)
        mark = node.folder / "tally-ledger"
        mark.unlink()
        before = (node.folder / "data" / f"{0:020}").read_bytes()
        with pytest.raises(DiskError, match="entry 60"):
            await node.start(group.addresses)
        assert (node.folder / "data" / f"{0:020}").read_bytes() == before


async def test_a_leader_with_a_full_disk_hands_over_and_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = True
    monkeypatch.setattr(Room, "for_log", lambda self, written: not full)
    async with Group(tmp_path) as group:
        await group.put_somehow(20)
        old = await group.leader()
        old.door.fail("write", "data/", errno.ENOSPC)
        last, _ = group.stage(old, 3)
        with pytest.raises(NotAcceptingError):
            await old.up.committed(last)
        new = await group.leader(among=others(group, old))
        await group.put(new, 30)
        assert old.up.status().disk is DiskState.FULL
        assert not old.fatal
        old.door.heal()
        full = False
        await group.level()
        await until(lambda: old.up.status().disk is DiskState.OK)


async def test_a_follower_with_a_full_disk_falls_behind_and_catches_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = True
    monkeypatch.setattr(Room, "for_log", lambda self, written: not full)
    async with Group(tmp_path) as group:
        await group.put_somehow(20)
        leader = await group.leader()
        node = others(group, leader)[0]
        node.door.fail("write", "data/", errno.ENOSPC)
        for _ in range(5):
            await group.put_somehow(20)
        await until(lambda: node.up.status().disk is DiskState.FULL)
        behind = node.up.ledger.last_index
        await group.put_somehow(20)
        assert node.up.ledger.last_index == behind
        node.door.heal()
        full = False
        await group.level()
        assert not node.fatal


@pytest.mark.parametrize(
    ("which", "number"), [("leader", errno.EIO), ("follower", errno.EIO), ("leader", errno.ENOSPC)]
)
async def test_a_sync_that_fails_ends_the_member_and_nothing_is_lost(tmp_path: Path, which: str, number: int) -> None:
    """Also if the disk is full: the part that reached the disk is unknown."""
    async with Group(tmp_path) as group:
        await group.put_somehow(20)
        leader = await group.leader()
        node = leader if which == "leader" else others(group, leader)[0]
        node.door.fail("sync", "data/00000000000000000000", number, times=1)
        await group.put_somehow(20)
        await until(lambda: node.fatal, "it says that it stopped")
        assert "failed" in node.fatal[0]
        with pytest.raises(MemberError):
            node.up.propose(EntryKind.METADATA, b"{}")
        rest = others(group, node)
        await group.put(await group.leader(among=rest), 20)
        await node.kill(3)
        node.door.heal()
        await node.start(group.addresses)
        await group.level()


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
async def test_a_vote_that_cannot_be_saved_is_not_given(tmp_path: Path, number: int) -> None:
    """Also for want of room, if the reserve is not enough: the old vote may or may not be on the disk."""
    async with Group(tmp_path) as group:
        leader = await group.leader()
        first, second = others(group, leader)
        for node in (first, second):
            node.door.fail("rename", "tally-vote", number)
        await leader.kill()
        await until(lambda: first.fatal or second.fatal, "one stood, and could not save its own vote")
        assert not any(leads(node) for node in (first, second))


async def test_a_leader_with_little_room_hands_over_to_a_member_with_more(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        old = await group.leader()
        await group.put(old, 5)
        old.up.disk_low("no room for the index")
        new = await group.leader(among=others(group, old))
        await group.put(new, 20)
        assert not leads(old)
        status = old.up.status()
        assert (status.disk, status.last_error) == (DiskState.LOW, "no room for the index")
        assert new.up.message_refusal() is None
        await group.level()
        old.up.disk_low(None)
        await until(lambda: old.up.status().disk is DiskState.OK)
        assert old.up.status().last_error == ""


async def test_if_all_disks_are_full_a_group_takes_its_own_entries_and_no_messages(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        leader = await group.leader()
        await group.put(leader, 5)
        for node in others(group, leader):
            node.up.disk_low("nearly full")
        await until(lambda: "too little space on the disks of" in str(leader.up.message_refusal()))
        leader.up.disk_low("nearly full")
        assert "the disk of" in str(leader.up.message_refusal())
        term = leader.up.status().term
        for number in range(50):
            await leader.up.committed(leader.up.propose(EntryKind.METADATA, b"row %d" % number))
        assert leads(leader) and leader.up.status().term == term
        await leader.kill()
        second = await group.leader(among=others(group, leader))
        await second.up.committed(second.up.propose(EntryKind.METADATA, b"after it"))
        await leader.start(group.addresses)
        for node in group.nodes:
            node.up.disk_low(None)
        await until(
            lambda: (await_leader := [node for node in group.nodes if leads(node)]) and await_leader[0].up.accepting
        )
        await group.put_somehow(5)
        await group.level()


async def test_damage_is_found_and_repaired_without_being_asked(tmp_path: Path) -> None:
    settings = replace(QUICK, scrub_first_seconds=0.1, scrub_interval_seconds=0.1)
    async with Group(tmp_path, settings=settings) as group:
        for _ in range(4):
            await group.put_somehow(100, 500)
        await group.level()
        for node in group.nodes:
            path = node.folder / "data" / f"{0:020}"
            before = path.read_bytes()
            flip(node, node.up.ledger.pos_of(60) + 100)
            await until(lambda p=path, b=before: p.read_bytes() == b, "repaired")  # type: ignore[misc]


async def test_a_full_disk_still_takes_a_vote(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        leader = await group.leader()
        await group.put(leader, 5)
        for node in group.nodes:
            assert (node.folder / "tally-reserve").stat().st_size > 0
            node.door.fail("write", "tally-vote", errno.ENOSPC, times=1)
        await leader.kill()
        await group.put(await group.leader(), 5)
        assert not any(node.fatal for node in group.nodes)
        used = [node for node in group.running if not (node.folder / "tally-reserve").exists()]
        await until(lambda: all((node.folder / "tally-reserve").exists() for node in used), "it is taken again")


async def test_proposals_are_refused_while_too_much_is_under_way(tmp_path: Path) -> None:
    settings = replace(QUICK, max_uncommitted_bytes=20_000)
    async with Group(tmp_path, settings=settings) as group:
        leader = await group.leader()
        told: list[bool] = []
        leader.up.on_accepting.append(told.append)
        last, bodies = group.stage(leader, 50, 1000)
        assert not leader.up.accepting
        with pytest.raises(NotAcceptingError, match="not committed"):
            leader.up.propose(EntryKind.METADATA, b"{}")
        await leader.up.committed(last)
        group.acknowledge(last, bodies)
        await until(lambda: leader.up.accepting)
        assert told == [False, True]
        await group.put(leader, 5)
        await group.level()


# -- a log that begins later -------------------------------------------------------------------------------------------


async def test_a_member_below_the_logs_start_gets_a_snapshot(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        leader = await group.leader()
        node = others(group, leader)[0]
        index = leader.up.propose(EntryKind.METADATA, b"first")
        await leader.up.committed(index)
        await group.level()
        await node.kill()
        await leader.up.change(AddLearner(7))  # known from before the snapshot only
        for _ in range(6):
            await group.put_somehow(100, 500)
        leader = await group.leader()
        second = leader.up.propose(EntryKind.METADATA, b"second")
        await leader.up.committed(second)
        for each in group.running:
            await until(lambda n=each: n.up.committed_index >= second)  # type: ignore[misc]
            each.up.release_before(3 * SEGMENT_BYTES)
            each.up.ledger.delete_released()
        assert await leader.driver.repairer.scrubber._repair_at(START, leader.up.committed_index, []) == 0, (
            "deleted, not damaged"
        )
        await node.start(group.addresses)
        waiting = node.up._applier.waiters.add(1 << 40)  # as after a hand-over with entries in progress
        await until(lambda: node.installed, "a snapshot came")
        assert isinstance(waiting.exception(), OutcomeUnknownError)
        await group.level()
        assert node.state.applied == [(index, b"first"), (second, b"second")]
        assert node.up.ledger.first_index == leader.up.ledger.first_index
        # What it begins with is known after a restart, too.
        await node.kill(5)
        node.state.restore(leader.state.snapshot())
        await node.start(group.addresses)
        assert (node.up.status().voters, node.up.status().learners) == ((0, 1, 2), (7,))
        await group.put_somehow(5)
        await group.level()


async def test_the_membership_of_entries_that_were_released_is_kept(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        leader = await group.leader()
        await leader.up.change(AddLearner(7))
        for _ in range(6):
            await group.put_somehow(100, 500)
        leader = await group.leader()
        await leader.up.committed(leader.up.propose(EntryKind.METADATA, b"applied"))
        await group.level()
        node = others(group, await group.leader())[0]
        node.up.release_before(3 * SEGMENT_BYTES)
        assert node.up.ledger.first_index > 1
        node.up.ledger.delete_released()
        await node.kill(5)
        node.state.restore(leader.state.snapshot())
        await node.start(group.addresses)
        assert (node.up.status().voters, node.up.status().learners) == ((0, 1, 2), (7,))


@pytest.mark.parametrize("after", range(0, 14, 2))
@pytest.mark.parametrize("op", ["sync", "rename", "remove"])
async def test_an_install_that_breaks_off_anywhere_begins_again(tmp_path: Path, op: str, after: int) -> None:
    async with Group(tmp_path) as group:
        leader = await group.leader()
        node = others(group, leader)[0]
        await group.put(leader, 200, 500)
        await group.level()
        await node.kill()
        for _ in range(6):
            await group.put_somehow(100, 500)
        leader = await group.leader()
        await leader.up.committed(leader.up.propose(EntryKind.METADATA, b"kept"))
        last = leader.up.committed_index
        for each in group.running:
            await until(lambda n=each: n.up.committed_index >= last)  # type: ignore[misc]
            each.up.release_before(3 * SEGMENT_BYTES)
            each.up.ledger.delete_released()
        await node.start(group.addresses)
        node.door.fail(op, f"n{node.id}", errno.EIO, after=after, times=1)
        await until(lambda: node.fatal or node.installed, "it gets as far as it gets")
        kept = node.state
        await node.kill(after)
        node.door.heal()
        node.state = kept  # `restore` made it durable, or it is still the old one
        await node.start(group.addresses)
        await group.put_somehow(20)
        await group.level()
        assert [body for _, body in node.state.applied] == [b"kept"]


# -- the membership ----------------------------------------------------------------------------------------------------


async def test_a_member_is_added_promoted_and_removed(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        await group.put_somehow(100, 500)
        new = Node(3, tmp_path)
        group.nodes.append(new)
        group.addresses[3] = ("127.0.0.1", new.port)
        await new.start(group.addresses)
        for node in group.nodes:
            node.up.set_addresses(group.addresses)
        leader = await group.leader(among=group.nodes[:3])
        await leader.up.change(AddLearner(3))
        await until(lambda: new.up.status().doubt is PossibleLoss.NONE, "readmitted")
        await group.level()

        async with asyncio.timeout(20):
            while True:
                try:
                    await leader.up.change(Promote(3))
                    break
                except MemberError:
                    await asyncio.sleep(0.02)
        assert leader.up.status().voters == (0, 1, 2, 3)
        for node in group.nodes:  # a member that may have lost data votes only for those that know this one, too (D8)
            index = leader.disk.memberships[-1].index
            await until(lambda n=node, i=index: n.disk.vote.record.membership_index == i)  # type: ignore[misc]

        removed = others(group, leader)[0]
        await leader.up.change(Remove(removed.id))
        await group.put_somehow(20)
        group.nodes.remove(removed)
        await group.level()
        assert leader.up.status().voters == tuple(sorted(node.id for node in group.nodes))
        # It does not know, until it asks.
        await until(lambda: removed.removed, "it was told that it does not belong to the group")
        await removed.kill()


async def test_a_leader_that_removes_itself_leaves(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        await group.put_somehow(20)
        leader = await group.leader()
        await leader.up.change(Remove(leader.id))
        await until(lambda: leader.removed)
        await leader.kill()
        group.nodes.remove(leader)
        await group.put_somehow(20)
        await group.level()
