"""The order of declarations: a pass acts on a limited number of them, and failed ones wait before a retry.

It only delays work, so a new operator can start with an empty one. Times are seconds of a clock that never goes back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tallystick.operator.topics.decide import Decision
from tallystick.operator.topics.kinds import S

NEWEST_SHARE = 5


@dataclass(frozen=True, slots=True)
class _Try:
    number: int
    version: str
    not_before: float


class Turns:
    """The order of the declarations of one kind and cluster."""

    def __init__(self) -> None:
        self._tries: dict[str, _Try] = {}
        self._number = 0
        self._counted_at = float("-inf")
        self._next_counted = 0

    def take(self, due: Sequence[Decision[S]], now: float, most: int) -> tuple[list[Decision[S]], int]:
        """Returns at most `most` decisions that are due, and the number of those that remain.

        The least recently tried come first, and of those never tried the oldest. A fifth of the places is for the
        newest ones, so that a new resource does not wait behind a thousand others. A failed declaration waits until
        its time, unless its resource changed.
        """
        able = [each for each in due if self.wait(each, now) <= 0]
        able.sort(key=lambda each: (self._tried(each).number, each.declaration.created))
        if len(able) <= most:
            return able, 0
        fresh = sum(self._tried(each).number == 0 for each in able)
        newest = range(max(fresh - most // NEWEST_SHARE, 0), fresh)
        first = [able[place] for place in newest]
        rest = able[: newest.start] + able[newest.stop :]
        return first + rest[: most - len(first)], len(able) - most

    def tried(self, uid: str, version: str, not_before: float) -> None:
        """Records a try. `version`: resourceVersion afterwards; `not_before`: time of the retry if nothing changes."""
        self._number += 1
        self._tries[uid] = _Try(self._number, version, not_before)

    def wait(self, decision: Decision[S], now: float) -> float:
        """Returns the seconds until a try; 0 or less: now."""
        last = self._tried(decision)
        return last.not_before - now if last.version == decision.declaration.resource_version else 0.0

    def count(self, uids: Sequence[str], now: float, every: float, most: int) -> frozenset[str]:
        """Returns the next UIDs whose counters are read, in turn; empty before `every` seconds have passed."""
        if now - self._counted_at < every or not uids:
            return frozenset()
        self._counted_at = now
        first = self._next_counted % len(uids)
        self._next_counted = first + most
        return frozenset([*uids[first:], *uids[:first]][:most])

    def forget_all_but(self, uids: Iterable[str]) -> None:
        """Forgets all other resources, which no longer exist."""
        self._tries = {uid: self._tries[uid] for uid in uids if uid in self._tries}

    def _tried(self, decision: Decision[S]) -> _Try:
        return self._tries.get(decision.declaration.uid, _NEVER)


_NEVER = _Try(0, "", float("-inf"))
