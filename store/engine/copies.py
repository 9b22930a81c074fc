"""The copies of a log that slaves have: how far the log may be sent to them, and how far they have stored it.

    LocalFlush ── moved ──▶ Copies ── on_sendable ──▶ the server for slaves
    SyncMaster ◀─ on_change ── Copies ◀── attach, stored, detach ──┘

A slave may get what would survive the same failure here: with SYNC_FLUSH what is synced, with ASYNC_FLUSH what is
written. So with SYNC_FLUSH no slave ever has more than this log after a restart. With ASYNC_FLUSH it may, after a power
loss; `is_foreign` finds such a slave.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Copies:
    """Owns what each slave reported. `begin`: end of the log when it was opened; `max_behind`: bytes, see `available`.

    `on_sendable()` is called when `sendable` has grown, and `on_change()` when a slave has come, has stored more, or is
    gone. Without slaves nothing is called.
    """

    begin: int
    max_behind: int
    sendable: int = 0
    """The log may be sent to slaves up to this position."""
    sent: int = 0
    """The highest position up to which any slave was sent the log since it was opened."""
    on_sendable: Callable[[], None] | None = None
    on_change: Callable[[], None] | None = None
    _stored: dict[int, int] = field(default_factory=dict)
    _next: int = 0

    def __post_init__(self) -> None:
        self.sendable = self.sent = self.begin

    def moved(self, sendable: int) -> None:
        """The log may be sent up to `sendable` from now on."""
        if sendable > self.sendable:
            self.sendable = sendable
            if self.on_sendable is not None:
                self.on_sendable()

    def is_foreign(self, pos: int) -> bool:
        """Whether a slave whose copy ends at `pos` has bytes that were not sent to it from this log: they were here
        before a power loss, or they come from another log."""
        return pos > max(self.begin, self.sent)

    # -- the slaves that are connected ---------------------------------------------------------------------------------

    def attach(self, pos: int) -> int:
        """A slave is connected and has the log up to `pos`. Returns its number for the other calls."""
        self._next += 1
        self._stored[self._next] = pos
        self._tell()
        return self._next

    def stored(self, slave: int, pos: int) -> None:
        """The slave has stored the log up to `pos`."""
        if pos > self._stored[slave]:
            self._stored[slave] = pos
            self._tell()

    def detach(self, slave: int) -> None:
        """The slave is no longer connected."""
        del self._stored[slave]
        self._tell()

    @property
    def newest(self) -> int:
        """The end of the longest copy of a connected slave; -1 without one.

        RocketMQ keeps the highest report of all time, so a slave that comes back with an empty disk counts as complete.
        """
        return max(self._stored.values(), default=-1)

    def available(self, end: int) -> bool:
        """Whether a sender of a message that ends at `end` waits for a slave: one is connected, and less than
        `max_behind` bytes behind."""
        return bool(self._stored) and end - self.newest < self.max_behind

    def _tell(self) -> None:
        if self.on_change is not None:
            self.on_change()
