"""An entry that a member cannot read: nothing behind it is applied, and the member does not lead, until it is back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from member_lab import QUICK, SEGMENT_BYTES, Group, Node, leads, until

from tallystick.replication.durable import DiskState, PossibleLoss
from tallystick.replication.member.errors import TransferError
from tallystick.replication.member.log_ranges import entries_of, number_of
from tallystick.replication.member.repair import Scrubber
from tallystick.replication.transport.shipping import ShipmentRefusedError
from tallystick.store.formats.ledger_format import EntryKind


def flip(node: Node, index: int, pos: int, offset: int = 100, bits: int = 0x10) -> None:
    """Bits of an entry on the disk of a member that is down."""
    at = pos + offset
    path = node.folder / "data" / f"{at - at % SEGMENT_BYTES:020}"
    data = bytearray(path.read_bytes())
    data[at % SEGMENT_BYTES] ^= bits
    path.write_bytes(data)


async def change_tables(group: Group, count: int) -> list[int]:
    """Committed METADATA entries among messages; their indexes."""
    indexes = []
    for number in range(count):
        leader = await group.leader()
        index = leader.up.propose(EntryKind.METADATA, b"row %d " % number * 20)
        await leader.up.committed(index)
        indexes.append(index)
        await group.put_somehow(2)
    return indexes


async def damaged_follower(group: Group, *, others_too: bool = False) -> tuple[Node, list[int], int]:
    """A stopped follower with a damaged METADATA entry that it has not applied; all such entries; the damaged one."""
    indexes = await change_tables(group, 6)
    await group.level()
    leader = await group.leader()
    node = next(each for each in group.nodes if each is not leader)
    hit = indexes[2]
    pos = node.up.ledger.pos_of(hit)
    for each in [node, *(each for each in group.nodes if others_too and each is not node)]:
        await each.stop()
        each.state = type(each.state)()
        flip(each, hit, pos)
    return node, indexes, hit


async def test_a_damaged_entry_of_a_table_is_fetched_again_before_anything_behind_it_is_applied(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        node, indexes, _ = await damaged_follower(group)
        await node.start(group.addresses)
        assert node.loss_at_start is PossibleLoss.NONE, "it lost nothing that it would have to forget"
        await group.level()
        assert [index for index, _ in node.state.applied] == indexes, "each row, in order"
        assert node.up.unreadable is None


async def test_who_cannot_read_an_entry_applies_nothing_behind_it_and_does_not_lead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Group(tmp_path) as group:
        node, indexes, hit = await damaged_follower(group)
        with monkeypatch.context() as nobody_answers:
            nobody_answers.setattr(Scrubber, "_fetch", _no_answer)
            await node.start(group.addresses)
            await group.put_somehow(3)
            leader = await group.leader()
            last = leader.up.committed_index
            await until(lambda: node.up.ledger.synced_index >= last, "it takes entries, and acknowledges them")
            assert node.up.unreadable is not None and f"entries {hit} to {hit}" in node.up.unreadable
            assert node.up.committed_index == hit - 1
            assert [index for index, _ in node.state.applied] == indexes[:2]
            await until(lambda: leader.driver.raft.peers[node.id].disk is not DiskState.OK, "the leader knows")
            with pytest.raises(TransferError):
                await leader.up.transfer(node.id)
            assert leads(leader), "no leader may hand leadership to it"
            for each in group.running:
                if each is not node:
                    await each.stop()
            await until(lambda: node.up.leader != leader.id, "its leader is gone")
            assert not node.driver.raft._may_stand()
        for each in group.nodes:
            if each is not node:
                await each.start(group.addresses)
        await group.put_somehow(1)
        await group.level()
        assert [index for index, _ in node.state.applied] == indexes
        leader = await group.leader()
        if leader is not node:
            await until(lambda: leader.driver.raft.peers[node.id].disk is DiskState.OK, "the leader knows")
            await leader.up.transfer(node.id)
        await until(lambda: node.up.accepting, "it leads now")


async def _no_answer(*arguments: object) -> None:
    raise ShipmentRefusedError("told so by a test")


async def test_a_group_that_starts_with_one_damaged_member_elects_another_one(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        node, indexes, _ = await damaged_follower(group)
        for each in group.running:
            await each.stop()
        for each in group.nodes:
            await each.start(group.addresses)
        await group.put_somehow(3)
        await group.level()
        assert [index for index, _ in node.state.applied] == indexes


async def test_a_member_is_repaired_without_a_leader(tmp_path: Path) -> None:
    """Two members are left. The one with the longest log cannot read an entry: the other one gives it."""
    async with Group(tmp_path) as group:
        node, indexes, _ = await damaged_follower(group)
        for each in group.running:
            await each.stop()
        other = next(each for each in group.nodes if each is not node)
        await node.start(group.addresses)
        await other.start(group.addresses)
        await group.put_somehow(1)
        await group.level([node, other])
        assert [index for index, _ in node.state.applied] == indexes


HEADER_TERM, HEADER_KIND, HEADER_CHAIN = 23, 35, 38


async def rows_in_a_row(group: Group) -> tuple[Node, list[int]]:
    """A stopped follower that applied all before the first of three rows, and the rows' indexes, without gaps."""
    await change_tables(group, 2)
    leader = await group.leader()
    indexes = [leader.up.propose(EntryKind.METADATA, b"row %d" % number * 20) for number in range(3)]
    await leader.up.committed(indexes[-1])
    await group.put_somehow(3)
    await group.level()
    node = next(each for each in group.nodes if each is not leader)
    await node.stop()
    node.state.applied = [(index, body) for index, body in node.state.applied if index < indexes[0]]
    node.state.index = indexes[0] - 1
    return node, indexes


