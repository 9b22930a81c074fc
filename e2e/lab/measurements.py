"""What a run measured, as a table for people and an object for programs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` of all are not above (nearest rank). ValueError: there are none."""
    if not values:
        raise ValueError("no values")
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def longest_pause_s(moments: Iterable[float], begin: float, end: float) -> float:
    """The longest time within [begin, end] in which none of these moments lies."""
    inside = [begin, *sorted(moment for moment in moments if begin < moment < end), end]
    return max(later - earlier for earlier, later in itertools.pairwise(inside))


class Measurements:
    """Times by what was measured, in seconds, with the limit that each must keep, if there is one."""

    def __init__(self) -> None:
        self._values: dict[str, list[float]] = {}
        self._limits: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def limit(self, name: str, p99_below_s: float) -> None:
        """The p99 of `name` must stay below."""
        self._limits[name] = p99_below_s

    def add(self, name: str, seconds: float) -> None:
        self._values.setdefault(name, []).append(seconds)

    def count(self, name: str, number: int = 1) -> None:
        """For what is counted, not timed; 0 lists it."""
        self._counts[name] = self._counts.get(name, 0) + number

    def exceeded(self) -> list[str]:
        """A line for each limit that was not kept."""
        return [
            f"{name}: p99 is {percentile(self._values[name], 99):.3f} s, not below {limit:g} s"
            for name, limit in self._limits.items()
            if name in self._values and percentile(self._values[name], 99) >= limit
        ]

    def table(self) -> str:
        rows = [["measured", "n", "p50 ms", "p99 ms", "max ms", "limit ms"]]
        for name, values in self._values.items():
            limit = f"{self._limits[name] * 1000:.0f}" if name in self._limits else ""
            times = (percentile(values, 50), percentile(values, 99), max(values))
            rows.append([name, str(len(values)), *(f"{time * 1000:.0f}" for time in times), limit])
        rows += [[name, str(count), "", "", "", ""] for name, count in self._counts.items()]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        return "\n".join(
            "  ".join(
                [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
            ).rstrip()
            for row in rows
        )

    def to_json(self) -> dict[str, Any]:
        times = {
            name: {
                "n": len(values),
                "p50_s": percentile(values, 50),
                "p99_s": percentile(values, 99),
                "max_s": max(values),
                "limit_s": self._limits.get(name),
                "values_s": [round(value, 6) for value in values],
            }
            for name, values in self._values.items()
        }
        return {"times": times, "counts": dict(self._counts)}
