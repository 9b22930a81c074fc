"""A slave takes the place of its master: fence, last bytes, offsets, every step that fails, and the way back."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from copying_lab import BROKER, World, copied, follower_of, hurry, send, small, tables, until, world
from slave import Slave, log_bytes

from tallystick.node.broker.broker import Broker
from tallystick.node.broker.copying import old_master as old_master_module
from tallystick.node.broker.copying import promotion as promotion_module
from tallystick.node.broker.copying.follower import Follower
from tallystick.node.broker.copying.master import Master
from tallystick.node.broker.copying.promotion import PromotionError
from tallystick.node.broker.copying.record import RecordFile
from tallystick.node.http.admin_api import AdminView
from tallystick.node.http.metrics import BrokerMetrics
from tallystick.node.http.server import Probes, application
from tallystick.node.remoting.codes import RequestCode
from tallystick.store._kernel import Door
from tallystick.store.formats.message import Message
from tallystick.store.formats.record import Record
from tallystick.store.settings import BrokerRole

BEFORE = {"brokerRole": "ASYNC_MASTER", "brokerId": "0", "brokerPermission": "6", "slaveReadEnable": "false"}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses that only spare other programs, and times that only a broken program reaches."""
    hurry(monkeypatch)
    monkeypatch.setattr(old_master_module, "LOOK_S", 0.02)
    monkeypatch.setattr(promotion_module, "STAYS_EQUAL_S", 0.05)


@asynccontextmanager
async def attached(w: World, **changes: Any) -> AsyncIterator[Broker]:
    """A slave that follows closely, with topic T and an offset of group g."""
    w.master.tables = tables(1)
    async with w.slave(**changes) as broker:
        await copied(broker, w.master)
        await until(lambda: "T" in broker.topics)
        yield broker


@asynccontextmanager
async def ready(folder: Path, **changes: Any) -> AsyncIterator[tuple[World, Broker]]:
    """The same, with its master."""
    async with world(folder) as w, attached(w, **changes) as broker:
        yield w, broker


def record_of(broker: Broker) -> RecordFile:
    """The file with the promotion of a slave."""
    assert broker.copying is not None and isinstance(broker.copying.record_file, RecordFile)
    return broker.copying.record_file


def fences(w: World) -> list[str]:
    """The roles that the master was given, in order."""
    return [changes["brokerRole"] for changes in w.master.changes if "brokerRole" in changes]


