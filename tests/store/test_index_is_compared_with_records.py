"""A search serves records with the asked key alone; an index file that does not agree with the log is made again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from derived_lab import Sent, check_keys, index_file, patch, saved, send, started
from engine_lab import kill, records_of

from tallystick.store._kernel import index_chain_faults
from tallystick.store.engine.message_store import MessageStore
from tallystick.store.findings import FindingKind
from tallystick.store.formats.queue_format import INDEX_ENTRY, INDEX_HEADER, IndexEntry, IndexHeader

KINDS = [pytest.param(False, id="plain"), pytest.param(True, id="group")]
COUNT = 12


async def filled(store: MessageStore) -> list[Sent]:
    sent = [await send(store, "A", number % 3, number) for number in range(COUNT)]
    await saved(store, thorough=True)
    return sent


def entry_at(store: MessageStore, number: int) -> int:
    return INDEX_HEADER.size + 4 * store.settings.maxHashSlotNum + INDEX_ENTRY.size * number


def entry_of(store: MessageStore, number: int) -> IndexEntry:
    at = entry_at(store, number)
    return IndexEntry(*INDEX_ENTRY.unpack(index_file(store.root).read_bytes()[at : at + INDEX_ENTRY.size]))


def keys_found(store: MessageStore, key: str) -> list[str]:
    found = store.reads.query("A", key, 100, 0, 2**62).records
    return [record.property_table()["KEYS"] for data in found for record in records_of(data)]


async def made_again(store: MessageStore) -> None:
    def is_done() -> bool:
        rebuilt = any(each.kind is FindingKind.REBUILT for each in store.findings.listed())
        return rebuilt and store.dispatched_pos == store.max_pos

    async with asyncio.timeout(30):
        while not is_done():  # noqa: ASYNC110 (nothing tells when dispatch is there)
            await asyncio.sleep(0.001)


@asynccontextmanager
async def restarted(root: Path, group: bool, damage: bytes, at: int) -> AsyncIterator[MessageStore]:
    patch(index_file(root), at, damage)
    async with started(root, group) as store:
        yield store


@pytest.mark.parametrize("group", KINDS)
@pytest.mark.parametrize("target", ["another record", "within a record", "behind the log", "below 0"])
async def test_an_entry_that_leads_elsewhere(tmp_path: Path, group: bool, target: str) -> None:
    async with started(tmp_path, group) as store:
        sent = await filled(store)
        wrong, right = entry_of(store, 5), entry_of(store, 9)
        pos = {
            "another record": right.pos,
            "within a record": right.pos + 10,
            "behind the log": 1 << 50,
            "below 0": -right.pos,
        }[target]
        patch(index_file(tmp_path), entry_at(store, 5) + 4, pos.to_bytes(8, signed=True))
        assert keys_found(store, "k4") == []  # not that of another key
        if target != "below 0":
            await made_again(store)
            check_keys(store, sent)
            assert entry_of(store, 5) == wrong
        for each in sent:
            assert set(keys_found(store, each.key)) <= {each.key}
        assert all(not each.file.startswith("commitlog") for each in store.findings.listed())


@pytest.mark.parametrize("group", KINDS)
@pytest.mark.parametrize("what", ["slot", "hash", "link", "time", "zeros"])
async def test_a_start_finds_entries_that_no_search_would_meet(tmp_path: Path, group: bool, what: str) -> None:
    async with started(tmp_path, group) as store:
        sent = await filled(store)
        at, entry = entry_at(store, 5), entry_of(store, 5)
        slot = INDEX_HEADER.size + 4 * (entry.key_hash % store.settings.maxHashSlotNum)
    damage = {
        "slot": (bytes(4), slot),
        "hash": ((entry.key_hash ^ 1).to_bytes(4), at),
        "link": ((3 if entry.previous != 3 else 2).to_bytes(4), at + 16),
        "time": (b"\xff", at + 12),
        "zeros": (bytes(20), at),
    }[what]
    async with restarted(tmp_path, group, *damage) as store:
        await made_again(store)
        check_keys(store, sent)
        assert entry_of(store, 5) == entry


@pytest.mark.parametrize("group", KINDS)
@pytest.mark.parametrize("damage", [(bytes(20), 0), (b"\x7f", 0), (b"\x7f", 8), (bytes(8), 8)])
async def test_a_start_finds_times_of_a_header_that_hide_all_entries(
    tmp_path: Path, group: bool, damage: tuple[bytes, int]
) -> None:
    async with started(tmp_path, group) as store:
        sent = await filled(store)
    async with restarted(tmp_path, group, *damage) as store:
        await made_again(store)
        check_keys(store, sent)


@pytest.mark.parametrize("group", KINDS)
@pytest.mark.parametrize("marks", [True, False], ids=["marks", "no_marks"])
@pytest.mark.parametrize("count", [-(2**31), -5, 0, 1])
async def test_a_start_finds_a_count_of_entries_that_hides_all_of_them(
    tmp_path: Path, group: bool, marks: bool, count: int
) -> None:
    """Without marks nothing else says that the file had entries."""
    async with started(tmp_path, group) as store:
        sent = await filled(store)
    for name in () if marks else ("tally-progress", "tally-queues", "checkpoint"):
        (tmp_path / name).unlink(missing_ok=True)
    async with restarted(tmp_path, group, count.to_bytes(4, "big", signed=True), 36) as store:
        check_keys(store, sent)


@pytest.mark.parametrize("group", KINDS)
async def test_queues_stay_what_they_are_while_the_index_is_made_again(tmp_path: Path, group: bool) -> None:
    """A unit that leads to an older place makes its record look new, and a queue that was removed has none."""
    async with started(tmp_path, group) as store:
        sent = [await send(store, topic, 0, number) for number, topic in enumerate("ABC")]
        await saved(store, thorough=True)
    path = tmp_path / "consumequeue" / "B" / "0" / f"{0:020}"
    patch(path, 0, bytes(8))
    async with started(tmp_path, group) as store:
        store.queues.remove_topic("C")
        name = store._dispatch.index_files()[0][0]
        await store.index_repair.make_again(name, "test")
        await made_again(store)
        assert [store.queues.max_offset(topic, 0) for topic in "ABC"] == [1, 1, 0]
        assert ("C", 0) not in store.queues.names()
        check_keys(store, sent)


@pytest.mark.parametrize("group", KINDS)
@pytest.mark.parametrize("ends", ["kill", "stop"])
async def test_no_mark_is_saved_while_the_index_is_made_again(tmp_path: Path, group: bool, ends: str) -> None:
    """It would name the position of the index with the ends of queues that are ahead of it. A member with damaged
    queues would reserve the offsets of records that it dispatches later."""
    async with started(tmp_path, group) as store:
        sent = await filled(store)
        units = {queue: store.reads.units("A", queue, 0, 100) for queue in range(3)}
        name = store._dispatch.index_files()[0][0]

        def taken_for_a_mark() -> Any:
            assert store._dispatch.distrust_index(name) and store._dispatch.rebuilds_index
            return store.upkeep._take(with_table=True)

        assert await store.upkeep._threads.run_between_turns(taken_for_a_mark) is None
        await store.upkeep.save(thorough=True)
        if ends == "kill":
            await kill(store)
    for path in (tmp_path / "consumequeue" / "A" / "0").iterdir():
        path.unlink()
    async with started(tmp_path, group) as store:
        await made_again(store)
        assert {queue: store.reads.units("A", queue, 0, 100) for queue in range(3)} == units
        check_keys(store, sent)


@pytest.mark.parametrize("seed", range(10))
async def test_queues_are_read_and_repaired_while_the_index_is_made_again(tmp_path: Path, seed: int) -> None:
    """The position of dispatch goes back; what lies behind it is in the queues nevertheless."""
    dice = Random(seed)
    async with started(tmp_path, bool(seed % 2)) as store:
        sent = await filled(store)
        units = {queue: store.reads.units("A", queue, 0, 100) for queue in range(3)}
        name = store._dispatch.index_files()[0][0]
        assert store._dispatch.distrust_index(name) and store._dispatch.position < store.max_pos
        for queue in range(3):
            assert store._dispatch.usable_units(b"A", queue, 0, 100) == (units[queue], -1, [])
        damaged, place = dice.randrange(3), dice.randrange(4)
        path = tmp_path / "consumequeue" / "A" / str(damaged) / f"{0:020}"
        patch(path, place * 20, dice.choice((bytes(20), path.read_bytes()[20:40], path.read_bytes()[60:80])))
        for queue in range(3):
            assert store.reads.usable_units("A", queue, 0, 100) == units[queue]
        check_keys(store, sent)


async def test_the_index_is_made_again_behind_damage_of_the_log(tmp_path: Path) -> None:
    """A recovery knows how to pass over it; dispatch that goes back meets it again."""
    async with started(tmp_path, False) as store:
        sent = await filled(store)
        ((pos, _, _),) = store.reads.units("A", 1, 1, 1)
        slot = INDEX_HEADER.size + 4 * (entry_of(store, 9).key_hash % store.settings.maxHashSlotNum)
    patch(tmp_path / "commitlog" / f"{pos - pos % 4096:020}", pos % 4096, b"\xee" * 12)
    (tmp_path / "tally-progress").unlink()
    async with restarted(tmp_path, False, bytes(4), slot) as store:
        await made_again(store)
        assert store.dispatcher.failure is None
        check_keys(store, [each for each in sent if (each.queue, each.offset) != (1, 1)])
        sent.append(await send(store, "A", 0, 99))
        await saved(store)
        check_keys(store, sent[-1:])


@pytest.mark.parametrize("group", KINDS)
@pytest.mark.parametrize("way", ["position", "key"])
async def test_a_search_that_meets_a_damaged_record_has_it_repaired(tmp_path: Path, group: bool, way: str) -> None:
    """As a pull does: it is a finding, and a group is told."""
    async with started(tmp_path, group) as store:
        sent = await filled(store)
        entry = entry_of(store, 5)
        damaged: list[tuple[int, int]] = []
        store.media.on_damage.append(lambda pos, end: damaged.append((pos, end)))
        data = store.reads.message_at(entry.pos)
        assert data is not None and store.reads.message_at(entry.pos + 1) is None and not damaged
        path = next(path for path in sorted(store.settings.log_folder.iterdir()))
        patch(path, entry.pos + 88, bytes([data[88] ^ 1]))
        if way == "position":
            assert store.reads.message_at(entry.pos) is None
        else:
            assert keys_found(store, sent[4].key) == []
        assert damaged == [(entry.pos, entry.pos + len(data))]
        assert [each.pos for each in store.findings.listed() if each.kind is FindingKind.DAMAGE] == [entry.pos]
        patch(path, entry.pos + 88, data[88:89])
        check_keys(store, sent)


async def test_a_slot_of_a_growing_file_names_one_of_its_entries_or_one_that_was_added_since(tmp_path: Path) -> None:
    """No search would reach the entries of a slot that names anything else."""
    async with started(tmp_path, False) as store:
        await filled(store)
        path, slots = index_file(tmp_path), store.settings.maxHashSlotNum
        data = bytearray(path.read_bytes())
    count = IndexHeader(*INDEX_HEADER.unpack(data[: INDEX_HEADER.size])).next_entry
    for earlier in range(1, count + 1):
        assert index_chain_faults(path, slots, earlier, True) == ([], 0)
    for slot in range(slots):
        at = INDEX_HEADER.size + 4 * slot
        for bit in range(32 if any(data[at : at + 4]) else 0):
            data[at + bit // 8] ^= 1 << bit % 8
            path.write_bytes(data)
            assert index_chain_faults(path, slots, count, True)[1] == 1, (slot, bit)
            data[at + bit // 8] ^= 1 << bit % 8
