"""Elections: when a member stands (the timer), and whether it wins (the campaign)."""

from __future__ import annotations

from random import Random

from tallystick.replication.durable import PossibleLoss
from tallystick.replication.membership import Membership


class ElectionTimer:
    """Expires after a silence in [T, 2T), with a new random value each time it is set (L1)."""

    __slots__ = ("_random", "_restarted", "_timeout", "deadline")

    def __init__(self, timeout: float, random: Random, now: float) -> None:
        self._timeout = timeout
        self._random = random
        self.reset(now)

    def reset(self, now: float) -> None:
        self.deadline = now + self._timeout * (1.0 + self._random.random())
        self._restarted = False

    def retry_soon(self, now: float) -> None:
        """After a split vote, stand again within T. Each member uses another random time (L8)."""
        self.deadline = min(self.deadline, now + self._timeout * self._random.uniform(0.1, 1.0))

    def fire(self, now: float) -> None:
        """Expires at once: there is no leader to wait for."""
        self.deadline = now

    def expired(self, now: float) -> bool:
        """Whether it is time to stand. If the call comes far too late, the own event loop was blocked, and messages of
        the leader may be unread in a socket: the timer then waits once more (L9)."""
        if now < self.deadline:
            return False
        if now - self.deadline > self._timeout / 2 and not self._restarted:
            self.reset(now)
            self._restarted = True
            return False
        return True


class Campaign:
    """One attempt to be elected in `term`, or to find out whether an election would succeed (`pre`, L3).

    Each voter's answer counts once (S3). Answers of members that may have lost entries count only if all voters agree:
    then no other voter can have more entries (D9). Answers of members that may have lost their votes never count: a
    member with an emptied disk does not know whether the set of voters is still the same (S14).
    """

    __slots__ = ("_granted", "_may_have_lost", "_refused", "number", "pre", "term")

    def __init__(self, term: int, number: int, *, pre: bool) -> None:
        self.term = term
        self.number = number
        self.pre = pre
        self._granted: set[int] = set()
        self._may_have_lost: set[int] = set()
        self._refused: set[int] = set()

    def count(self, voter: int, *, granted: bool, possible_loss: PossibleLoss) -> None:
        if possible_loss is PossibleLoss.VOTES:
            return
        (self._granted if granted else self._refused).add(voter)
        if possible_loss:
            self._may_have_lost.add(voter)

    @property
    def granted(self) -> frozenset[int]:
        """The members that agreed."""
        return frozenset(self._granted)

    def won(self, membership: Membership) -> bool:
        agreed = self._granted & membership.voters
        return agreed == membership.voters or len(agreed - self._may_have_lost) >= membership.quorum

    def lost(self, membership: Membership) -> bool:
        """Whether so many voters refused that the campaign cannot be won."""
        return len(membership.voters - self._refused) < membership.quorum
