"""A member's volume: what of its log and its vote is there after the power went.

      base          synced            last
        |             |                |
    ....[=============|~~~~~~~~~~~~~~~~]      = survives a crash     ~ a prefix of it may survive, its end torn
        (index, term) of the entry before the first kept one

Written entries become durable by a sync. A truncation and the vote are durable when their effect is done (D1, D4). A
flipped bit makes an entry unreadable; where it lies decides what recovery may do about it (D8):

- beyond the synced point it is a torn tail, as a crash leaves it: recovery truncates it, no entry there was
  acknowledged;
- at or below the synced point it is damage to what the group counts on. The member keeps what is sound before it, and
  comes back with a possible loss: without a vote until a leader has readmitted it.

That a volume can tell the two apart is assumed here; it is the ledger's business (and its tests') to know its synced
point after a crash.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

from tallystick.replication.durable import PossibleLoss
from tallystick.replication.membership import Membership, MembershipEntry
from tallystick.store.formats.ledger_format import EntryKind

ENTRY_BYTES = 100
"""What every entry takes on disk: byte limits of the settings are counts of entries here."""


class Entry(NamedTuple):
    """One entry. Its index is its place; `payload` stands for its bytes and is unique to what was proposed."""

    term: int
    kind: EntryKind
    payload: Any


class DamagedEntryError(Exception):
    """The CRC of the entry at `index` does not fit: it cannot be read."""

    def __init__(self, index: int) -> None:
        super().__init__(f"entry {index} is damaged")
        self.index = index


class Disk:
    """Durable state of one member, and the core's `LogView` of the log."""

    def __init__(self, bootstrap: Membership | None) -> None:
        self.term = 0
        self.voted_for: int | None = None
        self.possible_loss = PossibleLoss.NONE
        self.commit_hint = -1
        self.membership_seen = -1
        """Index of the newest membership that was in the log, kept beside it: damage to the log does not take it."""
        self.memberships = [MembershipEntry(-1, bootstrap or Membership(frozenset()))]
        """The one that came with the bootstrap or with a snapshot, and all newer ones in the log. The first stays: it
        is the newest that the sender of the snapshot knows to be committed; its entry may still be to come."""
        self.base_index = -1
        self.base_term = -1
        self.entries: list[Entry] = []
        self.last_index = -1
        self.synced_index = -1
        self.damaged: set[int] = set()
        self.lost: set[tuple[int, int]] = set()
        """Index and term of what was durable once and is gone by damage; until the member is readmitted. One that is
        emptied twice may have lost two entries of one index."""
        self.former_last_index = -1
        """In doubt: what was acknowledged before the doubt began ends here at the latest."""

    @classmethod
    def emptied(cls, old: Disk, bootstrap: Membership | None) -> Disk:
        """The state of a known member with a replaced volume: empty, so it may have lost data (S14)."""
        disk = cls(bootstrap)
        disk.possible_loss = PossibleLoss.VOTES
        disk.former_last_index = max(old.synced_index, old.former_last_index)
        disk.lost = set(old.lost)
        if old.base_index >= 0:
            disk.lost.add((old.base_index, old.base_term))
        disk.lost |= old._identities(old.first_index, old.synced_index)
        return disk

    # -- what the core reads -------------------------------------------------------------------------------------------

    @property
    def first_index(self) -> int:
        return self.base_index + 1

    def term_of(self, index: int) -> int | None:
        place = index - self.base_index - 1
        if place >= 0:
            return self.entries[place].term if index <= self.last_index else None
        return self.base_term if place == -1 else None

    @property
    def last_term(self) -> int:
        return self.entries[-1].term if self.entries else self.base_term

    def extent(self, first: int, max_bytes: int) -> int:
        assert self.base_index < first <= self.last_index
        return min(self.last_index, first + max(1, max_bytes // ENTRY_BYTES) - 1)

    # -- what the driver does ------------------------------------------------------------------------------------------

    def entry(self, index: int) -> Entry:
        """DamagedEntryError: it cannot be read."""
        assert self.base_index < index <= self.last_index
        if index in self.damaged:
            raise DamagedEntryError(index)
        return self.entries[index - self.base_index - 1]

    def read(self, first: int, last: int) -> list[Entry]:
        """Entries `first` to `last`, both included, as they are sent to a peer. DamagedEntryError: one cannot be."""
        for index in sorted(self.damaged):
            if first <= index <= last:
                raise DamagedEntryError(index)
        before = self.base_index + 1
        return self.entries[first - before : last - before + 1]

    @property
    def membership(self) -> Membership:
        """The newest."""
        return self.memberships[-1].membership

    def append(self, entries: Sequence[Entry]) -> None:
        """At the end of the log; written, not synced."""
        for entry in entries:
            self.last_index += 1
            if entry.kind is EntryKind.MEMBERSHIP and self.last_index > self.memberships[-1].index:
                self.memberships.append(MembershipEntry(self.last_index, entry.payload))
        self.entries.extend(entries)

    def truncate(self, last_kept: int) -> None:
        """Durable when it returns: the caller lets the time pass that this takes."""
        assert self.base_index <= last_kept <= self.last_index
        del self.entries[last_kept - self.base_index :]
        self.last_index = last_kept
        self.synced_index = min(self.synced_index, last_kept)
        while len(self.memberships) > 1 and self.memberships[-1].index > last_kept:
            self.memberships.pop()
        self.damaged = {index for index in self.damaged if index <= last_kept}

    def drop_before(self, first_index: int) -> None:
        """Deletes old segments: entries below `first_index` go, the pair before it stays (D10)."""
        assert self.first_index <= first_index <= self.synced_index + 1
        term = self.term_of(first_index - 1)
        assert term is not None
        del self.entries[: first_index - self.first_index]
        self.base_index, self.base_term = first_index - 1, term
        while len(self.memberships) > 1 and self.memberships[1].index <= self.base_index:
            self.memberships.pop(0)
        self.damaged = {index for index in self.damaged if index > self.base_index}

    def install(self, base_index: int, base_term: int, membership: MembershipEntry) -> None:
        """Replaces the log by an empty one that begins behind (base_index, base_term)."""
        self.base_index, self.base_term = base_index, base_term
        self.entries.clear()
        self.memberships = [membership]
        self.last_index = self.synced_index = base_index
        self.damaged.clear()

    def see_membership(self) -> None:
        """Durably. After a possible loss the log is fetched again, with old memberships: the mark only rises then."""
        newest = self.memberships[-1].index
        self.membership_seen = max(newest, self.membership_seen) if self.possible_loss else newest

    def readmit(self) -> None:
        self.possible_loss = PossibleLoss.NONE
        self.lost.clear()
        self.see_membership()

    # -- what befalls it -----------------------------------------------------------------------------------------------

    def lose_power(self, dice: random.Random) -> tuple[int, bool]:
        """Of what was not synced a prefix survives, perhaps with the next entry torn: (entries lost, torn)."""
        unsynced = self.last_index - self.synced_index
        if unsynced == 0:
            return 0, False
        kept = dice.randint(0, unsynced)
        torn = kept < unsynced and dice.random() < 0.5
        damaged = self.damaged
        self.truncate(self.synced_index + kept + torn)
        self.damaged = {index for index in damaged if index <= self.last_index}
        if torn:
            self.damaged.add(self.last_index)
        return unsynced - kept, torn

    def shorten(self, dice: random.Random) -> None:
        """What was synced last becomes zeros, as if nothing had been there: no start can see that (D8)."""
        least = max(self.base_index, self.commit_hint, self.memberships[-1].index)
        kept = dice.randint(min(least, self.synced_index), self.synced_index)
        self.former_last_index = self.synced_index
        self.lost |= self._identities(kept + 1, self.synced_index)
        self.truncate(kept)

    def forgot(self) -> None:
        """A leader told it so; `former_last_index` is known since `shorten`."""
        self._note_loss(self.former_last_index)

    def distrust_unsynced(self) -> None:
        """After an unclean stop of a member that answers before it syncs: what it said last may be forgotten (D9)."""
        self._note_loss(self.last_index)
        self.lost |= self._identities(self.synced_index + 1, self.last_index)

    def recover(self) -> None:
        """As at a start: keeps the sound part of the log. What is cut of the synced part is a possible loss."""
        if self.damaged:
            broken = min(self.damaged)
            if broken <= self.synced_index:
                self._note_loss(self.synced_index)
                self.lost |= self._identities(broken, self.synced_index)
            self.truncate(broken - 1)
        self.see_membership()
        self.synced_index = self.last_index  # recovery ends with a sync: what it found stays found

    def _identities(self, first: int, last: int) -> set[tuple[int, int]]:
        return {(index, self.entries[index - self.first_index].term) for index in range(first, last + 1)}

    def _note_loss(self, former_last_index: int) -> None:
        if self.possible_loss is PossibleLoss.NONE:
            self.possible_loss, self.former_last_index = PossibleLoss.LOG, former_last_index
