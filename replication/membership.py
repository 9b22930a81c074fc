"""Who belongs to the group, and how that changes: one member at a time.

A membership is an entry of the log. A member goes by the newest one in its log, committed or not (M1), and falls back
to the one before when it is cut off. Two memberships that differ in one voter have no two majorities that do not meet,
so a change needs no joint phase; it needs that there is one change at a time (M2), and that the leader has committed an
entry of its own term before (M3), for otherwise two leaders may each hold a different change of the same base.

A new member begins as a learner (M5): it receives everything, is never asked for its vote and never counted.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass


class MembershipError(ValueError):
    """No membership can be like that, or the bytes hold none; `reason` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Membership:
    """The members of a group by number ("n0" is 0). MembershipError: one is in both sets, or a number is negative.

    A group without voters is possible only as "not known yet": a member that waits to be let in.
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
        """Voters that make a majority, self included: 2 of 2 and of 3, 3 of 4 and of 5."""
        return len(self.voters) // 2 + 1

    def encode(self) -> bytes:
        """As the entry's content: a JSON object, so that it can be read where it lies."""
        return json.dumps({"voters": sorted(self.voters), "learners": sorted(self.learners)}).encode()

    @classmethod
    def decode(cls, content: bytes) -> Membership:
        """MembershipError: not what `encode` makes."""
        try:
            fields = json.loads(content)
            voters, learners = fields["voters"], fields["learners"]
        except (ValueError, KeyError, TypeError) as error:
            raise MembershipError(f"no membership: {error}") from error
        for members in (voters, learners):
            if not isinstance(members, list) or any(type(member) is not int for member in members):
                raise MembershipError("no membership: members are lists of numbers")
        return cls.of(voters, learners)


@dataclass(frozen=True, slots=True)
class MembershipEntry:
    """A membership and the index of its entry; -1: given at bootstrap, before there was a log (M8)."""

    index: int
    membership: Membership


# -- changes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AddLearner:
    """Let a member in, as a learner (M5)."""

    member: int


@dataclass(frozen=True, slots=True)
class Promote:
    """Make a learner a voter. Refused until it is close to the leader's end (M5)."""

    member: int


@dataclass(frozen=True, slots=True)
class Remove:
    """Take a voter or a learner out; also the leader itself, which then leaves when that is committed (M7)."""

    member: int


Change = AddLearner | Promote | Remove


def changed(membership: Membership, change: Change) -> Membership:
    """The membership after one change. MembershipError: the change makes no sense for it, or takes the last voter."""
    voters, learners, member = membership.voters, membership.learners, change.member
    match change:
        case AddLearner():
            if member in membership.members:
                raise MembershipError(f"member {member} belongs to the group already")
            return Membership(voters, learners | {member})
        case Promote():
            if member not in learners:
                raise MembershipError(f"member {member} is no learner")
            return Membership(voters | {member}, learners - {member})
        case Remove():
            if member not in membership.members:
                raise MembershipError(f"member {member} does not belong to the group")
            if voters == {member}:
                raise MembershipError(f"member {member} is the last voter")
            return Membership(voters - {member}, learners - {member})


class MembershipHistory:
    """The membership entries of one log, oldest first: to fall back on (M1), and to send along with old entries."""

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
        """Forget what lies above `last_kept`. The oldest stays: it is committed, or given at bootstrap."""
        keep = max(1, bisect_right(self._indexes, last_kept))
        del self._entries[keep:], self._indexes[keep:]

    def reset(self, entry: MembershipEntry) -> None:
        """The log begins anew behind a base."""
        self._entries, self._indexes = [entry], [entry.index]

    def between(self, first: int, last: int) -> tuple[MembershipEntry, ...]:
        """Entries with first <= index <= last."""
        if self._indexes[-1] < first:
            return ()
        return tuple(self._entries[bisect_right(self._indexes, first - 1) : bisect_right(self._indexes, last)])

    def at(self, index: int) -> MembershipEntry:
        """The one that holds at `index`: the newest at or below it, or the oldest known."""
        return self._entries[max(0, bisect_right(self._indexes, index) - 1)]
