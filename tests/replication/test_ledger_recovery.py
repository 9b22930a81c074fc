"""A log in dledger's layout after stops of every kind: kills, power loss, interrupted cuts, damage (D4, D5, D8)."""

from __future__ import annotations

import errno
import random
import shutil
from pathlib import Path

import pytest
from ledger_lab import (
    INDEX_BYTES,
    SEGMENT_BYTES,
    STORE_ID,
    assert_is,
    entries_of,
    feed,
    flip,
    grow,
    image,
    made,
    open_ledger,
)
from ledger_twin import TwinLedger

from tallystick.replication.ledger import recovery
from tallystick.replication.ledger.ledger import DamagedLogError
from tallystick.replication.ledger.mark import FILE_NAME, EntryPoint, Flags, LedgerMark
from tallystick.replication.ledger.recovery import LedgerError
from tallystick.store._kernel import Door, EntryError
from tallystick.store.findings import FindingKind
from tallystick.store.formats.ledger_format import IndexUnit


class Machine:
    """A member that is used, killed, and loses its power; beside it the twin, and what must survive."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.seed = folder, seed
        self.dice = random.Random(seed)
        self.door = Door(record=True)
        self.boot = 1
        self.term = 1
        self.twin = TwinLedger(SEGMENT_BYTES)
        self.synced = -1
        self.ledger = open_ledger(folder, self.door, self.boot)

    def turn(self) -> None:
        dice, ledger, twin = self.dice, self.ledger, self.twin
        match dice.randrange(12):
            case 0 | 1 | 2 | 3:
                self.term += dice.random() < 0.2
                grow(twin, dice, dice.randrange(1, 6), self.term)
                feed(ledger, twin)
            case 4 | 5 | 6:
                ledger.log.sync()
                self.synced = ledger.synced_index
                assert self.synced == twin.last_index
            case 7:
                ledger.save_mark()
            case 8 if twin.last_index >= 0:
                keep = dice.randrange(max(-1, twin.last_index - 6), twin.last_index + 1)
                twin.cut(keep)
                self.synced = min(self.synced, keep)
                ledger.truncate(keep)
                self.term += 1
            case 9:
                self.interrupted_truncate()
            case 10:
                self.reopen(keep=ledger.last_index)
            case 11:
                self.lose_power()

    def reopen(self, keep: int) -> None:
        if self.dice.random() < 0.3:
            self.ledger.close()
        self.ledger = open_ledger(self.folder, self.door, self.boot)
        assert self.ledger.damage is None
        assert_is(self.ledger, self.twin, keep)
        assert self.ledger.synced_index == keep
        self.synced = keep

    def lose_power(self, at_least: int | None = None) -> None:
        self.door.crash(self.dice.randrange(1 << 30), keep=self.dice.choice([None, 0.0, 0.5]))
        self.boot += 1
        self.ledger = open_ledger(self.folder, self.door, self.boot)
        last, at_least = self.ledger.last_index, self.synced if at_least is None else at_least
        assert self.ledger.damage is None, self.ledger.damage
        assert at_least <= last <= self.twin.last_index
        assert_is(self.ledger, self.twin, last)
        self.twin.cut(last)
        self.synced = last

    def interrupted_truncate(self) -> None:
        """Some call of it fails, and then the power does: all of the cut is there, or nothing of it."""
        if self.twin.last_index < 0:
            return
        keep = self.dice.randrange(max(-1, self.twin.last_index - 6), self.twin.last_index + 1)
        op = self.dice.choice(["write", "sync", "sync_dir", "remove", "create", "allocate"])
        self.door.fail(op, "", errno.EIO, after=self.dice.randrange(6), times=1)
        try:
            self.ledger.truncate(keep)
            self.twin.cut(keep)
            self.synced = min(self.synced, keep)
        except OSError:
            self.door.heal()
            # (A truncate syncs first: what it keeps may be more than what was synced before.)
            self.lose_power(at_least=min(self.synced, keep))
        self.door.heal()


@pytest.mark.parametrize("seed", range(120))
def test_what_was_synced_stays_and_no_crash_looks_like_damage(tmp_path: Path, seed: int) -> None:
    machine = Machine(tmp_path / "dledger-n0", seed)
    for _ in range(60):
        machine.turn()
    machine.reopen(machine.ledger.last_index)


def test_the_newest_memberships_are_known_without_a_walk(tmp_path: Path) -> None:
    """M1: also the one to fall back to when the newest is cut off."""
    ledger, twin = made(tmp_path, count=120)
    memberships = [header.log_index for header, _ in twin.entries if header.channel == 2][::-1]
    assert len(memberships) > 4 and list(ledger.memberships) == memberships[:4]
    ledger.close()
    again = open_ledger(tmp_path)
    assert again.recovered.walked_from == twin.end and list(again.memberships) == memberships[:4]
    again.truncate(memberships[0] - 1)
    assert list(again.memberships) == memberships[1:4]
    assert list(open_ledger(tmp_path).memberships) == memberships[1:4]


def test_after_a_kill_only_what_is_behind_the_mark_is_read(tmp_path: Path) -> None:
    ledger, twin = made(tmp_path)
    ledger.save_mark()
    grow(twin, random.Random(5), 4, 3)
    feed(ledger, twin)
    again = open_ledger(tmp_path)
    assert_is(again, twin)
    found = again.recovered
    assert found.from_mark and not found.clean
    assert found.walked_from == twin.entries[39][0].pos + twin.entries[39][0].size


def test_the_mark_of_an_orderly_end(tmp_path: Path) -> None:
    ledger, twin = made(tmp_path)
    ledger.close(committed_index=30)
    again = open_ledger(tmp_path)
    assert again.recovered.clean and again.recovered.findings == []
    assert (again.committed_hint, again.recovered.walked_from) == (30, twin.end)
    assert not open_ledger(tmp_path).recovered.clean, "the open one was not closed"


def test_a_new_log_is_clean_and_empty(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    assert ledger.recovered.clean and ledger.damage is None
    assert (ledger.first_index, ledger.last_index, ledger.term_of(-1), ledger.term_of(0)) == (0, -1, -1, None)
    assert ledger.committed_hint == -1


@pytest.mark.parametrize("what", ["lost", "torn", "foreign entry", "sequence"])
def test_a_mark_that_is_not_believed_costs_a_walk(tmp_path: Path, what: str) -> None:
    ledger, twin = made(tmp_path)
    ledger.close()
    path = tmp_path / FILE_NAME
    mark = LedgerMark.load(tmp_path)
    assert mark is not None
    if what == "lost":
        path.unlink()
    elif what == "torn":
        path.write_bytes(bytes(100) + path.read_bytes()[100:4096] + bytes(4096))
    elif what == "foreign entry":
        mark.save(Door(), tmp_path, synced=EntryPoint(30, 3, 12345, mark.synced.pos))
    else:
        mark.save(Door(), tmp_path, synced=EntryPoint(mark.synced.index, mark.synced.term, mark.synced.chain, 1))
    again = open_ledger(tmp_path)
    assert_is(again, twin)
    assert again.recovered.walked_from == 0 and not again.recovered.from_mark


def test_one_torn_slot_leaves_the_other(tmp_path: Path) -> None:
    ledger, twin = made(tmp_path)
    ledger.save_mark()
    before = LedgerMark.load(tmp_path)
    door = Door()
    assert before is not None
    door.tear(FILE_NAME, 90)
    with pytest.raises(OSError):
        before.save(door, tmp_path, synced=EntryPoint())
    assert LedgerMark.load(tmp_path) == before
    assert_is(open_ledger(tmp_path), twin)


def test_other_sizes_than_the_log_was_made_with_are_refused(tmp_path: Path) -> None:
    ledger, _ = made(tmp_path)
    ledger.close()
    with pytest.raises(LedgerError, match="not 8192 and 512"):
        recovery.recover(tmp_path, 8192, INDEX_BYTES, Door(), boot_id=bytes(16), store_id=STORE_ID)


def test_a_segment_that_is_missing_is_refused(tmp_path: Path) -> None:
    ledger, _ = made(tmp_path)
    ledger.close()
    (tmp_path / "data" / f"{SEGMENT_BYTES:020}").unlink()
    with pytest.raises(LedgerError, match="the segment before this one is missing"):
        open_ledger(tmp_path)
    (tmp_path / "data" / f"{0:020}").unlink()
    with pytest.raises(LedgerError, match="that segment is missing"):
        open_ledger(tmp_path)


# -- the index ---------------------------------------------------------------------------------------------------------


def test_index_units_are_made_again_from_the_data(tmp_path: Path) -> None:
    ledger, twin = made(tmp_path)
    (tmp_path / "index" / f"{INDEX_BYTES:020}").unlink()
    first = tmp_path / "index" / f"{0:020}"
    units = bytearray(first.read_bytes())
    units[32 * 3 : 32 * 4] = IndexUnit(1, 77, 88, 3, 9).encode()
    first.write_bytes(units)
    again = open_ledger(tmp_path)
    assert_is(again, twin)
    assert [note.kind for note in again.recovered.findings] == [FindingKind.REBUILT]
    assert "17 units differed" in again.recovered.findings[0].reason
    del ledger


def test_units_behind_the_end_are_zeroed(tmp_path: Path) -> None:
    """They would name entries that another leader never wrote."""
    ledger, twin = made(tmp_path, count=20)
    ledger.close()
    path = tmp_path / "index" / f"{INDEX_BYTES:020}"
    units = bytearray(path.read_bytes())
    units[32 * 4 : 32 * 5] = IndexUnit(1, twin.end, 100, 20, 3).encode()
    path.write_bytes(units)
    again = open_ledger(tmp_path)
    assert_is(again, twin)
    assert not any(path.read_bytes()[32 * 4 :])


# -- the tail ----------------------------------------------------------------------------------------------------------


def tails(twin: TwinLedger) -> list[tuple[str, bytes]]:
    """What a kill in the middle of writing the last entry may leave of it."""
    last = twin.span(twin.last_index, twin.last_index)
    return [(f"{size} bytes", last[:size].ljust(len(last), b"\0")) for size in (0, 1, 7, 8, 47, 48, 60, len(last) - 3)]


def test_a_torn_last_entry_is_cut(tmp_path: Path) -> None:
    _, twin = made(tmp_path / "whole")
    header = twin.entries[-1][0]
    for name, tail in tails(twin):
        folder = tmp_path / name
        shutil.copytree(tmp_path / "whole", folder)
        path = folder / "data" / f"{header.pos - header.pos % SEGMENT_BYTES:020}"
        data = bytearray(path.read_bytes())
        at = header.pos % SEGMENT_BYTES
        data[at : at + len(tail)] = tail
        path.write_bytes(data)
        again = open_ledger(folder)
        assert again.damage is None
        assert_is(again, twin, twin.last_index - 1)
        assert not any(path.read_bytes()[at:])


@pytest.mark.parametrize("boot", [1, 2])
def test_changed_bytes_in_a_complete_last_entry_are_damage(tmp_path: Path, boot: int) -> None:
    """Neither a kill nor a loss of power leaves them: the member may have acknowledged the entry."""
    for count in range(40, 60):
        folder = tmp_path / str(count)
        _, twin = made(folder, count=count)
        if twin.span(twin.last_index, twin.last_index)[-1]:  # an entry without properties ends in zeros
            break
    header = twin.entries[-1][0]
    for at in (0, 5, 42, 47, 48, 70, header.size - 1):
        flip(folder, header.pos + at, 6)
        damage = open_ledger(folder, boot=boot).damage
        assert damage is not None and (damage.index, damage.pos) == (twin.last_index, header.pos), f"byte {at}"
        assert damage.at_end and not damage.after_power_loss
        flip(folder, header.pos + at, 6)


@pytest.mark.parametrize("boot", [1, 2])
def test_an_unwritten_sector_of_the_last_entry_is_a_torn_write(tmp_path: Path, boot: int) -> None:
    for count in range(40, 80):
        folder = tmp_path / str(count)
        _, twin = made(folder, count=count)
        entry = twin.span(twin.last_index, twin.last_index)
        if len(entry) > 2000 and entry[-1]:
            break
    header = twin.entries[-1][0]
    for sector in range(-(-header.pos // 512) * 512, header.pos + header.size - 512, 512):
        again = tmp_path / f"torn-{sector}"
        shutil.copytree(folder, again)
        path = again / "data" / f"{sector - sector % SEGMENT_BYTES:020}"
        with path.open("r+b") as file:
            file.seek(sector % SEGMENT_BYTES)
            file.write(bytes(512))
        ledger = open_ledger(again, boot=boot)
        assert ledger.damage is None
        assert_is(ledger, twin, twin.last_index - 1)


def test_a_filler_without_an_entry_is_no_part_of_the_log(tmp_path: Path) -> None:
    """The next leader's entry may fit in front of it."""
    ledger, twin = made(tmp_path)
    jump = next(index for index in range(1, 40) if twin.entries[index][0].pos % SEGMENT_BYTES == 0)
    ledger.truncate(jump - 1)
    twin.cut(jump - 1)
    left = SEGMENT_BYTES - twin.end % SEGMENT_BYTES
    door = Door()
    path = tmp_path / "data" / f"{twin.end - twin.end % SEGMENT_BYTES:020}"
    door.write(path, twin.end % SEGMENT_BYTES, b"\xff\xff\xff\xff" + left.to_bytes(4, "big"))
    again = open_ledger(tmp_path)
    assert_is(again, twin)
    assert again.log.written == twin.end


