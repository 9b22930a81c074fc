"""A group follows a master of RocketMQ, and takes its place: the log, the tables, leaders that change, promotion."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from copying_lab import SEGMENT, World, another_slave, hurry, rocketmq_nameserver, send, tables, until, world
from following_lab import (
    HALF_TOPIC,
    Followers,
    caught_up,
    check_queues,
    check_references,
    copy_of,
    followed,
    followed_by_leader,
    followers,
    masters_records,
    queue_of,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rocketmq_master import Part

from tallystick.node.broker.broker import Broker
from tallystick.node.broker.copying import followed_log as followed_log_module
from tallystick.node.broker.copying import half_positions as half_positions_module
from tallystick.node.broker.copying import old_master as old_master_module
from tallystick.node.broker.copying import promotion as promotion_module
from tallystick.node.broker.copying.half_positions import HalfPositions, Span
from tallystick.node.broker.copying.master import Master, MasterError
from tallystick.node.broker.copying.place_table import CopyTable, Place
from tallystick.node.broker.copying.promotion import Promotion, PromotionError
from tallystick.node.broker.copying.protocol import CopyError, CopyProblem
from tallystick.node.broker.slaves import segment_reader as segment_reader_module
from tallystick.node.broker.tables.saving import FollowsError, NotReplicatedError
from tallystick.node.broker.tables.topics import TopicConfig
from tallystick.node.http.metrics import BrokerMetrics
from tallystick.node.remoting.client import RemotingClient
from tallystick.node.remoting.codes import RequestCode
from tallystick.node.remoting.command import Command
from tallystick.replication.member.errors import TransferError
from tallystick.replication.member.member import Member
from tallystick.replication.metadata import entry
from tallystick.store import fastjson
from tallystick.store._kernel import Door
from tallystick.store.engine.group_commit import GroupCommit
from tallystick.store.formats.ledger_format import EntryKind
from tallystick.store.settings import BrokerRole


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses that only spare other programs."""
    hurry(monkeypatch)
    monkeypatch.setattr(old_master_module, "LOOK_S", 0.02)
    monkeypatch.setattr(promotion_module, "STAYS_EQUAL_S", 0.05)


