"""Applies committed entries in order, each once, and informs the callers that wait for them.

    committed ─▶ special entries up to it ─▶ on_apply ─▶ on_commit ─▶ callers that wait for the index

Nothing at or behind an unreadable entry is applied (L12): the positions here say how far the group's decisions took
effect on this member, which can be less than what the core knows to be committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from tallystick.replication.ledger.ledger import Ledger
from tallystick.replication.ledger.mark import EntryPoint
from tallystick.replication.member.callbacks import Callbacks
from tallystick.replication.member.errors import OutcomeUnknownError, ReadError
from tallystick.replication.member.special import Gap, SpecialEntries
from tallystick.replication.member.waiters import Waiters
from tallystick.store.formats.ledger_format import EntryKind

if TYPE_CHECKING:
    from tallystick.store._kernel import Entries


class Applier:
    """Owns the committed and the applied index, the special entries behind them, and the callers that wait.

    `snapshot`, `restore`: see `Member.open`. `on_gap(gap)`: an entry that should be applied cannot be read."""

    def __init__(
        self,
        ledger: Ledger,
        special: SpecialEntries,
        callbacks: Callbacks,
        *,
        applied_index: int,
        snapshot: Callable[[], bytes],
        restore: Callable[[bytes], int],
        on_gap: Callable[[Gap], None],
    ) -> None:
        # A member does not apply an entry that it cannot read, even if the group has committed it (L12).
        hint = special.readable_to(max(ledger.committed_hint, ledger.base.index))
        self.committed_index = hint
        """The last entry that is committed and applied."""
        self.committed_pos = ledger.end_of(hint)
        """The position of the byte behind it."""
        self.applied_index = applied_index
        """The last entry that the caller's state contains: at the start it can be ahead of the committed index."""
        self.special = special
        self.snapshot = snapshot
        self.waiters = Waiters()
        """Callers that wait for the commit of this leader's own entries."""
        self._readers = Waiters()
        self._ledger = ledger
        self._callbacks = callbacks
        self._restore = restore
        self._on_gap = on_gap

    def can_apply(self, index: int) -> bool:
        """Whether a commit up to `index` has an effect now."""
        return self.special.readable_to(index) > self.committed_index

    def commit_up_to(self, index: int) -> None:
        """Applies (S12) and then informs the waiting callers, up to `index` or the first unreadable entry (L12)."""
        special, callbacks = self.special, self._callbacks
        gaps = len(special.gaps)
        for at, kind, body in special.take(index):
            if at > self.applied_index:
                for apply in callbacks.on_apply:
                    apply(at, kind, body)
        if len(special.gaps) > gaps:
            self._on_gap(special.gaps[0])
        index = max(special.readable_to(index), self.committed_index)
        pos = self._ledger.end_of(index)
        self.committed_index, self.committed_pos = index, pos
        self.applied_index = max(self.applied_index, index)
        for told in callbacks.on_commit:
            told(pos)
        self.waiters.resolve(index)
        self._readers.resolve(index)

    def when_applied(self, index: int) -> asyncio.Future[None]:
        """Done when everything up to `index` is applied, which it is not yet. Fails with ReadError if the member
        stops."""
        return self._readers.add(index)

    def note_entries(self, entries: Entries, first_index: int, written: int) -> None:
        """A leader's entries from `first_index` on were put into the log, which ends at entry `written`."""
        if entries.special:
            self.special.extend(entries, first_index)
            self.special.truncate(written)

    def note_own(self, index: int, kind: EntryKind, body: bytes) -> None:
        """An own entry was staged."""
        self.special.append(index, kind, body)

    def drop_behind(self, last_kept: int, error: Exception) -> None:
        """The entries behind `last_kept` are gone: who waits for one of them gets the error."""
        self.special.truncate(last_kept)
        self.waiters.fail_above(last_kept, error)

    def restore(self, blob: bytes) -> int:
        """Durably replaces the state by a snapshot and returns its applied index. Raises OSError."""
        return self._restore(blob)

    def installed(self, point: EntryPoint, applied: int) -> None:
        """A snapshot replaced the log, which begins behind `point`; the state contains the entries up to `applied`."""
        self.special.clear()
        self.committed_index, self.committed_pos = point.index, point.pos
        self.applied_index = max(applied, point.index)
        self.waiters.fail_above(-1, OutcomeUnknownError("a snapshot replaced the log"))
        self._readers.resolve(point.index)

    def give_up(self, reason: str) -> None:
        """The member stops: all waiting callers get an error."""
        self.waiters.fail_above(-1, OutcomeUnknownError(reason))
        self._readers.fail_above(-1, ReadError(reason))
