"""How long a put has been holding the log: the broker refuses new sends while one takes too long.

A write to the page cache that takes a second means that the system is throttling us, and everything queued behind it
only grows old. Source: DefaultMessageStore.isOSPageCacheBusy and lockTimeMills of RocketMQ 4.8.0.
"""

from __future__ import annotations

# RocketMQ's guard against a torn or ancient begin time: such a put cannot have been running for hours.
_NEVER_MS = 10_000_000


class PutClock:
    """Times are ms since 1970, passed in. `begin` and `end` are called by the one writer, the others by anybody."""

    def __init__(self) -> None:
        self._begin_ms = 0

    def begin(self, now_ms: int) -> None:
        """The writer has the log."""
        self._begin_ms = now_ms

    def end(self) -> None:
        """It is done."""
        self._begin_ms = 0

    def held_ms(self, now_ms: int) -> int:
        """For how long the log has been held; 0 when it is free, or when the clock was set back."""
        begin_ms = self._begin_ms
        return max(0, now_ms - begin_ms) if begin_ms else 0

    def is_busy(self, now_ms: int, timeout_ms: int) -> bool:
        """It is held for longer than `timeout_ms` (`osPageCacheBusyTimeOutMills`)."""
        return timeout_ms < self.held_ms(now_ms) < _NEVER_MS
