"""The members of a group, and how they change: one member at a time.

A membership is an entry of the log. A member uses the newest one in its log, committed or not (M1), and returns to the
previous one if that entry is truncated. If two memberships differ in one voter, each majority of the first one overlaps
with each majority of the second one, so a change needs no joint phase. It needs two conditions: there is one change at
a time (M2), and the leader has committed an entry of its current term before (M3). Otherwise two leaders could each
have a different change of the same membership.

A new member begins as a learner (M5): it receives everything, is not asked for its vote, and does not count.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass


class MembershipError(ValueError):
    """A membership is impossible, or the bytes contain no membership; `reason` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Membership:
    """The members of a group by number ("n0" is 0). Raises MembershipError if a member is in both sets or negative.

    A membership without voters means "not known yet": a member that waits to be added.
    """

    voters: frozenset[int]
    learners: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if self.voters & self.learners:
            raise MembershipError(f"voter and learner at once: {sorted(self.voters & self.learners)}")
        if any(member < 0 for member in self.members):
            raise MembershipError("a member's number is negative")

    @classmethod
    def of(cls, voters: Iterable[int], learners: Iterable[int] = ()) -> Membership:
        return cls(frozenset(voters), frozenset(learners))

    @property
    def members(self) -> frozenset[int]:
        return self.voters | self.learners

    @property
    def quorum(self) -> int:
        """Number of voters of a majority, including the member itself: 2 of 2 and of 3, 3 of 4 and of 5."""
        return len(self.voters) // 2 + 1

    def encode(self) -> bytes:
        """The content of the entry: a JSON object, so that people can read it in the log."""
        return json.dumps({"voters": sorted(self.voters), "learners": sorted(self.learners)}).encode()

    @classmethod
    def decode(cls, content: bytes) -> Membership:
        """Raises MembershipError if `encode` cannot have made `content`."""
        try:
            fields = json.loads(content)
            voters, learners = fields["voters"], fields["learners"]
        except (ValueError, KeyError, TypeError) as error:
            raise MembershipError(f"not a membership: {error}") from error
        for members in (voters, learners):
            if not isinstance(members, list) or any(type(member) is not int for member in members):
                raise MembershipError("not a membership: members must be lists of numbers")
        return cls.of(voters, learners)


@dataclass(frozen=True, slots=True)
class MembershipEntry:
    """A membership and the index of its entry; -1 if it was given at bootstrap, before there was a log (M8)."""

    index: int
    membership: Membership


# -- changes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AddLearner:
    """Adds a member as a learner (M5)."""

    member: int


@dataclass(frozen=True, slots=True)
class Promote:
    """Makes a learner a voter. Refused until the learner is close to the leader's end (M5)."""

    member: int


@dataclass(frozen=True, slots=True)
class Remove:
    """Removes a voter or a learner, possibly the leader itself, which leaves when the change is committed (M7)."""

    member: int


Change = AddLearner | Promote | Remove


def changed(membership: Membership, change: Change) -> Membership:
    """The membership after one change. Raises MembershipError if the change does not apply or removes the last
    voter."""
    voters, learners, member = membership.voters, membership.learners, change.member
    match change:
        case AddLearner():
            if member in membership.members:
                raise MembershipError(f"member {member} is already in the group")
            return Membership(voters, learners | {member})
        case Promote():
            if member not in learners:
                raise MembershipError(f"member {member} is not a learner")
            return Membership(voters | {member}, learners - {member})
        case Remove():
            if member not in membership.members:
                raise MembershipError(f"member {member} is not in the group")
            if voters == {member}:
                raise MembershipError(f"member {member} is the last voter")
            return Membership(voters - {member}, learners - {member})


class MembershipHistory:
    """The membership entries of one log, oldest first: for truncations (M1), and to send with old entries."""

    __slots__ = ("_entries", "_indexes")

    def __init__(self, entries: Iterable[MembershipEntry]) -> None:
        self._entries = list(entries) or [MembershipEntry(-1, Membership(frozenset()))]
        self._indexes = [entry.index for entry in self._entries]
        if any(later <= earlier for earlier, later in zip(self._indexes, self._indexes[1:], strict=False)):
            raise MembershipError("entries are not in the order of their indexes")

    @property
    def latest(self) -> MembershipEntry:
        return self._entries[-1]

    def append(self, entry: MembershipEntry) -> None:
        assert entry.index > self._indexes[-1], "entries are appended in order, after a truncation"
        self._entries.append(entry)
        self._indexes.append(entry.index)

    def truncate(self, last_kept: int) -> None:
        """Drops the entries above `last_kept`. The oldest one stays: it is committed, or was given at bootstrap."""
        keep = max(1, bisect_right(self._indexes, last_kept))
        del self._entries[keep:], self._indexes[keep:]

    def reset(self, entry: MembershipEntry) -> None:
        """Starts again with the membership of a snapshot."""
        self._entries, self._indexes = [entry], [entry.index]

    def between(self, first: int, last: int) -> tuple[MembershipEntry, ...]:
        """Entries with first <= index <= last."""
        if self._indexes[-1] < first:
            return ()
        return tuple(self._entries[bisect_right(self._indexes, first - 1) : bisect_right(self._indexes, last)])

    def at(self, index: int) -> MembershipEntry:
        """The membership in force at `index`: the newest at or below it, or the oldest known."""
        return self._entries[max(0, bisect_right(self._indexes, index) - 1)]
