"""Members' files while a group writes: only what is committed is read, and an audit of a live store is clean."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from engine_lab import HOST, SYNC, message, opened, small
from ledger_lab import open_ledger_of
from ledger_replica import LedgerReplica

from tallystick.spark.jobs import audit
from tallystick.spark.options import ReadOptions
from tallystick.spark.runner import inline
from tallystick.spark.scan import SplitScan
from tallystick.spark.splits import plan
from tallystick.spark.volume import open_volume
from tallystick.store._kernel import Door
from tallystick.store.engine.message_store import MessageStore


@asynccontextmanager
async def member(root: Path) -> AsyncIterator[tuple[MessageStore, LedgerReplica, asyncio.Event]]:
    chosen = small(root, enableDLegerCommitLog=True, dLegerSelfId="n0", flushDiskType=SYNC)
    door = Door()
    replica = LedgerReplica(open_ledger_of(chosen, door))
    written = asyncio.Event()
    replica.on_written = replica.on_synced = written.set
    replica.on_failed = lambda error, final: None
    store = await MessageStore.open(chosen, store_host=HOST, door=door, replica=replica)
    try:
        await asyncio.gather(*(task for task in asyncio.all_tasks() if task.get_name() == "save-at-start"))
        store.group.take_lead(1)
        store.group.serve(True)
        yield store, replica, written
    finally:
        await store.close()


def offsets_of(root: Path, split_bytes: int = 1 << 30) -> list[int]:
    found = []
    for split in plan(open_volume(root), split_bytes=split_bytes):
        scan = SplitScan(split, ["physical_offset"], check_crc=True)
        found += [offset for batch in scan for offset in batch.column(0).to_pylist()]
        assert scan.damage == []
    return found


async def test_what_is_not_committed_is_not_there(tmp_path: Path) -> None:
    """Written and synced is not enough: another leader may take it back."""
    async with member(tmp_path) as (store, replica, written):
        puts = [
            asyncio.create_task(store.writes.put(message(b"m%d" % number, queue=number % 2))) for number in range(12)
        ]
        while replica.ledger.last_index < 11:
            written.clear()
            await asyncio.wait_for(written.wait(), 10)
        assert offsets_of(tmp_path) == []
        starts = [replica.ledger.pos_of(index) + 48 for index in range(12)]
        for committed in (0, 4, 10):
            replica.committed_index = committed
            store.group.commit(replica.ledger.end_of(committed))
            await asyncio.gather(*puts[: committed + 1])
            assert offsets_of(tmp_path) == starts[: len(offsets_of(tmp_path))]
            assert len(offsets_of(tmp_path)) <= committed + 1
            async with asyncio.timeout(10):  # units follow within moments
                while store.dispatched_pos < replica.ledger.end_of(committed):  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
            store._dispatch.write_out()
            assert offsets_of(tmp_path, 300) == starts[: committed + 1]
        puts[11].cancel()


async def test_an_audit_beside_a_writer_is_clean_and_sees_what_is_broken(tmp_path: Path) -> None:
    dice = random.Random(7)
    options = ReadOptions.parse({"path": f"n={tmp_path}", "splitBytes": "20000"})
    async with opened(small(tmp_path, mappedFileSizeCommitLog=65536, mappedFileSizeConsumeQueue=20 * 500)) as store:

        async def write() -> None:
            for _ in range(700):  # each audit reads all of it
                properties = f"KEYS\x01k{dice.randrange(9)}\x02UNIQ_KEY\x01u{dice.randrange(10**9)}\x02"
                body = dice.randbytes(dice.randrange(200))
                await store.writes.put(message(body, queue=dice.randrange(3), properties=properties))
                await asyncio.sleep(0.002)

        writer = asyncio.create_task(write())
        records = 0
        while not writer.done():
            summary: dict[str, Any] = await asyncio.to_thread(audit.run, options, inline)
            assert summary["differences"] == []
            assert summary["sources"][0]["records"] >= records
            records = summary["sources"][0]["records"]
        await writer
        assert audit.run(options, inline)["sources"][0]["records"] == 700
    path = tmp_path / "consumequeue" / "T" / "1" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[20 * 5 + 7] ^= 1
    path.write_bytes(data)
    (difference,) = audit.run(options, inline)["differences"]
    assert (difference["file"], difference["offset"]) == (str(path), 100)
