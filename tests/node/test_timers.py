"""Timers of a whole broker: delivered once, at their time, over kills; recalled or not, but never both."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from engine_lab import SYNC, kill, read_queue, small, until

from tallystick.node.broker.broker import Broker
from tallystick.node.broker.services.timer_messages import RecallHandle
from tallystick.node.core.settings import BrokerSettings
from tallystick.node.remoting.client import RemotingClient
from tallystick.node.remoting.command import Command
from tallystick.store._kernel import Door
from tallystick.store.clock import wall_ms
from tallystick.store.formats import properties
from tallystick.store.formats.record import Record

TOPIC = "rmq_sys_wheel_timer"


class Running:
    """A broker and a client of it."""

    def __init__(self, broker: Broker, client: RemotingClient) -> None:
        self.broker, self.client, self.address = broker, client, str(broker.host)

    async def send(self, key: str, *, topic: str = "T", **names: object) -> Command:
        text = properties.encode({"UNIQ_KEY": key, **{name: str(value) for name, value in names.items()}})
        ext = {"a": "pg", "b": topic, "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "5", "h": "0", "i": text}
        return await self.client.call(self.address, Command(310, ext=ext, body=key.encode()))

    async def recall(self, handle: str | None, topic: str = "T") -> Command:
        ext = {"topic": topic, "producerGroup": "pg", "recallHandle": handle or ""}
        return await self.client.call(self.address, Command(370, ext=ext))

    def delivered(self, topic: str = "T") -> list[Record]:
        return read_queue(self.broker.store, topic)

    def keys(self) -> list[str]:
        return [record.body.decode() for record in self.delivered()]

    def counts(self) -> dict[str, int]:
        info = self.broker.timers.runtime_info()
        return {name: int(value) for name, value in info.items()}


async def start(root: Path, door: Door | None = None, **changes: Any) -> Running:
    settings = BrokerSettings(
        brokerIP1="127.0.0.1",
        bindAddress="127.0.0.1",
        listenPort=0,
        vipListenerEnable=False,
        brokerName="b",
        namesrvAddr="",
        recallMessageEnable=True,
    )
    store = small(root, **({"mappedFileSizeCommitLog": 1 << 16, "flushDiskType": SYNC} | changes))
    return Running(await Broker.start(settings, store, door), RemotingClient())


async def killed(running: Running) -> None:
    """The process is gone."""
    await running.client.close()
    await kill(running.broker.store)


@asynccontextmanager
async def broker(root: Path, door: Door | None = None, **changes: Any) -> AsyncIterator[Running]:
    running = await start(root, door, **changes)
    try:
        yield running
    finally:
        await running.client.close()
        await running.broker.stop()


async def delivered_at_least(here: Running, count: int) -> None:
    await until(lambda: len(here.delivered()) >= count)


async def test_messages_are_delivered_at_their_time(tmp_path: Path) -> None:
    async with broker(tmp_path) as here:
        assert (await here.send("now", TIMER_DELIVER_MS=wall_ms() - 1)).code == 0
        begin = wall_ms()
        asked = {"a": begin + 3000, "b": begin + 2000, "c": begin + 2001}
        for key, at_ms in asked.items():
            answer = await here.send(key, TIMER_DELIVER_MS=at_ms, TAGS="x")
            assert answer.code == 0 and answer.ext is not None
            handle = RecallHandle.decode(answer.ext["recallHandle"])
            assert (handle.topic, handle.broker, handle.unique_key) == ("T", "b", key)
        await until(lambda: len(here.delivered()) == 4)
        records = {record.body.decode(): record for record in here.delivered()}
        assert list(records) == ["now", "b", "c", "a"]
        for key, at_ms in asked.items():
            assert records[key].store_timestamp_ms >= at_ms, "too early"
            assert records[key].property_table()["TAGS"] == "x"
        await until(lambda: here.counts()["timerPending"] == 0)
        assert here.counts()["timerDelivered"] == 3


async def test_what_a_client_asks_for_in_vain(tmp_path: Path) -> None:
    async with broker(tmp_path) as here:
        for names, code in (
            ({"TIMER_DELIVER_MS": "soon"}, 13),
            ({"TIMER_DELAY_SEC": 4 * 86_400}, 13),
            ({"TIMER_DELAY_MS": 9_000, "TIMER_DEL_UNIQKEY": "unknown"}, 13),
        ):
            answer = await here.send("k", **names)
            assert answer.code == code, answer.remark
        assert (await here.send("k", topic=TOPIC)).code == 16
        assert here.delivered() == [] and here.counts() == {}


async def test_recalls(tmp_path: Path) -> None:
    async with broker(tmp_path) as here:
        sent = [await here.send(f"k{n}", TIMER_DELAY_MS=60_000) for n in range(3)]
        soon = await here.send("soon", TIMER_DELAY_MS=200)
        handles = [answer.ext["recallHandle"] for answer in sent if answer.ext]
        answer = await here.recall(handles[0])
        assert answer.code == 0 and answer.ext is not None and answer.ext["msgId"] == "k0"
        again = await here.recall(handles[0])
        assert again.code == 604 and "no such message waits" in (again.remark or "")
        await until(lambda: here.keys() == ["soon"])
        assert soon.ext is not None
        assert (await here.recall(soon.ext["recallHandle"])).code == 604
        at_ms = RecallHandle.decode(handles[1]).at_ms
        old = await here.send("x", TIMER_DELIVER_MS=at_ms + 500, TIMER_DEL_UNIQKEY="k1")
        assert old.code == 0, old.remark
        for text, code in (
            (None, 604),
            ("nonsense", 604),
            (RecallHandle("U", "b", at_ms, "k2").encode(), 604),
            (RecallHandle("T", "other", at_ms, "k2").encode(), 604),
            (RecallHandle("T", "b", at_ms, "nobody").encode(), 604),
            (RecallHandle("T", "b", 1, "k2").encode(), 604),
            (RecallHandle("T", "b", wall_ms() + 10**12, "k2").encode(), 604),
        ):
            assert (await here.recall(text)).code == code
        assert (await here.recall(handles[2], topic="none")).code == 17
        await until(lambda: here.counts()["timerPending"] == 1)
        assert here.counts()["timerRecalled"] == 2
        here.broker.change_settings({"recallMessageEnable": "false"})
        assert (await here.recall(handles[2])).code == 16


@pytest.mark.parametrize("seed", range(4))
async def test_kills_neither_lose_nor_double_a_delivery(tmp_path: Path, seed: int) -> None:
    """Kills at random moments, between sends, deliveries and recalls; everything that was acknowledged counts."""
    rng = random.Random(seed)
    wanted: dict[str, int] = {}
    gone: set[str] = set()
    unknown: set[str] = set()
    for turn in range(6):
        here = await start(tmp_path)
        for number in range(30):
            key = f"{turn}-{number}"
            delay = rng.choice((1, 5, 20, 60, 150, 400))
            at_ms = wall_ms() + delay
            answer = await here.send(key, TIMER_DELIVER_MS=at_ms)
            assert answer.code == 0, answer.remark
            wanted[key] = at_ms
            if rng.random() < 0.2 and answer.ext and "recallHandle" in answer.ext:
                recalled = await here.recall(answer.ext["recallHandle"])
                if recalled.code == 0:
                    gone.add(key)
                elif recalled.code != 604:
                    unknown.add(key)
        await delivered_at_least(here, min(len(here.delivered()) + rng.randrange(25), 20))
        if turn < 5:
            await killed(here)
    try:
        await until(lambda: here.counts()["timerPending"] == 0)
        found = Counter(here.keys())
        assert {key: count for key, count in found.items() if count > 1} == {}
        assert wanted.keys() - found.keys() - gone - unknown == set(), "lost"
        assert gone & found.keys() == set(), "recalled and delivered"
        early = [r.body for r in here.delivered() if r.store_timestamp_ms < wanted[r.body.decode()]]
        assert early == []
    finally:
        await here.client.close()
        await here.broker.stop()


async def test_a_full_disk_delays_deliveries_and_doubles_none(tmp_path: Path) -> None:
    door = Door()
    async with broker(tmp_path, door) as here:
        assert (await here.send("first")).code == 0
        for number in range(20):
            assert (await here.send(f"k{number}", TIMER_DELAY_MS=4000)).code == 0
        door.fail("write", "commitlog", 28)
        await until(lambda: here.broker.timers._refused)
        assert here.keys() == ["first"]
        door.heal()
        await until(lambda: len(here.keys()) == 21)
        await until(lambda: here.counts()["timerPending"] == 0)
        assert max(Counter(here.keys()).values()) == 1


async def test_a_transaction_waits_from_its_commit_on(tmp_path: Path) -> None:
    async with broker(tmp_path) as here:
        text: dict[str, Any] = {"TRAN_MSG": "true", "PGROUP": "pg", "TIMER_DELAY_MS": 80}
        too_long = await here.send("long", **{**text, "TIMER_DELAY_SEC": 10**7})
        assert too_long.code == 13
        half = await here.send("half", **text)
        assert half.code == 0 and half.ext is not None
        pos = int(half.ext["msgId"][16:], 16)
        await asyncio.sleep(0.1)
        assert here.keys() == []
        end = {
            "producerGroup": "pg",
            "tranStateTableOffset": half.ext["queueOffset"],
            "commitLogOffset": str(pos),
            "commitOrRollback": "8",
        }
        begin = wall_ms()
        assert (await here.client.call(here.address, Command(37, ext=end))).code == 0
        await until(lambda: here.keys() == ["half"])
        (record,) = here.delivered()
        assert record.store_timestamp_ms >= begin + 80 and record.sys_flag & 0x0C == 8


async def test_an_old_segment_goes_and_its_timers_stay(tmp_path: Path) -> None:
    async with broker(tmp_path, mappedFileSizeCommitLog=8192, fileReservedTime=0, cleanResourceInterval=50) as here:
        store = here.broker.store
        at_ms = wall_ms() + 7_000
        handles = []
        for number in range(10):
            answer = await here.send(f"k{number}", TIMER_DELIVER_MS=at_ms)
            assert answer.ext is not None
            handles.append(answer.ext["recallHandle"])
        for number in range(60):
            assert (await here.send("x" * 300 + str(number), topic="U")).code == 0
        await store.upkeep.save(thorough=True)
        store.queues.delete_expired_segments()
        await until(lambda: store.min_pos >= 8192)
        assert here.counts()["timerRolled"] >= 10
        assert (await here.recall(handles[3])).code == 0
        await until(lambda: here.counts()["timerPending"] == 0)
        assert sorted(here.keys()) == sorted(f"k{number}" for number in range(10) if number != 3)
        assert all(record.store_timestamp_ms >= at_ms for record in here.delivered())


async def test_a_timer_in_delivery_is_not_recalled(tmp_path: Path) -> None:
    async with broker(tmp_path) as here:
        answer = await here.send("k", TIMER_DELAY_MS=60_000)
        timers = here.broker.store.timers
        assert timers is not None and answer.ext is not None
        await timers.reached(here.broker.store.max_pos)
        ((offset, _, _),) = timers.index.take_due(2**62, 10)
        refused = await here.recall(answer.ext["recallHandle"])
        assert refused.code == 604 and "is being delivered" in (refused.remark or "")
        timers.index.give_back(offset)
        assert (await here.recall(answer.ext["recallHandle"])).code == 0


async def test_recalls_without_write_permission(tmp_path: Path) -> None:
    async with broker(tmp_path) as here:
        answer = await here.send("k", TIMER_DELAY_MS=60_000)
        assert answer.ext is not None
        here.broker.change_settings({"brokerPermission": "4", "allowRecallWhenBrokerNotWriteable": "false"})
        assert (await here.recall(answer.ext["recallHandle"])).code == 14
        here.broker.change_settings({"allowRecallWhenBrokerNotWriteable": "true"})
        assert (await here.recall(answer.ext["recallHandle"])).code == 0


async def test_a_recall_ends_all_copies_of_a_message(tmp_path: Path) -> None:
    """A producer repeats a send whose answer was lost: the same key and time twice."""
    async with broker(tmp_path) as here:
        at_ms = wall_ms() + 60_000
        answers = [await here.send("k", TIMER_DELIVER_MS=at_ms) for _ in range(2)]
        assert answers[0].ext is not None and answers[1].ext is not None
        assert answers[0].ext["recallHandle"] == answers[1].ext["recallHandle"]
        assert (await here.recall(answers[0].ext["recallHandle"])).code == 0
        timers = here.broker.store.timers
        assert timers is not None
        await timers.reached(here.broker.store.max_pos)
        assert (here.counts()["timerRecalled"], here.counts()["timerPending"]) == (2, 0)


async def test_a_recall_gives_back_what_it_cannot_end(tmp_path: Path) -> None:
    async with broker(tmp_path) as here:
        at_ms = wall_ms() + 60_000
        answer = await here.send("k", TIMER_DELIVER_MS=at_ms)
        await here.send("k", TIMER_DELIVER_MS=at_ms)
        timers = here.broker.store.timers
        assert timers is not None and answer.ext is not None
        await timers.reached(here.broker.store.max_pos)
        ((offset, pos, due, key), _) = sorted(timers.index.find(b"k", at_ms, at_ms), reverse=True)
        assert timers.index.take(offset, pos, due, key), "the second copy is in delivery"
        assert (await here.recall(answer.ext["recallHandle"])).code == 604
        assert timers.index.counts()[:2] == (2, 1)


async def test_a_timer_comes_back_when_its_bytes_were_dropped(tmp_path: Path) -> None:
    """A failed write drops what was staged: the log never gets there."""
    async with broker(tmp_path) as here:
        await here.send("k", TIMER_DELAY_MS=60_000)
        timers = here.broker.store.timers
        assert timers is not None
        await timers.reached(here.broker.store.max_pos)
        ((offset, _, _),) = timers.index.take_due(2**62, 10)
        async with asyncio.timeout(30):
            service = here.broker.timers
            await service._give_back(timers, [offset], here.broker.store.max_pos + 1000, service._run)
        assert timers.index.counts()[:2] == (1, 0)


async def test_what_an_earlier_run_took_is_not_given_back_twice(tmp_path: Path) -> None:
    """A leader's put can end after it leads again, when the timer is in delivery once more."""
    async with broker(tmp_path) as here:
        await here.send("k", TIMER_DELAY_MS=60_000)
        timers, service = here.broker.store.timers, here.broker.timers
        assert timers is not None
        await timers.reached(here.broker.store.max_pos)
        run = service._run
        await service.stop()
        await service.start()
        await until(lambda: service._running)
        ((offset, _, _),) = timers.index.take_due(2**62, 10)
        await service._give_back(timers, [offset], 0, run)
        assert timers.index.counts()[:2] == (1, 1)