async def test_a_group_of_one_follows_a_master_and_takes_its_place(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.master.tables = tables(1)
        async with followers(w, tmp_path) as group:
            broker = group.members[0]
            await followed(broker, w)
            check_queues(broker, w.master.log)
            assert (await send(broker, 0))[0] == 14
            assert broker.settings.brokerId == 1
            assert await w.registered() == {0: w.master.address, 1: str(broker.advertised)}
            w.master.grow(w.maker.add(50, seed=9))
            await until(lambda: copy_of(broker).follower.log.end == w.master.end)
            result = await copy_of(broker).promote()
            assert (result["end"], result["missingBytes"], result["strayBytes"]) == (w.master.end, 0, 0)
            check_queues(broker, w.master.log)
            ends = [broker.store.queues.max_offset("T", queue_id) for queue_id in range(4)]
            assert not w.master.grow(w.maker.add(1)), "the old master refuses puts"
            assert [await send(broker, queue_id) for queue_id in range(4)] == [(0, end) for end in ends]
            assert await w.registered() == {0: str(broker.advertised), 1000: w.master.address}
            assert broker.unready() is None and broker.settings.brokerId == 0
            assert broker.offsets.query("g", "T", 0) == 6
            await group.stop(0)
            broker = await group.start(0)
            await group.leader()
            assert broker.settings.brokerId == 0 and copy_of(broker).to_json()["state"] == "promoted"
            assert await send(broker, 1) == (0, ends[1] + 1)
            assert broker.offsets.query("g", "T", 0) == 6


async def test_a_leader_that_changes_continues_where_the_log_ends(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.master.tables = tables(1)
        w.master._part_bytes = 1000
        async with followers(w, tmp_path, 3) as group:
            for turn in range(4):
                w.master.grow(w.maker.add_transactions(5, seed=turn, apart=40))
                leader = await group.leader()
                number = next(number for number, each in group.members.items() if each is leader)
                if turn % 2:
                    await group.stop(number)
                    w.master.grow(w.maker.add_batch(20))
                    await followed_by_leader(group, w)
                    await group.start(number)
                else:
                    await group.pass_on()
            leader = await followed_by_leader(group, w)
            check_queues(leader, w.master.log)
            assert check_references(leader, w.master.log) == 20
            await copy_of(leader).promote()
            for member in group.members.values():

                def is_complete(member: Broker = member, leader: Broker = leader) -> bool:
                    return member.store.dispatched_pos >= leader.store.dispatched_pos

                await until(is_complete)
                check_queues(member, w.master.log)
                assert member.offsets.query("g", "T", 0) == 6
            ends = [leader.store.queues.max_offset("T", queue_id) for queue_id in range(4)]
            await group.stop(next(number for number, each in group.members.items() if each is leader))
            leader = await group.leader()
            await until(lambda: leader.settings.brokerId == 0 and leader.unready() is None)
            assert [await send(leader, queue_id) for queue_id in range(4)] == [(0, end) for end in ends]


async def test_ends_of_old_transactions_are_mapped_after_a_change_of_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed_log_module, "APART_BYTES", 5000)
    async with world(tmp_path, messages=0) as w:
        w.master._part_bytes = 1000
        host = b"\x0a\0\0\1\0\0\0\1"
        begun = [w.maker._one(HALF_TOPIC, b"half %d" % n, host) for n in range(50)]
        w.master.grow(w.maker.add(300))
        async with followers(w, tmp_path) as group:
            await followed(group.members[0], w)
            await group.stop(0)
            for pos in reversed(begun):
                w.maker._one("T", b"end %d" % pos, host, sys_flag=8, prepared_offset=pos)
            w.master.grow(w.maker.written())
            broker = await group.start(0)
            await followed(broker, w)
            assert len(copy_of(broker).table.places()) >= 3
            assert check_references(broker, w.master.log) == 50


async def test_an_end_that_names_no_half_message_keeps_its_position_and_no_read_blocks_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of the topic in a body, a key or a property makes no half message."""
    monkeypatch.setattr(followed_log_module, "APART_BYTES", 5000)
    on_loop: list[int] = []
    read = followed_log_module.records

    def noted(*args: Any) -> Iterator[tuple[int, int]]:
        if threading.current_thread() is threading.main_thread():
            on_loop.append(args[2])
        return read(*args)

    async with world(tmp_path, messages=0) as w:
        host = b"\x0a\0\0\1\0\0\0\1"
        others = [w.maker._one("T", b"about %s %d" % (HALF_TOPIC.encode(), n), host) for n in range(3)]
        half = w.maker._one(HALF_TOPIC, b"half", host)
        w.master.grow(w.maker.add(60))
        async with followers(w, tmp_path) as group:
            await followed(group.members[0], w)
            await group.stop(0)
            for pos in (*others, half, half + 1, 7):
                w.maker._one("T", b"end %d" % pos, host, sys_flag=8, prepared_offset=pos)
            w.master.grow(w.maker.written())
            monkeypatch.setattr(followed_log_module, "records", noted)
            broker = await group.start(0)
            await followed(broker, w)
            ends = [each for each in queue_of(broker, "T", 0) if each.body.startswith(b"end")]
            named = {each.body: each.prepared_transaction_offset for each in ends}
            own_half = queue_of(broker, HALF_TOPIC, 0)[0].pos
            assert named == {b"end %d" % pos: own_half if pos == half else pos for pos in (*others, half, half + 1, 7)}
            assert own_half != half and on_loop == []


async def test_a_log_that_cannot_be_read_at_a_half_message_is_reported_and_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path, messages=0) as w:
        host = b"\x0a\0\0\1\0\0\0\1"
        half = w.maker._one(HALF_TOPIC, b"half", host)
        w.master.grow(w.maker.add(20))
        async with followers(w, tmp_path) as group:
            await followed(group.members[0], w)
            await group.stop(0)
            w.maker._one("T", b"end", host, sys_flag=8, prepared_offset=half)
            w.master.grow(w.maker.written())
            with monkeypatch.context() as patch:
                patch.setattr(half_positions_module, "is_half", lambda _: _raise(OSError(errno.EIO, "a bad sector")))
                broker = await group.start(0)
                await group.leader()
                await until(lambda: copy_of(broker).to_json()["state"] == "disk")
                assert "a bad sector" in copy_of(broker).to_json()["reason"]
            await followed(broker, w)
            assert check_references(broker, w.master.log) == 1


def _raise(error: Exception) -> None:
    raise error


def test_a_range_that_has_grown_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    places = [Place(0, 1000)]
    have = [Span(0, 1048, 100), Span(100, 1196, 100)]
    positions = HalfPositions(lambda _, __, end: [each for each in have if each.own < end], lambda _, __: b"")
    monkeypatch.setattr(half_positions_module, "is_half", lambda _: True)
    assert positions.find(0, places, 1148) == 1048
    assert positions.find(100, places, 1148) == 100, "it is not written yet"
    assert positions.find(100, places, 1296) == 1196


async def test_a_comparison_opens_each_segment_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    real = os.open

    def noted(path: Any, *args: Any, **more: Any) -> int:
        opened.append(str(path))
        return real(path, *args, **more)

    async with world(tmp_path) as w, followers(w, tmp_path) as group:
        await followed(group.members[0], w)
        await group.stop(0)
        with monkeypatch.context() as patch:
            patch.setattr(segment_reader_module.os, "open", noted)
            broker = await group.start(0)
            await followed(broker, w)
        segments = {path.name for path in broker.store.settings.log_folder.iterdir()}
        reads = [path for path in opened if path.rpartition("/")[2] in segments]
        assert len(reads) <= 4 * len(segments) < 300, "300 records were compared"


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, database=None)
@given(
    cuts=st.lists(st.integers(0, 60_000), min_size=1, max_size=12), part=st.integers(1, 9000), seed=st.integers(0, 99)
)
def test_a_connection_that_is_cut_at_any_byte_is_continued(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], part: int, seed: int
) -> None:
    async def story() -> None:
        folder = tmp_path_factory.mktemp("cuts")
        async with world(folder, messages=0) as w:
            w.master._part_bytes = part
            w.master.cuts = iter(cuts)
            w.master.grow(w.maker.add(100, seed=seed))
            async with followers(w, folder) as group:
                for n in range(3):
                    w.master.grow(w.maker.add(40, seed=seed + n))
                    w.master.grow(w.maker.add_batch(9, size=3000))
                broker = group.members[0]
                await followed(broker, w)
                check_queues(broker, w.master.log)
                assert not {each.value for each in copy_of(broker).follower.problems} - {"no-master", "unreachable"}

    asyncio.run(story())


async def test_a_master_that_lost_bytes_and_wrote_others_is_found(tmp_path: Path) -> None:
    async with world(tmp_path) as w, followers(w, tmp_path) as group:
        await followed(group.members[0], w)
        await group.stop(0)
        before = w.master.log
        record = masters_records(before)[-2]
        at = record.pos + 91
        w.master.log = before[:at] + bytes([before[at] ^ 1]) + w.maker.add(100)[at + 1 :]
        broker = await group.start(0)
        await until(lambda: copy_of(broker).to_json()["state"] == "diverged")
        found = copy_of(broker).to_json()
        assert found["lasting"] and f"differs from it at {record.pos}:" in found["reason"]
        assert broker.unready() == f"diverged: {found['reason']}"
        with pytest.raises(PromotionError, match="diverged"):
            await copy_of(broker).promote()
        w.master.log = w.maker.written()
        await followed(broker, w)
        check_queues(broker, w.master.log)


async def test_a_group_with_more_than_its_master_keeps_it(tmp_path: Path) -> None:
    async with world(tmp_path) as w, followers(w, tmp_path) as group:
        broker = group.members[0]
        await followed(broker, w)
        whole = w.master.log
        w.master.log = whole[: masters_records(whole)[-3].pos]
        await until(lambda: copy_of(broker).to_json()["state"] == "ahead")
        check_queues(broker, whole)
        w.master.log = whole
        await followed(broker, w)


@pytest.mark.parametrize("kind", ["position", "size", "record"])
async def test_a_master_that_lies_is_named_and_nothing_of_it_is_stored(tmp_path: Path, kind: str) -> None:
    async with world(tmp_path, messages=60) as w:
        first = masters_records(w.master.log)[20].pos

        def lie(part: Part) -> Part:
            pos, size, data = part
            if not pos <= first < pos + size:
                return part
            if kind == "position":
                return pos + 8, size, data
            if kind == "size":
                return pos, 1 << 30, data
            at = first - pos + 95
            return pos, size, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

        w.master.lie, w.master._part_bytes = lie, 1000
        async with followers(w, tmp_path) as group:
            broker = group.members[0]
            state = "bad-record" if kind == "record" else "wrong-part"
            await until(lambda: copy_of(broker).to_json()["state"] == state)
            assert copy_of(broker).to_json()["lasting"] and copy_of(broker).follower.log.end <= first
            w.master.lie = lambda part: part
            await followed(broker, w)
            check_queues(broker, w.master.log)


async def test_an_empty_group_begins_where_the_master_begins(tmp_path: Path) -> None:
    async with world(tmp_path, messages=900) as w:
        w.master.tables = tables(1)
        w.master.begin = 2 * SEGMENT
        async with followers(w, tmp_path) as group:
            broker = group.members[0]
            await followed(broker, w)
            check_queues(broker, w.master.log, w.master.begin)
            await copy_of(broker).promote()
            ends = [broker.store.queues.max_offset("T", queue_id) for queue_id in range(4)]
            assert sum(ends) == 900
            assert [await send(broker, queue_id) for queue_id in range(4)] == [(0, end) for end in ends]


async def test_queues_whose_messages_expired_continue_at_their_ends(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.master.tables = tables(1)  # with a topic U, of which the log shows nothing
        w.master.ends = {"U": {0: 400, 3: 7}, "T": {0: 75}}
        async with followers(w, tmp_path) as group:
            broker = group.members[0]
            await followed(broker, w)
            await copy_of(broker).promote()
            assert [await send(broker, n, topic="U") for n in (0, 1, 3)] == [(0, 400), (0, 0), (0, 7)]
            await group.stop(0)
            broker = await group.start(0)
            await group.leader()
            await until(lambda: broker.unready() is None)
            assert [await send(broker, n, topic="U") for n in (0, 1, 2, 3)] == [(0, 401), (0, 1), (0, 0), (0, 8)]


async def test_a_full_disk_stops_the_copy_and_room_continues_it(tmp_path: Path) -> None:
    async with world(tmp_path, messages=20) as w:
        w.master.tables = tables(1)
        async with followers(w, tmp_path) as group:
            await group.stop(0)
            door = Door()
            broker = await group.start(0, door=door)
            await followed(broker, w)
            door.fail("write", "data", errno.ENOSPC, after=1, times=3)
            w.master.grow(w.maker.add(300))
            await until(lambda: caught_up(broker, w))
            check_queues(broker, w.master.log)


async def test_a_group_with_messages_of_its_own_follows_nobody(tmp_path: Path) -> None:
    async with world(tmp_path) as w, followers(w, tmp_path, role=BrokerRole.ASYNC_MASTER) as group:
        broker = group.members[0]
        w.master.settings["brokerId"] = "5"
        await w.master.register()
        await until(lambda: broker.unready() is None)
        assert broker.copying is None and (await send(broker, 0))[0] == 0
        await group.stop(0)
        group.role = BrokerRole.SLAVE
        broker = await group.start(0)
        await group.leader()
        await until(lambda: broker.unready() is None)
        assert copy_of(broker).to_json()["state"] == "unsupported" and (await send(broker, 0)) == (0, 1)
        with pytest.raises(PromotionError, match="this group served clients"):
            await copy_of(broker).promote()


def is_ready(broker: Broker) -> bool:
    return broker.unready() is None


def is_serving(broker: Broker) -> bool:
    return is_ready(broker) and broker.settings.brokerId == 0


async def test_a_group_that_has_no_message_left_is_not_new(tmp_path: Path) -> None:
    """All of its messages expired, or none was ever sent: clients have topics and offsets there."""
    async with world(tmp_path) as w, followers(w, tmp_path, role=BrokerRole.ASYNC_MASTER) as group:
        broker = group.members[0]
        await until(lambda: broker.unready() is None)
        broker.topics.update(TopicConfig("mine", 1, 1))
        await broker.topics.saved()
        await group.stop(0)
        group.role = BrokerRole.SLAVE
        for _ in range(2):
            broker = await group.start(0)
            await group.leader()
            await until(partial(is_ready, broker))
            found = copy_of(broker).to_json()
            assert found["state"] == "unsupported"
            assert "n0 has brokerRole=SLAVE, but this group served" in found["reason"]
            assert "mine" in broker.topics and w.master.changes == []
            assert (await send(broker, 0, topic="mine"))[0] == 0
            await group.stop(0)


async def test_a_leader_of_a_new_group_puts_the_state_of_the_copy_into_the_log_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it is killed behind any entry, the next leader finds the state, or no table at all."""
    staged: list[str] = []
    propose = Member.propose

    def noted(member: Member, kind: EntryKind, body: bytes) -> int:
        if kind == EntryKind.METADATA:
            staged.append(entry.decode(body).table)
        return propose(member, kind, body)

    monkeypatch.setattr(Member, "propose", noted)
    async with world(tmp_path) as w, followers(w, tmp_path) as group:
        await until(lambda: "topics.json" in staged)
        assert staged[0] == CopyTable.what and copy_of(group.members[0]).table.state == "following"


async def test_a_member_with_the_role_of_a_slave_in_a_group_that_serves_forwards_and_reports_it(tmp_path: Path) -> None:
    async with world(tmp_path) as w, followers(w, tmp_path, 3, role=BrokerRole.ASYNC_MASTER) as group:
        leader = await group.leader()
        odd = next(number for number, each in group.members.items() if each is not leader)
        await group.stop(odd)
        group.role = BrokerRole.SLAVE
        broker = await group.start(odd)
        await until(lambda: broker.unready() is None)
        leader = await group.leader()
        number = next(number for number, each in group.members.items() if each is leader)
        found = copy_of(broker).to_json()
        assert found["state"] == "unsupported" and found["lasting"]
        assert f"n{odd} has brokerRole=SLAVE" in found["reason"] and f"now led by n{number}" in found["reason"]
        # Nothing but the election was in the log so far, and it decides nothing: this member may lead.
        await pass_to(group, broker)
        await until(lambda: broker.unready() is None)
        assert copy_of(broker).to_json()["state"] == "unsupported" and broker.settings.brokerId == 0
        await group.pass_on()
        assert (await send(broker, 0))[0] == 0, "it forwards to the leader"
        assert not copy_of(broker).follows and w.master.changes == []


@pytest.mark.parametrize("slaves", [{0}, {1, 2}])
async def test_members_with_mixed_roles_agree_on_what_the_first_leader_decided(
    tmp_path: Path, slaves: set[int]
) -> None:
    async with world(tmp_path) as w:
        w.master.tables = tables(1)
        group = Followers(w, tmp_path, 3, BrokerRole.SLAVE)
        try:
            for number in range(3):
                group.role = BrokerRole.SLAVE if number in slaves else BrokerRole.ASYNC_MASTER
                await group.start(number)
            first = await group.leader()
            follows = first.copying is not None and copy_of(first).follows
            for _ in range(3):
                leader = await group.leader()
                if follows:
                    await followed(leader, w)
                    assert [(await send(each, 0))[0] for each in group.members.values()] == [14] * 3
                else:
                    await until(partial(is_serving, leader))
                    assert [(await send(each, 0))[0] for each in group.members.values()] == [0] * 3
                    states = {n: copy_of(group.members[n]).to_json() for n in slaves}
                    assert {each["state"] for each in states.values()} == {"unsupported"}
                    assert all(f"n{n} has brokerRole=SLAVE" in each["reason"] for n, each in states.items())
                await group.pass_on()
        finally:
            for number in list(group.members):
                await group.stop(number)


async def test_another_slave_with_the_id_of_a_member_is_named_until_it_is_gone(tmp_path: Path) -> None:
    async with world(tmp_path) as one, rocketmq_nameserver(one) as (w, nameserver), followers(w, tmp_path, 3) as group:
        w.master.tables = tables(1)
        leader = await group.leader()
        await followed(leader, w)
        number = next(number for number, each in group.members.items() if each is not leader) + 1
        async with another_slave(w, nameserver, number) as other:
            await until(lambda: copy_of(leader).to_json()["state"] == "unsupported")
            assert f"the slave {other.address} of b has the broker id {number}," in copy_of(leader).to_json()["reason"]
            with pytest.raises(PromotionError, match=f"{other.address} of b has the broker id {number},"):
                await copy_of(leader).promote()
            assert w.master.changes == []
            w.master.grow(w.maker.add(10))
        await followed(leader, w)
        async with another_slave(w, nameserver, 7):  # an id that nobody here has
            await copy_of(leader).promote()
        check_queues(leader, w.master.log)


def damage(broker: Broker, number: int) -> int:
    """Turns one bit over in a message in the log of a member; where its record begins."""
    settings = broker.store.settings
    size, end = settings.mappedFileSizeCommitLog, broker.store.max_pos
    pos, record_bytes = list(followed_log_module.records(settings.log_folder, size, 0, end))[number]
    at = pos + record_bytes - 3  # a property: only the CRC of the entry covers it
    with (settings.log_folder / f"{at - at % size:020}").open("r+b", buffering=0) as file:
        file.seek(at % size)
        byte = file.read(1)[0]
        file.seek(at % size)
        file.write(bytes([byte ^ 4]))
    return pos


@pytest.mark.parametrize("count", [1, 3])
async def test_a_damaged_record_of_the_leader_is_not_taken_for_a_difference_from_the_master(
    tmp_path: Path, count: int
) -> None:
    async with ready(tmp_path, count) as (w, group):
        leader = await group.leader()
        copy = copy_of(leader)
        pos = damage(leader, -5)
        copy.follower.cut()  # it compares before it continues
        await until(lambda: any(each.pos == pos for each in leader.store.findings.listed()))
        if count == 1:
            await until(lambda: f"the log of this member is damaged at {pos}" in copy.to_json()["reason"])
            assert copy.to_json()["state"] == "disk"
        else:
            w.master.grow(w.maker.add(20))
            await followed(leader, w)  # the record was fetched from another member
            check_queues(leader, w.master.log)
        assert CopyProblem.DIVERGED not in copy.follower.problems


# -- promotion: each step that fails, and leaders that change ----------------------------------------------------------


@asynccontextmanager
async def ready(folder: Path, count: int = 1) -> AsyncIterator[tuple[World, Followers]]:
    """A group that follows closely."""
    async with world(folder) as w:
        w.master.tables = tables(1)
        async with followers(w, folder, count) as group:
            await followed_by_leader(group, w)
            yield w, group


async def test_a_copy_that_does_not_reach_the_end_takes_the_fence_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ready(tmp_path) as (w, group):
        w.master.refuses = {RequestCode.GET_ALL_CONSUMER_OFFSET}
        with monkeypatch.context() as patch:
            patch.setattr(promotion_module, "CATCH_UP_S", 0.3)
            with pytest.raises(PromotionError, match="accepts messages again"):
                await copy_of(group.members[0]).promote()
        assert w.master.settings["brokerRole"] == "ASYNC_MASTER" and copy_of(group.members[0]).follows
        w.master.refuses = set()
        w.master.grow(w.maker.add(10))
        await followed(group.members[0], w)
        await copy_of(group.members[0]).promote()
        check_queues(group.members[0], w.master.log)


@pytest.mark.parametrize("back", [False, True])
async def test_another_leader_continues_a_promotion_or_takes_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, back: bool
) -> None:
    async with ready(tmp_path, 3) as (w, group):
        leader = await group.leader()

        async def killed(_: Promotion, __: Master) -> None:
            await asyncio.Event().wait()

        with monkeypatch.context() as patch:
            patch.setattr(Promotion, "_catch_up", killed)
            promoting = asyncio.create_task(copy_of(leader).promote())
            await until(lambda: w.master.settings["brokerRole"] == "SLAVE")
            leader = await group.pass_on()
            promoting.cancel()
            await asyncio.wait([promoting])
        await followed(leader, w)
        if back:
            assert await copy_of(leader).take_back() == {"master": w.master.address}
            assert w.master.settings["brokerRole"] == "ASYNC_MASTER" and w.master.settings["brokerId"] == "0"
            w.master.grow(w.maker.add(10))
            await followed(leader, w)
        else:
            await copy_of(leader).promote()
            assert (await w.registered())[1000] == w.master.address
            assert (await send(leader, 0))[0] == 0


