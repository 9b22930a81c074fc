"""A broker with `enableConsumeQueueExt`: it writes extensions, and builds them again together with their queues."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from engine_lab import HOST, kill, message, opened, read_queue, small

from tallystick.store.engine.message_store import MessageStore
from tallystick.store.findings import FindingKind
from tallystick.store.formats.queue_format import MAX_EXT_ADDRESS
from tallystick.store.formats.segment_files import segment_name
from tallystick.store.settings import StoreSettings
from tallystick.store.verify.report import verify

COUNT = 60
EXT_BYTES = 10 * 20 + 4


def extended(root: Path) -> StoreSettings:
    return small(root, enableConsumeQueueExt=True, mappedFileSizeConsumeQueueExt=EXT_BYTES)


async def fill(store: MessageStore, first: int = 0) -> None:
    for n in range(first, first + COUNT):
        await store.writes.put(
            message(b"body %d" % n * 8, queue=n % 2, properties=f"TAGS\x01a{n % 3}\x02KEYS\x01k{n}\x02")
        )


def addresses(store: MessageStore, queue: int = 0) -> int:
    return sum(code <= MAX_EXT_ADDRESS for _, _, code in store.reads.units("T", queue, 0, 1000))


def ext(root: Path, queue: int = 0) -> Path:
    return root / "consumequeue_ext" / "T" / str(queue)


async def test_new_units_have_an_extension_if_it_is_set(tmp_path: Path) -> None:
    async with opened(small(tmp_path)) as store:
        await fill(store)
        assert addresses(store) == 0 and not ext(tmp_path).exists()
    async with opened(extended(tmp_path)) as store:
        await fill(store, COUNT)
        assert addresses(store) == COUNT // 2
        assert len(read_queue(store)) == COUNT
    assert {path.stat().st_size for path in ext(tmp_path).iterdir()} == {EXT_BYTES}
    assert verify(tmp_path).sound


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a short file": lambda root: os.truncate(ext(root) / segment_name(EXT_BYTES), 50),
    "a long file": lambda root: os.truncate(ext(root) / segment_name(EXT_BYTES), 500),
    "a file at a wrong place": lambda root: shutil.copy(ext(root) / segment_name(0), ext(root) / segment_name(7)),
    "the queue": lambda root: shutil.rmtree(root / "consumequeue" / "T" / "0"),
}


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("what", DAMAGE)
async def test_a_start_builds_a_queue_again_with_its_extension(tmp_path: Path, what: str, killed: bool) -> None:
    if killed:
        store = await MessageStore.open(extended(tmp_path), store_host=HOST)
        await fill(store)
        store.dispatcher.finish()
        await store.threads.run_upkeep(store._dispatch.write_out)
        await kill(store)
        store._lock.release()
    else:
        async with opened(extended(tmp_path)) as store:
            await fill(store)
    DAMAGE[what](tmp_path)
    async with opened(extended(tmp_path)) as store:
        rebuilt = [each.file for each in store.findings.listed() if each.kind is FindingKind.REBUILT]
        assert rebuilt == ["consumequeue/T/0"] or (killed and what == "the queue")
        assert addresses(store) == addresses(store, 1) == COUNT // 2
        await fill(store, COUNT)
        assert addresses(store) == COUNT and len(read_queue(store)) == COUNT
    assert verify(tmp_path).sound
    assert {path.stat().st_size for path in ext(tmp_path).iterdir()} == {EXT_BYTES}
