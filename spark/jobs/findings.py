"""The findings of an audit: a limited number of differences with their places, and what is only behind the log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

MOST_LISTED = 1000
SETTLED = 2**63 - 1
"""Store time from which on derived files may be behind; for a store that was closed in order: never."""


@dataclass(frozen=True)
class Difference:
    """`what`: log, queue, index, replicas, transaction, delay. `offset`: byte in `file`; without a file, of the log."""

    source: str
    what: str
    file: str
    offset: int
    reason: str


@dataclass
class Findings:
    count: int = 0
    differences: list[Difference] = field(default_factory=list)
    behind: dict[str, int] = field(default_factory=dict)
    """Number of units and entries that recent records do not have yet, by kind."""

    def add(self, difference: Difference) -> None:
        self.count += 1
        if len(self.differences) < MOST_LISTED:
            self.differences.append(difference)

    def add_behind(self, what: str, count: int = 1) -> None:
        self.behind[what] = self.behind.get(what, 0) + count

    @classmethod
    def joined(cls, parts: Iterable[Findings]) -> Findings:
        whole = cls()
        for part in parts:
            whole.differences += part.differences[: MOST_LISTED - len(whole.differences)]
            whole.count += part.count
            for what, count in part.behind.items():
                whole.add_behind(what, count)
        return whole
