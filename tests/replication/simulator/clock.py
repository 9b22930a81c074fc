"""Virtual time: one queue of events for the whole group, and a separate monotonic clock for each member.

The queue is the only thing that moves time. Two events of the same moment happen in the order in which they were asked
for, so that a run depends on nothing but its seed. A member never sees the queue's time: it reads its `Clock`, which
may run a little faster or slower than the true one, and may jump ahead as it does when a machine was suspended.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class EventQueue:
    """What happens next; `now` is the true time in virtual seconds since the run began."""

    def __init__(self) -> None:
        self.now = 0.0
        self._order = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def after(self, seconds: float, action: Callable[..., None], *arguments: Any) -> None:
        self._order += 1
        heapq.heappush(self._heap, (self.now + seconds, self._order, action, arguments))

    def at(self, moment: float, action: Callable[..., None], *arguments: Any) -> None:
        self._order += 1
        heapq.heappush(self._heap, (max(moment, self.now), self._order, action, arguments))

    def run_until(self, end: float) -> None:
        """Everything that is due up to `end`, and what that brings about up to then."""
        heap = self._heap
        while heap and heap[0][0] <= end:
            self.now, _, action, arguments = heapq.heappop(heap)
            action(*arguments)
        self.now = end


class Clock:
    """A member's monotonic clock, in seconds: rate 1.01 gains ten milliseconds a second."""

    __slots__ = ("_ahead", "rate")

    def __init__(self, rate: float, ahead: float) -> None:
        self.rate = rate
        self._ahead = ahead  # clocks count from the start of their machine: members never agree on a moment

    def read(self, true_time: float) -> float:
        return self._ahead + true_time * self.rate

    def jump(self, seconds: float) -> None:
        """Forwards only: it is monotonic."""
        assert seconds >= 0
        self._ahead += seconds