async def test_a_leader_that_was_replaced_leaves_the_fence_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ready(tmp_path, 3) as (w, group):
        old = await group.leader()

        async def replaced(_: Promotion, __: Master) -> None:
            await group.pass_on()
            raise MasterError("the connection ended")

        with monkeypatch.context() as patch:
            patch.setattr(Promotion, "_catch_up", replaced)
            with pytest.raises(PromotionError, match="is fenced: promote again, or --back"):
                await copy_of(old).promote()
        assert w.master.settings["brokerRole"] == "SLAVE", "the new leader may have decided"
        with pytest.raises(PromotionError, match="ask the leader"):
            await copy_of(old).take_back()
        leader = await group.leader()
        await followed(leader, w)
        await copy_of(leader).promote()
        check_queues(leader, w.master.log)


async def test_a_decision_that_is_not_known_leaves_the_master_fenced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ready(tmp_path) as (w, group):
        broker = group.members[0]
        before = CopyTable.saved

        async def unknown(table: CopyTable) -> None:
            if table.state == "promoted":
                raise NotReplicatedError("leadership was lost")
            await before(table)

        with monkeypatch.context() as patch:
            patch.setattr(CopyTable, "saved", unknown)
            with pytest.raises(PromotionError, match="not known whether the group is the master"):
                await copy_of(broker).promote()
        assert w.master.settings["brokerRole"] == "SLAVE"
        await until(lambda: copy_of(broker).is_master)  # it was decided
        assert (await copy_of(broker).promote())["strayBytes"] == 0
        assert (await send(broker, 0))[0] == 0
        assert (await w.registered())[1000] == w.master.address