@pytest.mark.parametrize(
    ("offset", "before"),
    [(HEADER_TERM, 0), (HEADER_KIND, 0), (HEADER_CHAIN, 0), (HEADER_TERM, 1), (HEADER_CHAIN, 1)],
)
async def test_the_first_entry_that_a_start_reads_is_checked_with_its_header(
    tmp_path: Path, offset: int, before: int
) -> None:
    """What an entry is, its term and its chain are vouched for by the entry before it, which may be damaged itself."""
    async with Group(tmp_path) as group:
        node, indexes = await rows_in_a_row(group)
        hit = indexes[0] - before
        flip(node, hit, (await group.leader()).up.ledger.pos_of(hit), offset, EntryKind.METADATA.value)
        await node.start(group.addresses)
        await group.level()
        assert [index for index, _ in node.state.applied][-3:] == indexes, "each row, in order"
        await until(lambda: not node.damage.task.damages, "repaired")
        group.compare(group.nodes)


async def test_two_damaged_entries_in_a_row_are_both_repaired(tmp_path: Path) -> None:
    """The second one looks sound while the first one cannot vouch for its header."""
    async with Group(tmp_path) as group:
        node, indexes = await rows_in_a_row(group)
        ledger = (await group.leader()).up.ledger
        flip(node, indexes[0], ledger.pos_of(indexes[0]))
        flip(node, indexes[1], ledger.pos_of(indexes[1]), HEADER_KIND, EntryKind.METADATA.value)
        await node.start(group.addresses)
        await group.level()
        assert [index for index, _ in node.state.applied][-3:] == indexes, "each row, in order"
        await until(lambda: not node.damage.task.damages, "repaired")
        group.compare(group.nodes)


async def test_what_all_members_have_lost_is_passed_over_with_a_finding(
    tmp_path: Path,
) -> None:
    async with Group(tmp_path) as group:
        _, indexes, hit = await damaged_follower(group, others_too=True)
        for each in group.nodes:
            await each.start(group.addresses)
        await group.put_somehow(1)
        leader = await group.leader()
        assert [index for index, _ in leader.state.applied] == [index for index in indexes if index != hit]
        findings = [finding.reason for finding in leader.up.ledger.findings.listed()]
        assert any("are lost" in reason for reason in findings), findings


