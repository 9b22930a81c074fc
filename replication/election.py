"""Standing for election: when (the timer), and whether it is won (the campaign)."""

from __future__ import annotations

from random import Random

from tallystick.replication.durable import Doubt
from tallystick.replication.membership import Membership


class ElectionTimer:
    """Fires after [T, 2T) of silence, drawn anew each time it is set (L1)."""

    __slots__ = ("_random", "_restarted", "_timeout", "deadline")

    def __init__(self, timeout: float, random: Random, now: float) -> None:
        self._timeout = timeout
        self._random = random
        self.reset(now)

    def reset(self, now: float) -> None:
        self.deadline = now + self._timeout * (1.0 + self._random.random())
        self._restarted = False

    def retry_soon(self, now: float) -> None:
        """A vote was split: once more within T, each at another time (L8)."""
        self.deadline = min(self.deadline, now + self._timeout * self._random.uniform(0.1, 1.0))

    def fire(self, now: float) -> None:
        """There is nobody to wait for."""
        self.deadline = now

    def expired(self, now: float) -> bool:
        """Whether it is time to stand. Looked at far too late it was our own loop that stood still, and what the leader
        said may lie unread in a socket: then the wait begins anew, once (L9)."""
        if now < self.deadline:
            return False
        if now - self.deadline > self._timeout / 2 and not self._restarted:
            self.reset(now)
            self._restarted = True
            return False
        return True


class Campaign:
    """One attempt to be elected in `term`, or to find out whether it would be of use (`pre`, L3).

    Answers are counted by who gave them (S3). Those of members that may have forgotten entries count only when all
    voters agree: then there is nobody left who could have more (D9). Those of members that may have forgotten their
    votes do not count at all: an emptied disk does not know whether these are still all voters (S14).
    """

    __slots__ = ("_doubtful", "_granted", "_refused", "number", "pre", "term")

    def __init__(self, term: int, number: int, *, pre: bool) -> None:
        self.term = term
        self.number = number
        self.pre = pre
        self._granted: set[int] = set()
        self._doubtful: set[int] = set()
        self._refused: set[int] = set()

    def count(self, voter: int, *, granted: bool, doubt: Doubt) -> None:
        if doubt is Doubt.VOTES:
            return
        (self._granted if granted else self._refused).add(voter)
        if doubt:
            self._doubtful.add(voter)

    @property
    def granted(self) -> frozenset[int]:
        """Who agreed."""
        return frozenset(self._granted)

    def won(self, membership: Membership) -> bool:
        agreed = self._granted & membership.voters
        return agreed == membership.voters or len(agreed - self._doubtful) >= membership.quorum

    def lost(self, membership: Membership) -> bool:
        """So many refused that it cannot be won any more."""
        return len(membership.voters - self._refused) < membership.quorum
