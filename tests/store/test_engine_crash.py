"""The store agrees with a list, crash after crash.

The list holds what was put, in the order it was put. After a kill or a power loss the log is a beginning of that list:
at least what was acknowledged as safe, and nothing that was not put. Queues and index are what that beginning makes
them.

`TALLYSTICK_SLOW=20` runs twenty times as many examples.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from engine_lab import (
    HOST,
    PEER,
    SYNC,
    Peer,
    batch_body,
    kill,
    message,
    read_queue,
    records_of,
    send_frame,
    small,
    walk_log,
)
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tallystick.store._kernel import Door
from tallystick.store.engine import connections, writes
from tallystick.store.engine.message_store import MessageStore
from tallystick.store.engine.recovery import RecoveryError
from tallystick.store.formats import progress
from tallystick.store.formats.message import TRANSACTION_PREPARED, MessageBatch, PutStatus
from tallystick.store.settings import FlushDiskType

SEGMENT = 4096
SLOW = int(os.environ.get("TALLYSTICK_SLOW", "1"))
BUDGET = settings(
    max_examples=12 * SLOW,
    stateful_step_count=25,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
HOURS_MS = 3_600_000

topics = st.sampled_from(["A", "B"])
queues = st.integers(0, 2)
sizes = st.sampled_from([0, 10, 200, 900, 1500])


@dataclass(eq=False)
class Put:
    """One message of the model. `written`: a kill does not lose it. `durable`: power loss neither."""

    topic: str
    queue: int
    body: bytes
    key: str
    queued: bool = True
    written: bool = False
    durable: bool = False
    pos: int = -1


class StoreAgreesWithAList(RuleBasedStateMachine):
    flush_type = FlushDiskType.ASYNC_FLUSH
    pool = False
    lies: tuple[tuple[str, str], ...] = ()

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="crash"))
        self.runner = asyncio.Runner()
        self.door = Door(record=True)
        self.boots = 0
        self.real_boot_id = progress.boot_id
        progress.boot_id = lambda: self.boots.to_bytes(16, "big")
        self.boots = 1
        self.now_ms = 1_700_000_000_000
        self.real_clock = writes.wall_ms
        connections.wall_ms = writes.wall_ms = self.tick
        self.list: list[Put] = []
        # Writes that failed, and where in the list they would have been: what of them is in the file may come back,
        # until something that was written over it is durable.
        self.refused: list[tuple[int, list[Put]]] = []
        self.count = 0
        self.under_way: list[tuple[asyncio.Task[Any], list[Put]]] = []
        self.waiting: dict[int, Put] = {}

    @initialize()
    def begin(self) -> None:
        self.open()

    def tick(self) -> int:
        """The store's clock. No two puts have one time, so that the checkpoint's time says exactly what is durable."""
        self.now_ms += 1
        return self.now_ms

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    def open(self) -> None:
        timers = ("flushIntervalConsumeQueue", "cleanResourceInterval", "flushCommitLogThoroughInterval")
        options: dict[str, Any] = dict.fromkeys(timers, HOURS_MS)
        if self.pool:
            options |= {"transientStorePoolEnable": True, "commitIntervalCommitLog": HOURS_MS}
        self.settings = small(self.root, flushDiskType=self.flush_type, fileReservedTime=1, deleteWhen="", **options)
        for op, part in self.lies:
            self.door.lie(op, part)
        self.store = self.run(MessageStore.open(self.settings, store_host=HOST, door=self.door))
        for topic in ("A", "B"):
            self.store.connections.set_topic(topic, 3)
        self.store.admission.set_hot(True)
        self.peer = Peer(self.store)
        self.waiting = {}

    def teardown(self) -> None:
        progress.boot_id = self.real_boot_id
        connections.wall_ms = writes.wall_ms = self.real_clock
        try:
            if hasattr(self, "store") and self.store.admission.is_open:
                self.run(kill(self.store))
        finally:
            self.runner.close()
            shutil.rmtree(self.root, ignore_errors=True)

    # -- what happens --------------------------------------------------------------------------------------------------

    def new(self, topic: str, queue: int, size: int, *, queued: bool = True) -> Put:
        self.count += 1
        name = b"%d." % self.count
        return Put(topic, queue, name + b"x" * size, f"k{self.count}", queued)

    def stored(self, puts: list[Put], status: PutStatus, *, waited: bool = True) -> None:
        assert status is PutStatus.PUT_OK, status
        for put in puts:
            put.written = not self.pool
            if waited and self.flush_type is SYNC:
                self.is_durable(put)

    def is_durable(self, put: Put) -> None:
        put.durable = True
        place = self.list.index(put)
        self.refused = [(begin, puts) for begin, puts in self.refused if begin > place]

    @rule(topic=topics, queue=queues, size=sizes, half=st.booleans(), waited=st.booleans())
    def put(self, topic: str, queue: int, size: int, half: bool, waited: bool) -> None:
        put = self.new(topic, queue, size, queued=not half)
        self.list.append(put)
        properties = f"KEYS\x01{put.key}\x02TAGS\x01T\x02" + ("" if waited else "WAIT\x01false\x02")
        flag = TRANSACTION_PREPARED if half else 0
        result = self.run(
            self.store.writes.put(message(put.body, topic=topic, queue=queue, properties=properties, sys_flag=flag))
        )
        put.pos = result.pos
        self.stored([put], result.status, waited=waited)

    @rule(topic=topics, queue=queues, count=st.integers(1, 4), size=sizes)
    def put_batch(self, topic: str, queue: int, count: int, size: int) -> None:
        puts = [self.new(topic, queue, size // 4) for _ in range(count)]
        self.list += puts
        body = batch_body(*((put.body, f"KEYS\x01{put.key}".encode()) for put in puts))
        result = self.run(self.store.writes.put_batch(MessageBatch(topic, queue, body, born_host=PEER)))
        self.stored(puts, result.status)

    @rule(topic=topics, sends=st.lists(st.tuples(queues, sizes), min_size=1, max_size=5), turns=st.integers(0, 3))
    def feed(self, topic: str, sends: list[tuple[int, int]], turns: int) -> None:
        """Sends by the short way; whether their answers come before the next thing happens is open."""
        chunk = b""
        for queue, size in sends:
            put = self.new(topic, queue, size)
            self.list.append(put)
            self.waiting[self.count] = put
            chunk += send_frame(
                put.body, topic=topic, queue=queue, opaque=self.count, properties=f"KEYS\x01{put.key}\x02"
            )

        async def feed() -> None:
            assert self.peer.feed(chunk) == []
            for _ in range(turns):
                await asyncio.sleep(0)

        self.run(feed())
        self.look_at_answers()

    @rule()
    def wait_for_answers(self) -> None:
        self.look_at_answers()
        self.run(self.peer.answered(len(self.peer.answers) + len(self.waiting)))
        self.look_at_answers()
        assert not self.waiting

    def look_at_answers(self) -> None:
        for answer in self.peer.answers:
            put = self.waiting.pop(answer["opaque"], None)
            if put is None:
                continue  # seen before
            assert answer["code"] == 0, answer
            put.written = not self.pool
            if self.flush_type is SYNC:
                self.is_durable(put)

    @rule()
    def flush(self) -> None:
        self.run(self.store.flush())
        self.look_at_answers()
        assert self.store.flushed_pos == self.store.log.staged
        for put in self.list:
            put.written = True
            self.is_durable(put)

    @rule(thorough=st.booleans())
    def save(self, thorough: bool) -> None:
        async def save() -> None:
            await self.store.upkeep.save(thorough=thorough)

        self.run(save())

    @rule()
    def let_time_pass(self) -> None:
        """Dispatch and the writing of queues have their turn."""
        self.run(asyncio.sleep(0.003))

    @rule(keep=st.integers(0, 300))
    def tear_the_next_write(self, keep: int) -> None:
        """One write to the log fails, part of it is there. The senders are told, later ones overwrite it."""
        if self.lies:
            return
        self.wait_for_answers()
        self.door.tear("commitlog", keep)
        puts = [self.new("A", n % 3, 150) for n in range(4)]

        async def put_all() -> list[PutStatus]:
            results = await asyncio.gather(
                *(
                    self.store.writes.put(
                        message(put.body, topic="A", queue=put.queue, properties=f"KEYS\x01{put.key}\x02")
                    )
                    for put in puts
                )
            )
            return [result.status for result in results]

        if self.pool:  # they are answered already, and written by a later try
            self.list += puts
            self.run(put_all())
            with pytest.raises(OSError):
                self.run(self.store.flush())
            self.flush()
            return
        assert self.run(put_all()) == [PutStatus.UNKNOWN_ERROR] * 4
        # Zeros were written over them, which a power loss may undo.
        self.refused.append((len(self.list), puts))

    def heal(self) -> None:
        self.door.heal()
        for op, part in self.lies:
            self.door.lie(op, part)

    @rule(times=st.integers(1, 2))
    def fail_to_write_queues(self, times: int) -> None:
        self.door.fail("write", "consumequeue", errno.ENOSPC, times=times)
        self.save_that_may_fail()
        self.heal()

    def save_that_may_fail(self) -> None:
        async def save() -> None:
            try:
                await self.store.upkeep.save(thorough=True)
            except OSError:
                pass  # it is tried again

        self.run(save())

    @rule()
    def clean(self) -> None:
        """The oldest segment is deleted, if the log and its queue entries are on disk."""
        self.flush()
        if self.store.max_pos < self.store.min_pos + SEGMENT:
            return
        self.run(self.caught_up())
        oldest = self.store.min_pos
        old_s = time.time() - 3 * 3600
        os.utime(self.settings.commit_log_folder / f"{oldest:020}", (old_s, old_s))
        self.store.upkeep._cleaner.ask()
        self.run(self.store.upkeep.clean())
        self.store.upkeep._cleaner._asked_runs = 0
        self.forget_below(self.store.min_pos)

    def forget_below(self, min_pos: int) -> None:
        kept = walk_log(self.settings.commit_log_folder, SEGMENT, min_pos, self.store.max_pos)
        bodies = {record.body for record in kept}
        self.list = [put for put in self.list if put.body in bodies]

    # -- crashes -------------------------------------------------------------------------------------------------------

    @rule()
    def close(self) -> None:
        """In order: everything survives."""
        self.run(self.store.close())
        self.look_at_answers()
        for put in self.list:
            put.written = put.durable = True
        self.refused.clear()
        self.reopen(clean=True)

    @rule()
    def killed(self) -> None:
        """The process dies. What was written is in the system's cache, and stays."""
        self.run(kill(self.store))
        self.look_at_answers()
        self.refused.clear()
        self.reopen(least=[put for put in self.list if put.written])

    @rule(seed=st.integers(0, 1 << 30), keep=st.sampled_from([None, 0.0, 0.5, 1.0]))
    def power_lost(self, seed: int, keep: float | None) -> None:
        """Of what no sync covers, some survives, some does not, some is torn."""
        self.run(kill(self.store))
        self.look_at_answers()
        self.door.crash(seed, keep)
        self.boots += 1
        self.open()
        if self.store.findings.counts()["damage"]:
            self.look_behind_damage()
        else:
            self.reopen(least=[put for put in self.list if put.durable], opened=True)

    def look_behind_damage(self) -> None:
        """A later write survived without an earlier one: its records stay, and the stretch before them is damage.

        The log is no beginning of what was put then, so that this store's life ends here.
        """
        names = {put.body for put in [*self.list, *(put for _, puts in self.refused for put in puts)]}
        for put in self.list:
            found = records_of(b"".join(self.store.reads.query(put.topic, put.key, 64, 0, 1 << 60).records))
            assert not put.durable or put.body in [record.body for record in found], "something safe was lost"
        for topic in ("A", "B"):
            for queue in range(3):
                bodies = []
                for offset in range(
                    self.store.queues.min_offset(topic, queue), self.store.queues.max_offset(topic, queue)
                ):
                    for record in records_of(self.store.reads.get_message(topic, queue, offset, 1).body):
                        bodies += [record.body] if record.queue_offset == offset else []
                assert all(body in names for body in bodies), "every message must have been put"
                assert len(set(bodies)) == len(bodies), "a message is there twice"
        self.run(kill(self.store))
        shutil.rmtree(self.root)
        self.root.mkdir()
        self.door = Door(record=True)
        self.list, self.refused = [], []
        self.open()

    def reopen(self, *, clean: bool = False, least: list[Put] | None = None, opened: bool = False) -> None:
        if not opened:
            self.open()
        store = self.store
        assert store.recovered.clean is clean
        log = walk_log(self.settings.commit_log_folder, SEGMENT, store.min_pos, store.max_pos)
        bodies = [record.body for record in log]
        survived = len(bodies)
        possible = [self.list] + [self.list[:place] + puts for place, puts in self.refused]
        fitting = [puts for puts in possible if [put.body for put in puts[:survived]] == bodies]
        assert fitting, "the log is no beginning of what was put"
        must = self.list if least is None else least
        assert survived >= max((self.list.index(put) + 1 for put in must), default=0), "something safe was lost"
        self.list = fitting[0][:survived]
        self.refused.clear()
        for put in self.list:
            put.written = True
            # What a power loss left is on the disk; what a kill left is in the cache, if it was not synced before.
        self.agree()

    async def caught_up(self) -> None:
        self.store.appender.write()
        self.store.dispatcher.finish()

    @rule()
    def agree(self) -> None:
        """Queues without a gap, index entries for all, and nothing else."""
        store = self.store
        self.wait_for_answers()
        if self.pool:
            self.flush()
        self.run(self.caught_up())
        assert store.dispatcher.failure is None
        expected: dict[tuple[str, int], list[bytes]] = defaultdict(list)
        for put in self.list:
            if put.queued:
                expected[put.topic, put.queue].append(put.body)
        for topic in ("A", "B"):
            for queue in range(3):
                assert [record.body for record in read_queue(store, topic, queue)] == expected[topic, queue]
        for put in self.list:
            found = records_of(b"".join(store.reads.query(put.topic, put.key, 64, 0, 1 << 60).records))
            assert put.body in [record.body for record in found], f"{put.key} is not in the index"

    @invariant()
    def positions_are_in_order(self) -> None:
        if hasattr(self, "store"):
            log = self.store.log
            assert self.store.dispatched_pos <= log.written <= log.staged and log.flushed <= log.written


class SyncFlushed(StoreAgreesWithAList):
    flush_type = SYNC


class Pooled(StoreAgreesWithAList):
    pool = True


class SyncThatLies(SyncFlushed):
    lies = (("sync", "commitlog"),)


class FolderSyncThatLies(SyncFlushed):
    lies = (("sync_dir", "commitlog"),)


TestAsyncFlush = StoreAgreesWithAList.TestCase
TestAsyncFlush.settings = BUDGET
TestSyncFlush = SyncFlushed.TestCase
TestSyncFlush.settings = BUDGET
TestPool = Pooled.TestCase
TestPool.settings = settings(BUDGET, max_examples=6 * SLOW)


@pytest.mark.parametrize("machine", [SyncThatLies, FolderSyncThatLies])
def test_a_flush_that_does_nothing_is_noticed(machine: type[StoreAgreesWithAList]) -> None:
    found = settings(
        BUDGET, max_examples=200, derandomize=True, database=None, phases=[Phase.generate], report_multiple_bugs=False
    )
    with pytest.raises((AssertionError, RecoveryError)):
        run_state_machine_as_test(machine, settings=found)
