"""Computes waits that keep a rate."""

from __future__ import annotations


class Throttle:
    """Grants `rate` units per second, and at most `burst` units at once after a pause. The time is an argument."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst_s = burst / rate
        self._granted_until_s = float("-inf")
        """When the granted units are used up, if they are granted evenly and never more than a burst ahead."""

    def take(self, units: int, now_s: float) -> float:
        """Takes `units` in any case; returns how many seconds to wait before they are used."""
        self._granted_until_s = max(self._granted_until_s, now_s - self._burst_s) + units / self._rate
        return max(0.0, self._granted_until_s - now_s)