def test_segments_made_ahead_go_and_unfinished_ones_too(tmp_path: Path) -> None:
    ledger, twin = made(tmp_path)
    ledger.close()
    end = -(-twin.end // SEGMENT_BYTES) * SEGMENT_BYTES
    (tmp_path / "data" / f"{end:020}").write_bytes(bytes(SEGMENT_BYTES))
    (tmp_path / "data" / f"{end + SEGMENT_BYTES:020}").write_bytes(bytes(100))
    again = open_ledger(tmp_path)
    assert_is(again, twin)
    assert max(image(tmp_path)) < f"index/{end:020}" and f"data/{end:020}" not in image(tmp_path)


# -- damage ------------------------------------------------------------------------------------------------------------


def test_damage_after_the_mark_is_reported_and_not_truncated(tmp_path: Path) -> None:
    """After a kill the cache has all that was written: a broken entry before sound ones is no torn tail (D8)."""
    ledger, twin = made(tmp_path)
    for hit in (0, 17, 38):
        header = twin.entries[hit][0]
        flip(tmp_path, header.pos + 60)
        before = image(tmp_path)
        again = open_ledger(tmp_path)
        assert again.damage is not None
        assert (again.damage.index, again.damage.pos, again.damage.next_index) == (hit, header.pos, hit + 1)
        assert again.damage.reason == "body CRC differs"
        assert_is(again, twin, hit - 1)
        assert image(tmp_path) == before, "nothing was cut"
        with pytest.raises(DamagedLogError, match=f"entry {hit} "):
            again.append_entries(entries_of(again, twin, hit, hit), hit)
        flip(tmp_path, header.pos + 60)
    assert_is(open_ledger(tmp_path), twin)
    del ledger


def test_a_lost_synced_tail_is_damage(tmp_path: Path) -> None:
    """Nothing follows the broken entry, but the mark knows that it was durable."""
    ledger, twin = made(tmp_path)
    ledger.close()
    header = twin.entries[-1][0]
    for bit in range(8):
        flip(tmp_path, header.pos + 50, bit)
        again = open_ledger(tmp_path, boot=2)
        if again.damage is None:
            # The walk began behind it: a flipped byte below the synced point is found when it is read.
            with pytest.raises(EntryError):
                again.verified_range(39, 39)
        flip(tmp_path, header.pos + 50, bit)
    flip(tmp_path, header.pos + 38)  # the chain CRC: the mark's anchor
    again = open_ledger(tmp_path, boot=2)
    assert again.damage is not None and again.damage.index == again.damage.next_index == 39
    assert_is(again, twin, 38)
    assert open_ledger(tmp_path, boot=2).damage == again.damage, "the damage must stay until an operator decides"


def test_an_emptied_folder_is_damage(tmp_path: Path) -> None:
    ledger, _ = made(tmp_path)
    ledger.close()
    for part in ("data", "index"):
        shutil.rmtree(tmp_path / part)
    again = open_ledger(tmp_path)
    assert again.damage is not None and (again.damage.index, again.damage.next_index) == (0, 39)
    assert open_ledger(tmp_path).damage == again.damage, "the mark still says what was promised"


def test_a_flipped_bit_after_a_power_loss_does_not_count_as_an_unwritten_sector(tmp_path: Path) -> None:
    ledger, twin = made(tmp_path)
    header = twin.entries[17][0]
    flip(tmp_path, header.pos + 60)
    again = open_ledger(tmp_path, boot=2)
    assert again.damage is not None and again.damage.index == 17
    del ledger


def test_a_loss_of_power_explains_a_sector_that_was_never_written(tmp_path: Path) -> None:
    """Nothing behind it was acknowledged then: a sync would have covered it, too."""
    made(tmp_path)
    twin = made(tmp_path / "twin")[1]
    big = next(header for header, _ in twin.entries if header.size > 2000)
    sector = -(-(big.pos + 100) // 512) * 512
    path = tmp_path / "data" / f"{sector - sector % SEGMENT_BYTES:020}"
    data = bytearray(path.read_bytes())
    data[sector % SEGMENT_BYTES : sector % SEGMENT_BYTES + 512] = bytes(512)
    path.write_bytes(data)
    killed = open_ledger(tmp_path, boot=1)
    assert killed.damage is not None and killed.damage.index == big.log_index
    assert not killed.damage.after_power_loss
    lost = open_ledger(tmp_path, boot=2)
    assert lost.damage is None
    assert_is(lost, twin, big.log_index - 1)
    assert FindingKind.CUT in {note.kind for note in lost.recovered.findings}


# -- repair ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("boot", [1, 2])
def test_a_peers_bytes_repair_what_is_damaged(tmp_path: Path, boot: int) -> None:
    """Two places, one after the other; also across a segment's end."""
    made(tmp_path)
    twin = made(tmp_path / "twin")[1]
    for hit in (12, 25):
        flip(tmp_path, twin.entries[hit][0].pos + 9)
    ledger = open_ledger(tmp_path, boot=boot)
    assert ledger.damage is not None and ledger.damage.index == 12
    with pytest.raises(EntryError):
        ledger.rewrite(twin.span(11, 12)[:-1])
    ledger.rewrite(twin.span(11, 14))
    assert ledger.damage is not None and ledger.damage.index == 25
    assert_is(ledger, twin, 24)
    ledger.rewrite(twin.span(25, 25))
    assert ledger.damage is None
    assert_is(ledger, twin)
    feed(ledger, twin)
    assert_is(open_ledger(tmp_path, boot=boot), twin)


def test_what_power_loss_left_behind_damage_is_judged_when_that_is_repaired(tmp_path: Path) -> None:
    """By the next start of the process, too: the machine was not restarted since, but it was since this was written."""
    made(tmp_path)
    twin = made(tmp_path / "twin")[1]
    big = next(header for header, _ in twin.entries[20:] if header.size > 2000)
    sector = -(-(big.pos + 100) // 512) * 512
    Door().write(tmp_path / "data" / f"{sector - sector % SEGMENT_BYTES:020}", sector % SEGMENT_BYTES, bytes(512))
    flip(tmp_path, twin.entries[12][0].pos + 9)
    open_ledger(tmp_path, boot=2)
    ledger = open_ledger(tmp_path, boot=2)
    assert ledger.damage is not None and ledger.damage.index == 12
    ledger.rewrite(twin.span(12, 12))
    assert ledger.damage is not None and ledger.damage.index == big.log_index
    assert ledger.damage.after_power_loss
    assert_is(ledger, twin, big.log_index - 1)


def test_a_flipped_byte_far_below_the_mark_is_found_when_read_and_repaired(tmp_path: Path) -> None:
    ledger, twin = made(tmp_path)
    ledger.save_mark()
    for hit in range(0, 40, 3):
        header = twin.entries[hit][0]
        flip(tmp_path, header.pos + header.size - 1, 3)
        with pytest.raises(EntryError) as caught:
            ledger.verified_range(max(hit - 2, 0), 39)
        assert (caught.value.index, caught.value.pos) == (hit, header.pos)
        ledger.rewrite(twin.span(max(hit - 1, 0), min(hit + 2, 39)))
        assert ledger.verified_range(0, 39).data == twin.span(0, 39)


def test_bytes_of_another_history_do_not_repair(tmp_path: Path) -> None:
    """Sound entries of another leader: the chain does not lead over them."""
    made(tmp_path)
    twin, other = made(tmp_path / "twin")[1], TwinLedger(SEGMENT_BYTES)
    other.entries = twin.entries[:20]
    grow(other, random.Random(99), 1, 3)
    ledger = open_ledger(tmp_path)
    before = image(tmp_path)
    with pytest.raises(EntryError):
        ledger.rewrite(other.span(20, 20))
    assert image(tmp_path) == before
    assert_is(ledger, twin)


def test_damage_can_be_given_up(tmp_path: Path) -> None:
    """For an operator who knows that nothing there was committed, or that the leader sends it again."""
    made(tmp_path)
    twin = made(tmp_path / "twin")[1]
    flip(tmp_path, twin.entries[25][0].pos + 60)
    ledger = open_ledger(tmp_path)
    assert ledger.damage is not None
    ledger.truncate(24)
    assert ledger.damage is None
    twin.cut(24)
    assert_is(ledger, twin)
    grow(twin, random.Random(3), 10, 7)
    feed(ledger, twin)
    assert_is(open_ledger(tmp_path), twin)


# -- an interrupted cut or reset ---------------------------------------------------------------------------------------


def test_every_crash_in_a_truncate_ends_before_or_behind_it(tmp_path: Path) -> None:
    """Power is lost at each call of the door in turn, with everything, nothing, or a part of what was not synced."""
    outcomes = set()
    for op in ("write", "sync", "sync_dir", "remove", "create", "allocate"):
        for after in range(8):
            for keep in (0.0, 0.5, 1.0):
                folder = tmp_path / f"{op}-{after}-{keep}"
                door = Door(record=True)
                ledger, twin = made(folder, door=door)
                ledger.save_mark()
                door.fail(op, "", errno.EIO, after=after, times=1)
                try:
                    ledger.truncate(10)
                    finished = True
                except OSError:
                    finished = False
                door.heal()
                door.crash(after, keep)
                again = open_ledger(folder, door, boot=2)
                assert again.damage is None
                assert again.last_index in ((10,) if finished else (10, 39)), (op, after, keep)
                assert_is(again, twin, again.last_index)
                twin.cut(again.last_index)
                grow(twin, random.Random(4), 12, 9)
                feed(again, twin)
                again.log.sync()
                assert_is(open_ledger(folder, door, boot=2), twin)
                outcomes.add((finished, again.last_index))
    assert len(outcomes) >= 2


@pytest.mark.parametrize("op", ["write", "sync"])
def test_nothing_is_appended_after_a_failed_cut(tmp_path: Path, op: str) -> None:
    """Its note is on the disk, perhaps: the next start would cut what was written since."""
    for after in range(6):
        folder = tmp_path / str(after)
        door = Door()
        ledger, twin = made(folder, door=door)
        door.fail(op, "", errno.EIO, after=after, times=1)
        try:
            ledger.truncate(10)
        except OSError:
            if LedgerMark.load(folder).flags == Flags.CUTTING:
                with pytest.raises(DamagedLogError, match="a truncation of the log failed"):
                    ledger.append_entries(entries_of(ledger, twin, 11, 12), 11)
                ledger.save_mark()
                assert LedgerMark.load(folder).flags == Flags.CUTTING
                assert open_ledger(folder).last_index == 10
        door.heal()


def test_entries_written_behind_a_cut_survive_the_next_start(tmp_path: Path) -> None:
    """The mark of the cut is taken back before anything else is written: else the next start would cut again."""
    ledger, twin = made(tmp_path)
    ledger.truncate(10)
    twin.cut(10)
    mark = LedgerMark.load(tmp_path)
    assert mark is not None and mark.flags == Flags.NONE and mark.synced.index == 10
    grow(twin, random.Random(4), 30, 9)
    feed(ledger, twin)
    assert_is(open_ledger(tmp_path), twin)


def test_a_cut_at_every_place(tmp_path: Path) -> None:
    made(tmp_path / "whole")
    for keep in range(-1, 40):
        folder = tmp_path / str(keep)
        shutil.copytree(tmp_path / "whole", folder)
        twin = made(tmp_path / f"twin{keep}")[1]
        ledger = open_ledger(folder)
        ledger.truncate(keep)
        twin.cut(keep)
        assert_is(ledger, twin)
        data = b"".join(value for name, value in image(folder).items() if name.startswith("data"))
        assert data.rstrip(b"\0") == twin.data().rstrip(b"\0")
        assert_is(open_ledger(folder), twin)


def test_what_is_no_place_to_cut(tmp_path: Path) -> None:
    ledger, _ = made(tmp_path)
    for index in (-2, 40):
        with pytest.raises(ValueError, match=r"is not one of -1\.\.39"):
            ledger.truncate(index)


@pytest.mark.parametrize(("index", "pos"), [(1000, 3 * SEGMENT_BYTES), (5, SEGMENT_BYTES)])
def test_a_snapshot_is_installed_whole_or_not_at_all(tmp_path: Path, index: int, pos: int) -> None:
    """L11: the old log goes only when the base is durable, and all of it, also what has later indexes than the base."""
    seen = set()
    for op in ("write", "sync", "sync_dir", "remove"):
        for after in range(12):
            folder = tmp_path / f"{op}-{after}"
            door = Door(record=True)
            ledger, twin = made(folder, door=door)
            ledger.save_mark()
            door.fail(op, "", errno.EIO, after=after, times=1)
            try:
                ledger.install_snapshot(index, 8, 4711, pos)
            except OSError:
                pass  # and then the power goes, or the process is killed
            door.heal()
            power_lost = after % 2 == 1
            if power_lost:
                door.crash(after, 0.5)
            again = open_ledger(folder, door, boot=2 if power_lost else 1)
            assert again.damage is None
            seen.add(again.last_index)
            if again.last_index == 39:
                assert_is(again, twin)
            else:
                assert (again.first_index, again.last_index, again.term_of(index)) == (index + 1, index, 8)
                assert again.log.written == pos
    assert seen == {39, index}


def test_a_log_begins_behind_its_base(tmp_path: Path) -> None:
    """A follower far behind: base from the leader's begin, then entries from there."""
    leader, twin = made(tmp_path / "leader")
    at = next(index for index in range(5, 40) if twin.entries[index][0].pos % SEGMENT_BYTES == 0 and index > 15)
    header, before = twin.entries[at][0], twin.entries[at - 1][0]
    follower, _ = made(tmp_path / "follower", seed=8, count=10)
    follower.install_snapshot(at - 1, before.term, before.chain_crc, header.pos)
    assert (follower.first_index, follower.last_index) == (at, at - 1)
    follower.append_entries(follower.check(leader.log.read_range(at, 39), at - 1, before.term), at)
    follower.log.write_out()
    follower.log.sync()
    follower.save_mark()
    for ledger in (follower, open_ledger(tmp_path / "follower"), open_ledger(tmp_path / "follower", boot=2)):
        assert_is(ledger, twin)
        assert (ledger.first_index, ledger.term_of(at - 1), ledger.term_of(at - 2)) == (at, before.term, None)
        assert ledger.index_of(header.pos) == at - 1
    follower = open_ledger(tmp_path / "follower")
    follower.truncate(at - 1)
    assert open_ledger(tmp_path / "follower").last_index == at - 1


def test_sealed_segments_are_taken_as_files(tmp_path: Path) -> None:
    """L11: put behind the base, read and checked by `reopen`; the rest comes as entries."""
    leader, twin = made(tmp_path / "leader")
    first = leader.index_of(SEGMENT_BYTES) + 1
    base = leader.point(first - 1)
    for broken in (False, True):
        follower, _ = made(tmp_path / f"follower-{broken}", seed=8, count=10)
        follower.install_snapshot(base.index, base.term, base.chain, SEGMENT_BYTES)
        for start in (SEGMENT_BYTES, 2 * SEGMENT_BYTES, 3 * SEGMENT_BYTES):
            name = f"{start:020}"
            shutil.copy(tmp_path / "leader" / "data" / name, follower.folder / "data" / name)
        hit = leader.index_of(3 * SEGMENT_BYTES) + 1
        if broken:
            flip(follower.folder, twin.entries[hit][0].pos + 60)
        follower.reopen()
        if broken:
            assert follower.damage is not None and follower.damage.index == hit
            follower.rewrite(leader.log.read_range(hit, hit))
        assert follower.damage is None
        last = leader.index_of(4 * SEGMENT_BYTES)
        assert_is(follower, twin, last)
        assert follower.synced_index == last and follower.first_index == first
        feed(follower, twin)
        assert_is(open_ledger(follower.folder, boot=2), twin)


# -- deleting ----------------------------------------------------------------------------------------------------------


def test_old_segments_go_when_the_begin_is_durable(tmp_path: Path) -> None:
    """D10, at each crash: the log begins before or behind the segment, and (index, term) before it is known."""
    for op in ("write", "sync", "remove", "sync_dir"):
        for after in range(5):
            folder = tmp_path / f"{op}-{after}"
            door = Door(record=True)
            ledger, twin = made(folder, door=door)
            ledger.save_mark()
            door.fail(op, "", errno.EIO, after=after, times=1)
            pos = 2 * SEGMENT_BYTES
            try:
                ledger.release_before(pos)
                ledger.delete_released()
            except OSError:
                pass  # and then the power goes
            door.heal()
            door.crash(after, 0.5)
            again = open_ledger(folder, door, boot=2)
            first = again.first_index
            assert again.damage is None
            assert first == 0 or twin.entries[first][0].pos == pos
            assert_is(again, twin)
            assert again.term_of(first - 1) == (twin.entries[first - 1][0].term if first else -1)
            again.release_before(pos)
            again.delete_released()
            files = image(folder)
            assert f"data/{SEGMENT_BYTES:020}" not in files and f"data/{pos:020}" in files
            assert again.verified_range(again.first_index, 39).first_pos == pos


def test_where_a_log_cannot_begin(tmp_path: Path) -> None:
    ledger, _ = made(tmp_path)
    for pos in (SEGMENT_BYTES + 1, 1 << 20):
        with pytest.raises(ValueError, match="cannot begin"):
            ledger.release_before(pos)


def test_a_log_cannot_begin_at_what_is_only_written(tmp_path: Path) -> None:
    """A power loss would take the segments behind the begin, and those before it are deleted."""
    ledger, twin = made(tmp_path)
    flushed = ledger.log.flushed
    grow(twin, random.Random(3), 20, 3)
    feed(ledger, twin)
    pos = ledger.log.written - ledger.log.written % SEGMENT_BYTES
    assert flushed < pos <= ledger.log.written
    with pytest.raises(ValueError, match="cannot begin"):
        ledger.release_before(pos)
    ledger.log.sync()
    ledger.release_before(pos)
    assert ledger.base.pos == pos
