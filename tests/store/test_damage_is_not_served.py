"""A byte of the log that changed after it was stored: reported, never served, and no reason to stop."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tallystick.store.engine.message_store import MessageStore
from tallystick.store.formats.message import GetStatus, Host, Message
from tallystick.store.formats.properties import KEYS
from tallystick.store.settings import StoreSettings

HOST = Host("127.0.0.1", 10911)


def settings(root: Path) -> StoreSettings:
    return StoreSettings(
        storePathRootDir=str(root), mappedFileSizeCommitLog=1 << 16, maxHashSlotNum=50, maxIndexNum=200
    )


async def test_a_flipped_bit_is_noticed_by_every_read(tmp_path: Path) -> None:
    store = await MessageStore.open(settings(tmp_path), store_host=HOST)
    try:
        puts = [
            await store.writes.put(Message("T", 0, b"body %d" % number, f"{KEYS}\x01k{number}\x02"))
            for number in range(3)
        ]
        assert store.queues.max_offset("T", 0) == 3, (
            "all are dispatched: a read that finds some of them looks for no more"
        )
        segment = tmp_path / "commitlog" / f"{0:020}"
        at = segment.read_bytes().index(b"body 1")
        with segment.open("r+b") as file:
            file.seek(at)
            file.write(b"Body 1")
        got = store.reads.get_message("T", 0, 0, 32)
        assert (got.status, got.count, got.next_begin_offset) == (GetStatus.FOUND, 2, 3)
        assert b"body 0" in got.body and b"body 2" in got.body and b"ody 1" not in got.body
        alone = store.reads.get_message("T", 0, 1, 1)
        assert b"ody 1" not in alone.body and alone.next_begin_offset > 1
        assert store.reads.message_at(puts[1].pos) is None
        assert store.reads.query("T", "k1", 10, 0, 1 << 60).records == []
        assert store.figures.damaged_records >= 2
        assert (await store.writes.put(Message("T", 0, b"more"))).status.stored
    finally:
        await asyncio.wait_for(store.close(), 10)