async def test_a_promoted_slave_continues_every_queue_and_the_old_master_is_a_slave(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        async with attached(w) as broker:
            ends = [broker.store.queues.max_offset("T", queue_id) for queue_id in range(4)]
            assert (await send(broker, 0))[0] == 14
            result = await broker.copying.promote()
            assert (result["end"], result["missingBytes"], result["strayBytes"]) == (w.master.end, 0, 0)
            assert not w.master.grow(w.maker.add(1)), "the old master refuses puts"
            assert [await send(broker, queue_id) for queue_id in range(4)] == [(0, end) for end in ends]
            assert await w.registered() == {0: str(broker.advertised), 1: w.master.address}
            assert broker.unready() is None and broker.settings.brokerId == 0
            assert broker.offsets.query("g", "T", 0) == 6
            broker.offsets.commit("g", "T", 0, 8)
            broker.topics.update(replace(broker.topics.get("T"), write_queue_nums=6))
            assert await broker.copying.promote() == {"end": w.master.end, "strayBytes": 0}
            with pytest.raises(PromotionError, match="this broker is the master"):
                await broker.copying.take_back()
            before = broker.store.max_pos
        async with w.slave() as broker:  # the settings still say SLAVE
            assert broker.settings.brokerId == 0 and broker.store.settings.brokerRole is BrokerRole.ASYNC_MASTER
            assert broker.offsets.query("g", "T", 0) == 8 and broker.topics.get("T").write_queue_nums == 6
            assert broker.groups.get("g").retry_max_times == 3
            assert broker.store.max_pos == before and (await send(broker, 1)) == (0, ends[1] + 1)


async def test_every_copied_record_and_no_other_is_in_the_queues(tmp_path: Path) -> None:
    async with ready(tmp_path) as (w, broker):
        await broker.copying.promote()
        found = set()
        for queue_id in range(4):
            for offset in range(broker.store.queues.max_offset("T", queue_id)):
                result = broker.store.reads.get_message("T", queue_id, offset, 1)
                found.add(Record.decode(result.body).pos)
        starts, pos = set(), 0
        while pos < w.master.end:
            if w.master.log[pos + 4 : pos + 8] != bytes.fromhex("cbd43194"):
                starts.add(pos)
            pos += int.from_bytes(w.master.log[pos : pos + 4])
        assert found == starts and len(starts) == 300


async def test_a_copy_that_is_not_complete_is_not_promoted(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.slave() as broker:
        w.master.refuses = {RequestCode.GET_ALL_CONSUMER_OFFSET}
        await until(lambda: follower_of(broker).log.end == w.master.end)
        with pytest.raises(PromotionError, match="the copy is not complete: the tables"):
            await broker.copying.promote()
        w.master.refuses = set()
        w.master.settings["mappedFileSizeCommitLog"] = "5"
        await w.master.stop()
        await w.master.start(w.address)
        await until(lambda: follower_of(broker).state == "segment-size")
        with pytest.raises(PromotionError, match="the copy is not complete: segment-size"):
            await broker.copying.promote()
        assert w.master.changes == []


async def test_what_the_master_accepted_just_before_the_fence_is_copied(tmp_path: Path) -> None:
    async with ready(tmp_path) as (w, broker):
        promoting = asyncio.ensure_future(broker.copying.promote())
        await until(lambda: fences(w) == ["SLAVE"])
        w.master.straggle(w.maker.add(40))  # sends that were past the check when the fence came
        result = await promoting
        assert result["end"] == w.master.end and result["strayBytes"] == 0
        assert log_bytes(tmp_path / "slave" / "commitlog", 0, w.master.end) == w.master.log


@pytest.mark.parametrize("where", ["queue", "lock"])
async def test_a_send_that_is_past_the_check_when_the_fence_comes_and_is_stored_late_is_copied(
    tmp_path: Path, where: str
) -> None:
    """Whatever the time that it takes, as far as the promotion knows: its disk is slow, or the thread got no time."""
    async with ready(tmp_path) as (w, broker):
        if where == "queue":
            w.master.queued = [w.maker.add(3), w.maker.add(4)]
        else:
            w.master.locked, w.master.locked_looks = w.maker.add(3), 8
        result = await broker.copying.promote()
        w.master.end_puts()
        assert log_bytes(tmp_path / "slave" / "commitlog", 0, w.master.end) == w.master.log
        assert result["end"] == w.master.end and result["strayBytes"] == 0


async def test_a_master_whose_sends_do_not_end_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ready(tmp_path) as (w, broker):
        w.master.locked, w.master.locked_looks = w.maker.add(3), 1 << 30
        with monkeypatch.context() as patch:
            patch.setattr(promotion_module, "CATCH_UP_S", 2.0)
            with pytest.raises(PromotionError, match=r"has not stored all sends that it acc.*accepts messages again"):
                await broker.copying.promote()
        assert {key: w.master.settings[key] for key in BEFORE} == BEFORE
        w.master.end_puts()
        await copied(broker, w.master)
        assert (await broker.copying.promote())["end"] == w.master.end


async def test_a_master_that_loses_the_fence_while_the_copy_catches_up_is_no_equal_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master that was not started with a file has its old settings after a restart."""
    async with ready(tmp_path) as (w, broker):
        copy_tables = Follower.copy_tables

        async def and_restarted(follower: Follower, master: Master) -> None:
            await copy_tables(follower, master)
            w.master.settings |= BEFORE

        with monkeypatch.context() as patch:
            patch.setattr(Follower, "copy_tables", and_restarted)
            with pytest.raises(PromotionError, match="is no longer fenced"):
                await broker.copying.promote()
        assert broker.copying.copies and w.master.grow(w.maker.add(1))
        await copied(broker, w.master)
        assert (await broker.copying.promote())["end"] == w.master.end


async def test_an_old_master_that_is_unfenced_again_is_fenced_again(tmp_path: Path) -> None:
    """A change that an earlier promotion sent arrives late."""
    async with ready(tmp_path) as (w, broker):
        await broker.copying.promote()
        w.master.settings |= BEFORE
        await until(lambda: w.master.settings["brokerRole"] == "SLAVE" and w.master.settings["brokerId"] == "1")


async def test_what_the_master_stores_while_the_ends_are_equal_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ready(tmp_path) as (w, broker):
        late = [w.maker.add(5)]
        copy_tables, stores = Follower.copy_tables, Master.stores
        asked: list[int] = []

        async def and_one_more(follower: Follower, master: Master) -> None:
            await copy_tables(follower, master)
            if late:
                w.master.lie = lambda part: (part[0], 0, b"")  # it is not sent before the promotion looks again
                w.master.straggle(late.pop())
                asked.append(0)

        async def looks_again(master: Master) -> bool:
            if asked and len(asked) < 3:
                asked.append(0)
                if len(asked) == 3:
                    w.master.lie = lambda part: part
            return await stores(master)

        monkeypatch.setattr(Master, "stores", looks_again)
        monkeypatch.setattr(Follower, "copy_tables", and_one_more)
        result = await broker.copying.promote()
        assert result["end"] == w.master.end and result["strayBytes"] == 0


async def test_a_master_that_cannot_be_caught_up_with_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ready(tmp_path) as (w, broker):
        w.master.lie = lambda part: (part[0], 0, b"")  # it sends nothing more
        w.master.grow(w.maker.add(10))
        with monkeypatch.context() as patch:
            patch.setattr(promotion_module, "CATCH_UP_S", 0.3)
            with pytest.raises(PromotionError, match=r"within 0\.3 s.*accepts messages again"):
                await broker.copying.promote()
        assert {key: w.master.settings[key] for key in BEFORE} == BEFORE
        w.master.lie = lambda part: part
        await copied(broker, w.master)
        assert (await broker.copying.promote())["end"] == w.master.end


async def test_a_master_that_does_not_take_the_fence_stays_the_master(tmp_path: Path) -> None:
    async with ready(tmp_path) as (w, broker):
        w.master.refuses = {RequestCode.UPDATE_BROKER_CONFIG}
        with pytest.raises(PromotionError, match="refused request 25"):
            await broker.copying.promote()
        assert follower_of(broker).unready() is None and (await send(broker, 0))[0] == 14
        w.master.refuses = set()
        w.master.settings["brokerRole"] = "SLAVE"
        record = record_of(broker)
        record.save(replace(record.load(), before={}))
        with pytest.raises(PromotionError, match="has the role SLAVE, and was not fenced from here"):
            await broker.copying.promote()


@pytest.mark.parametrize(("file", "after"), [("tally-promotion", 0), ("tally-promotion", 1), ("tally-settings", 0)])
async def test_a_decision_that_cannot_be_saved_is_not_made(tmp_path: Path, file: str, after: int) -> None:
    door = Door()
    async with ready(tmp_path, door=door) as (w, broker):
        door.fail("rename", f"{file}.json.tmp", errno.EIO, after=after, times=1)
        with pytest.raises(PromotionError):
            await broker.copying.promote()
        assert w.master.settings["brokerRole"] == "ASYNC_MASTER"
        assert w.master.grow(w.maker.add(5))
        await copied(broker, w.master)
        assert (await send(broker, 0))[0] == 14
        assert (await broker.copying.promote())["end"] == w.master.end
        assert (await send(broker, 0))[0] == 0


@pytest.mark.parametrize("back", [True, False])
async def test_a_promotion_that_was_killed_behind_its_fence_continues_or_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, back: bool
) -> None:
    class Killed(BaseException):
        """The process ends here."""

    async def killed(*_: object) -> None:
        raise Killed

    async with world(tmp_path) as w:
        async with attached(w) as broker:
            with monkeypatch.context() as patched:
                patched.setattr(promotion_module.Promotion, "_catch_up", killed)
                with pytest.raises(Killed):
                    await broker.copying.promote()
            assert w.master.settings["brokerRole"] == "SLAVE"
        async with w.slave() as broker:
            await copied(broker, w.master)
            assert (await send(broker, 0))[0] == 14
            if back:
                assert await broker.copying.take_back() == {"master": w.master.address}
                assert {key: w.master.settings[key] for key in BEFORE} == BEFORE
                with pytest.raises(PromotionError, match="no master was fenced from here"):
                    await broker.copying.take_back()
            else:
                assert (await broker.copying.promote())["end"] == w.master.end
                assert (await send(broker, 0))[0] == 0


@pytest.mark.parametrize("restart", [True, False])
async def test_an_old_master_that_was_not_told_is_told_later(tmp_path: Path, restart: bool) -> None:
    async with world(tmp_path) as w:
        async with attached(w) as broker:
            promoting = asyncio.ensure_future(broker.copying.promote())
            await until(lambda: fences(w))
            w.master.refuses = {RequestCode.UPDATE_BROKER_CONFIG}
            await promoting
            assert w.master.settings["brokerId"] == "0" and (await send(broker, 0))[0] == 0
            if not restart:
                w.master.refuses = set()
                await until(lambda: w.master.settings["brokerId"] == "1")
        if restart:
            w.master.refuses = set()
            async with w.slave() as broker:
                await until(lambda: w.master.settings["brokerId"] == "1")
                await until(lambda: record_of(broker).load().handed_over)


async def test_a_master_that_is_dead_is_replaced_and_fenced_when_it_comes_back(tmp_path: Path) -> None:
    async with ready(tmp_path) as (w, broker):
        with pytest.raises(PromotionError, match="answers: stop it"):
            await broker.copying.promote(master_is_stopped=True)
        end = w.master.end
        w.master.lie = lambda part: (part[0], 0, b"")
        w.master.grow(w.maker.add(10))
        await until(lambda: follower_of(broker).extent.end == w.master.end)
        await w.master.stop()
        result = await broker.copying.promote(master_is_stopped=True)
        assert (result["end"], result["missingBytes"]) == (end, w.master.end - end)
        assert (await send(broker, 0))[0] == 0
        await w.master.start(w.address)
        await until(lambda: w.master.settings["brokerRole"] == "SLAVE" and w.master.settings["brokerId"] == "1")
        await until(lambda: record_of(broker).load().handed_over)


async def test_nothing_is_promoted_before_anything_was_copied(tmp_path: Path) -> None:
    async with world(tmp_path, messages=0) as w:
        await w.master.stop()
        async with w.slave() as broker:
            with pytest.raises(PromotionError, match="nothing was copied"):
                await broker.copying.promote(master_is_stopped=True)
            with pytest.raises(PromotionError):
                await broker.copying.promote()
        await w.master.start(w.address)


async def test_offsets_that_consumers_commit_to_the_old_master_are_taken(tmp_path: Path) -> None:
    async with ready(tmp_path) as (w, broker):
        await broker.copying.promote()
        broker.offsets.commit("g", "T", 1, 50)  # here they are ahead already
        w.master.tables[RequestCode.GET_ALL_CONSUMER_OFFSET] = {"offsetTable": {"T@g": {0: 9, 1: 40}, "T@h": {2: 3}}}
        await until(lambda: broker.offsets.query("g", "T", 0) == 9 and broker.offsets.query("h", "T", 2) == 3)
        assert broker.offsets.query("g", "T", 1) == 50
        broker.offsets.commit("g", "T", 0, 2)  # a reset: the old master's offset did not change since
        asked = len(w.master.changes)
        for _ in range(5):
            await asyncio.sleep(0.03)
        assert broker.offsets.query("g", "T", 0) == 2 and len(w.master.changes) == asked


async def test_slaves_copy_the_promoted_broker_and_the_old_master_is_one(tmp_path: Path) -> None:
    async with ready(tmp_path) as (w, broker):
        await broker.copying.promote()
        for n in range(20):
            await broker.store.writes.put(Message("T", n % 4, b"x" * 500))
        old = await Slave(0, w.master.log).connect(broker.slaves.port)
        await old.has(broker.store.max_pos)
        assert bytes(old.log) == log_bytes(tmp_path / "slave" / "commitlog", 0, broker.store.max_pos)
        assert broker.registration.ha_address.endswith(f":{broker.slaves.port}")
        await old.cut()


async def test_the_http_port_promotes_and_says_why_not(tmp_path: Path) -> None:
    async with ready(tmp_path) as (w, broker):
        view = AdminView(lambda: broker, lambda: "starting", lambda: {})
        app = application(Probes(lambda: None, broker.unready, lambda form: iter(())), admin=view)
        async with TestClient(TestServer(app)) as client:
            metrics = BrokerMetrics(broker).text().decode()
            assert "tally_copy_follows{" in metrics and 'problem="diverged"' in metrics
            for body in ({"masterIsStopped": 5}, {"x": 1}):
                answer = await client.post("/promotion", json=body)
                assert answer.status == 400
            answer = await client.delete("/promotion")
            assert answer.status == 409 and "no master was fenced" in (await answer.json())["error"]
            answer = await client.post("/promotion", json={"masterIsStopped": True})
            assert answer.status == 409 and "answers" in (await answer.json())["error"]
            answer = await client.post("/promotion")
            assert answer.status == 200 and (await answer.json())["end"] == w.master.end
            assert "tally_copy_follows{" not in BrokerMetrics(broker).text().decode()
    other = await Broker.start(
        replace(BROKER, brokerId=0), replace(small(tmp_path / "m"), brokerRole=BrokerRole.ASYNC_MASTER)
    )
    view = AdminView(lambda: other, lambda: "starting", lambda: {})
    async with TestClient(
        TestServer(application(Probes(lambda: None, other.unready, lambda form: iter(())), admin=view))
    ) as client:
        answer = await client.post("/promotion")
        assert answer.status == 404 and "not a slave" in (await answer.json())["error"]
    await other.stop()
