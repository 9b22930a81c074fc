"""The small parts of a member, each by itself."""

from __future__ import annotations

import asyncio
import errno
import random
from pathlib import Path

import pytest
from ledger_lab import HOST, NOW_MS, entries_of, grow, open_ledger
from ledger_twin import TwinLedger

from tallystick.replication.member.errors import DiskError, OutcomeUnknownError
from tallystick.replication.member.log_writer import LogWriter
from tallystick.replication.member.origin import FILE_NAME, Origin
from tallystick.replication.member.ranges import RangeError, checked
from tallystick.replication.member.reserve import Reserve
from tallystick.replication.member.settings import MemberSettings
from tallystick.replication.member.special import SpecialEntries
from tallystick.replication.member.waiters import Waiters
from tallystick.replication.membership import Membership, MembershipEntry
from tallystick.replication.messages import AppendRequest, TermRun
from tallystick.replication.settings import RaftSettings
from tallystick.store._kernel import Door
from tallystick.store.record import Record
from tallystick.store.settings import SettingsError


class Listener:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.written = 0
        self.synced = asyncio.Event()
        self.failed: list[tuple[int | None, bool]] = []

    def log_written(self) -> None:
        self.written += 1

    def log_synced(self) -> None:
        self.synced.set()

    def log_failed(self, error: OSError, *, final: bool) -> None:
        self.failed.append((error.errno, final))
        if final:
            self.synced.set()


def stage(ledger, twin: TwinLedger) -> None:  # type: ignore[no-untyped-def]
    first = ledger.log.staged_index + 1
    grow(twin, random.Random(first), 3, 1)
    ledger.append_entries(entries_of(ledger, twin, first, twin.last_index), first)


# -- writing -----------------------------------------------------------------------------------------------------------


async def test_a_turn_writes_and_syncs_once(tmp_path: Path) -> None:
    ledger, twin, listener = open_ledger(tmp_path), TwinLedger(4096), Listener()
    writer = LogWriter(ledger.log, listener, sync=True)
    stage(ledger, twin)
    writer.kick()
    writer.kick()
    async with asyncio.timeout(10):
        await listener.synced.wait()
    assert listener.written == 1
    assert ledger.log.flushed == ledger.log.written == ledger.log.staged
    await writer.close()


async def test_what_another_sync_made_durable_is_told(tmp_path: Path) -> None:
    ledger, twin, listener = open_ledger(tmp_path), TwinLedger(4096), Listener()
    writer = LogWriter(ledger.log, listener, sync=True)
    stage(ledger, twin)
    ledger.log.write_out()
    ledger.log.sync()
    assert writer.write() is None
    assert listener.synced.is_set()
    await writer.close()


async def test_a_write_that_fails_is_returned_and_told(tmp_path: Path) -> None:
    door = Door()
    ledger, twin, listener = open_ledger(tmp_path, door), TwinLedger(4096), Listener()
    writer = LogWriter(ledger.log, listener, sync=True)
    stage(ledger, twin)
    door.fail("write", "data/", errno.ENOSPC)
    error = writer.write()
    assert error is not None and error.errno == errno.ENOSPC
    assert listener.failed == [(errno.ENOSPC, False)]
    await writer.close()


async def test_a_sync_that_fails_is_final(tmp_path: Path) -> None:
    door = Door()
    ledger, twin, listener = open_ledger(tmp_path, door), TwinLedger(4096), Listener()
    writer = LogWriter(ledger.log, listener, sync=True)
    stage(ledger, twin)
    door.fail("sync", "data/", errno.EIO)
    writer.write()
    async with asyncio.timeout(10):
        await listener.synced.wait()
    assert listener.failed == [(errno.EIO, True)]
    await writer.close()


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", [None, MembershipEntry(41, Membership.of([0, 2], [5]))])
def test_an_origin_is_read_back(tmp_path: Path, entry: MembershipEntry | None) -> None:
    assert Origin.load(tmp_path) is None
    origin = Origin(entry, asynchronous=True)
    origin.save(Door(), tmp_path)
    assert Origin.load(tmp_path) == origin


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 2}', '{"format": 1, "index": 0, "voters": [0]}'])
def test_an_origin_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(DiskError, match=FILE_NAME):
        Origin.load(tmp_path)


@pytest.mark.parametrize("seed", range(20))
def test_power_loss_leaves_the_old_origin_or_the_new_one(tmp_path: Path, seed: int) -> None:
    door = Door(record=True)
    door.mkdir(tmp_path / "n0")
    old, new = (Origin(MembershipEntry(index, Membership.of([0, 1, 2])), False) for index in (-1, 7))
    old.save(door, tmp_path / "n0")
    door.fail("sync_dir", "n0", errno.EIO)
    with pytest.raises(OSError):
        new.save(door, tmp_path / "n0")
    door.crash(seed)
    assert Origin.load(tmp_path / "n0") in (old, new)


def test_a_reserve_is_given_up_once_for_want_of_room(tmp_path: Path) -> None:
    reserve, calls = Reserve(Door(), tmp_path), []

    def save(failing: int, number: int) -> None:
        calls.append(number)
        if len(calls) <= failing:
            raise OSError(number, "no")

    reserve.keep()
    reserve.use(lambda: save(1, errno.ENOSPC))
    assert len(calls) == 2
    with pytest.raises(OSError):  # it is gone now
        reserve.use(lambda: save(9, errno.ENOSPC))
    assert len(calls) == 3
    reserve.keep()
    with pytest.raises(OSError):  # room does not help there
        reserve.use(lambda: save(9, errno.EIO))
    assert len(calls) == 4


