"""The clock for deletions by age. It ignores sudden jumps of the wall clock.

A wall clock that is set to another year by mistake would make every segment of the log expire at once, and correcting
the clock does not bring deleted files back. Therefore this clock follows the wall clock only as far as the steady clock
confirms it:

    wall clock ahead by at most TOLERANCE_MS     accepted: clocks drift, and are corrected
    ahead by more                                ignored until the jump has lasted for PATIENCE_MS
    set back, by any amount                      accepted: files look younger, nothing is deleted

At a start there is no steady clock to compare with. The newest time in the store's files counts as the last time at
which the clock was right. So a broker that was down for longer than the tolerance deletes nothing by age for
PATIENCE_MS.

The class reads no clock: both times are arguments. When the disk is full, the oldest segments are deleted whatever
the clock says.
"""

from __future__ import annotations

TOLERANCE_MS = 3_600_000
PATIENCE_MS = 24 * 3_600_000


class AgeClock:
    """The clock of one store. `held_back_ms`: how far the wall clock is ahead of it; 0 if it is accepted."""

    def __init__(self, newest_ms: int, wall_ms: int, steady_ms: int) -> None:
        """`newest_ms`: the newest time of the store's files; 0 without files."""
        began_ms = newest_ms if 0 < newest_ms < wall_ms else wall_ms
        self._offset_ms = began_ms - steady_ms
        self._since_ms: int | None = None
        self.held_back_ms = 0

    def now_ms(self, wall_ms: int, steady_ms: int) -> int:
        """The current time for ages, from the values of the two clocks."""
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
