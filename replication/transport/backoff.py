"""The wait before the next attempt."""

from __future__ import annotations

import random


class Backoff:
    """The wait doubles with each failure up to a limit, and half of it is random: members that lost the same peer at
    the same moment do not all reconnect at the same moment."""

    def __init__(self, first_s: float, max_s: float, dice: random.Random) -> None:
        self._first_s = first_s
        self._max_s = max_s
        self._dice = dice
        self._next_s = first_s

    def reset(self) -> None:
        """The attempt succeeded."""
        self._next_s = self._first_s

    def next_s(self) -> float:
        """The wait in seconds after another failure."""
        wait_s = self._next_s
        self._next_s = min(self._max_s, 2 * wait_s)
        return wait_s * self._dice.uniform(0.5, 1.0)
