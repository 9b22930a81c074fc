"""A slave and its master over real sockets: attach, follow, every named problem, and what the slave serves."""

from __future__ import annotations

import asyncio
import errno
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from copying_lab import (
    BROKER,
    SEGMENT,
    another_slave,
    copied,
    follower_of,
    hurry,
    rocketmq_nameserver,
    small,
    stuck,
    tables,
    until,
    world,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from slave import log_bytes

from tallystick.node.broker.broker import Broker
from tallystick.node.broker.copying import follower as follower_module
from tallystick.node.broker.copying.promotion import PromotionError
from tallystick.node.broker.copying.tables import CopiedTables
from tallystick.node.broker.tables.offsets import ConsumerOffsets
from tallystick.node.core.settings import NameServerSettings
from tallystick.node.nameserver.server import NameServer
from tallystick.node.remoting.client import RemotingClient
from tallystick.node.remoting.codes import RequestCode
from tallystick.node.remoting.command import Command
from tallystick.store._kernel import Door
from tallystick.store.engine.log_copy import LogCopy
from tallystick.store.formats.message import Message
from tallystick.store.settings import BrokerRole, FlushDiskType, SettingsError


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


# -- the copy ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flush", list(FlushDiskType))
async def test_a_slave_copies_and_follows_and_reports_what_is_safe(tmp_path: Path, flush: FlushDiskType) -> None:
    async with world(tmp_path) as w, w.slave(flushDiskType=flush) as broker:
        await copied(broker, w.master)
        assert w.copied == w.master.log and w.master.asked == [1]
        for n in range(5):
            w.master.grow(w.maker.add(30, seed=n))
            await copied(broker, w.master)
        await until(lambda: w.master.reports and w.master.reports[-1] == w.master.end)
        assert w.master.reports == sorted(w.master.reports)
        assert broker.store.flushed_pos == w.master.end or flush is FlushDiskType.ASYNC_FLUSH
        assert w.copied == w.master.log
        assert sum(broker.store.queues.max_offset("T", queue_id) for queue_id in range(4)) == 450
        state = broker.copying.to_json()
        assert state["state"] == "following" and state["behindBytes"] == 0 and state["master"] == w.master.address


async def test_what_is_not_synced_is_not_reported_with_sync_flush(tmp_path: Path) -> None:
    door = Door()
    async with world(tmp_path, messages=0) as w, w.slave(flushDiskType=FlushDiskType.SYNC_FLUSH, door=door) as broker:
        await until(lambda: follower_of(broker).unready() is None)
        door.fail("sync", "commitlog", errno.EIO)
        w.master.grow(w.maker.add(50))
        await until(lambda: broker.failure() is not None)
        assert all(report <= 1 for report in w.master.reports)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, database=None)
@given(
    cuts=st.lists(st.integers(0, 60_000), min_size=1, max_size=12), part=st.integers(1, 9000), seed=st.integers(0, 99)
)
def test_a_connection_that_is_cut_at_any_byte_is_continued(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], part: int, seed: int
) -> None:
    async def story() -> None:
        async with world(tmp_path_factory.mktemp("cuts"), messages=0) as w:
            w.master._part_bytes = part
            w.master.cuts = iter(cuts)
            w.master.grow(w.maker.add(100, seed=seed))
            async with w.slave() as broker:
                for n in range(3):
                    w.master.grow(w.maker.add(40, seed=seed + n))
                await copied(broker, w.master)
            assert w.copied == w.master.log
            assert not set(follower_of(broker).problems) - {
                *map(follower_module.CopyProblem, ("no-master", "unreachable"))
            }

    asyncio.run(story())


