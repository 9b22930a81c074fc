"""Whose turn it is: a pass acts on few declarations, and those that just failed wait a little.

Never a reason to do something, only to do it later: a new operator begins with an empty one. Times are seconds of any
clock that does not go back.
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
    """Of one kind of one cluster."""

    def __init__(self) -> None:
        self._tries: dict[str, _Try] = {}
        self._number = 0
        self._counted_at = float("-inf")
        self._next_counted = 0

    def take(self, due: Sequence[Decision[S]], now: float, most: int) -> tuple[list[Decision[S]], int]:
        """At most `most` of those that need something, and how many more could be taken now.

        Who was tried longest ago comes first, of those never tried the oldest; but a fifth of the places is for the
        newest ones, so that somebody who applies one does not wait behind a thousand. Who has to wait is left out,
        unless the resource changed since.
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
        """It was its turn. `version`: of the resource, as it was left; `not_before`: when again, if nothing changes."""
        self._number += 1
        self._tries[uid] = _Try(self._number, version, not_before)

    def wait(self, decision: Decision[S], now: float) -> float:
        """Seconds until it may be tried; 0 or less: now."""
        last = self._tried(decision)
        return last.not_before - now if last.version == decision.declaration.resource_version else 0.0

    def count(self, uids: Sequence[str], now: float, every: float, most: int) -> frozenset[str]:
        """The next few of `uids` to be counted, one after the other; none, `every` seconds have not passed."""
        if now - self._counted_at < every or not uids:
            return frozenset()
        self._counted_at = now
        first = self._next_counted % len(uids)
        self._next_counted = first + most
        return frozenset([*uids[first:], *uids[:first]][:most])

    def forget_all_but(self, uids: Iterable[str]) -> None:
        """The others' resources are gone."""
        self._tries = {uid: self._tries[uid] for uid in uids if uid in self._tries}

    def _tried(self, decision: Decision[S]) -> _Try:
        return self._tries.get(decision.declaration.uid, _NEVER)


_NEVER = _Try(0, "", float("-inf"))
