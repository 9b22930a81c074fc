"""The term of each entry of the log, as runs of equal terms.

Terms never decrease along a log, so a whole log consists of a few runs: one for each term that had a leader. Consensus
answers each question about terms with one bisection of a short list, and does not read the disk.

    firsts   [ 41, 57, 900 ]        entry 41 is just before the first kept entry (the base), 57 is the first of term 5
    terms    [  3,  5,   6 ]        last_index 1200
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from tallystick.replication.durable import LogView
from tallystick.replication.messages import TermRun


class TermRuns:
    """Terms of the entries from the base, the entry just before the first kept one, to `last_index`.

    The base of a log from which nothing was deleted is (-1, -1).
    """

    __slots__ = ("_firsts", "_terms", "last_index")

    def __init__(self, base_index: int = -1, base_term: int = -1) -> None:
        self._firsts, self._terms = [base_index], [base_term]
        self.last_index = base_index

    @classmethod
    def of(cls, log: LogView) -> TermRuns:
        """The table of an existing log. It finds the end of each run by bisection."""
        base_index = log.first_index - 1
        runs = cls(base_index, -1 if base_index < 0 else _known_term(log, base_index))
        while runs.last_index < log.last_index:
            term = _known_term(log, runs.last_index + 1)
            inside, outside = runs.last_index + 1, log.last_index + 1
            while outside - inside > 1:
                middle = (inside + outside) // 2
                if _known_term(log, middle) == term:
                    inside = middle
                else:
                    outside = middle
            runs.append(term, inside)
        return runs

    @property
    def base_index(self) -> int:
        return self._firsts[0]

    @property
    def last_term(self) -> int:
        """Term of the last entry; of the base if there is no entry."""
        return self._terms[-1]

    def term_of(self, index: int) -> int | None:
        """Term of the entry; None before the base and behind the end."""
        if index >= self._firsts[-1]:
            return self._terms[-1] if index <= self.last_index else None
        position = bisect_right(self._firsts, index) - 1
        return self._terms[position] if position >= 0 else None

    def first_of_run(self, index: int) -> int:
        """Index of the first entry with the term of the entry at `index`, which must be in the log."""
        return self._firsts[bisect_right(self._firsts, index) - 1]

    def last_of_term(self, term: int) -> int | None:
        """Index of the last entry of `term`; None if the log has none."""
        position = bisect_left(self._terms, term)
        if position == len(self._terms) or self._terms[position] != term:
            return None
        return self._end(position)

    def runs(self, first: int, last: int) -> tuple[TermRun, ...]:
        """Terms of the entries first..last, which must all be in the log."""
        if first > last:
            return ()
        if first >= self._firsts[-1]:  # the usual case: what a leader sends
            return (TermRun(self._terms[-1], last),)
        begin, end = bisect_right(self._firsts, first) - 1, bisect_right(self._firsts, last)
        return tuple(TermRun(self._terms[at], min(last, self._end(at))) for at in range(begin, end))

    def agree_up_to(self, prev_index: int, runs: tuple[TermRun, ...]) -> int:
        """Index of the last entry behind `prev_index` whose term is the same here and in `runs`; else `prev_index`."""
        agreed = prev_index
        for run in runs:
            while agreed < run.last_index and self.term_of(agreed + 1) == run.term:
                position = bisect_right(self._firsts, agreed + 1) - 1
                agreed = min(run.last_index, self._end(position))
            if agreed < run.last_index:
                break
        return agreed

    def append(self, term: int, last_index: int) -> None:
        """Sets the term of the entries up to `last_index` that are new here."""
        if last_index > self.last_index:
            if term != self._terms[-1]:
                assert term > self._terms[-1], "terms never decrease along a log"
                self._firsts.append(self.last_index + 1)
                self._terms.append(term)
            self.last_index = last_index

    def truncate(self, last_kept: int) -> None:
        """Drops the entries behind `last_kept`."""
        if last_kept < self.last_index:
            assert last_kept >= self._firsts[0], "the base is not truncated"
            keep = bisect_right(self._firsts, last_kept)
            del self._firsts[keep:], self._terms[keep:]
            self.last_index = last_kept

    def reset(self, base_index: int, base_term: int) -> None:
        """Starts again at a snapshot, without entries."""
        self._firsts, self._terms = [base_index], [base_term]
        self.last_index = base_index

    def _end(self, position: int) -> int:
        return self._firsts[position + 1] - 1 if position + 1 < len(self._firsts) else self.last_index


def _known_term(log: LogView, index: int) -> int:
    term = log.term_of(index)
    if term is None:
        raise ValueError(f"the log has no term for entry {index}, which it contains")
    return term