async def test_a_slave_that_starts_again_continues_and_compares_its_end(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        for n in range(3):
            async with w.slave() as broker:
                await copied(broker, w.master)
            w.master.grow(w.maker.add(100, seed=n))
        async with w.slave() as broker:
            await copied(broker, w.master)
        assert w.copied == w.master.log
        assert w.master.asked[0] == 1 and all(pos == 0 or pos < w.master.end for pos in w.master.asked)


async def test_the_master_may_be_another_tallystick(tmp_path: Path) -> None:
    nameserver = NameServer(NameServerSettings(0, "127.0.0.1", str(tmp_path / "kv.json")))
    address = f"127.0.0.1:{await nameserver.start()}"
    own = replace(BROKER, namesrvAddr=address)
    first = await Broker.start(
        replace(own, brokerId=0), replace(small(tmp_path / "master"), brokerRole=BrokerRole.SYNC_MASTER)
    )
    slave = await Broker.start(own, small(tmp_path / "slave", flushDiskType=FlushDiskType.SYNC_FLUSH))
    try:
        await until(lambda: first.slaves.slaves or follower_of(slave).extent)
        for n in range(100):
            await first.store.writes.put(Message("T", n % 4, b"x" * 900, properties="WAIT\x01false\x02"))
        await until(lambda: follower_of(slave).unready() is None and follower_of(slave).log.end == first.store.max_pos)
        results = [await first.store.writes.put(Message("T", n % 4, b"x" * 900)) for n in range(10)]
        assert {result.status.name for result in results} == {"PUT_OK"}, "SYNC_MASTER waits for reports of this slave"
        assert log_bytes(tmp_path / "slave" / "commitlog", 0, first.store.max_pos) == log_bytes(
            tmp_path / "master" / "commitlog", 0, first.store.max_pos
        )
    finally:
        await slave.stop()
        await first.stop()
        await nameserver.stop()


# -- problems, each with a name ----------------------------------------------------------------------------------------


async def test_a_master_that_lost_bytes_and_wrote_others_is_found(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        async with w.slave() as broker:
            await copied(broker, w.master)
        before = w.copied
        at = len(before) - 700
        w.master.log = before[:at] + bytes([before[at] ^ 1]) + w.maker.add(100)[at + 1 :]
        async with w.slave() as broker:
            reason = await stuck(broker, "diverged")
            assert f"differs from the master's at {at}:" in reason and broker.unready() == f"diverged: {reason}"
            assert broker.copying.to_json()["lasting"]
            w.master.log = w.maker.written()
            await copied(broker, w.master)
        assert w.copied == w.master.log


@pytest.mark.parametrize("clean", [True, False])
async def test_a_slave_with_more_than_its_master_keeps_it(tmp_path: Path, clean: bool) -> None:
    async with world(tmp_path) as w:
        async with w.slave() as broker:
            await copied(broker, w.master)
        before, whole = w.copied, w.master.log
        if not clean:
            (tmp_path / "slave" / "abort").touch()
        w.master.log = whole[: len(whole) // 2]
        async with w.slave() as broker:
            reason = await stuck(broker, "ahead")
            assert str(len(whole)) in reason and str(w.master.end) in reason
        w.master.log = whole
        assert w.copied == before


async def test_what_the_master_deleted_before_it_was_copied_is_named(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        async with w.slave() as broker:
            await copied(broker, w.master)
        end = w.master.end
        w.master.grow(w.maker.add(900))
        w.master.begin = end - end % SEGMENT + SEGMENT
        async with w.slave() as broker:
            assert f"begins at {w.master.begin}" in await stuck(broker, "deleted")
            assert broker.store.max_pos == end


async def test_an_empty_slave_begins_where_the_master_begins(tmp_path: Path) -> None:
    async with world(tmp_path, messages=900) as w:
        w.master.begin = 2 * SEGMENT
        restarts: list[None] = []
        async with w.slave() as broker:
            broker.on_restart.append(lambda: restarts.append(None))
            await until(lambda: restarts)
        for _ in range(2):  # and a start with the same plan changes nothing
            async with w.slave() as broker:
                await copied(broker, w.master)
                assert broker.store.min_pos == 2 * SEGMENT
                assert (
                    log_bytes(tmp_path / "slave" / "commitlog", 2 * SEGMENT, w.master.end)
                    == w.master.log[2 * SEGMENT :]
                )


async def test_a_slave_deletes_only_what_its_master_has_deleted(tmp_path: Path) -> None:
    async with world(tmp_path, messages=900) as w, w.slave(fileReservedTime=1) as broker:
        await copied(broker, w.master)
        assert broker.store.durability.keep_from() == 0
        w.master.begin = SEGMENT
        await until(lambda: broker.store.durability.keep_from() == SEGMENT)


@pytest.mark.parametrize(
    ("changed", "problem", "word"),
    [
        ({"mappedFileSizeCommitLog": "1073741824"}, "segment-size", "1073741824"),
        ({"enableDLegerCommitLog": "true"}, "unsupported", "DLedger"),
        ({"messageDelayLevel": "1s 7s"}, "unsupported", "1s 7s"),
    ],
)
async def test_a_master_whose_log_does_not_fit_is_named(
    tmp_path: Path, changed: dict[str, str], problem: str, word: str
) -> None:
    async with world(tmp_path) as w:
        w.master.settings |= changed
        async with w.slave() as broker:
            assert word in await stuck(broker, problem)
            assert broker.store.max_pos == 0 and w.master.asked == []


@pytest.mark.parametrize("kind", ["position", "size", "repeated", "crc"])
async def test_a_master_that_lies_is_named_and_nothing_of_it_is_stored(tmp_path: Path, kind: str) -> None:
    async with world(tmp_path) as w:

        def lie(part: tuple[int, int, bytes]) -> tuple[int, int, bytes]:
            pos, size, data = part
            if pos < 40_000 or not data:
                return part
            if kind == "position":
                return pos + 1, size, data
            if kind == "size":
                return pos, -size, data
            if kind == "repeated":
                return pos - 100, size, data
            return pos, size, data[:-50] + bytes(50)

        w.master.lie = lie
        async with w.slave() as broker:
            await stuck(broker, "bad-record" if kind == "crc" else "wrong-part")
            found = follower_of(broker)
            assert w.copied[: found.log.end] == w.master.log[: found.log.end]
            w.master.lie = lambda part: part
            await copied(broker, w.master)
        assert w.copied == w.master.log


async def test_a_master_that_is_silent_is_left(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.master.heartbeat_s = 100.0
        async with w.slave(haHousekeepingInterval=200, haSendHeartbeatInterval=50) as broker:
            await until(lambda: follower_of(broker).problems[follower_module.CopyProblem.SILENT])
            await until(lambda: len(w.master.asked) > 1)


async def test_a_master_that_goes_and_comes_back_is_followed(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.slave() as broker:
        await copied(broker, w.master)
        await w.master.stop()
        await stuck(broker, "unreachable")
        assert broker.unready().startswith("unreachable: ")
        w.master.grow(w.maker.add(50))
        await w.master.start(w.address)
        await copied(broker, w.master)


async def test_a_full_disk_stops_the_copy_and_room_continues_it(tmp_path: Path) -> None:
    door = Door()
    async with world(tmp_path, messages=900) as w:
        door.fail("create", f"{SEGMENT:020}", errno.ENOSPC)
        async with w.slave(door=door) as broker:
            await stuck(broker, "disk")
            found = follower_of(broker)
            assert found.log.end < SEGMENT and broker.failure() is None
            assert w.copied[: found.log.end] == w.master.log[: found.log.end]
            door.heal()
            await copied(broker, w.master)
        assert w.copied == w.master.log


async def test_a_write_that_fails_is_made_again(tmp_path: Path) -> None:
    door = Door()
    async with world(tmp_path) as w:
        door.fail("write", "commitlog", errno.ENOSPC, after=1, times=3)
        async with w.slave(door=door) as broker:
            await copied(broker, w.master)
            assert follower_of(broker).problems[follower_module.CopyProblem.DISK]
        assert w.copied == w.master.log


async def test_without_a_master_the_name_servers_are_asked_again(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.slave(brokerName="c") as broker:
        assert "no name server knows a master of c" in await stuck(broker, "no-master")
        w.master.name = "c"
        await w.master.register()
        await copied(broker, w.master)


# -- what a slave serves -----------------------------------------------------------------------------------------------


async def test_reports_never_pass_what_is_safe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogCopy, "safe_end", property(lambda _: 7))
    async with world(tmp_path) as w, w.slave(haSendHeartbeatInterval=20) as broker:
        await copied(broker, w.master)
        before = len(w.master.reports)
        await until(lambda: len(w.master.reports) > before + 5)
        assert max(w.master.reports) == 7


def _offset_is(broker: Broker, offset: int) -> bool:
    return broker.offsets.query("g", "T", 0) == offset


async def test_tables_are_the_masters_and_are_on_the_disk(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        for n in (1, 2):
            w.master.tables = tables(n)
            async with w.slave() as broker:
                await until(partial(_offset_is, broker, 5 + n))
                assert ("U" in broker.topics) is (n == 1) and broker.topics.get("T").write_queue_nums == 4
                assert broker.groups.get("g").retry_max_times == 2 + n
                assert broker.schedule.offsets.offsets == {3: 4 + n}
                broker.offsets.commit("g", "T", 0, 99)
                assert broker.offsets.query("g", "T", 0) == 5 + n
        await w.master.stop()
        async with w.slave() as broker:
            assert broker.offsets.query("g", "T", 0) == 7 and broker.groups.get("g").retry_max_times == 4
        await w.master.start(w.address)


async def test_a_copy_that_is_cancelled_and_a_stop_do_not_write_one_file_at_the_same_time(tmp_path: Path) -> None:
    class Slow:
        """A file whose first write waits until it may continue."""

        def __init__(self) -> None:
            self.began, self.may_end = threading.Event(), threading.Event()
            self.content: list[Any] = []
            self.writers = self.most = 0

        def load(self) -> Any:
            return {"offsetTable": {}}

        def save(self, value: Any) -> None:
            self.writers += 1
            self.most = max(self.most, self.writers)
            if not self.began.is_set():
                self.began.set()
                assert self.may_end.wait(30)
            self.content.append(value)
            self.writers -= 1

    file = Slow()
    offsets = ConsumerOffsets(file)
    tables = CopiedTables([(offsets, file)])

    def take(offset: int) -> None:
        offsets.take({"offsetTable": {"T@g": {0: offset}}})

    take(1)
    copy = asyncio.create_task(tables.save())
    await asyncio.to_thread(file.began.wait, 30)
    copy.cancel()
    await asyncio.gather(copy, return_exceptions=True)
    take(2)
    stop = asyncio.create_task(tables.save())
    asyncio.get_running_loop().call_later(0.05, file.may_end.set)
    await stop
    assert file.most == 1
    assert [each["offsetTable"]["T@g"] for each in file.content] == [{0: 1}, {0: 2}]


async def test_tables_that_do_not_come_make_the_slave_unready(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        w.master.refuses = {RequestCode.GET_ALL_DELAY_OFFSET}
        async with w.slave() as broker:
            await until(lambda: follower_of(broker).log.end == w.master.end)
            await until(lambda: "out of order" in (broker.unready() or ""))
            w.master.refuses = set()
            await copied(broker, w.master)
            w.master.tables[RequestCode.GET_ALL_TOPIC_CONFIG] = {"topicConfigTable": {"T": 5}}
            await until(lambda: "no topics.json" in (broker.copying.follower.tables.error or ""))
            w.master.tables = tables(0)


async def test_a_topic_that_the_master_deleted_and_made_again_begins_at_0(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.slave() as broker:
        w.master.tables = tables(1)
        await copied(broker, w.master)
        await until(lambda: "T" in broker.topics)
        assert broker.store.queues.max_offset("T", 0) > 0
        w.master.tables[RequestCode.GET_ALL_TOPIC_CONFIG] = {"topicConfigTable": {}}
        await until(lambda: broker.store.queues.max_offset("T", 0) == 0)


async def test_a_slave_refuses_changes_and_serves_reads(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.slave() as broker:
        w.master.tables = tables(1)
        await copied(broker, w.master)
        await until(lambda: "T" in broker.topics)
        client, address = RemotingClient(name="test"), str(broker.advertised)
        for code in (10, 15, 17, 36, 37, 41, 200, 215, 222, 316):
            answer = await client.call(address, Command(code, ext={"topic": "T"}, body=b"{}"), 10)
            assert answer.code == 14 and w.master.address in answer.remark, code
        ext = {
            "consumerGroup": "g", "topic": "T", "queueId": "1", "queueOffset": "3", "maxMsgNums": "5", "sysFlag": "4",
            "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
        }  # fmt: skip
        answer = await client.call(address, Command(RequestCode.PULL_MESSAGE, ext=ext), 10)
        assert answer.code == 0 and answer.ext["nextBeginOffset"] == "8"
        assert (await w.registered())[1] == address
        await client.close(grace_s=0)


async def test_settings_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="brokerId: must be above 0 with brokerRole=SLAVE, not 0"):
        await Broker.start(replace(BROKER, brokerId=0), small(tmp_path))
    for value in ("host", "host:", ":1", "host:0", "host:65536", "host:x"):
        with pytest.raises(SettingsError, match=f"haMasterAddress: '{value}' is not an address"):
            await Broker.start(BROKER, small(tmp_path, haMasterAddress=value))


async def test_tables_wait_for_the_records_that_they_tell_of(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.slave() as broker:
        w.master.tables = tables(1)
        await copied(broker, w.master)
        await until(lambda: broker.schedule.offsets.offsets == {3: 5})
        w.master.lie = lambda part: (part[0], 0, b"")  # its connection sends nothing, its requests are answered
        w.master.grow(w.maker.add(10))
        w.master.tables = tables(2)
        for _ in range(20):
            await asyncio.sleep(0.01)
        assert broker.schedule.offsets.offsets == {3: 5} and broker.offsets.query("g", "T", 0) == 6
        w.master.lie = lambda part: part
        await until(lambda: broker.schedule.offsets.offsets == {3: 6} and broker.offsets.query("g", "T", 0) == 7)


async def test_another_slave_with_the_same_id_is_named_and_an_address_that_is_silent_is_not(tmp_path: Path) -> None:
    async with world(tmp_path) as one, rocketmq_nameserver(one) as (w, nameserver):
        w.master.tables = tables(1)
        async with another_slave(w, nameserver, 1):
            pass  # it has stopped, and is still registered
        async with w.slave() as broker:
            await copied(broker, w.master)
            async with another_slave(w, nameserver, 1) as other:
                reason = await stuck(broker, "unsupported")
                assert f"the slave {other.address} of b has the broker id 1" in reason
                await broker.registration.register_all()
                assert nameserver.addresses["b"][1] == str(broker.advertised), "the name server has forgotten it"
                assert await follower_of(broker).others.conflict() == reason
                with pytest.raises(PromotionError, match="the copy is not complete: unsupported"):
                    await broker.copying.promote()
            await copied(broker, w.master)
            assert (await broker.copying.promote())["end"] == w.master.end
