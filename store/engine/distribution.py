"""Counts of values by class, such as durations: what a histogram shows."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Distribution:
    """How many values were in each class since the start. `limits`: upper limits of all classes but the last one, in
    the unit of the values."""

    limits: Sequence[float]
    counts: Sequence[int]
    total: float
    """All values together."""


class Tally:
    """Counts values in classes with these upper limits (inclusive), and in one more class for greater values."""

    __slots__ = ("_counts", "_limits", "_total")

    def __init__(self, limits: Sequence[float]) -> None:
        self._limits = limits
        self._counts = [0] * (len(limits) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        """Counts a value. Negative ones, as a clock that was set back gives, count as 0."""
        if value < 0:
            value = 0.0
        self._counts[bisect.bisect_left(self._limits, value)] += 1
        self._total += value

    def distribution(self) -> Distribution:
        """All values since the start."""
        return Distribution(self._limits, list(self._counts), self._total)