async def test_the_only_member_of_a_group_passes_over_what_is_lost_and_says_so(tmp_path: Path) -> None:
    async with Group(tmp_path, 1) as group:
        indexes = await change_tables(group, 4)
        node = group.nodes[0]
        pos = node.up.ledger.pos_of(indexes[1])
        await node.stop()
        node.state = type(node.state)()
        flip(node, indexes[1], pos)
        await node.start(group.addresses)
        await group.put_somehow(1)
        assert [index for index, _ in node.state.applied] == [indexes[0], *indexes[2:]]
        assert any("are lost" in finding.reason for finding in node.up.ledger.findings.listed())


async def test_damage_that_a_read_meets_is_repaired_at_once_in_the_segment_that_is_written_to(tmp_path: Path) -> None:
    """The leader's own, too."""
    async with Group(tmp_path) as group:
        await group.put_somehow(20)
        await group.level()
        for node in group.nodes:
            ledger = node.up.ledger
            pos, end = ledger.pos_of(10), ledger.end_of(10)
            assert end < SEGMENT_BYTES, "else this shows nothing"
            flip(node, 10, pos)
            node.up.damaged(pos + 48, end)
            assert node.up.is_being_repaired(pos + 60)
            await until(lambda n=node, at=pos + 60: not n.up.is_being_repaired(at), "repaired")  # type: ignore[misc]
        await group.level()


async def test_a_repair_is_retried_until_a_member_has_the_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tallystick.replication.member.repair._PATIENCE_S", 0.5
    )  # a member that is gone answers nothing
    settings = replace(QUICK, transport=replace(QUICK.transport, reconnect_max_ms=20))
    async with Group(tmp_path, settings=settings) as group:
        await group.put_somehow(20)
        await group.level()
        leader = await group.leader()
        rest = [node for node in group.nodes if node is not leader]
        pos, end = leader.up.ledger.pos_of(10), leader.up.ledger.end_of(10)
        for node in rest:
            await node.kill()
        flip(leader, 10, pos)
        leader.up.damaged(pos + 48, end)
        await until(lambda: leader.up.last_error, "the first try failed, or waits")
        await rest[0].start(group.addresses)
        await until(lambda: not leader.up.is_being_repaired(pos + 60), "repaired")
        leader.up.ledger.verified_range(5, 15)


async def test_damage_that_no_member_can_repair_is_reported_and_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with Group(tmp_path) as group:
        await group.put_somehow(20)
        await group.level()
        node = await group.leader()
        pos, end = node.up.ledger.pos_of(10), node.up.ledger.end_of(10)
        flip(node, 10, pos)
        with monkeypatch.context() as they_lack_it:
            they_lack_it.setattr(Scrubber, "_fetch", _no_answer)
            node.up.damaged(pos + 48, end)
            await until(lambda: any(each.no_copy for each in node.up.status().unrepaired), "told so")
        (told,) = node.up.status().unrepaired
        assert (told.first, told.end_pos) == (10, end) and "told so by a test" in told.reason
        lines = [
            each.getMessage() for each in caplog.records if "no other member has a sound copy" in each.getMessage()
        ]
        assert len(lines) == 1 and f"entry 10, bytes {told.pos} to {end}" in lines[0]
        await until(lambda: not node.up.status().unrepaired, "it is tried again, and repaired")
        node.up.ledger.verified_range(5, 15)


def test_the_number_of_a_range_says_which_entries_are_meant() -> None:
    for first, last in [(0, 0), (17, 21), ((1 << 44) - 1, (1 << 44) + (1 << 17) - 2)]:
        number = number_of(first, last)
        assert number is not None and 0 <= number < 1 << 62
        assert entries_of(number) == (first, last)
    assert number_of(0, 1 << 17) is None and number_of(1 << 44, 1 << 44) is None
    for other in (0, 1 << 30, 1 << 62 | 5, -1):
        assert entries_of(other) is None
