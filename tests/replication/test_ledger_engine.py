"""The storage engine on a replicated log: nothing above the committed position is dispatched, read or answered."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from engine_lab import (
    HOST,
    PEER,
    SYNC,
    answers_in,
    batch_body,
    kill,
    message,
    read_queue,
    send_frame,
    small,
)
from ledger_lab import open_ledger_of
from ledger_replica import LedgerReplica

from tallystick.node.broker.group.membership import forget_derived
from tallystick.replication.ledger.ledger import Ledger
from tallystick.store._kernel import Door
from tallystick.store.engine.message_store import MessageStore
from tallystick.store.formats.ledger_format import EntryKind
from tallystick.store.formats.message import GetStatus, MessageBatch, PutResult, PutStatus
from tallystick.store.settings import FlushDiskType, SettingsError, StoreSettings
from tallystick.store.verify.report import verify


def settings(root: Path, **changes: Any) -> StoreSettings:
    fixed = {"enableDLegerCommitLog": True, "dLegerSelfId": "n0", "flushDiskType": SYNC}
    return small(root, **(fixed | changes))


class Member:
    """A store on a ledger; its driver commits what the test says. `auto`: all that is synced, as a group of one."""

    def __init__(self, store: MessageStore, replica: LedgerReplica) -> None:
        self.store, self.replica, self.ledger = store, replica, replica.ledger
        self.auto = False
        self.failures: list[tuple[OSError, bool]] = []
        self._loop = asyncio.get_running_loop()
        self._watchers: list[asyncio.Event] = []
        replica.on_written = self._wake
        replica.on_synced = self._synced
        replica.on_failed = lambda error, final: self.failures.append((error, final))

    def _wake(self) -> None:
        for watcher in self._watchers:
            watcher.set()

    def _synced(self) -> None:
        if self.auto:
            self.commit(self.ledger.synced_index)
        self._wake()

    def commit(self, index: int) -> None:
        self.replica.committed_index = index
        self.store.group.commit(self.ledger.end_of(index))

    def lead(self, term: int) -> None:
        self.store.group.take_lead(term)
        self.store.group.serve(True)

    async def until_written(self, index: int) -> None:
        watcher = asyncio.Event()
        self._watchers.append(watcher)
        while self.ledger.last_index < index:
            watcher.clear()
            await asyncio.wait_for(watcher.wait(), 10)

    def truncate(self, last_kept: int) -> None:
        was_end = self.ledger.log.written
        self.ledger.truncate(last_kept)
        self.store.group.forget_cut(was_end)

    def follow(self, leader: Member) -> None:
        """Takes what the leader has more, written."""
        first, last = self.ledger.last_index + 1, leader.ledger.last_index
        if first <= last:
            term = self.ledger.term_of(first - 1)
            assert term is not None
            entries = self.ledger.check(leader.ledger.log.read_range(first, last), first - 1, term)
            self.ledger.append_entries(entries, first)
            assert self.store.appender.write() is None


def open_ledger(chosen: StoreSettings, door: Door, boot: int = 1) -> Ledger:
    return open_ledger_of(chosen, door, boot, b"CLUSTER\x01DefaultCluster\x02")


@asynccontextmanager
async def member(root: Path, door: Door | None = None, boot: int = 1, **changes: Any) -> AsyncIterator[Member]:
    chosen, door = settings(root, **changes), door or Door()
    replica = LedgerReplica(open_ledger(chosen, door, boot))
    store = await MessageStore.open(chosen, store_host=HOST, door=door, replica=replica)
    try:
        await asyncio.gather(*(task for task in asyncio.all_tasks() if task.get_name() == "save-at-start"))
        yield Member(store, replica)
    finally:
        if store.admission.is_open:
            await store.close()


def put(member: Member, body: bytes, queue: int = 0, topic: str = "T", properties: str = "") -> asyncio.Task[PutResult]:
    return asyncio.create_task(member.store.writes.put(message(body, topic=topic, queue=queue, properties=properties)))


# -- what is committed, and what is not --------------------------------------------------------------------------------


async def test_nothing_uncommitted_is_seen_or_answered(tmp_path: Path) -> None:
    """R4, B1, B4."""
    async with member(tmp_path) as one:
        one.lead(1)
        puts = [put(one, b"m%d" % number, properties=f"KEYS\x01k{number}\x02") for number in range(4)]
        await one.until_written(3)
        assert one.store.queues.max_offset("T", 0) == 0 and one.store.queues.names() == []
        assert one.store.reads.get_message("T", 0, 0, 32).status is GetStatus.NO_MESSAGE_IN_QUEUE
        assert one.store.reads.message_at(48) is None and one.store.reads.query("T", "k1", 9, 0, 1 << 60).records == []
        assert not any(task.done() for task in puts)
        one.commit(1)
        done = await asyncio.gather(*puts[:2])
        assert [(result.status, result.queue_offset) for result in done] == [
            (PutStatus.PUT_OK, 0),
            (PutStatus.PUT_OK, 1),
        ]
        assert [record.body for record in read_queue(one.store)] == [b"m0", b"m1"]
        assert one.store.max_pos == one.ledger.end_of(1) < one.ledger.log.written
        assert len(one.store.reads.query("T", "k1", 9, 0, 1 << 60).records) == 1
        assert one.store.reads.query("T", "k2", 9, 0, 1 << 60).records == []
        assert (
            one.store.reads.message_at(puts_pos(one, 1)) is not None
            and one.store.reads.message_at(puts_pos(one, 2)) is None
        )
        assert not puts[2].done()
        one.commit(3)
        await asyncio.gather(*puts)
        assert len(read_queue(one.store)) == 4


def puts_pos(one: Member, index: int) -> int:
    return one.ledger.pos_of(index) + 48


async def test_the_short_way_waits_for_the_commit_too(tmp_path: Path) -> None:
    async with member(tmp_path) as one:
        one.lead(1)
        one.store.connections.set_topic("T", 4)
        got: list[bytes] = []
        connection = one.store.connections.attach(PEER, got.append)
        cold, fault = one.store.connections.feed(connection, send_frame(b"a", opaque=1) + send_frame(b"b", opaque=2))
        assert (cold, fault) == (None, None)
        await one.until_written(1)
        await one.store.flush()
        assert got == []
        one.commit(0)
        assert [answer["opaque"] for answer in answers_in(b"".join(got))] == [1]
        one.commit(1)
        assert [answer["opaque"] for answer in answers_in(b"".join(got))] == [1, 2]


async def test_without_a_sync_before_the_answer_the_commit_still_comes_first(tmp_path: Path) -> None:
    """The weaker profile: the driver may count what is written, but nothing is answered before it says so."""
    async with member(tmp_path, flushDiskType=FlushDiskType.ASYNC_FLUSH) as one:
        one.lead(1)
        one.store.connections.set_topic("T", 4)
        got: list[bytes] = []
        connection = one.store.connections.attach(PEER, got.append)
        one.store.connections.feed(connection, send_frame(b"a", opaque=1))
        await one.until_written(0)
        waiting = put(one, b"b")
        await one.until_written(1)
        assert got == [] and not waiting.done()
        one.commit(1)
        assert (await waiting).status is PutStatus.PUT_OK and len(got) == 1


async def test_a_batch_is_answered_when_its_last_entry_is_committed(tmp_path: Path) -> None:
    async with member(tmp_path) as one:
        one.lead(1)
        body = batch_body(*((b"b%d" % number, b"") for number in range(5)))
        task = asyncio.create_task(one.store.writes.put_batch(MessageBatch("T", 1, body, born_host=PEER)))
        await one.until_written(4)
        one.commit(3)
        await one.store.flush()
        assert not task.done()
        one.commit(4)
        result = await task
        assert (result.status, result.count, result.queue_offset) == (PutStatus.PUT_OK, 5, 0)
        assert [record.body for record in read_queue(one.store, queue=1)] == [b"b%d" % number for number in range(5)]


async def test_lost_leadership_tells_every_waiting_put_the_same(tmp_path: Path) -> None:
    """B2: outcome unknown; the entries may still be committed."""
    async with member(tmp_path) as one:
        one.lead(1)
        one.store.connections.set_topic("T", 4)
        got: list[bytes] = []
        connection = one.store.connections.attach(PEER, got.append)
        waiting = put(one, b"one")
        await one.until_written(0)
        one.store.connections.feed(connection, send_frame(b"two"))
        await one.until_written(1)
        one.store.group.give_up(14, PutStatus.UNKNOWN_ERROR)
        assert (await waiting).status is PutStatus.UNKNOWN_ERROR
        assert [answer["code"] for answer in answers_in(b"".join(got))] == [14]
        refused = await one.store.writes.put(message())
        assert (refused.status, refused.detail) == (
            PutStatus.SERVICE_NOT_AVAILABLE,
            "this member does not lead its group",
        )
        cold, _ = one.store.connections.feed(connection, send_frame(b"three"))
        assert cold is not None and len(cold) == 1, "left to the code that answers that it does not lead"
        one.commit(1)
        assert [record.body for record in read_queue(one.store)] == [b"one", b"two"]


async def test_a_put_that_is_not_committed_in_time_is_stored_all_the_same(tmp_path: Path) -> None:
    async with member(tmp_path, syncFlushTimeout=1) as one:
        one.lead(1)
        assert (await one.store.writes.put(message())).status is PutStatus.FLUSH_SLAVE_TIMEOUT


async def test_a_follower_takes_no_puts_and_serves_reads(tmp_path: Path) -> None:
    async with member(tmp_path / "a") as leader, member(tmp_path / "b") as follower:
        leader.lead(3)
        tasks = [put(leader, b"m%d" % number, queue=number % 2) for number in range(60)]
        await leader.until_written(59)
        follower.follow(leader)
        assert (await follower.store.writes.put(message())).status is PutStatus.SERVICE_NOT_AVAILABLE
        assert follower.store.queues.max_offset("T", 0) == 0
        await follower.store.flush()
        assert follower.ledger.synced_index == 59
        for one in (leader, follower):
            one.commit(59)
        await asyncio.gather(*tasks)
        for queue in (0, 1):
            assert read_queue(follower.store, queue=queue) == read_queue(leader.store, queue=queue)
        assert len(read_queue(follower.store)) == 30
        # A reader that is ahead of a follower stays where it is; only who leads knows a better place.
        ahead = follower.store.reads.get_message("T", 0, 1000, 32)
        assert (ahead.status, ahead.next_begin_offset) == (GetStatus.OFFSET_OVERFLOW_BADLY, 1000)
        assert leader.store.reads.get_message("T", 0, 1000, 32).next_begin_offset == 0
    for name in ("a", "b"):
        assert verify(tmp_path / name).sound


async def test_a_new_leader_corrects_no_reader_before_its_queues_are_complete(tmp_path: Path) -> None:
    async with member(tmp_path) as one:
        one.lead(1)
        tasks = [put(one, b"m%d" % number * 500, queue=0) for number in range(200)]
        await one.until_written(199)
        one.commit(199)
        assert one.store.dispatcher.behind_bytes > 0
        ahead = one.store.reads.get_message("T", 0, 150, 32)
        assert (ahead.status, ahead.next_begin_offset) != (GetStatus.FOUND, 151), "else this shows nothing"
        assert ahead.next_begin_offset == 150
        one.store.dispatcher.finish()
        assert one.store.reads.get_message("T", 0, 150, 32).status is GetStatus.FOUND
        assert one.store.reads.get_message("T", 0, 1000, 32).next_begin_offset == 0
        await asyncio.gather(*tasks)


# -- counters ----------------------------------------------------------------------------------------------------------


async def test_a_new_leader_counts_on_from_all_of_its_log(tmp_path: Path) -> None:
    """B3: also from what is not committed, and not from what was cut."""
    async with member(tmp_path / "a") as old, member(tmp_path / "b") as new:
        old.lead(1)
        tasks = [put(old, b"m%d" % number, queue=number % 2, topic=f"T{number % 3}") for number in range(30)]
        await old.until_written(29)
        new.follow(old)
        tasks += [put(old, b"lost%d" % number) for number in range(7)]
        await old.until_written(36)
        for one in (old, new):
            one.commit(11)
        new.lead(2)
        results = [put(new, b"new", queue=queue, topic=f"T{topic}") for topic in range(3) for queue in range(2)]
        await new.until_written(35)
        old.store.group.give_up(14, PutStatus.UNKNOWN_ERROR)
        old.truncate(29)
        old.follow(new)
        assert old.ledger.log.read_range(0, 35) == new.ledger.log.read_range(0, 35)
        for one in (old, new):
            one.commit(35)
        assert [result.queue_offset for result in await asyncio.gather(*results)] == [5] * 6
        old.lead(3)
        again = put(old, b"again"), put(old, b"T0 again", topic="T0")
        await old.until_written(37)
        old.commit(37)
        offsets = [result.queue_offset for result in await asyncio.gather(*again)]
        assert offsets == [0, 6], "topic T had lost messages only"
        await asyncio.gather(*tasks)
        assert [record.body for record in read_queue(old.store, "T0", 0)][-2:] == [b"new", b"T0 again"]
        assert [record.body for record in read_queue(old.store)] == [b"again"]


@pytest.mark.parametrize("seed", range(8))
async def test_two_members_take_turns(tmp_path: Path, seed: int) -> None:
    """Leadership moves at random, uncommitted tails are cut: committed messages are on both, without gaps, for good."""
    dice = random.Random(seed)
    async with member(tmp_path / "a") as a, member(tmp_path / "b") as b:
        committed: dict[tuple[str, int], list[bytes]] = {}
        index, count = -1, 0
        for term in range(1, 14):
            leader, other = (a, b) if dice.random() < 0.5 else (b, a)
            if leader.ledger.last_index > index and dice.random() < 0.5:
                leader.truncate(index)
            leader.lead(term)
            tasks: list[asyncio.Task[PutResult]] = []
            for _ in range(dice.randrange(20)):
                tasks.append(put(leader, b"%d" % count, queue=dice.randrange(2), topic=dice.choice("TU")))
                count += 1
            await leader.until_written(leader.ledger.last_index + len(tasks))
            await leader.store.flush()
            if other.ledger.last_index > index:
                other.truncate(index)
            other.follow(leader)
            index = dice.randrange(index, leader.ledger.last_index + 1) if leader.ledger.last_index > index else index
            if index >= 0:
                a.commit(index)
                b.commit(index)
            leader.store.group.give_up(14, PutStatus.UNKNOWN_ERROR)
            done = await asyncio.gather(*tasks)
            assert all(result.status in (PutStatus.PUT_OK, PutStatus.UNKNOWN_ERROR) for result in done)
            for topic, queue in [(topic, queue) for topic in "TU" for queue in (0, 1)]:
                bodies = [record.body for record in read_queue(a.store, topic, queue)]
                assert bodies == [record.body for record in read_queue(b.store, topic, queue)]
                before = committed.get((topic, queue), [])
                assert bodies[: len(before)] == before, "what was committed stays where it was"
                committed[topic, queue] = bodies
    for name in ("a", "b"):
        report = verify(tmp_path / name)
        assert report.sound, report.damage


# -- starts ------------------------------------------------------------------------------------------------------------


async def test_an_orderly_stop_and_start(tmp_path: Path) -> None:
    async with member(tmp_path) as one:
        one.auto = True
        one.lead(1)
        await asyncio.gather(*(put(one, b"m%d" % number, queue=number % 3) for number in range(90)))
        rows = [read_queue(one.store, queue=queue) for queue in range(3)]
    assert not (tmp_path / "abort").exists()
    async with member(tmp_path) as again:
        assert again.ledger.recovered.clean and again.store.recovered.from_mark
        assert again.store.recovered.dispatched_from == again.ledger.log.written
        assert [read_queue(again.store, queue=queue) for queue in range(3)] == rows
        assert again.store.max_pos == again.ledger.log.written


async def test_an_orderly_stop_with_an_uncommitted_tail(tmp_path: Path) -> None:
    """The next start shows what was committed, until it learns more."""
    async with member(tmp_path) as one:
        one.lead(1)
        tasks = [put(one, b"m%d" % number) for number in range(9)]
        await one.until_written(8)
        one.commit(4)
        await asyncio.gather(*tasks[:5])
        one.store.group.give_up(14, PutStatus.UNKNOWN_ERROR)
        await asyncio.gather(*tasks)
    async with member(tmp_path) as again:
        assert len(read_queue(again.store)) == 5
        again.lead(2)
        await_this = put(again, b"next")
        await again.until_written(9)
        again.commit(9)
        assert (await await_this).queue_offset == 9
        assert len(read_queue(again.store)) == 10


@pytest.mark.parametrize("seed", range(12))
async def test_power_loss_keeps_what_was_committed_here(tmp_path: Path, seed: int) -> None:
    """A group of one: committed is synced. Queues and index come back whole, whatever the disk kept of them."""
    dice, door = random.Random(seed), Door(record=True)
    expected: dict[int, list[bytes]] = {0: [], 1: []}
    for boot in range(1, 4):
        async with member(tmp_path, door, boot, maxIndexNum=2000) as one:
            for queue in (0, 1):
                bodies = [record.body for record in read_queue(one.store, queue=queue)]
                assert bodies[: len(expected[queue])] == expected[queue][: len(bodies)]
            one.auto = True
            one.lead(boot)
            if one.ledger.last_index >= 0:
                one.commit(one.ledger.last_index)
            for queue in (0, 1):
                bodies = [record.body for record in read_queue(one.store, queue=queue)]
                assert bodies[: len(expected[queue])] == expected[queue]
                expected[queue] = bodies
            for _ in range(dice.randrange(1, 5)):
                number = dice.randrange(1, 20)
                queue = dice.randrange(2)
                puts = [put(one, dice.randbytes(dice.randrange(300)), queue) for _ in range(number)]
                results = await asyncio.gather(*puts)
                assert all(result.status is PutStatus.PUT_OK for result in results)
            for queue in (0, 1):
                expected[queue] = [record.body for record in read_queue(one.store, queue=queue)]
            if dice.random() < 0.5:
                await one.store.upkeep.save(thorough=dice.random() < 0.5)
            await kill(one.store)
            door.crash(seed + boot, dice.choice([None, 0.0, 0.5]))


async def test_queues_that_know_more_than_the_log_forget_it(tmp_path: Path) -> None:
    """Committed by the others and dispatched here, but not durable here when the power went."""
    door = Door(record=True)
    async with member(tmp_path, door) as one:
        one.auto = True
        one.lead(1)
        await asyncio.gather(*(put(one, b"m%d" % number) for number in range(10)))
        one.auto = False
        door.lie("sync", "/data/")
        tasks = [put(one, b"n%d" % number) for number in range(10)]
        await one.until_written(19)
        one.commit(19)
        await asyncio.gather(*tasks)
        assert len(read_queue(one.store)) == 20
        await one.store.upkeep.save(thorough=True)
        await kill(one.store)
        door.heal()
        door.crash(1, 0.0)
    async with member(tmp_path, door, 2) as again:
        last = again.ledger.last_index
        assert again.ledger.damage is not None or last < 19
        assert len(read_queue(again.store)) <= last + 1


async def test_one_queue_may_have_lost_more_than_another(tmp_path: Path) -> None:
    """Killed without a mark: RocketMQ continues behind the queue that got furthest, and loses what this one lacks."""
    async with member(tmp_path) as one:
        one.auto = True
        one.lead(1)
        await asyncio.gather(*(put(one, b"m%d" % number, queue=number % 2) for number in range(20)))
        rows = [read_queue(one.store, queue=queue) for queue in (0, 1)]
    (tmp_path / "abort").touch()
    (tmp_path / "tally-progress").unlink()
    units = tmp_path / "consumequeue" / "T" / "1" / f"{0:020}"
    units.write_bytes(units.read_bytes()[: 20 * 4].ljust(20 * 16, b"\0"))
    async with member(tmp_path) as again:
        assert [read_queue(again.store, queue=queue) for queue in (0, 1)] == rows


async def test_of_a_damaged_log_only_what_is_before_the_damage_is_served(tmp_path: Path) -> None:
    """Its queues, and their mark, know more."""
    async with member(tmp_path) as one:
        one.auto = True
        one.lead(1)
        await asyncio.gather(*(put(one, b"m%d" % number) for number in range(60)))
        assert one.store.queues.max_offset("T", 0) == 60
        lost = one.ledger.log.read_range(10, 12)
        at = one.ledger.pos_of(10) + 60
    folder = one.store.settings.log_folder
    Door().write(folder / f"{at - at % 4096:020}", at % 4096, b"\xff")
    (folder.parent / "tally-ledger").unlink()
    async with member(tmp_path) as again:
        assert again.ledger.damage is not None and again.ledger.damage.index == 10
        assert (again.store.queues.max_offset("T", 0), again.store.dispatched_pos) == (10, again.ledger.log.written)
        assert [record.body for record in read_queue(again.store)] == [b"m%d" % number for number in range(10)]
        again.ledger.rewrite(lost)
        assert again.ledger.last_index == 59
        again.commit(59)
        assert len(read_queue(again.store)) == 60


async def test_a_member_that_begins_behind_a_snapshot(tmp_path: Path) -> None:
    """L11: no entries yet, and the first ones are not at position 0."""
    async with member(tmp_path / "a") as leader:
        leader.lead(1)
        tasks = [put(leader, b"x" * 900) for _ in range(12)]
        await leader.until_written(11)
        leader.commit(11)
        await asyncio.gather(*tasks)
        first = leader.ledger.index_of(2 * 4096) + 1
        base = leader.ledger.point(first - 1)
        with pytest.raises(ValueError, match="cannot begin"):
            open_ledger(settings(tmp_path / "b"), Door()).install_snapshot(
                base.index, base.term, base.chain, base.pos + 1
            )
        open_ledger(settings(tmp_path / "b"), Door()).install_snapshot(base.index, base.term, base.chain, 2 * 4096)
        async with member(tmp_path / "b") as late:
            assert late.store.min_pos == late.store.max_pos == 2 * 4096
            late.follow(leader)
            late.commit(11)
            late.store.dispatcher.finish()
            assert late.store.queues.min_offset("T", 0) == first
            records = read_queue(late.store)
            assert [record.queue_offset for record in records][-1] == 11
            assert records == read_queue(leader.store)[-len(records) :]
    async with member(tmp_path / "b") as again:
        assert read_queue(again.store) == records and again.ledger.first_index == first


async def test_what_was_made_of_a_log_that_is_no_more_is_forgotten(tmp_path: Path) -> None:
    """L11: its queues ended where its old log did. A record behind the base would follow on them, at a wrong offset."""
    async with member(tmp_path / "a") as leader, member(tmp_path / "b") as late:
        leader.lead(1)
        tasks = [put(leader, b"m%02d" % number * 300) for number in range(4)]
        await leader.until_written(3)
        late.follow(leader)
        for one in (leader, late):
            one.commit(3)
            one.store.dispatcher.finish()
        assert late.store.queues.max_offset("T", 0) == 4
        tasks += [put(leader, b"m%02d" % number * 300) for number in range(4, 16)]
        await leader.until_written(15)
        leader.commit(15)
        await asyncio.gather(*tasks)
        await late.store.close()
        first = leader.ledger.index_of(2 * 4096) + 1
        base = leader.ledger.point(first - 1)
        anew = open_ledger(settings(tmp_path / "b"), Door())
        anew.install_snapshot(base.index, base.term, base.chain, 2 * 4096)
        # Entries arrived after the snapshot before the store was opened again.
        anew.append_entries(anew.check(leader.ledger.log.read_range(first, 15), base.index, base.term), first)
        anew.log.write_out()
        anew.log.sync()
        anew.close(base.index)
        assert forget_derived(Door(), tmp_path / "b", 2 * 4096)
        async with member(tmp_path / "b") as again:
            again.commit(15)
            again.store.dispatcher.finish()
            assert (again.store.queues.min_offset("T", 0), again.store.queues.max_offset("T", 0)) == (first, 16)
            assert read_queue(again.store) == read_queue(leader.store)[first:]
        assert not forget_derived(Door(), tmp_path / "b", 2 * 4096), "these are of the log that is there"


async def test_a_queue_whose_records_all_lie_before_a_snapshot_counts_on(tmp_path: Path) -> None:
    """The others have its last offset in a file that is never deleted; who begins behind the base has to be told."""
    async with member(tmp_path / "a") as leader:
        leader.lead(1)
        tasks = [put(leader, b"early", topic="idle") for _ in range(3)]
        tasks += [put(leader, b"x" * 900) for _ in range(12)]
        await leader.until_written(14)
        leader.commit(14)
        await asyncio.gather(*tasks)
        base = leader.ledger.point(leader.ledger.index_of(2 * 4096))
        leader.store.dispatcher.finish()
        ends = leader.store.group.ends_before(2 * 4096)
        assert ends == {("idle", 0): 3}
        open_ledger(settings(tmp_path / "b"), Door()).install_snapshot(base.index, base.term, base.chain, 2 * 4096)
        async with member(tmp_path / "b") as late:
            late.store.group.count_from({**ends, ("T", 0): 1, ("other", 1): 9})
            late.follow(leader)
            late.commit(14)
            late.store.dispatcher.finish()
            assert late.store.group.ends_before(2 * 4096) == {("idle", 0): 3, ("other", 1): 9}, (
                "to be told to the next one"
            )
            late.lead(2)
            late.auto = True
            assert (await put(late, b"later", topic="idle")).queue_offset == 3
            assert (await put(late, b"later", topic="T")).queue_offset == 12, "a queue's own records count"
            late.store.dispatcher.finish()
            assert (late.store.queues.min_offset("idle", 0), late.store.queues.max_offset("idle", 0)) == (3, 4)
            leader.follow(late)
            leader.commit(late.ledger.last_index)
            leader.store.dispatcher.finish()
            assert read_queue(leader.store, topic="idle")[-1] == read_queue(late.store, topic="idle")[-1]


async def test_a_queue_whose_last_records_a_conversion_left_out_counts_on(tmp_path: Path) -> None:
    """They were damaged, and their offsets were given out: every leader counts from behind them."""
    async with member(tmp_path / "a") as one:
        one.auto = True
        one.lead(1)
        for _ in range(3):
            await put(one, b"sound", topic="T")
        one.store.dispatcher.finish()
        one.store.group.count_from({("T", 0): 5})
        assert one.store.group.ends_before(0) == {("T", 0): 5}, "the log alone shows 3"
        one.lead(2)
        assert (await put(one, b"later", topic="T")).queue_offset == 5
        one.store.dispatcher.finish()
        assert one.store.group.ends_before(0) == {}, "the log shows it now"
        assert one.store.queues.max_offset("T", 0) == 6


# -- faults and cleaning -----------------------------------------------------------------------------------------------


async def test_a_failed_write_is_reported_to_the_driver(tmp_path: Path) -> None:
    door = Door()
    async with member(tmp_path, door) as one:
        one.auto = True
        one.lead(1)
        assert (await put(one, b"fine")).status is PutStatus.PUT_OK
        door.fail("write", "/data/00000000000000000000", errno.ENOSPC, times=1)
        assert (await put(one, b"lost")).status is PutStatus.UNKNOWN_ERROR
        assert [(error.errno, final) for error, final in one.failures] == [(errno.ENOSPC, False)]
        result = await put(one, b"fine again")
        assert (result.status, result.queue_offset) == (PutStatus.PUT_OK, 1)
        door.fail("sync", "/data/00000000000000000000", errno.EIO, times=1)
        assert (await put(one, b"unknown")).status is PutStatus.UNKNOWN_ERROR
        assert [(error.errno, final) for error, final in one.failures][1:] == [(errno.EIO, True)]
        assert one.ledger.synced_index == 1


async def test_old_segments_are_deleted_when_the_driver_lets_them_go(tmp_path: Path) -> None:
    """D10: behind a durable begin, never what a peer may need."""
    async with member(tmp_path, fileReservedTime=1) as one:
        one.auto = True
        one.lead(1)
        await asyncio.gather(*(put(one, b"x" * 900) for _ in range(20)))
        assert one.store.queues.max_offset("T", 0) == 20, "dispatched"
        await one.store.upkeep.save(thorough=True)
        folder = one.store.settings.log_folder
        for path in folder.iterdir():
            os.utime(path, (1_000_000, 1_000_000))
        one.store.upkeep._cleaner.ask()
        one.replica.kept_from = 4096
        await one.store.upkeep.clean()
        assert one.ledger.base.pos == one.store.min_pos == 4096
        one.replica.kept_from = 3 * 4096
        await one.store.upkeep.clean()
        assert one.ledger.base.pos == one.store.min_pos == 3 * 4096
        assert min(int(path.name) for path in folder.iterdir()) == 3 * 4096
        first = one.ledger.first_index
        assert one.store.queues.min_offset("T", 0) == first > 0
        assert [record.queue_offset for record in read_queue(one.store)] == list(range(first, 20))
    async with member(tmp_path) as again:
        assert (again.ledger.first_index, again.store.min_pos) == (first, 3 * 4096)
        assert len(read_queue(again.store)) == 20 - first


async def test_own_entries_go_through_the_engine_like_messages(tmp_path: Path) -> None:
    async with member(tmp_path) as one:
        one.auto = True
        one.store.group.take_lead(1)
        one.ledger.append_own(EntryKind.NO_OP, b"", 1_700_000_000_000, HOST.encode())
        one.ledger.append_own(EntryKind.METADATA, b"topics", 1_700_000_000_000, HOST.encode())
        one.store.appender.kick()
        await one.store.flush()
        one.commit(1)
        assert [record.body for record in read_queue(one.store, "TALLY_SYS_GROUP_LOG")] == [b"", b"topics"]


async def test_the_setting_and_the_replica_belong_together(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="only then"):
        await MessageStore.open(settings(tmp_path), store_host=HOST)
    replica = LedgerReplica(open_ledger(settings(tmp_path), Door()))
    with pytest.raises(SettingsError, match="only then"):
        await MessageStore.open(small(tmp_path), store_host=HOST, replica=replica)
