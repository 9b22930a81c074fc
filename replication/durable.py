"""What the core is told about this member's disk: term and vote, the log it may look into, and how the disk feels.

The core never sees bytes. It knows an entry as (index, term): indexes start at 0 and have no holes, terms never fall
along the log. What stands behind the log's first kept entry (old segments are deleted) is known by one pair, the index
and term of the entry just before it; for a log that was never cut that pair is (-1, -1).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol


class DiskState(enum.IntEnum):
    """How this member's log disk is. Fixed: sent in replies."""

    OK = 0
    FULL = 1
    """No entry can be written now. Term and vote still can."""
    FAILED = 2
    """A write or sync came back with an error: what is durable is not known any more (D7). There is no way back."""
    LOW = 3
    """So little room is left that no messages should be taken. Entries are written: those of the group itself, of its
    tables, and whatever a leader with more room sends."""

    @property
    def can_write(self) -> bool:
        """Whether entries can be written."""
        return self is DiskState.OK or self is DiskState.LOW

    @property
    def rank(self) -> int:
        """More is better: a leader hands over to a member of a higher rank (L10)."""
        return _RANKS[self]


_RANKS = {DiskState.OK: 3, DiskState.LOW: 2, DiskState.FULL: 1, DiskState.FAILED: 0}


class Doubt(enum.IntEnum):
    """What a member may have forgotten of what it once answered. Fixed: sent in replies."""

    NONE = 0
    LOG = 1
    """Entries that it acknowledged may be gone: flushed asynchronously, then stopped uncleanly (D9)."""
    VOTES = 2
    """Its votes may be gone as well: a known member came up with an emptied disk (S14)."""


@dataclass(frozen=True, slots=True)
class HardState:
    """The record that is durable before it is acted on (D1): the term, and for whom this member voted in it."""

    term: int = 0
    voted_for: int | None = None


class LogView(Protocol):
    """The member's log, to be looked at. Reads only, and cheap: the core asks on its hot path.

    It always shows the effects that were carried out so far: entries that `Write` or `AppendOwn` or a proposal put in
    are seen, synced or not.
    """

    @property
    def first_index(self) -> int:
        """Index of the oldest entry kept; `last_index + 1` if none is."""
        ...

    @property
    def last_index(self) -> int:
        """Index of the newest entry; -1 if there never was one."""
        ...

    def term_of(self, index: int) -> int | None:
        """Term of the entry at `index`, also of the one just before the first kept one; None outside of that.

        The core asks this only while it is being built: from then on it keeps its own table (`term_runs`).
        """
        ...

    def extent(self, first: int, max_bytes: int) -> int:
        """Index of the last entry of the longest run from `first` on that takes at most `max_bytes` on disk.

        `first` itself always belongs to it, however large it is. `first` is a kept entry; the answer is at most
        `last_index`.
        """
        ...
