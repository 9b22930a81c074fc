"""What the core knows about this member's disk: term and vote, a view of the log, and disk health.

The core never sees bytes. It identifies an entry by (index, term): indexes start at 0 without gaps, and terms never
decrease along the log. Old segments are deleted, so the log can start later. One pair then describes everything before
the start: index and term of the entry just before the first kept one. For a log from which nothing was deleted, this
pair is (-1, -1).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol


class DiskState(enum.IntEnum):
    """State of this member's log disk. The values are part of the protocol: replies contain them."""

    OK = 0
    FULL = 1
    """No entry can be written at present. Term and vote still can."""
    FAILED = 2
    """A write or sync failed, so it is unknown what is durable (D7). The state is final."""
    LOW = 3
    """There is so little space that the leader should accept no messages. Entries can be written: entries of the group
    itself, of its tables, and all entries that a leader with more space sends."""

    @property
    def can_write(self) -> bool:
        """Whether entries can be written."""
        return self is DiskState.OK or self is DiskState.LOW

    @property
    def rank(self) -> int:
        """Higher is better: a leader hands over to a member with a higher rank (L10)."""
        return _RANKS[self]


_RANKS = {DiskState.OK: 3, DiskState.LOW: 2, DiskState.FULL: 1, DiskState.FAILED: 0}


class PossibleLoss(enum.IntEnum):
    """What a member may have lost of what it acknowledged. The values are part of the protocol: replies contain
    them."""

    NONE = 0
    LOG = 1
    """It may have lost entries that it acknowledged: asynchronous flush and an unclean stop (D9)."""
    VOTES = 2
    """It may also have lost its votes: a known member started with an empty disk (S14)."""


@dataclass(frozen=True, slots=True)
class HardState:
    """The record that must be durable before the member acts on it (D1): the term, and the member's vote in this
    term."""

    term: int = 0
    voted_for: int | None = None


class LogView(Protocol):
    """Read access to the member's log. All calls must be cheap: the core calls them on its hot path.

    The view always reflects the effects that were carried out so far: entries of `Write`, of `AppendOwn` and of
    proposals are visible before they are synced.
    """

    @property
    def first_index(self) -> int:
        """Index of the oldest kept entry; `last_index + 1` if the log has no entry."""
        ...

    @property
    def last_index(self) -> int:
        """Index of the newest entry; -1 if the log never had one."""
        ...

    def term_of(self, index: int) -> int | None:
        """Term of the entry at `index`, also of the one just before the first kept entry; otherwise None.

        The core calls this only during its construction. Afterwards it uses its own table (`term_runs`).
        """
        ...

    def extent(self, first: int, max_bytes: int) -> int:
        """Index of the last entry of the longest run that begins at `first` and takes at most `max_bytes` on disk.

        The entry `first` always belongs to the run, whatever its size. `first` must be a kept entry; the result is at
        most `last_index`.
        """
        ...
