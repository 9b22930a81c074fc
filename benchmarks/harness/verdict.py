"""From turns to a table: medians, advantages, verdicts. Arithmetic only.

Both sides of a row are measured one after the other in each turn, and a shared machine changes its speed by a third
within minutes: so a ratio is the median of the turns' ratios, not the ratio of the two medians, which may be of moments
that have nothing to do with each other. Only rows that are compared with another row have nothing to pair.

A turn that others disturbed by more than FOREIGN_CORES is left out of the median while at least half of the turns are
clean; otherwise all count and the figure is marked noisy. A turn whose count of stored messages does not agree with
what was acknowledged makes its whole figure void: whatever else it says is not to be believed either.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from harness.load import LoadResult
from harness.rows import Line, Metric

FOREIGN_CORES = 0.4
"""Of two cores; above it rates moved by more than the differences that the table is about."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One measurement of one run on one side."""

    run: str
    side: str
    values: Mapping[Metric, float]
    foreign_cores: float = 0.0
    void: str = ""
    """Why nothing of it counts; empty when it does."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Figure:
    """A metric over the turns of a run on one side."""

    median: float
    low: float
    high: float
    turns: int
    foreign_cores: float
    noisy: bool = False
    void: str = ""


class Verdict(StrEnum):
    """The final verdict of a line."""

    AIM = "aim reached"
    FLOOR = "above floor"
    BELOW = "BELOW FLOOR"
    VOID = "VOID"
    NONE = "-"


@dataclass(frozen=True, slots=True)
class Result:
    """A line with its figures; `advantage` is how many times better ours is, None when there is nothing to compare."""

    line: Line
    ours: Figure
    base: Figure | None
    advantage: float | None
    verdict: Verdict
    notes: tuple[str, ...] = field(default=())
    third: Figure | None = None
    """A further broker under the same load, without a verdict."""
    third_advantage: float | None = None

    @property
    def noisy(self) -> bool:
        """Whether others disturbed most turns of one of the two figures."""
        return self.ours.noisy or (self.base is not None and self.base.noisy)


def void_reason(result: LoadResult, stored: int) -> str:
    """Why a run of sends is not to be believed; empty if it is.

    Refused and unanswered sends may or may not be stored (a flush that timed out is), acknowledged ones are.
    """
    if result.errors:
        return f"the generator met errors: {'; '.join(result.errors)}"
    if result.total_messages == 0:
        return f"nothing was acknowledged; codes {dict(result.codes)} {dict(result.remarks)}"
    if stored < result.total_messages:
        return f"{result.total_messages} acknowledged, {stored} stored"
    if stored > result.total_messages + result.refused + result.unanswered:
        return f"{result.total_messages} acknowledged of {result.sent} sent, {stored} stored"
    return ""


def figure(turns: Sequence[Turn], metric: Metric) -> Figure | None:
    """The median of the turns that count; None when no turn has the metric."""
    having = [turn for turn in turns if metric in turn.values]
    void = next((turn.void for turn in turns if turn.void), "")
    if not having:
        return Figure(0, 0, 0, len(turns), 0, void=void) if void else None
    clean = [turn for turn in having if turn.foreign_cores <= FOREIGN_CORES]
    noisy = 2 * len(clean) < len(having)
    counted = having if noisy else clean
    values = [turn.values[metric] for turn in counted]
    return Figure(
        median=statistics.median(values),
        low=min(values),
        high=max(values),
        turns=len(counted),
        foreign_cores=statistics.median(turn.foreign_cores for turn in counted),
        noisy=noisy,
        void=void,
    )


def advantage(metric: Metric, ours: float, base: float) -> float | None:
    """How many times better ours is than the other; None when a zero leaves nothing to divide."""
    above, below = (ours, base) if metric.more_is_better else (base, ours)
    return above / below if above > 0 and below > 0 else None


def paired_advantage(metric: Metric, ours: Sequence[Turn], base: Sequence[Turn]) -> float | None:
    """The median over turns, the first with the first and so on, of how many times better ours was in that turn.

    Pairs with a disturbed side are left out while that leaves half of them. None: there is no pair to compare.
    """
    pairs = [
        (mine, theirs)
        for mine, theirs in zip(ours, base, strict=False)
        if metric in mine.values and metric in theirs.values
    ]
    clean = [pair for pair in pairs if max(turn.foreign_cores for turn in pair) <= FOREIGN_CORES]
    counted = clean if 2 * len(clean) >= len(pairs) else pairs
    times = [advantage(metric, mine.values[metric], theirs.values[metric]) for mine, theirs in counted]
    known = [value for value in times if value is not None]
    return statistics.median(known) if known else None


def _with_third(result: Result, turns: Sequence[Turn]) -> Result:
    """The result with the figure of the third side, if that side ran under the load of both others."""
    line = result.line
    if line.against != ("peer", line.run):
        return result
    theirs = [turn for turn in turns if (turn.side, turn.run) == ("rust", line.run)]
    third = figure(theirs, line.metric)
    if third is None:
        return result
    notes = tuple(dict.fromkeys(f"{turn.side}: {note}" for turn in theirs for note in turn.notes))
    times = None
    if not (third.void or result.ours.void):
        mine = [turn for turn in turns if (turn.side, turn.run) == ("ours", line.run)]
        times = paired_advantage(line.metric, mine, theirs)
    return replace(result, third=third, third_advantage=times, notes=result.notes + notes)


def judge(line: Line, turns: Sequence[Turn]) -> Result | None:
    """The line's result; None when its run, or what it is compared with, was not measured."""
    result = _judge_two(line, turns)
    return None if result is None else _with_third(result, turns)


def _judge_two(line: Line, turns: Sequence[Turn]) -> Result | None:
    mine = [turn for turn in turns if (turn.side, turn.run) == ("ours", line.run)]
    ours = figure(mine, line.metric)
    if ours is None:
        return None
    notes = tuple(dict.fromkeys(f"{turn.side}: {note}" for turn in mine for note in turn.notes))
    if line.against is None:
        return Result(line, ours, None, None, _verdict_of_limit(line, ours), notes)
    theirs = [turn for turn in turns if (turn.side, turn.run) == line.against]
    base = figure(theirs, line.metric)
    notes += tuple(
        dict.fromkeys(f"{turn.side}: {note}" for turn in theirs for note in turn.notes if turn.side != "ours")
    )
    if base is None:
        return Result(line, ours, None, None, Verdict.VOID if ours.void else Verdict.NONE, notes)
    if ours.void or base.void:
        return Result(line, ours, base, None, Verdict.VOID, notes)
    times = None
    if line.against[1] == line.run and len(mine) == len(theirs):
        times = paired_advantage(line.metric, mine, theirs)
    if times is None:
        times = advantage(line.metric, ours.median, base.median)
    return Result(line, ours, base, times, _verdict(times, line.floor, line.aim), notes)


def _verdict(times: float | None, floor: float | None, aim: float | None) -> Verdict:
    if times is None or floor is None:
        return Verdict.NONE
    if aim is not None and times >= aim:
        return Verdict.AIM
    return Verdict.FLOOR if times >= floor else Verdict.BELOW


def _verdict_of_limit(line: Line, ours: Figure) -> Verdict:
    if ours.void:
        return Verdict.VOID
    if line.floor is None:
        return Verdict.NONE
    if line.aim is not None and ours.median <= line.aim:
        return Verdict.AIM
    return Verdict.FLOOR if ours.median <= line.floor else Verdict.BELOW
