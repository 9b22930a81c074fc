"""A signal in a long recovery ends it there, as a kill would, and the next start finds everything."""

from __future__ import annotations

from pathlib import Path

import pytest

from tallystick.node.broker.broker import Broker
from tallystick.node.core.settings import BrokerSettings
from tallystick.node.core.starting import StartProgress, StartStoppedError
from tallystick.store.formats.message import Message
from tallystick.store.settings import FlushDiskType, StoreSettings

SETTINGS = BrokerSettings(brokerIP1="127.0.0.1", bindAddress="127.0.0.1", listenPort=0, vipListenerEnable=False)


def small(root: Path) -> StoreSettings:
    return StoreSettings(
        storePathRootDir=str(root),
        mappedFileSizeCommitLog=1 << 20,
        maxHashSlotNum=100,
        maxIndexNum=400,
        flushDiskType=FlushDiskType.SYNC_FLUSH,
    )


async def test_a_start_that_is_stopped_lets_go_of_the_folder_and_the_next_one_recovers_it(tmp_path: Path) -> None:
    broker = await Broker.start(SETTINGS, small(tmp_path))
    for number in range(50):
        assert (await broker.store.writes.put(Message("T", 0, b"%d" % number))).status.stored
    await broker.stop()
    (tmp_path / "abort").touch()
    (tmp_path / "tally-progress").unlink()
    progress = StartProgress()
    progress.stop()
    for _ in range(2):
        with pytest.raises(StartStoppedError, match="the store is being recovered"):
            await Broker.start(SETTINGS, small(tmp_path), progress=progress)
        assert (tmp_path / "abort").exists(), "as after a kill"
    broker = await Broker.start(SETTINGS, small(tmp_path))
    assert broker.store.queues.max_offset("T", 0) == 50
    await broker.stop()
