"""Plain stores and members' stores with small files, for tests that damage what is derived from the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from engine_lab import HOST, SYNC, message, records_of, small
from ledger_lab import open_ledger_of
from ledger_replica import LedgerReplica

from tallystick.store._kernel import Door
from tallystick.store.engine.message_store import MessageStore
from tallystick.store.formats.message import GetStatus
from tallystick.store.settings import StoreSettings

HOURS_MS = 3_600_000
FILE_BYTES = 20 * 16
"""Of a ConsumeQueue."""
TIMERS = ("flushIntervalConsumeQueue", "cleanResourceInterval", "flushCommitLogThoroughInterval")


class Sent(NamedTuple):
    topic: str
    queue: int
    offset: int
    body: bytes
    key: str


def chosen(root: Path, group: bool, **changes: Any) -> StoreSettings:
    member = {"enableDLegerCommitLog": True, "dLegerSelfId": "n0", "flushDiskType": SYNC} if group else {}
    return small(
        root, deleteWhen="", deleteCommitLogFilesInterval=0, **(dict.fromkeys(TIMERS, HOURS_MS) | member | changes)
    )


def open_replica(settings: StoreSettings) -> LedgerReplica:
    replica = LedgerReplica(open_ledger_of(settings, Door(), boot=1, suffix=b"CLUSTER\x01DefaultCluster\x02"))
    replica.committed_index = replica.ledger.last_index
    return replica


@asynccontextmanager
async def started(root: Path, group: bool, door: Door | None = None, **changes: Any) -> AsyncIterator[MessageStore]:
    """A plain store, or the store of a member that is a group of one and leads it: what is synced is committed."""
    settings = chosen(root, group, **changes)
    replica = open_replica(settings) if group else None
    store = await MessageStore.open(settings, store_host=HOST, door=door, replica=replica)
    try:
        if replica is not None:
            ledger = replica.ledger

            def synced() -> None:
                replica.committed_index = ledger.synced_index
                store.group.commit(ledger.end_of(ledger.synced_index))

            replica.on_synced = synced
            store.group.commit(ledger.end_of(ledger.last_index))
            store.group.take_lead(1)
            store.group.serve(True)
        await asyncio.gather(*(task for task in asyncio.all_tasks() if task.get_name() == "save-at-start"))
        yield store
    finally:
        await store.close()


async def send(store: MessageStore, topic: str, queue: int, number: int, tag: str = "") -> Sent:
    body = b"%04d" % number + b"." * (number * 7 % 90)
    properties = f"KEYS\x01k{number}\x02" + (f"TAGS\x01{tag}\x02" if tag else "")
    result = await store.writes.put(message(body, topic=topic, queue=queue, properties=properties))
    assert result.status.stored, result
    return Sent(topic, queue, result.queue_offset, body, f"k{number}")


async def saved(store: MessageStore, *, thorough: bool = False) -> None:
    """Returns when queue files and mark have all that was sent. Dispatch follows the log by moments."""
    await store.flush()
    async with asyncio.timeout(30):
        while store.dispatched_pos < store.max_pos:
            store.dispatcher.catch_up()
            await asyncio.sleep(0)
    await store.upkeep.save(thorough=True) if thorough else await store.queues.save_progress()


def check_reads(store: MessageStore, sent: list[Sent]) -> None:
    for each in sent:
        found = store.reads.get_message(each.topic, each.queue, each.offset, 1)
        assert found.status is GetStatus.FOUND, (each, found.status)
        (record,) = records_of(found.body)
        assert (record.queue_offset, record.body) == (each.offset, each.body), each


def check_keys(store: MessageStore, sent: list[Sent]) -> None:
    for each in sent:
        bodies = [
            records_of(record)[0].body for record in store.reads.query(each.topic, each.key, 100, 0, 2**62).records
        ]
        assert each.body in bodies, each.key


def files(root: Path, queue: str = "A/0") -> list[Path]:
    return sorted((root / "consumequeue" / queue).iterdir())


def index_file(root: Path, number: int = 0) -> Path:
    return sorted((root / "index").iterdir())[number]


def patch(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)
