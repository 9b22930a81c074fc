"""The interface between the engine and a replicated log.

A plain store creates its log itself, and everything that is written may be read. A `Replica` creates a replicated log,
and the engine uses only what the group has committed: `GroupCommit.commit` reports the position.

    Replica ── log, where it begins, how far it was committed ──▶ GroupCommit
            ◀── written, synced, failed; what may be deleted ────
    driver  ── commit, take_lead, serve, give_up, forget_cut ───▶

ConsumeQueues and index are derived from committed records only, so they never have to be rolled back (B4, R4).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tallystick.store._kernel import LedgerLog


class Replica(Protocol):
    """One replicated log, recovered and open. The engine calls it on the event loop, unless a method says otherwise."""

    @property
    def log(self) -> LedgerLog:
        """In dledger's layout, started at its end."""
        ...

    @property
    def begin_pos(self) -> int:
        """Position of the first byte of the log that is not deleted."""
        ...

    @property
    def committed_pos(self) -> int:
        """The commit position as last saved, at least `begin_pos`: a hint for the start."""
        ...

    def first_index_behind(self, pos: int) -> int:
        """Index of the first entry that ends behind `pos`; if there is no such entry, the next index."""
        ...

    def log_written(self) -> None:
        """The written end of the log has moved."""
        ...

    def log_synced(self) -> None:
        """The durable end of the log has moved."""
        ...

    def log_failed(self, error: OSError, *, final: bool) -> None:
        """A write failed, and the staged entries are dropped. `final`: a sync failed, and nothing becomes durable
        again."""
        ...

    def keep_from(self) -> int:
        """The engine deletes no byte at or behind this position: a peer lacks it, or it is not applied yet (D10)."""
        ...

    def release_before(self, pos: int) -> None:
        """Makes the log begin at `pos`, durably. Called on a thread that may block. Raises OSError."""
        ...

    def save_mark(self) -> None:
        """Saves how far the log is durable. Called about once a second, on a thread that may block. Raises OSError."""
        ...

    def close(self, orderly: bool) -> None:
        """Closes the log: everything is written and synced. Called on a thread that may block. Raises OSError."""
        ...
