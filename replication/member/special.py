"""The entries that are no messages, from what is applied to the log's end: few, so that applying reads little.

A leader knows its own, a follower gets their places from the check of each range, and a start finds those that are
behind the applied index by reading that part of the log once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tallystick.replication.ledger.ledger import Ledger
from tallystick.store._kernel import walk_entries
from tallystick.store.ledger_format import EntryKind
from tallystick.store.record import Record

if TYPE_CHECKING:
    from tallystick.store._kernel import Entries


class SpecialEntries:
    """(index, kind, body) in rising order; a body that is None is read from the log when it is wanted."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._waiting: deque[tuple[int, EntryKind, bytes | None]] = deque()

    def find(self, first: int) -> None:
        """Reads the log from entry `first` on. Blocks. DamageError, OSError."""
        ledger = self._ledger
        index, last = max(first, ledger.first_index), ledger.last_index
        if index > last:
            return
        before = ledger.point(index - 1)
        pos, term = ledger.pos_of(index), before.term
        chain: int | None = None
        while True:
            walked = walk_entries(ledger.folder / "data", ledger.segment_bytes, pos, index, term, chain)
            for at, kind, _, _ in walked.special:
                if at <= last:
                    self._waiting.append((at, EntryKind(kind), None))
            if walked.done or walked.next_index > last:
                return
            pos, index, term, chain = walked.pos, walked.next_index, walked.last_term, walked.last_chain

    def append(self, index: int, kind: EntryKind, body: bytes) -> None:
        """An own entry was staged."""
        self._waiting.append((index, kind, body))

    def extend(self, entries: Entries, first: int) -> None:
        """A leader's entries from `first` on were written."""
        for index, kind, _, _ in entries.special:
            if index >= first:
                self._waiting.append((index, EntryKind(kind), body_of(entries.record(index))))

    def truncate(self, last_kept: int) -> None:
        while self._waiting and self._waiting[-1][0] > last_kept:
            self._waiting.pop()

    def clear(self) -> None:
        self._waiting.clear()

    def take(self, committed: int) -> Iterator[tuple[int, EntryKind, bytes]]:
        """Those up to `committed`, which are then forgotten. EntryError: one cannot be read."""
        while self._waiting and self._waiting[0][0] <= committed:
            index, kind, body = self._waiting.popleft()
            yield index, kind, body_of(self._ledger.record_of(index)) if body is None else body


def body_of(record: bytes) -> bytes:
    """What the record of an own entry carries."""
    return Record.decode(record).body
