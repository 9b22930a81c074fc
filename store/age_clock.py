"""The wall clock as deletions by age may use it: a sudden jump forward makes nothing old.

A wall clock that is set to another year by a mistake would make every segment of the log expire at once, and what is
deleted does not come back when the clock does. So the time that ages are measured by follows the wall clock only as far
as the steady clock confirms it:

    wall clock ahead by at most TOLERANCE_MS     believed: clocks drift, and are corrected
    ahead by more                                the jump is left out until it has stood for PATIENCE_MS
    set back, by any amount                      believed: files look younger, nothing is deleted

A start has no steady clock to compare with. It takes the newest time that the store's files carry as the last time at
which the clock was right: a broker that was down for longer than the tolerance deletes nothing by age for PATIENCE_MS.

Pure: both times are arguments. A disk that is full is no matter of age: the oldest segments go then, whatever
the clock says.
"""

from __future__ import annotations

TOLERANCE_MS = 3_600_000
PATIENCE_MS = 24 * 3_600_000


class AgeClock:
    """One store's. `held_back_ms`: how much of the wall clock is not believed now."""

    def __init__(self, newest_ms: int, wall_ms: int, steady_ms: int) -> None:
        """`newest_ms`: the newest time of the store's files; 0: there are none."""
        began_ms = newest_ms if 0 < newest_ms < wall_ms else wall_ms
        self._offset_ms = began_ms - steady_ms
        self._since_ms: int | None = None
        self.held_back_ms = 0

    def now_ms(self, wall_ms: int, steady_ms: int) -> int:
        """The time that ages are measured by, when the two clocks show this."""
        ahead_ms = wall_ms - steady_ms - self._offset_ms
        if ahead_ms <= TOLERANCE_MS:
            return self._believe(wall_ms, steady_ms)
        if self._since_ms is None:
            self._since_ms = steady_ms
        if steady_ms - self._since_ms >= PATIENCE_MS:
            return self._believe(wall_ms, steady_ms)
        self.held_back_ms = ahead_ms
        return steady_ms + self._offset_ms

    def _believe(self, wall_ms: int, steady_ms: int) -> int:
        self._offset_ms = wall_ms - steady_ms
        self._since_ms, self.held_back_ms = None, 0
        return wall_ms
