"""The findings of an audit: a limited number of differences with their places, and what is only behind the log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

MOST_LISTED = 1000
MOST_NOTES = 100
SETTLED = 2**63 - 1
"""Store time from which on derived files may be behind; for a store that was closed in order: never."""


@dataclass(frozen=True)
class Difference:
    """`what`: log, queue, index, ledger (dledger's index of entries), checkpoint, table, replicas, transaction, delay.

    `offset`: byte in `file`; without a file, of the log. `size`: affected bytes, 0 if that is unknown. `repairable`:
    the next start of the store's broker repairs it.
    """

    source: str
    what: str
    file: str
    offset: int
    reason: str
    size: int = 0
    repairable: bool = False


@dataclass
class Findings:
    count: int = 0
    differences: list[Difference] = field(default_factory=list)
    behind: dict[str, int] = field(default_factory=dict)
    """Number of units and entries that recent records do not have yet, by kind."""
    notes: list[Difference] = field(default_factory=list)
    """What is unusual and no difference, such as an unfinished last write. A limited number."""

    def note(self, note: Difference) -> None:
        if len(self.notes) < MOST_NOTES:
            self.notes.append(note)

    def add(self, difference: Difference) -> None:
        self.count += 1
        if len(self.differences) < MOST_LISTED:
            self.differences.append(difference)

    def merge(self, other: Findings) -> None:
        """Adds the differences of `other`."""
        for difference in other.differences:
            self.add(difference)
        self.count += other.count - len(other.differences)

    def add_behind(self, what: str, count: int = 1) -> None:
        self.behind[what] = self.behind.get(what, 0) + count

    @classmethod
    def joined(cls, parts: Iterable[Findings]) -> Findings:
        """Joins findings. A difference that several parts found counts once."""
        whole = cls()
        seen: set[Difference] = set()
        for part in parts:
            new = [each for each in part.differences if each not in seen]
            seen.update(new)
            whole.differences += new[: MOST_LISTED - len(whole.differences)]
            whole.count += part.count - len(part.differences) + len(new)
            whole.notes += part.notes[: MOST_NOTES - len(whole.notes)]
            for what, count in part.behind.items():
                whole.add_behind(what, count)
        return whole
