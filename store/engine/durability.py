"""What makes a message safe: a flush of this disk (`local_flush.py`), or a commit of a group (`group_commit.py`).

A store gets one of the two when it is opened. The two sides differ in when senders are answered, which part of the log
may be read, and what may be deleted; all other parts of the engine ask the strategy and know neither.

    LogSource ── opens the log; afterwards ──▶ Durability ◀── Appender: written, synced, failed
                                                    ▲──────── Reads: how far; Writes: stored; Upkeep: what is kept
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tallystick.store.engine.waiters import Waiters
from tallystick.store.formats.message import PutStatus

if TYPE_CHECKING:
    from tallystick.store._kernel import Dispatch, Log
    from tallystick.store.engine.admission import Admission
    from tallystick.store.engine.connections import Answers
    from tallystick.store.engine.dispatcher import Dispatcher
    from tallystick.store.engine.recovery import KeptLog, Recovered
    from tallystick.store.settings import StoreSettings


@dataclass(frozen=True, slots=True)
class LogParts:
    """The parts of an open store that a strategy works with. `deliver`: writes answers to their connections."""

    settings: StoreSettings
    log: Log
    dispatch: Dispatch
    dispatcher: Dispatcher
    recovered: Recovered
    deliver: Callable[[Answers], None]


class LogSource(Protocol):
    """Where the log of a store comes from when it is opened."""

    is_replicated: bool
    entry_header_bytes: int
    """Size of what precedes each record in the log."""

    @property
    def kept(self) -> KeptLog | None:
        """The part of the log that recovery must not cut; None if recovery decides where the log ends."""
        ...

    def sync_inherited(self, recovered: Recovered) -> None:
        """Makes what a killed process wrote durable, before the first send is answered. Blocks. Raises OSError."""
        ...

    def open(self, recovered: Recovered) -> Log:
        """The log, started at its end."""
        ...

    def durability(self, parts: LogParts) -> Durability:
        """The strategy of the open store."""
        ...


class Durability(Protocol):
    """When a message is safe, and what that permits. Called on the event loop, unless a method says otherwise."""

    flushed: Waiters
    """Those who wait until the log is synced up to a position."""
    is_pooled: bool
    """Whether sends are answered when they are staged (transient store pool)."""
    kernel_may_store: bool
    """Whether plain sends need nothing that only Python does."""
    no_segment_status: PutStatus
    """The outcome of a put for which no segment could be created."""
    chores: tuple[tuple[str, Callable[[], None]], ...]
    """Names and functions of what is done about once a second, on the upkeep thread. They may raise OSError."""
    serving: bool
    """Whether puts are accepted at all: a member of a group accepts them while it leads."""
    refusal: str | None
    """Why too few members have room for messages; None if enough have."""

    @property
    def readable_end(self) -> int:
        """The end of the part of the log that is dispatched and served."""
        ...

    def read_limits(self) -> tuple[int, bool]:
        """The readable end, and whether this store knows the right offset for a reader whose offset is outside of the
        queue."""
        ...

    def start(self, admission: Admission) -> None:
        """The store is complete: dispatches what may be dispatched, and lets the kernel store sends if it may."""
        ...

    async def stored(self, end: int, *, waits: bool) -> PutStatus:
        """The outcome of the record that was staged up to `end`. `waits`: its sender waits for the disk."""
        ...

    def log_written(self, written: int) -> None:
        """The written end of the log may have moved."""
        ...

    def log_synced(self, flushed: int) -> None:
        """The durable end of the log may have moved."""
        ...

    def log_failed(self, error: OSError, *, final: bool) -> None:
        """A write failed, and what was staged is dropped. `final`: a sync failed, and nothing becomes durable again."""
        ...

    def refuse(self, safe: int) -> None:
        """Ends the waiting for everything behind `safe`: it could not be stored."""
        ...

    def expire(self) -> None:
        """Answers the sends of the kernel that have waited for longer than `syncFlushTimeout`."""
        ...

    def keep_from(self) -> int:
        """Nothing at or behind this position may be deleted."""
        ...

    def release_before(self, pos: int) -> None:
        """Makes the log begin at `pos`, durably. Blocks. Raises OSError."""
        ...

    def close(self, orderly: bool) -> None:
        """The log is written and synced for the last time. Blocks. Raises OSError."""
        ...
