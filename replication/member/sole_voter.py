"""Makes the member on a disk the only voter of its group, without the other members; offline.

It is the way out of a lost majority, and the begin of a group that is restored from a backup. It decides by force what
a group decides by a majority: what other members have committed and this one does not have is lost, and its entries
that no majority had are kept.

    term and vote, raised ─▶ membership {this member} as the last entry of the log ─▶ note ─▶ mark

The term rises by more than TERM_JUMP_MAX. Members of the old configuration that come back do not believe such a term
from one member (S2), so they do not follow this member; and their terms are below its own, so this member answers their
requests with its term, and they change nothing here. Its log ends with a higher term than theirs, so it votes for none
of them (S1). New members begin with an empty disk, which believes the term of the leader that calls it.

A kill at any point leaves the old membership or the new one in force; run it again. The note `tally-recovered` says
what was done, for the process that opens the disk later.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Self

from tallystick.replication.bounds import TERM_JUMP_MAX, TERM_MAX
from tallystick.replication.durable import PossibleLoss
from tallystick.replication.ledger.ledger import Ledger
from tallystick.replication.ledger.mark import LedgerMark
from tallystick.replication.ledger.vote import FILE_NAME as VOTE_NAME
from tallystick.replication.ledger.vote import Identity, VoteError, VoteFile, VoteRecord
from tallystick.replication.member.errors import DiskError
from tallystick.replication.member.opening import lost_power_unclean, memberships_of
from tallystick.replication.member.origin import Origin
from tallystick.replication.member.recovered import Recovered, Standing
from tallystick.replication.membership import Membership
from tallystick.store.formats.ledger_format import EntryKind
from tallystick.store.formats.message import NOWHERE
from tallystick.store.formats.progress import boot_id
from tallystick.store.verify.queues import end_known_to_queues

if TYPE_CHECKING:
    from tallystick.store._kernel import Door

_MAX_MESSAGE_BYTES = 4 << 20  # only for the entry that is written here


class OfflineMember:
    """The log of a member whose process is stopped; the caller holds the lock of the store. A context manager.

    `identity`: gives the disk to this member, and its log a new store id; None: the one in the vote file.
    Opening it recovers the log, as a start does. Raises DiskError, VoteError, LedgerError, OSError.
    """

    def __init__(self, folder: Path, door: Door, identity: Identity | None = None) -> None:
        self.folder = folder
        self._door = door
        record = VoteRecord.load(folder)
        mark, origin = LedgerMark.load(folder), Origin.load(folder)
        if identity is None and record is None:
            reason = "is damaged" if (folder / VOTE_NAME).exists() else "is missing"
            raise VoteError(folder / VOTE_NAME, f"the file {reason}, so it is unknown to which group the log belongs")
        if mark is None or origin is None:
            raise DiskError(f"{folder} has no log of a member that tallystick has written")
        if identity is not None:
            self._vote = VoteFile(folder, door, VoteRecord(identity, mark.store_id))
        else:
            assert record is not None
            self._vote = VoteFile.open(folder, door, record.identity, new_member=False)
            if origin.asynchronous and lost_power_unclean(mark, boot_id()):
                self._vote.note_loss(PossibleLoss.LOG)  # as a start does: the new mark no longer shows it
        self._ledger = Ledger.open(
            folder,
            door,
            segment_bytes=mark.segment_bytes,
            index_segment_bytes=mark.index_segment_bytes,
            max_message_bytes=_MAX_MESSAGE_BYTES,
            store_host=NOWHERE.encode(),
            store_id=mark.store_id,
        )
        damage = self._ledger.damage
        if damage is not None:
            raise DiskError(
                f"entry {damage.index} at byte {damage.pos} of the log is damaged ({damage.reason}), and "
                f"{damage.next_index} is sound: use the disk of a member whose log is sound"
            )
        self._memberships, _ = memberships_of(self._ledger, origin.entry)
        self._done = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        """A log that was only looked at is as clean as before. OSError: it is not."""
        if kind is None and not self._done and self._ledger.recovered.clean:
            self._ledger.close(self._ledger.committed_hint)

    @property
    def end_pos(self) -> int:
        """The position behind the last entry."""
        return self._ledger.end_of(self._ledger.last_index)

    def standing(self) -> Standing:
        """What the member knows now."""
        ledger, record = self._ledger, self._vote.record
        newest = self._memberships[-1].membership if self._memberships else Membership(frozenset())
        return Standing(
            cluster=record.identity.cluster_id,
            group=record.identity.group,
            member=record.identity.member,
            voters=sorted(newest.voters),
            learners=sorted(newest.learners),
            term=record.term,
            last_index=ledger.last_index,
            last_term=ledger.term_of(ledger.last_index) or 0,
            commit_index=max(ledger.committed_hint, self._dispatched_index()),
            last_store_ms=ledger.log.last_store_ms,
            possible_loss=record.possible_loss.name.lower(),
        )

    def _dispatched_index(self) -> int:
        """The last entry that a ConsumeQueue names: members dispatch what is committed, and no more."""
        known = end_known_to_queues(self.folder.parent)
        return self._ledger.index_of(known) if self._ledger.base.pos < known <= self.end_pos else -1

    def make_sole_voter(self, reason: str, now_ms: int, *, least_term: int = 0) -> Recovered:
        """Carries it out; durable on return. `least_term`: the group is known to have reached this term.

        Raises DiskError if there is no term left; OSError: run it again.
        """
        before, ledger = self.standing(), self._ledger
        self._done = True
        member = before.member
        term = max(before.term, before.last_term, least_term) + TERM_JUMP_MAX + 1
        if term > TERM_MAX:
            raise DiskError(f"{self.folder}: there is no term above {before.term}")
        self._vote.save(term, member)  # D1: before any entry of the term
        ledger.log.set_term(term)
        ledger.log.take_offsets(ledger.first_index)
        nowhere = NOWHERE.encode()
        index = ledger.append_own(EntryKind.MEMBERSHIP, Membership.of([member]).encode(), now_ms, nowhere)
        ledger.log.write_out()
        ledger.log.sync()
        self._vote.note_membership(index)
        self._vote.readmit(index)
        done = Recovered(reason, now_ms, term, index, before)
        done.save(self._door, self.folder)
        ledger.close(index)
        return done