async def test_a_master_that_died_and_comes_back_is_made_a_slave_by_a_later_leader(tmp_path: Path) -> None:
    async with ready(tmp_path, 3) as (w, group):
        leader = await group.leader()
        with pytest.raises(PromotionError, match="answers: stop it"):
            await copy_of(leader).promote(master_is_stopped=True)
        await w.master.stop()
        leader = await group.pass_on()
        await copy_of(leader).promote(master_is_stopped=True)
        check_queues(leader, w.master.log)
        assert (await send(leader, 0))[0] == 0
        leader = await group.pass_on()
        await w.master.start(w.address)
        await until(lambda: w.master.settings["brokerRole"] == "SLAVE")
        await until(lambda: copy_of(leader).table.promotion.handed_over)
        assert w.master.settings["brokerId"] == "1000"


async def test_a_leader_that_serves_does_not_number_its_queues_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ready(tmp_path) as (w, group):
        await w.master.stop()
        await copy_of(group.members[0]).promote(master_is_stopped=True)
        end = group.members[0].store.queues.max_offset("T", 0)
        await group.stop(0)
        broker = await group.start(0)
        await group.leader()
        await until(lambda: broker.unready() is None)
        counted: list[int] = []
        monkeypatch.setattr(GroupCommit, "take_lead", lambda _, term: counted.append(term))
        sends = asyncio.create_task(asyncio.wait_for(_send_many(broker, 40), 30))
        await w.master.start(w.address)
        await until(lambda: copy_of(broker).table.promotion.handed_over)
        assert await sends == [(0, end + n) for n in range(40)] and counted == []


