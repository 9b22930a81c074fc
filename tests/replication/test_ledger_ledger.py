"""The ledger as consensus sees it: indexes, positions and terms; what is staged, written and synced; faults."""

from __future__ import annotations

import errno
import random
import threading
from pathlib import Path

import pytest
from ledger_lab import HOST, NOW_MS, SEGMENT_BYTES, assert_is, entries_of, feed, grow, made, open_ledger
from ledger_twin import TwinLedger

from tallystick.replication.ledger.mark import Flags, LedgerMark
from tallystick.replication.term_runs import TermRuns
from tallystick.store._kernel import Door, EntryError
from tallystick.store.formats.ledger_format import EntryKind
from tallystick.store.formats.record import Record


def test_consensus_finds_its_terms_by_bisection(tmp_path: Path) -> None:
    ledger, twin = made(tmp_path, count=60)
    grow(twin, random.Random(1), 9, 8)
    feed(ledger, twin)
    runs = TermRuns.of(ledger)
    assert [runs.term_of(index) for index in range(-2, 70)] == [ledger.term_of(index) for index in range(-2, 70)]
    assert [ledger.term_of(index) for index in (-1, 0, 29, 30, 59, 60, 68, 69)] == [-1, 1, 1, 3, 3, 8, 8, None]


def test_positions_and_indexes_lead_to_each_other(tmp_path: Path) -> None:
    ledger, twin = made(tmp_path)
    assert ledger.end_of(-1) == 0 and ledger.index_of(0) == -1
    for index, (header, _) in enumerate(twin.entries):
        assert (ledger.pos_of(index), ledger.end_of(index)) == (header.pos, header.pos + header.size)
        assert ledger.index_of(ledger.end_of(index)) == index
    for index in (-2, 40):
        with pytest.raises(KeyError):
            ledger.end_of(index)


def test_staged_written_and_synced(tmp_path: Path) -> None:
    """S10: a leader counts itself to its synced index; consensus sees what is written."""
    ledger = open_ledger(tmp_path)
    ledger.log.set_term(4)
    assert ledger.append_own(EntryKind.NO_OP, b"", NOW_MS, HOST.encode()) == 0
    assert (ledger.log.staged_index, ledger.last_index, ledger.synced_index) == (0, -1, -1)
    assert ledger.end_of(0) == ledger.log.staged, "a put knows the position that it waits for"
    ledger.log.write_out()
    assert (ledger.last_index, ledger.synced_index) == (0, -1)
    ledger.log.sync()
    assert ledger.synced_index == 0
    assert ledger.log.flushed_point()[:3] == (ledger.end_of(0), 0, 4)
    assert Record.decode(ledger.record_of(0)).topic == "TALLY_SYS_GROUP_LOG"


def test_an_entry_is_durable_when_only_the_data_is_synced(tmp_path: Path) -> None:
    """The index may lose everything: it is made again."""
    door = Door(record=True)
    ledger, twin = made(tmp_path, door=door)
    assert ledger.synced_index == 39
    door.crash(1, 0.0)
    again = open_ledger(tmp_path, door, boot=2)
    assert_is(again, twin)
    assert "40 units differed" in " ".join(note.reason for note in again.recovered.findings)


def test_a_membership_that_could_not_be_written_is_forgotten(tmp_path: Path) -> None:
    """Its index is another entry's then."""
    door = Door()
    ledger = open_ledger(tmp_path, door)
    ledger.log.set_term(1)
    assert ledger.append_own(EntryKind.MEMBERSHIP, b"first", NOW_MS, HOST.encode()) == 0
    ledger.log.write_out()
    assert ledger.append_own(EntryKind.MEMBERSHIP, b"second", NOW_MS, HOST.encode()) == 1
    assert ledger.memberships == (1, 0)
    door.fail("write", "/data/", errno.ENOSPC, times=1)
    with pytest.raises(OSError):
        ledger.log.write_out()
    ledger.log.abandon(1, "no", NOW_MS)
    assert ledger.memberships == (0,)
    assert ledger.append_own(EntryKind.NO_OP, b"", NOW_MS, HOST.encode()) == 1
    ledger.log.write_out()
    assert ledger.memberships == (0,)
    ledger.log.sync()
    ledger.save_mark()
    mark = LedgerMark.load(tmp_path)
    assert mark is not None and mark.memberships == (0,)


def test_a_membership_that_was_cut_off_is_forgotten(tmp_path: Path) -> None:
    """Its index is another entry's from then on, also while that one is only staged."""
    ledger = open_ledger(tmp_path)
    ledger.log.set_term(1)
    for kind in (EntryKind.MEMBERSHIP, EntryKind.NO_OP, EntryKind.MEMBERSHIP):
        ledger.append_own(kind, b"members" if kind is EntryKind.MEMBERSHIP else b"", NOW_MS, HOST.encode())
    ledger.log.write_out()
    assert ledger.memberships == (2, 0)
    ledger.truncate(1)
    assert ledger.memberships == (0,)
    assert ledger.append_own(EntryKind.NO_OP, b"", NOW_MS, HOST.encode()) == 2
    assert ledger.memberships == (0,)


