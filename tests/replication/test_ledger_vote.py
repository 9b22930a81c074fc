"""Term and vote on the disk (D1), whose disk it is, and disks that were emptied (S14)."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from ledger_lab import made

from tallystick.replication.bounds import TERM_JUMP_MAX
from tallystick.replication.durable import HardState, PossibleLoss
from tallystick.replication.ledger.mark import LedgerMark
from tallystick.replication.ledger.vote import FILE_NAME, Identity, VoteError, VoteFile, VoteRecord
from tallystick.store._kernel import Door

ME = Identity("cluster-1", "broker-a", 2)


def opened(folder: Path, door: Door | None = None, *, new: bool = False) -> VoteFile:
    return VoteFile.open(folder, door or Door(), ME, new_member=new)


def test_what_was_saved_is_read(tmp_path: Path) -> None:
    file = opened(tmp_path, new=True)
    assert file.record.hard_state == HardState(0, None) and file.record.possible_loss is PossibleLoss.NONE
    file.save(3, None)
    file.save(3, 1)
    file.save(3, 1)
    file.note_membership(17)
    LedgerMark(4096, 512, file.record.store_id).save(Door(), tmp_path)
    again = opened(tmp_path)
    assert again.record == file.record
    assert again.record.hard_state == HardState(3, 1) and again.record.membership_index == 17
    again.note_membership(4)
    assert opened(tmp_path).record.membership_index == 4, "a membership that was cut with the log goes back"
    again.note_loss(PossibleLoss.LOG)
    for index, noted in ((2, 4), (9, 9), (3, 9)):
        again.note_membership(index)
        assert again.record.membership_index == noted, "in doubt the past comes again"
    again.readmit(3)
    assert opened(tmp_path).record.membership_index == 3


def test_an_impossible_term_is_replaced_by_one_above_every_vote_that_was_given(tmp_path: Path) -> None:
    """An older version saved whatever a message said; at the next term it could no longer save anything."""
    file = opened(tmp_path, new=True)
    file.save(7, 1)
    file.save(2**63 - 1, None)
    LedgerMark(4096, 512, file.record.store_id).save(Door(), tmp_path)
    again = opened(tmp_path)
    assert not again.record.reachable
    again.heal_term(6)
    healed = opened(tmp_path).record
    assert healed.reachable and healed.hard_state == HardState(6 + TERM_JUMP_MAX, None)
    assert healed.possible_loss is PossibleLoss.NONE, (
        "it has forgotten no vote: it never was in the term that it has now"
    )


def test_term_and_vote_never_go_back(tmp_path: Path) -> None:
    """S1: one vote a term, and it is cleared with a raise of the term only."""
    file = opened(tmp_path, new=True)
    file.save(3, 1)
    for term, vote in ((2, None), (3, 2), (3, None)):
        with pytest.raises(ValueError, match="after term 3, vote 1"):
            file.save(term, vote)
    file.save(4, None)
    file.save(4, 0)


def test_power_loss_at_every_call_leaves_the_old_or_the_new_record(tmp_path: Path) -> None:
    """And the new one as soon as `save` has returned: two votes in one term are not possible."""
    for op in ("create", "write", "sync", "rename", "sync_dir", "truncate"):
        for keep in (0.0, 0.3, 0.7, 1.0):
            for seed in range(4):
                folder = tmp_path / f"{op}-{keep}-{seed}"
                door = Door(record=True)
                file = opened(folder, door, new=True)
                file.save(3, 1)
                door.fail(op, FILE_NAME if op != "sync_dir" else "", errno.EIO, times=1)
                with pytest.raises(OSError):
                    file.save(4, 0)
                assert file.record.hard_state == HardState(3, 1)
                door.heal()
                door.crash(seed, keep)
                assert opened(folder, door).record.hard_state in (HardState(3, 1), HardState(4, 0))
    for seed in range(30):
        folder = tmp_path / f"after-{seed}"
        door = Door(record=True)
        file = opened(folder, door, new=True)
        for term in range(1, 4):
            file.save(term, seed % 3)
        door.crash(seed, 0.0 if seed % 2 else None)
        assert opened(folder, door).record.hard_state == HardState(3, seed % 3)


@pytest.mark.parametrize("op", ["sync", "sync_dir"])
def test_a_sync_left_out_is_seen(tmp_path: Path, op: str) -> None:
    lost = 0
    for seed in range(20):
        folder = tmp_path / str(seed)
        door = Door(record=True)
        opened(folder, door, new=True).save(1, 1)
        door.lie(op, str(folder))
        opened(folder, door).save(2, 2)
        door.heal()
        door.crash(seed)
        try:
            lost += opened(folder, door).record.term != 2
        except VoteError:
            lost += 1
    assert lost > 4


def test_no_flipped_bit_and_no_cut_passes(tmp_path: Path) -> None:
    """A member that cannot read its vote must not vote."""
    file = opened(tmp_path, new=True)
    file.save(3, 1)
    data = (tmp_path / FILE_NAME).read_bytes()
    assert VoteRecord.decode(data) == file.record
    for at in range(len(data)):
        wrong = bytearray(data)
        wrong[at] ^= 1 << at % 8
        assert VoteRecord.decode(bytes(wrong)) is None
        assert VoteRecord.decode(data[:at]) is None
    (tmp_path / FILE_NAME).write_bytes(data[:-1])
    with pytest.raises(VoteError, match="is damaged"):
        opened(tmp_path)


def test_another_members_disk_is_refused(tmp_path: Path) -> None:
    opened(tmp_path, new=True)
    for other in (
        Identity("cluster-2", "broker-a", 2),
        Identity("cluster-1", "b", 2),
        Identity("cluster-1", "broker-a", 1),
    ):
        with pytest.raises(VoteError, match="this is the disk of"):
            VoteFile.open(tmp_path, Door(), other, new_member=False)


def test_a_member_with_an_empty_disk_does_not_count_until_it_is_readmitted(tmp_path: Path) -> None:
    """S14: it may have voted before, in any term."""
    file = opened(tmp_path)
    assert file.record.possible_loss is PossibleLoss.VOTES
    file.save(7, None)
    assert opened(tmp_path).record.possible_loss is PossibleLoss.VOTES, "a restart does not forget it"
    file.readmit(-1)
    LedgerMark(4096, 512, file.record.store_id).save(Door(), tmp_path)
    assert opened(tmp_path).record.possible_loss is PossibleLoss.NONE


def test_a_missing_or_foreign_log_is_a_possible_loss(tmp_path: Path) -> None:
    file = opened(tmp_path, new=True)
    assert opened(tmp_path).record.possible_loss is PossibleLoss.NONE, "killed before its log was made"
    file.save(1, 0)
    assert opened(tmp_path).record.possible_loss is PossibleLoss.LOG
    other = tmp_path / "other"
    voted = opened(other, new=True)
    voted.save(1, 0)
    LedgerMark(4096, 512, b"another store id").save(Door(), other)
    assert opened(other).record.possible_loss is PossibleLoss.LOG


def test_a_missing_vote_beside_a_log_is_a_possible_loss(tmp_path: Path) -> None:
    """Even of a member that is called new; and the log keeps its id."""
    ledger, _ = made(tmp_path)
    file = opened(tmp_path, new=True)
    assert file.record.possible_loss is PossibleLoss.VOTES
    assert file.record.store_id == ledger.store_id
    assert opened(tmp_path).record == file.record


def test_of_two_doubts_the_graver_one_stays(tmp_path: Path) -> None:
    file = opened(tmp_path)
    file.note_loss(PossibleLoss.LOG)
    assert file.record.possible_loss is PossibleLoss.VOTES