async def _send_many(broker: Broker, count: int) -> list[tuple[int, int]]:
    return [await send(broker, 0) for _ in range(count)]


async def test_only_the_leader_promotes_and_every_member_refuses_changes_with_the_code_of_a_slave(
    tmp_path: Path,
) -> None:
    async with ready(tmp_path, 3) as (_, group):
        leader = await group.leader()
        for member in group.members.values():
            assert (await send(member, 0))[0] == 14
            assert ("tally_copy_follows{" in BrokerMetrics(member).text().decode()) == (member is leader)
            if member is not leader:
                with pytest.raises(PromotionError, match="ask the leader"):
                    await copy_of(member).promote()
                assert copy_of(member).to_json()["state"] == "member"


async def test_clients_change_no_table_of_a_group_that_follows(tmp_path: Path) -> None:
    body = fastjson.dumps({
        "clientID": "c", "producerDataSet": [],
        "consumerDataSet": [{"groupName": "new", "consumeType": "CONSUME_PASSIVELY", "subscriptionDataSet": []}],
    })  # fmt: skip
    async with ready(tmp_path, 3) as (_, group):
        leader = await group.leader()
        client = RemotingClient(name="test")
        for promoted in (False, True):
            if promoted:
                await copy_of(leader).promote()
            for member in group.members.values():
                answer = await client.call(str(member.advertised), Command(RequestCode.HEART_BEAT, body=body), 20)
                assert answer.code == 0
            assert ("%RETRY%new" in leader.topics) == (leader.groups.find("new") is not None) == promoted
            if not promoted:
                with pytest.raises(FollowsError, match=r"this group follows a master: topics\.json is changed there"):
                    leader.topics.update(TopicConfig("mine", 1, 1))
                with pytest.raises(FollowsError):
                    leader.topics.delete("T")
        await client.close(grace_s=0)
        leader.topics.update(TopicConfig("mine", 1, 1))


