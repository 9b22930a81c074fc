"""A member's disk while it is open: everything that a restart finds again.

    vote file    term, vote, newest membership that was seen, possible loss     (`ledger/vote.py`)
    log          entries, and the mark of how far they are durable              (`ledger/ledger.py`)
    origin       the membership before the first entry of the log               (`origin.py`)
    reserve      space for the small files above on a full disk                 (`reserve.py`)

`opening` creates or recovers it.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.replication.durable import PossibleLoss
from tallystick.replication.effects import LossDetected, MembershipChanged, Readmitted, SaveVote
from tallystick.replication.ledger.ledger import Ledger
from tallystick.replication.ledger.mark import EntryPoint
from tallystick.replication.ledger.recovery import LedgerError
from tallystick.replication.ledger.vote import VoteFile
from tallystick.replication.member.origin import Origin
from tallystick.replication.member.recovered import Recovered
from tallystick.replication.member.reserve import Reserve
from tallystick.replication.member.special import body_of
from tallystick.replication.membership import Membership, MembershipEntry, MembershipError
from tallystick.store._kernel import DamageError, EntryError

if TYPE_CHECKING:
    from tallystick.store._kernel import Door

_logger = logging.getLogger("tallystick.replication")


class MemberDisk:
    """Owns the log, the vote file, the origin, the reserve, and the list of memberships that they contain.

    Methods that write block for syncs and can raise OSError."""

    def __init__(
        self,
        folder: Path,
        door: Door,
        vote: VoteFile,
        ledger: Ledger,
        origin: Origin,
        memberships: list[MembershipEntry],
        unread: list[int],
        recovered: Recovered | None = None,
    ) -> None:
        self.folder = folder
        self.door = door
        self.vote = vote
        self.ledger = ledger
        self.memberships = memberships
        """The membership of the origin and those in the log behind it, oldest first, as far as they can be read."""
        self.unread = unread
        """Indexes of damaged memberships in the log, in rising order: another member must send them. If one of them is
        not known from elsewhere, this member does not know which members must agree (L12)."""
        self.recovered = recovered
        """Whether the member was once made the only voter by force; None: it was not."""
        self.saving = threading.Lock()
        """Held while a mark or the origin is saved: the event loop and threads save them."""
        self._origin = origin
        self._reserve = Reserve(door, folder)

    @property
    def lacks_membership(self) -> bool:
        """Whether a membership is not known: it may be in force, or must be sent to other members with older
        entries."""
        known = {entry.index for entry in self.memberships}
        return any(index not in known for index in self.unread)

    def read_repaired_memberships(self) -> bool:
        """Reads damaged memberships again, and returns whether one of them can be read now."""
        repaired = [(index, read_membership(self.ledger, index)) for index in self.unread]
        entries = [MembershipEntry(index, found) for index, found in repaired if found is not None]
        if not entries:
            return False
        self.unread = [index for index, found in repaired if found is None]
        known = {entry.index: entry for entry in [*entries, *self.memberships]}
        self.memberships = [known[index] for index in sorted(known)]
        return True

    def keep_reserve(self) -> None:
        """Creates the reserve again if it was used and there is space for it."""
        self._reserve.keep()

    # -- effects -------------------------------------------------------------------------------------------------------

    def save_vote(self, effect: SaveVote) -> None:
        """Handles the effect."""
        self._reserve.use(lambda: self.vote.save(effect.term, effect.voted_for))

    def membership_changed(self, effect: MembershipChanged) -> None:
        """Handles the effect."""
        known = [entry for entry in self.memberships if entry.index < effect.entry.index]
        self.memberships = [*known, effect.entry]
        self._reserve.use(lambda: self.vote.note_membership(effect.entry.index))

    def loss_detected(self, effect: LossDetected) -> None:
        """Handles the effect."""
        _logger.error(
            "n%d: the log ends at entry %d, but the leader knows of entry %d here: the disk lost durable entries; they "
            "are fetched again, and the votes and acknowledgements of this member do not count until then",
            self.vote.record.identity.member, self.ledger.last_index, effect.match_index,
        )  # fmt: skip
        self._reserve.use(lambda: self.vote.note_loss(PossibleLoss.LOG))

    def readmitted(self, effect: Readmitted) -> None:
        """Handles the effect."""
        _logger.warning("n%d readmitted: its votes and acknowledgements count again", self.vote.record.identity.member)
        newest = self.memberships[-1].index if self.memberships else -1
        self._reserve.use(lambda: self.vote.readmit(newest))

    def truncate(self, last_kept: int) -> None:
        """Removes all entries behind `last_kept` (D4). See `Ledger.truncate`."""
        self.ledger.truncate(last_kept)
        self.unread = [index for index in self.unread if index <= last_kept]

    def install_snapshot(self, point: EntryPoint, membership: MembershipEntry) -> None:
        """Replaces the log by an empty one that begins behind `point`, where `membership` is in force (L11)."""
        self._save_origin(membership)
        self.ledger.install_snapshot(point.index, point.term, point.chain, point.pos)
        self.memberships, self.unread = [membership], []

    # -- the begin of the log ------------------------------------------------------------------------------------------

    def release_before(self, pos: int) -> None:
        """The log begins at `pos`, a segment's start, from now on (D10); the caller has checked that nothing before it
        is needed. `Ledger.delete_released` removes the files.

        Can run on any thread. Raises ValueError or OSError.
        """
        base_index = self.ledger.index_of(pos)
        entry = next((entry for entry in reversed(list(self.memberships)) if entry.index <= base_index), None)
        if entry is not None and entry != self._origin.entry:
            self._save_origin(entry)
        self.ledger.release_before(pos)

    def _save_origin(self, entry: MembershipEntry) -> None:
        """Call it before the log begins later: a membership newer than the log's start is fine, an older one is not."""
        with self.saving:
            origin = replace(self._origin, entry=entry)
            self._reserve.use(lambda: origin.save(self.door, self.folder))
            self._origin = origin


def read_membership(ledger: Ledger, index: int) -> Membership | None:
    """The membership in an entry of the log; None if the entry is damaged."""
    try:
        return Membership.decode(body_of(ledger.record_of(index)))
    except (EntryError, DamageError, LedgerError, MembershipError, OSError, KeyError, ValueError) as error:
        _logger.error("the membership in entry %d of the log cannot be read: %s", index, error)
        return None
