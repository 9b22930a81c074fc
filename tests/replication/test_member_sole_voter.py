"""A member that is made the only voter of its group offline: in which term, after which entry, after which kills."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from ledger_lab import INDEX_BYTES, NOW_MS, SEGMENT_BYTES, STORE_ID, feed, grow, open_ledger
from ledger_twin import TwinLedger

from tallystick.replication.bounds import TERM_JUMP_MAX
from tallystick.replication.durable import PossibleLoss
from tallystick.replication.ledger.recovery import LedgerError
from tallystick.replication.ledger.vote import Identity, VoteError, VoteFile, VoteRecord
from tallystick.replication.member.errors import DiskError
from tallystick.replication.member.origin import Origin
from tallystick.replication.member.recovered import ACCEPTED_LOSS, Recovered
from tallystick.replication.member.sole_voter import OfflineMember
from tallystick.replication.membership import Membership, MembershipEntry
from tallystick.store._kernel import Door

WHO = Identity("lab", "group-a", 1)
THREE = Membership.of([0, 1, 2])
assert INDEX_BYTES


def member(root: Path, *, term: int = 4, loss: PossibleLoss = PossibleLoss.NONE) -> tuple[Path, TwinLedger]:
    """The folder of a stopped member of three, with messages of term 3 only."""
    folder, door = root / "dledger-n1", Door()
    twin = TwinLedger(SEGMENT_BYTES)
    dice = random.Random(1)
    ledger = open_ledger(folder)
    while twin.last_index < 12:
        before = len(twin.entries)
        grow(twin, dice, 1, 3)
        if twin.entries[-1][0].channel:
            del twin.entries[before:]  # a special entry without a sound content
    feed(ledger, twin)
    ledger.close(5)
    Origin(MembershipEntry(-1, THREE), asynchronous=False).save(door, folder)
    VoteFile(folder, door, VoteRecord(WHO, STORE_ID)).save(term, 0)
    if loss:
        VoteFile.open(folder, door, WHO, new_member=False).note_loss(loss)
    return folder, twin


@pytest.mark.parametrize("loss", list(PossibleLoss))
def test_it_is_the_only_voter_in_a_term_that_others_do_not_believe(tmp_path: Path, loss: PossibleLoss) -> None:
    folder, twin = member(tmp_path, loss=loss)
    with OfflineMember(folder, Door()) as found:
        before = found.standing()
        assert (before.voters, before.term, before.last_index, before.last_term) == ([0, 1, 2], 4, twin.last_index, 3)
        assert (before.commit_index, before.possible_loss) == (5, loss.name.lower())
        done = found.make_sole_voter(ACCEPTED_LOSS, NOW_MS)
    assert done.term == 4 + TERM_JUMP_MAX + 1 and done.index == twin.last_index + 1
    assert Recovered.load(folder) == done and done.before == before
    with OfflineMember(folder, Door()) as found:
        after = found.standing()
        assert (after.voters, after.term, after.last_term) == ([1], done.term, done.term)
        assert (after.last_index, after.possible_loss) == (done.index, "none")
    ledger = open_ledger(folder)
    assert ledger.damage is None and ledger.recovered.clean
    assert ledger.memberships[0] == done.index
    for index, (entry, _) in enumerate(twin.entries):
        assert ledger.term_of(index) == entry.term
    vote = VoteRecord.load(folder)
    assert vote is not None and (vote.term, vote.voted_for) == (done.term, 1)
    assert (vote.membership_index, vote.possible_loss) == (done.index, PossibleLoss.NONE)


def test_a_look_hides_no_possible_loss(tmp_path: Path) -> None:
    """A member that acknowledges before the sync, and whose machine lost power (D9)."""
    for asynchronous in (False, True):
        folder, _ = member(tmp_path / str(asynchronous))
        open_ledger(folder, boot=1)  # not closed: the stop was not in order
        Origin(MembershipEntry(-1, THREE), asynchronous=asynchronous).save(Door(), folder)
        with OfflineMember(folder, Door()) as found:
            assert found.standing().possible_loss == ("log" if asynchronous else "none")
        record = VoteRecord.load(folder)
        assert record is not None and (record.possible_loss is PossibleLoss.LOG) is asynchronous


def test_the_term_is_above_all_that_are_known(tmp_path: Path) -> None:
    folder, _ = member(tmp_path, term=50)
    with OfflineMember(folder, Door()) as found:
        assert found.make_sole_voter(ACCEPTED_LOSS, NOW_MS, least_term=700).term == 700 + TERM_JUMP_MAX + 1
    with OfflineMember(folder, Door()) as found:
        assert found.make_sole_voter(ACCEPTED_LOSS, NOW_MS).term == 700 + 2 * (TERM_JUMP_MAX + 1)


def test_a_kill_at_any_point_leaves_one_of_both_memberships(tmp_path: Path) -> None:
    counted = Door()
    folder, twin = member(tmp_path / "count")
    with OfflineMember(folder, counted) as found:
        begun = sum(counted.counts().values())
        found.make_sole_voter(ACCEPTED_LOSS, NOW_MS)
    for calls in range(sum(counted.counts().values()) - begun):
        folder, twin = member(tmp_path / str(calls))
        door = Door()
        with OfflineMember(folder, door) as found:
            door.kill_after(calls, keep_bytes=calls % 3 * 40)
            with pytest.raises(OSError):
                found.make_sole_voter(ACCEPTED_LOSS, NOW_MS)
        with OfflineMember(folder, Door()) as found:
            now = found.standing()
            assert now.voters in ([0, 1, 2], [1]) and now.last_index >= twin.last_index
            if now.last_term > 3:
                assert now.term >= now.last_term, "the term is durable before its first entry (D1)"
            found.make_sole_voter(ACCEPTED_LOSS, NOW_MS)
        with OfflineMember(folder, Door()) as found:
            assert found.standing().voters == [1]


def test_a_disk_for_another_member_gets_its_identity(tmp_path: Path) -> None:
    folder, _ = member(tmp_path)
    other = Identity("lab", "group-b", 7)
    with OfflineMember(folder, Door(), other) as found:
        found.make_sole_voter("restored", NOW_MS)
    record = VoteRecord.load(folder)
    assert record is not None and record.identity == other
    with pytest.raises(VoteError, match="this is the disk of"):
        VoteFile.open(folder, Door(), WHO, new_member=False)


def test_what_cannot_be_recovered_is_refused(tmp_path: Path) -> None:
    folder, twin = member(tmp_path / "damaged")
    entry = twin.entries[4][0]
    path = folder / "data" / f"{entry.pos - entry.pos % SEGMENT_BYTES:020}"
    data = bytearray(path.read_bytes())
    data[entry.pos % SEGMENT_BYTES + 60] ^= 1
    path.write_bytes(data)
    (folder / "tally-ledger").write_bytes(b"")  # the whole log is read
    with pytest.raises((DiskError, LedgerError)):
        OfflineMember(folder, Door())
    folder, _ = member(tmp_path / "vote")
    (folder / "tally-vote").unlink()
    with pytest.raises(VoteError, match="is missing"):
        OfflineMember(folder, Door())
    with pytest.raises(VoteError, match="is missing"):
        OfflineMember(tmp_path / "nothing", Door())