async def test_topics_that_a_dead_master_made_last_are_added_by_the_promotion(tmp_path: Path) -> None:
    async with ready(tmp_path) as (w, group):
        broker = group.members[0]
        w.maker._one("late", b"x", b"\x0a\0\0\1\0\0\0\1")
        w.master.grow(w.maker.written())
        await until(lambda: caught_up(broker, w))
        assert "late" not in broker.topics
        await w.master.stop()
        await copy_of(broker).promote(master_is_stopped=True)
        assert "late" in broker.topics
        check_queues(broker, w.master.log)


# -- leaderships that end and begin again ------------------------------------------------------------------------------


async def pass_to(group: Followers, broker: Broker) -> None:
    """This member leads, and is ready."""
    number = next(number for number, each in group.members.items() if each is broker)
    while (leader := await group.leader()) is not broker:
        assert leader.group is not None
        with contextlib.suppress(TransferError):
            await leader.group.transfer(number)


async def test_a_copy_of_an_earlier_leadership_cannot_begin_again(tmp_path: Path) -> None:
    async with ready(tmp_path, 3) as (w, group):
        first = await group.leader()
        earlier = copy_of(first).follower
        await group.pass_on()
        await pass_to(group, first)
        await followed(first, w)
        earlier.start()  # as a promotion does whose time is over
        w.master.grow(w.maker.add(100))
        await followed(first, w)
        assert not earlier.is_started
        with pytest.raises(CopyError, match="the leadership for which this copy was made is over"):
            earlier.log.append(w.master.log)
        check_queues(first, w.master.log)


