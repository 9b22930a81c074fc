"""A ledger as the storage engine sees it: it implements `store/engine/replica.py`. The driver adds its callbacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tallystick.replication.ledger.ledger import Ledger

if TYPE_CHECKING:
    from tallystick.store._kernel import LedgerLog


def _nothing() -> None:
    """Ignores the event."""


class LedgerReplica:
    """One member's log for its `MessageStore`. The driver sets the callbacks and keeps the two positions up to date.

    `on_written`, `on_synced`, `on_failed(error, final)` are called on the event loop. `committed_index` is a hint for
    the next start. `kept_from`: the first byte of the log that must not be deleted, because of another member or a
    snapshot (D10). The engine itself keeps what is not flushed and dispatched.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.committed_index = ledger.committed_hint
        self.kept_from = ledger.log.written
        self.on_written: Callable[[], None] = _nothing
        self.on_synced: Callable[[], None] = _nothing
        self.on_failed: Callable[[OSError, bool], None] = lambda error, final: None

    @property
    def log(self) -> LedgerLog:
        return self.ledger.log

    @property
    def begin_pos(self) -> int:
        return self.ledger.base.pos

    @property
    def committed_pos(self) -> int:
        index = self.committed_index
        return self.ledger.end_of(index) if index >= self.ledger.first_index else self.ledger.base.pos

    def first_index_behind(self, pos: int) -> int:
        return self.ledger.index_of(pos) + 1

    def log_written(self) -> None:
        self.on_written()

    def log_synced(self) -> None:
        self.on_synced()

    def log_failed(self, error: OSError, *, final: bool) -> None:
        self.on_failed(error, final)

    def keep_from(self) -> int:
        return self.kept_from

    def release_before(self, pos: int) -> None:
        self.ledger.release_before(pos)
        self.ledger.delete_released_index()

    def save_mark(self) -> None:
        self.ledger.save_mark(self.committed_index)

    def close(self, orderly: bool) -> None:
        if orderly:
            self.ledger.close(self.committed_index)
        else:
            self.ledger.save_mark(self.committed_index)
