"""An orderly stop does not wait until a check in the background has read all that it wanted to read."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from derived_lab import files, patch, saved, send, started
from engine_lab import HOST, message, opened, small

from tallystick.store._kernel import IndexChains, index_chain_faults
from tallystick.store.engine.message_store import MessageStore
from tallystick.store.findings import FindingKind
from tallystick.store.formats.queue_format import UNIT

SLOTS, ENTRIES = 100_000, 40_000


@pytest.fixture
def index_file(tmp_path: Path) -> Path:
    """Zeros: every slot is empty, and every entry has the hash 0 and goes back to none."""
    path = tmp_path / "index"
    path.write_bytes(bytes(40 + 4 * SLOTS + 20 * ENTRIES))
    return path


@pytest.mark.parametrize("most", [1, 1 << 18, 1 << 30])
def test_chains_are_checked_in_steps(index_file: Path, most: int) -> None:
    chains = IndexChains(index_file, SLOTS, ENTRIES, False)
    steps = 1
    while not chains.step(most):
        steps += 1
    assert chains.faults() == index_chain_faults(index_file, SLOTS, ENTRIES, False)
    assert chains.faults()[1] == ENTRIES - 2 + 1, "each entry but the first one, and the slot"
    read = 4 * SLOTS * 2 + 20 * ENTRIES
    piece = 20 << 15
    assert read / (most + piece) <= steps <= read / most + 2


async def test_a_stop_waits_for_one_step_of_the_check_of_an_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = asyncio.Event()
    loop = asyncio.get_running_loop()

    class Endless:
        def __init__(self, *_: object) -> None:
            pass

        def step(self, _: int) -> bool:
            loop.call_soon_threadsafe(began.set)
            return False

    async with opened(small(tmp_path)) as store:
        await store.writes.put(message(properties="KEYS\x01k\x02"))
        await saved(store)
    monkeypatch.setattr("tallystick.store.engine.index_repair.IndexChains", Endless)
    store = await MessageStore.open(small(tmp_path), store_host=HOST)
    await began.wait()
    async with asyncio.timeout(30):
        await store.close()
    assert not (tmp_path / "abort").exists()


@pytest.mark.parametrize("group", [False, True])
@pytest.mark.parametrize(("at", "other"), [(5, 0), (0, 5)])
async def test_a_comparison_that_a_stop_ends_changes_nothing(tmp_path: Path, at: int, other: int, group: bool) -> None:
    """What it did not read may have the records: a placeholder would hide them. It ends behind one record, which may be
    that of a unit."""
    async with started(tmp_path, group) as store:
        for number in range(12):
            await send(store, "A", 0, number)
        await saved(store)
        (path,) = files(tmp_path, "A/0")
        sound = path.read_bytes()
        patch(path, at * UNIT.size, sound[other * UNIT.size : (other + 3) * UNIT.size])
        wrong = path.read_bytes()
        await store.queue_repair.close()
        assert store.queue_repair.repair(b"A", 0, at)
        assert path.read_bytes() == wrong
        store.reads.get_message("A", 0, at, 32)
        assert path.read_bytes() == wrong
        assert store.findings.listed() == []
    async with started(tmp_path, group) as store:
        store.reads.get_message("A", 0, at, 32)
        assert path.read_bytes() == sound
        kinds = {finding.kind for finding in store.findings.listed()}
        assert kinds == {FindingKind.DAMAGE, FindingKind.REBUILT}


async def test_a_reader_of_a_store_that_stops_gets_nothing_instead_of_a_wrong_message(tmp_path: Path) -> None:
    async with started(tmp_path, False) as store:
        for number in range(12):
            await send(store, "A", 0, number)
        await saved(store)
        (path,) = files(tmp_path, "A/0")
        patch(path, 5 * UNIT.size, path.read_bytes()[: UNIT.size])
        await store.queue_repair.close()
        found = store.reads.get_message("A", 0, 5, 32)
        assert (found.count, found.next_begin_offset) == (0, 5)
