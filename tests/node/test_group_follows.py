"""A group follows a master of RocketMQ, and takes its place: the log, the tables, leaders that change, promotion."""

from __future__ import annotations

from pathlib import Path

import pytest
from copying_lab import hurry, send, tables, until, world
from following_lab import check_queues, copy_of, followed, followers

from tallystick.node.broker.copying import old_master as old_master_module
from tallystick.node.broker.copying import promotion as promotion_module


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
