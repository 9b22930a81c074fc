"""What the engine asks of a log that is replicated: the seam between it and whoever keeps the replicas in step.

A plain store makes its log itself, and whatever is written may be read. A replicated log is made by a `Replica`, and
the engine sees of it what the group has committed, no more: `MessageStore.commit` tells how far that is.

    Replica ── log, where it begins, how far it was committed ──▶ MessageStore
            ◀── written, synced, failed; what may be deleted ────
    driver  ── commit, take_lead, serve, give_up, forget_from ──▶

Consume queues and index are made from committed records only, so nothing of them ever has to be taken back (B4, R4).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tallystick.store._kernel import Log


class Replica(Protocol):
    """One replicated log, recovered and open. What it is told comes on the event loop's thread, unless it says so."""

    @property
    def log(self) -> Log:
        """In dledger's layout, started at its end."""
        ...

    @property
    def begin_pos(self) -> int:
        """First byte that is kept."""
        ...

    @property
    def committed_pos(self) -> int:
        """Up to where the log was committed when that was last noted, `begin_pos` or more: a hint for the start."""
        ...

    def first_index_behind(self, pos: int) -> int:
        """Index of the first entry that ends behind `pos`; of the next one if there is none."""
        ...

    def log_written(self) -> None:
        """More of what was staged is written."""
        ...

    def log_synced(self) -> None:
        """More of what was written is durable."""
        ...

    def log_failed(self, error: OSError, *, final: bool) -> None:
        """Writing failed, and what was staged is given up; `final`: a sync did, and nothing will be durable again."""
        ...

    def keep_from(self) -> int:
        """No byte of the log from this position on is deleted: a peer lacks it, or it is not applied (D10)."""
        ...

    def release_before(self, pos: int) -> None:
        """The log is to begin at `pos`: durable when it returns. On a thread that may block. OSError."""
        ...

    def save_mark(self) -> None:
        """Note how far the log is durable. About once a second, on a thread that may block. OSError."""
        ...

    def close(self, orderly: bool) -> None:
        """All is written and synced; nothing follows. On a thread that may block. OSError."""
        ...
