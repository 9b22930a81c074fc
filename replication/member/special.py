"""The entries that are not messages, from the applied index to the log's end: few, so that applying reads little.

A leader knows its own ones, a follower gets their positions from the check of each range, and a start finds those
behind the applied index by reading that part of the log once.

Unreadable entries form a gap. The member applies nothing at or behind a gap until another member's bytes replace it
(`rescan`), regardless of how far the group has committed. If it skipped the gap, its tables would lack a row that all
others have.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tallystick.replication.ledger.ledger import Ledger
from tallystick.replication.ledger.recovery import LedgerError
from tallystick.store._kernel import DamageError, EntryError, find_entry, walk_entries
from tallystick.store.formats.ledger_format import EntryKind
from tallystick.store.formats.record import Record

if TYPE_CHECKING:
    from tallystick.store._kernel import Entries

LARGEST_ENTRY = 16 << 20
"""A sound entry behind damage begins within this many bytes."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Entries from `first`, which should be at byte `pos`, to before `sound` cannot be read."""

    first: int
    sound: int
    pos: int
    reason: str


class SpecialEntries:
    """(index, kind, body) in rising order. A body that is None is read from the log when it is needed."""

    def __init__(self, ledger: Ledger) -> None:
        self.gaps: list[Gap] = []
        """The gaps, in rising order. Empty for a sound log."""
        self._ledger = ledger
        self._waiting: deque[tuple[int, EntryKind, bytes | None]] = deque()

    def find(self, first: int) -> None:
        """Reads the log from entry `first` on. Blocks. Raises DamageError or OSError."""
        ledger = self._ledger
        index, last = max(first, ledger.first_index), ledger.last_index
        if index <= last:
            self._scan(index, ledger.pos_of(index), last)

    def rescan(self) -> None:
        """Entries were written again: entries that can be read now are no longer gaps. Blocks for reads of the gaps.

        Raises DamageError or OSError."""
        gaps, self.gaps = self.gaps, []
        for gap in gaps:
            # Include the entry behind it: its kind could not be verified while the one before it was unreadable.
            last = min(gap.sound, self._ledger.last_index)
            try:
                self._scan(gap.first, gap.pos, last)
            except (DamageError, OSError):
                self.gaps.append(gap)
        self._sort()

    def _sort(self) -> None:
        """Sorts by index and removes duplicates."""
        found = {index: (index, kind, body) for index, kind, body in reversed(self._waiting)}
        self._waiting = deque(found[index] for index in sorted(found))

    def _scan(self, index: int, pos: int, last: int) -> None:
        """Finds the special entries and the gaps among the entries from `index`, at `pos`, to `last`."""
        ledger = self._ledger
        data, size = ledger.folder / "data", ledger.segment_bytes
        # The CRC of a body does not cover the entry's kind, its term and the chain: the previous entry verifies these.
        term, chain = self._link_before(index)
        while index <= last:
            walked = walk_entries(data, size, pos, index, term, chain)
            for at, kind, _, _ in walked.special:
                if at <= last:
                    self._waiting.append((at, EntryKind(kind), None))
            pos, index, term, chain = walked.pos, walked.next_index, walked.last_term, walked.last_chain
            if not walked.done or index > last:
                continue
            behind = find_entry(data, size, pos, index + 1, LARGEST_ENTRY)
            sound = last + 1 if behind is None else min(behind[1], last + 1)
            self.gaps.append(Gap(index, sound, pos, walked.stopped or "the files end"))
            pos, index, chain = (pos, last + 1, None) if behind is None else (*behind, None)

    def _link_before(self, index: int) -> tuple[int, int | None]:
        """Term and chain that entry `index` continues; the chain is None if it is not known."""
        try:
            before = self._ledger.point(index - 1)
        except LedgerError:
            return -1, None
        adopted = index == self._ledger.first_index and index > 0 and not before.chain
        return before.term, None if adopted else before.chain

    def readable_to(self, index: int) -> int:
        """The last entry up to `index` with no gap at or before it."""
        return min(index, self.gaps[0].first - 1) if self.gaps else index

    def give_up(self, first: int) -> list[tuple[Gap, bool]]:
        """Skips the gap that begins here from now on, because no member has its entries. Returns the gaps that were
        given up: empty if there is no such gap. Entries in it whose bytes are sound except for the chain are kept; the
        flag of a gap says whether all are.
        """
        given_up = [gap for gap in self.gaps if gap.first == first]
        self.gaps = [gap for gap in self.gaps if gap.first != first]
        data, size = self._ledger.folder / "data", self._ledger.segment_bytes
        told = []
        for gap in given_up:
            try:
                walked = walk_entries(data, size, gap.pos, gap.first, -1, None, gap.sound - gap.first)
                kept = [(at, EntryKind(kind), None) for at, kind, _, _ in walked.special]
            except (DamageError, OSError, ValueError):
                told.append((gap, False))
                continue
            self._waiting.extend(kept)
            told.append((gap, walked.next_index >= gap.sound))
        self._sort()
        return told

    def append(self, index: int, kind: EntryKind, body: bytes) -> None:
        """Notes a staged own entry."""
        self._waiting.append((index, kind, body))

    def extend(self, entries: Entries, first: int) -> None:
        """Notes a leader's entries from `first` on, which were written."""
        for index, kind, _, _ in entries.special:
            if index >= first:
                self._waiting.append((index, EntryKind(kind), body_of(entries.record(index))))

    def truncate(self, last_kept: int) -> None:
        while self._waiting and self._waiting[-1][0] > last_kept:
            self._waiting.pop()
        kept = (gap for gap in self.gaps if gap.first <= last_kept)
        self.gaps = [replace(gap, sound=min(gap.sound, last_kept + 1)) for gap in kept]

    def clear(self) -> None:
        self._waiting.clear()
        self.gaps.clear()

    def take(self, committed: int) -> Iterator[tuple[int, EntryKind, bytes]]:
        """Yields and drops the entries up to `committed`, none at or behind a gap. An entry that cannot be read now
        becomes a gap: call `readable_to` afterwards."""
        while self._waiting and self._waiting[0][0] <= self.readable_to(committed):
            index, kind, body = self._waiting.popleft()
            if body is None:
                try:
                    body = body_of(self._ledger.record_of(index))
                except (EntryError, DamageError, LedgerError, OSError, ValueError) as error:
                    self.gaps.insert(0, Gap(index, index + 1, self._ledger.pos_of(index), str(error)))
                    return
            yield index, kind, body


def body_of(record: bytes) -> bytes:
    """The content of an own entry, from its record."""
    return Record.decode(record).body
