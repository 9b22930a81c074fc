"""Reads that wait for the proof that their leader still leads (R1).

A read notes the commit index and needs the answers of a majority to a round of heartbeats that is sent afterwards.
Reads that arrive while a round is unanswered share the next round, so any number of reads costs one round at a time:

    early      arrived before the leader was ready (S11)
    gathered   wait for the next round
    out        (round, commit index when it was sent, reads), oldest first
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple


class Read(NamedTuple):
    """`asker` is the member that asked, or None for this member."""

    token: int
    asker: int | None


class Reads:
    __slots__ = ("_early", "_gathered", "_out")

    def __init__(self) -> None:
        self._early: list[Read] = []
        self._gathered: list[Read] = []
        self._out: deque[tuple[int, int, list[Read]]] = deque()

    def add_early(self, read: Read) -> None:
        self._early.append(read)

    def make_ready(self) -> None:
        self._gathered, self._early = self._early + self._gathered, []

    def add(self, read: Read) -> None:
        self._gathered.append(read)

    @property
    def round_wanted(self) -> bool:
        """Whether reads wait and no round is unanswered; the answer to such a round would send the next one."""
        return bool(self._gathered) and not self._out

    def sent(self, round_: int, commit_index: int) -> None:
        """Notes that a round is sent now: it serves all waiting reads."""
        if self._gathered:
            self._out.append((round_, commit_index, self._gathered))
            self._gathered = []

    @property
    def oldest_round(self) -> int | None:
        return self._out[0][0] if self._out else None

    def confirmed(self, round_: int) -> Iterator[tuple[int, Read]]:
        """After a majority answered `round_`: yields (commit index, read) of the reads that this round serves."""
        while self._out and self._out[0][0] <= round_:
            _, commit_index, reads = self._out.popleft()
            for read in reads:
                yield commit_index, read

    def drain(self) -> list[Read]:
        """Removes and returns all waiting reads, which have failed."""
        waiting = [*self._early, *self._gathered, *(read for _, _, reads in self._out for read in reads)]
        self._early, self._gathered = [], []
        self._out.clear()
        return waiting