# -- entries -----------------------------------------------------------------------------------------------------------


def test_special_entries_are_found_and_taken_in_order(tmp_path: Path) -> None:
    ledger, twin = open_ledger(tmp_path), TwinLedger(4096)
    grow(twin, random.Random(5), 60, 1)
    ledger.append_entries(entries_of(ledger, twin, 0, 59), 0)
    ledger.log.write_out()
    kinds = [(header.log_index, header.channel) for header, _ in twin.entries if header.channel]
    for first in (0, 10, 59, 60):
        special = SpecialEntries(ledger)
        special.find(first)
        wanted = [pair for pair in kinds if pair[0] >= first]
        assert [(index, int(kind)) for index, kind, _ in special.take(30)] == [p for p in wanted if p[0] <= 30]
        special.truncate(45)
        assert [(index, int(kind)) for index, kind, _ in special.take(99)] == [p for p in wanted if 30 < p[0] <= 45]
    from_a_leader = SpecialEntries(ledger)
    from_a_leader.extend(entries_of(ledger, twin, 0, 59), 10)
    from_disk = SpecialEntries(ledger)
    from_disk.find(10)
    assert list(from_a_leader.take(99)) == list(from_disk.take(99))


def request(twin: TwinLedger, first: int, last: int, **changes: object) -> AppendRequest:
    terms = [twin.entries[index][0].term for index in range(first, last + 1)]
    runs = [
        TermRun(term, index)
        for index, (term, after) in enumerate(zip(terms, [*terms[1:], None], strict=True), first)
        if term != after
    ]
    prev_term = twin.entries[first - 1][0].term if first else -1
    fields = {"prev_index": first - 1, "prev_term": prev_term, "runs": tuple(runs)} | changes
    return AppendRequest(0, 1, 9, 1, commit_index=-1, **fields)  # type: ignore[arg-type]


def grow_in_order(twin: TwinLedger, dice: random.Random, count: int, term: int) -> None:
    """As `grow`, and memberships are memberships."""
    for _ in range(count):
        kind = dice.choice([0, 0, 0, 1, 2, 3])
        body = Membership.of([0, 1, twin.last_index + 2]).encode() if kind == 2 else dice.randbytes(300)
        topic = "TALLY_SYS_GROUP_LOG" if kind else "T"
        twin.append([Record(topic, 0, body, store_timestamp_ms=NOW_MS, store_host=HOST)], term, kind)


def test_ranges_are_what_their_request_says(tmp_path: Path) -> None:
    ledger, twin = open_ledger(tmp_path), TwinLedger(4096)
    grow_in_order(twin, random.Random(5), 20, 1)
    grow_in_order(twin, random.Random(6), 20, 4)
    ledger.append_entries(entries_of(ledger, twin, 0, 14), 0)
    ledger.log.write_out()
    for first, last in ((15, 39), (3, 30), (20, 25), (15, 15)):
        taken, entries = checked(ledger, request(twin, first, last), twin.span(first, last))
        assert (entries.first_index, entries.last_index) == (first, last)
        own = [header.log_index for header, _ in twin.entries[first : last + 1] if header.channel == 2]
        assert [entry.index for entry in taken.memberships] == own
    data = twin.span(15, 30)
    for wrong in (
        request(twin, 15, 29),
        request(twin, 14, 30),
        request(twin, 15, 30, runs=(TermRun(4, 30),)),
        request(twin, 15, 30, prev_term=2),
    ):
        with pytest.raises(RangeError):
            checked(ledger, wrong, data)
    headers = [header for header, _ in twin.entries[15:31]]
    begin = headers[0].pos
    inside = [at for at in range(0, len(data), 97) if any(h.pos <= begin + at < h.pos + h.size for h in headers)]
    assert len(inside) > 20, "the rest lies in fillers, which say nothing"
    for at in inside:
        spoiled = bytearray(data)
        spoiled[at] ^= 4
        with pytest.raises(RangeError):
            checked(ledger, request(twin, 15, 30), bytes(spoiled))


# -- waiting -----------------------------------------------------------------------------------------------------------


async def test_waiters_are_resolved_in_the_order_of_indexes() -> None:
    waiters, order = Waiters(), []
    for index in (5, 3, 9, 3):
        waiters.add(index).add_done_callback(lambda future, i=index: order.append((i, future.exception() is None)))
    waiters.resolve(2)
    waiters.resolve(5)
    waiters.fail_above(8, OutcomeUnknownError("lost"))
    await asyncio.sleep(0)
    assert order == [(3, True), (3, True), (5, True), (9, False)]
    assert len(waiters) == 0


def test_settings_that_cannot_work_are_named() -> None:
    for wrong, key in (
        (MemberSettings(max_uncommitted_bytes=0), "max_uncommitted_bytes"),
        (MemberSettings(raft=RaftSettings(max_append_bytes=1 << 25)), "max_append_bytes"),
    ):
        with pytest.raises(SettingsError, match=key):
            wrong.validate()