async def test_a_promotion_of_an_earlier_leadership_leaves_the_old_master_a_slave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ready(tmp_path, 3) as (w, group):
        first = await group.leader()
        catch_up = Promotion._catch_up

        async def late(promotion: Promotion, master: Master) -> None:
            if promotion._role is not copy_of(first):
                await catch_up(promotion, master)
                return
            leader = await group.pass_on()
            await followed(leader, w)
            await copy_of(leader).promote()
            await pass_to(group, first)
            raise MasterError("the time is over")

        with monkeypatch.context() as patch:
            patch.setattr(Promotion, "_catch_up", late)
            with pytest.raises(PromotionError, match="is fenced: promote again, or --back"):
                await copy_of(first).promote()
        assert (w.master.settings["brokerRole"], w.master.settings["brokerId"]) == ("SLAVE", "1000")
        assert copy_of(first).table.promotion.number == 1000
        assert (await send(first, 0))[0] == 0


async def test_a_promotion_decides_only_in_the_leadership_in_which_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ready(tmp_path, 3) as (w, group):
        first = await group.leader()

        async def back_again(_: Promotion, __: Master) -> None:
            await group.pass_on()
            await pass_to(group, first)

        with monkeypatch.context() as patch:
            patch.setattr(Promotion, "_catch_up", back_again)
            with pytest.raises(PromotionError, match="leadership was lost"):
                await copy_of(first).promote()
        assert copy_of(first).follows
        await followed(first, w)
        await copy_of(first).promote()
        check_queues(first, w.master.log)