def test_a_follower_drops_the_filler_that_its_own_failed_write_left(tmp_path: Path) -> None:
    """It was leader; its entry for the next segment could not be written; the new leader's fits in this one."""
    door = Door()
    ledger, twin = open_ledger(tmp_path, door), TwinLedger(SEGMENT_BYTES)
    twin.append([Record("T", 0, b"x" * 3500)], 1)
    feed(ledger, twin)
    ledger.log.set_term(1)
    door.fail("write", f"data/{SEGMENT_BYTES:020}", errno.ENOSPC, times=1)
    ledger.append_own(EntryKind.METADATA, b"y" * 600, NOW_MS, HOST.encode())
    with pytest.raises(OSError):
        ledger.log.write_out()
    ledger.log.abandon(1, "no", NOW_MS)
    assert ledger.log.written == SEGMENT_BYTES, "the filler is written"
    twin.append([Record("T", 0, b"z")], 2)
    feed(ledger, twin)
    ledger.log.sync()
    assert_is(ledger, twin)
    assert_is(open_ledger(tmp_path), twin)


def test_another_history_at_the_same_index_and_term_is_refused(tmp_path: Path) -> None:
    """S13: corruption, or two clusters mixed."""
    ledger, twin = made(tmp_path, count=20)
    other = made(tmp_path / "other", seed=2, count=20)[1]
    grow(other, random.Random(5), 3, 3)
    with pytest.raises(EntryError, match="entry 20 "):
        ledger.append_entries(entries_of(ledger, other, 20, 22), 20)
    assert_is(ledger, twin)


def test_marks_and_syncs_beside_cuts_never_promise_what_was_cut(tmp_path: Path) -> None:
    """Two threads sync and mark while the log grows and is cut: what is called synced is there, and is this history."""
    ledger, twin, dice = open_ledger(tmp_path), TwinLedger(SEGMENT_BYTES), random.Random(6)
    done, errors = threading.Event(), []

    def beside() -> None:
        try:
            while not done.is_set():
                ledger.log.sync()
                ledger.save_mark()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=beside) for _ in range(2)]
    for thread in threads:
        thread.start()
    for turn in range(60):
        grow(twin, dice, dice.randrange(1, 8), turn + 1)
        feed(ledger, twin)
        if turn % 3 == 2:
            keep = dice.randrange(max(0, twin.last_index - 12), twin.last_index + 1)
            twin.cut(keep)
            ledger.truncate(keep)
            assert ledger.synced_index <= keep and ledger.log.flushed <= ledger.log.written
        mark = LedgerMark.load(tmp_path)
        if mark is not None and mark.synced.index >= 0 and mark.synced.index <= twin.last_index:
            assert mark.synced.chain == twin.entries[mark.synced.index][0].chain_crc or turn % 3 == 2
    done.set()
    for thread in threads:
        thread.join()
    assert errors == []
    again = open_ledger(tmp_path, boot=2)
    assert again.recovered.from_mark
    assert_is(again, twin)


@pytest.mark.parametrize(("op", "part"), [("sync", "/index/"), ("sync_dir", "/index")])
@pytest.mark.parametrize("power_lost", [False, True])
def test_an_index_that_could_not_be_synced_is_made_again(tmp_path: Path, op: str, part: str, power_lost: bool) -> None:
    """D7: the next sync would succeed, without what the first one lost. The data is not concerned."""
    door = Door(record=True)
    ledger, twin = made(tmp_path, door=door)
    before = LedgerMark.load(tmp_path)
    door.fail(op, part, errno.EIO, times=1)
    with pytest.raises(OSError):
        ledger.save_mark()
    mark = LedgerMark.load(tmp_path)
    assert before is not None and mark is not None
    assert (mark.synced, mark.flags) == (before.synced, Flags.REINDEX)
    ledger.save_mark()
    if power_lost:
        door.crash(1, 0.0)
    again = open_ledger(tmp_path, door, boot=2)
    assert again.recovered.walked_from == 0 and not again.recovered.from_mark
    assert_is(again, twin)
    door.crash(2, 0.0)
    last = open_ledger(tmp_path, door, boot=3)
    assert last.recovered.from_mark and last.recovered.findings == []
    assert_is(last, twin)


def test_a_sync_that_failed_is_final(tmp_path: Path) -> None:
    """D7: nothing is called synced from then on, also after a truncation."""
    door = Door()
    ledger, twin = made(tmp_path, door=door)
    grow(twin, random.Random(1), 3, 5)
    feed(ledger, twin)
    door.fail("sync", "/data/", errno.EIO, times=1)
    for _ in range(2):
        with pytest.raises(OSError):
            ledger.log.sync()
    with pytest.raises(OSError):
        ledger.truncate(41)
    with pytest.raises(OSError):
        ledger.close()
    assert ledger.synced_index == 39


def test_a_mark_promises_no_more_than_its_index_has(tmp_path: Path) -> None:
    """Entries become durable while the index is synced: theirs is not, and the mark does not name them."""
    ledger = open_ledger(tmp_path)
    ledger.append_own(EntryKind.METADATA, b"before", NOW_MS, HOST.encode())
    ledger.log.write_out()
    ledger.log.sync()
    sync_index = ledger._sync_index

    def beside() -> None:
        sync_index()
        ledger.append_own(EntryKind.METADATA, b"beside", NOW_MS, HOST.encode())
        ledger.log.write_out()
        ledger.log.sync()

    ledger._sync_index = beside  # type: ignore[method-assign]
    ledger.save_mark()
    mark = LedgerMark.load(tmp_path)
    assert mark is not None and mark.synced.index == 0
    assert ledger.synced_index == 1
