"""Reads of a replicated log: a record with one changed bit is not served, whichever of its bytes has it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from engine_lab import HOST, SYNC, message, records_of, small
from ledger_lab import open_ledger_of
from ledger_replica import LedgerReplica

from tallystick.replication.ledger.ledger import Ledger
from tallystick.store._kernel import Door
from tallystick.store.engine.message_store import MessageStore
from tallystick.store.formats.ledger_format import ENTRY_HEADER_BYTES

COUNT = 5
HIT = 2


class Reads:
    """A store on a ledger with some messages, and all ways to read the record of one of them."""

    def __init__(self, store: MessageStore, ledger: Ledger) -> None:
        self.store, self.ledger = store, ledger
        self.told: list[tuple[int, int]] = []
        store.media.on_damage.append(lambda pos, end: self.told.append((pos, end)))
        self.entry = ledger.pos_of(HIT)
        self.pos = self.entry + ENTRY_HEADER_BYTES
        self.end = ledger.end_of(HIT)
        self.record = store.reads.message_at(self.pos)

    def flip(self, pos: int, bit: int) -> None:
        """Of a byte of the log, on the disk."""
        size = self.ledger.segment_bytes
        path = self.ledger.folder / "data" / f"{pos - pos % size:020}"
        with path.open("r+b") as file:
            file.seek(pos % size)
            (byte,) = file.read(1)
            file.seek(pos % size)
            file.write(bytes([byte ^ 1 << bit]))

    def served(self) -> list[bytes]:
        """The records that reads of the whole queue, of the message, and by its key give."""
        got = self.store.reads.get_message("T", 0, 0, 32)
        frame = self.store.reads.get_frame("T", 0, 0, 32, codes=None, opaque=1, suggested=0)
        if frame is not None:
            assert frame[0].endswith(got.body), "both ways serve the same"
        alone = self.store.reads.get_message("T", 0, HIT, 1)
        by_pos = self.store.reads.message_at(self.pos)
        records = [
            *_split(got.body),
            *_split(alone.body),
            *self.store.reads.query("T", f"k{HIT}", 9, 0, 1 << 60).records,
        ]
        return records + ([] if by_pos is None else [by_pos])

    def all_of_the_queue(self) -> list[bytes]:
        """The records of the queue, from its first offset on, one read after another."""
        queues, records = self.store.queues, list[bytes]()
        while (offset := queues.min_offset("T", 0) + len(records)) < queues.max_offset("T", 0):
            records += _split(self.store.reads.get_message("T", 0, offset, 32).body)
        return records

    async def repaired(self) -> None:
        """What the group tells the store when the bytes are as they were."""
        await self.store.log_repair.take_repaired(self.entry, self.end)
        self.told.clear()


def _split(body: bytes) -> list[bytes]:
    return [record.encode() for record in records_of(body)]


@asynccontextmanager
async def reads(root: Path, count: int = COUNT) -> AsyncIterator[Reads]:
    """With so many new messages."""
    chosen = small(root, enableDLegerCommitLog=True, dLegerSelfId="n0", flushDiskType=SYNC)
    ledger = open_ledger_of(chosen, Door(), 1)
    replica = LedgerReplica(ledger)

    def commit() -> None:
        replica.committed_index = ledger.synced_index
        store.group.commit(ledger.end_of(ledger.synced_index))

    replica.on_synced = commit
    store = await MessageStore.open(chosen, store_host=HOST, door=Door(), replica=replica)
    try:
        store.group.take_lead(1)
        store.group.serve(True)
        for number in range(count):
            await store.writes.put(message(b"body %d" % number, properties=f"KEYS\x01k{number}\x02TAGS\x01red\x02"))
        assert store.queues.max_offset("T", 0) >= count
        yield Reads(store, ledger)
    finally:
        await asyncio.wait_for(store.close(), 10)


async def test_no_bit_of_a_record_may_flip(tmp_path: Path) -> None:
    """Topic, properties, queue and times among them, which the CRC of the body does not cover."""
    async with reads(tmp_path) as lab:
        assert lab.record is not None
        assert lab.served().count(lab.record) == 4, "the queue, the message alone, by key, by position"
        sound = lab.store.reads.get_message("T", 0, 0, 32).body
        for pos in range(lab.pos, lab.end):
            lab.flip(pos, pos % 8)
            served = lab.served()
            # A damaged record is not served; the others are, and reported is this one alone.
            assert all(record in sound and record != lab.record for record in served), pos - lab.pos
            assert len(set(served)) == COUNT - 1, pos - lab.pos
            damage = lab.store._dispatch.audit(0, lab.store.readable_end, 1 << 20).damage
            assert [(at, size) for at, size, _ in damage] == [(lab.entry, lab.end - lab.entry)], "as a scrub reads it"
            assert lab.told and all(lab.entry <= at < end <= lab.end for at, end in lab.told), pos - lab.pos
            lab.flip(pos, pos % 8)
            await lab.repaired()
            assert lab.store.reads.get_message("T", 0, 0, 32).body == sound, "and its unit was not touched"


@pytest.mark.parametrize("offset", [0, 4, 7, 24, 31, 40, 43, 44, 47])
async def test_an_entry_that_does_not_vouch_for_its_record_is_damage(tmp_path: Path, offset: int) -> None:
    """Magic, sizes, position or CRC of the entry."""
    async with reads(tmp_path) as lab:
        lab.flip(lab.entry + offset, 3)
        assert lab.record not in lab.served()
        assert lab.told


async def test_the_time_of_a_damaged_record_is_not_searched_by(tmp_path: Path) -> None:
    async with reads(tmp_path) as lab:
        first_ms = lab.store.reads.store_time("T", 0, 0)
        assert lab.store.reads.store_time("T", 0, HIT) >= first_ms > 1 << 40
        lab.flip(lab.pos + 58, 0)  # of its store time, which is far in the past now
        assert lab.store.reads.store_time("T", 0, HIT) == -1
        assert lab.store.reads.offset_by_time("T", 0, first_ms) <= HIT, (
            "too early brings a message twice, too late never"
        )


@pytest.mark.parametrize("lost", [("consumequeue", "index"), ("index",)])
async def test_an_index_that_was_built_over_damage_has_all_records_after_the_repair(
    tmp_path: Path, lost: tuple[str, ...]
) -> None:
    """Also if the queues were whole, and so nothing else lacks the record."""
    async with reads(tmp_path) as lab:
        entry, end = lab.entry, lab.end
        lab.flip(lab.pos + 90, 2)
    for name in lost:
        shutil.rmtree(tmp_path / name)
    for name in ("tally-progress", "tally-queues"):
        (tmp_path / name).unlink(missing_ok=True)
    async with reads(tmp_path, count=0) as lab:
        assert lab.store.reads.query("T", f"k{HIT}", 9, 0, 1 << 60).records == []
        lab.flip(lab.pos + 90, 2)
        await lab.store.log_repair.take_repaired(entry, end)
        found = [len(lab.store.reads.query("T", f"k{number}", 9, 0, 1 << 60).records) for number in range(COUNT)]
        assert found == [1] * COUNT, "also those before the repaired one"
        assert len(records_of(lab.store.reads.get_message("T", 0, 0, 32).body)) == COUNT


@pytest.mark.parametrize("marks", [True, False], ids=["marks", "no_marks"])
@pytest.mark.parametrize("hit", [1, 3, 60, 120])
async def test_a_queue_that_was_built_over_damage_begins_with_its_first_record_after_the_repair(
    tmp_path: Path, hit: int, marks: bool
) -> None:
    """The first records were damaged, so the queue could not begin with them. 50 units are in a file."""
    async with reads(tmp_path, count=120) as lab:
        await lab.store.flush()
        records = lab.all_of_the_queue()
        entries = [(lab.ledger.pos_of(number), lab.ledger.end_of(number)) for number in range(hit)]
    for entry, _ in entries:
        lab.flip(entry + ENTRY_HEADER_BYTES + 90, 2)
    shutil.rmtree(tmp_path / "consumequeue")
    for name in () if marks else ("tally-progress", "tally-queues"):
        (tmp_path / name).unlink(missing_ok=True)
    async with reads(tmp_path, count=0) as lab:
        queues = lab.store.queues
        assert queues.min_offset("T", 0) > 0
        for entry, _ in entries:
            lab.flip(entry + ENTRY_HEADER_BYTES + 90, 2)
        await lab.store.log_repair.take_repaired(entries[0][0], entries[-1][1])
        assert (queues.min_offset("T", 0), queues.max_offset("T", 0)) == (0, 120)
        assert lab.all_of_the_queue() == records
        if hit < 120 or marks:  # a member whose whole log is damaged does not lead
            await lab.store.writes.put(message(b"one more"))
            assert queues.max_offset("T", 0) == 121