async def test_timers_that_fill_the_disk_are_not_stored_again_and_again(tmp_path: Path) -> None:
    async with broker(tmp_path, mappedFileSizeCommitLog=8192, fileReservedTime=0) as here:
        store, timers = here.broker.store, here.broker.store.timers
        assert timers is not None
        for turn in range(3):
            for number in range(10 if turn == 0 else 0):
                await here.send(f"k{number}", TIMER_DELAY_MS=60_000)
            for number in range(60):
                await here.send("x" * 300 + str(number), topic="U")
            await store.upkeep.save(thorough=True)
            store.queues.delete_expired_segments()
            await store.upkeep.clean()
            assert timers.wanted_pos > 0
            here.broker.timers._wake.set()
            await until(lambda: timers.wanted_pos == 0)
            await timers.reached(store.max_pos)
            assert here.counts()["timerRolled"] == 10 and here.counts()["timerPending"] == 10
        assert 0 < store.min_pos <= timers.keep_from()


async def test_a_lost_timer_does_not_hold_the_log(tmp_path: Path) -> None:
    async with broker(tmp_path, mappedFileSizeCommitLog=8192, fileReservedTime=0) as here:
        store, timers = here.broker.store, here.broker.store.timers
        assert timers is not None
        await here.send("lost", TIMER_DELAY_MS=60_000)
        await here.send("kept", TIMER_DELAY_MS=60_000)
        for number in range(60):
            await here.send("x" * 300 + str(number), topic="U")
        path = store.settings.log_folder / f"{0:020}"
        data = bytearray(path.read_bytes())
        data[data.index(b"lost")] ^= 1
        path.write_bytes(data)
        await store.upkeep.save(thorough=True)
        for _ in range(3):
            store.queues.delete_expired_segments()
            await store.upkeep.clean()
            here.broker.timers._wake.set()
            await until(lambda: timers.wanted_pos == 0)
            await timers.reached(store.max_pos)
            await store.upkeep.save(thorough=True)
        assert store.min_pos >= 8192
        assert (here.counts()["timerLost"], here.counts()["timerPending"]) == (1, 1)
