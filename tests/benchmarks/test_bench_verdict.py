"""Medians, advantages and verdicts of the benchmark."""

import dataclasses

import pytest
from harness.load import LoadResult
from harness.rows import LINES, RUNS, Line, Metric, RowError, select
from harness.verdict import Turn, Verdict, advantage, figure, judge, void_reason

RESULT = LoadResult(
    rate=1000.0,
    latency_us={"p50": 1.0},
    total_messages=100,
    sent=100,
    unanswered=0,
    codes={"0": 100},
    remarks={},
    errors=(),
    cpu_share=0.1,
)
FASTER = Line("sends", Metric.RATE, "sends", ("peer", "sends"), floor=2, aim=4)
QUICKER = Line("sends", Metric.P99, "sends", ("peer", "sends"), floor=2, aim=4)


def turns(
    side: str, *values: float, metric: Metric = Metric.RATE, foreign: float = 0.0, run: str = "sends"
) -> list[Turn]:
    return [Turn(run, side, {metric: value}, foreign) for value in values]


def test_the_median_is_not_moved_by_one_turn() -> None:
    found = figure(turns("ours", 10, 11, 12, 13, 900), Metric.RATE)
    assert found is not None
    assert (found.median, found.low, found.high, found.turns) == (12, 10, 900, 5)


def test_disturbed_turns_do_not_count_while_half_are_clean() -> None:
    clean, disturbed = turns("ours", 10, 12), turns("ours", 1, 2, foreign=1.5)
    found = figure(clean + disturbed, Metric.RATE)
    assert found is not None and (found.median, found.turns, found.noisy) == (11, 2, False)
    found = figure(clean[:1] + disturbed, Metric.RATE)
    assert found is not None and (found.median, found.turns, found.noisy) == (2, 3, True)
    assert found.foreign_cores == 1.5


@pytest.mark.parametrize(
    ("ours", "verdict"), [(199, Verdict.BELOW), (200, Verdict.FLOOR), (399, Verdict.FLOOR), (400, Verdict.AIM)]
)
def test_more_messages_are_better(ours: float, verdict: Verdict) -> None:
    result = judge(FASTER, turns("ours", ours) + turns("peer", 100))
    assert result is not None and (result.verdict, result.advantage) == (verdict, ours / 100)


@pytest.mark.parametrize(("ours", "verdict"), [(51, Verdict.BELOW), (50, Verdict.FLOOR), (25, Verdict.AIM)])
def test_less_waiting_is_better(ours: float, verdict: Verdict) -> None:
    result = judge(QUICKER, turns("ours", ours, metric=Metric.P99) + turns("peer", 100, metric=Metric.P99))
    assert result is not None and (result.verdict, result.advantage) == (verdict, 100 / ours)


def test_a_ratio_is_of_sides_that_were_measured_in_the_same_minute() -> None:
    result = judge(FASTER, turns("ours", 240, 250, 130) + turns("peer", 100, 100, 50))  # the last minute was a slow one
    assert result is not None and result.advantage == 2.5  # of the medians it would be 2.4
    assert result.base is not None and (result.ours.median, result.base.median) == (240, 100)


def test_a_turn_with_a_disturbed_side_is_no_pair() -> None:
    ours = turns("ours", 300, 300) + turns("ours", 100, foreign=1.0)
    result = judge(FASTER, ours + turns("peer", 100, 75, 10))
    assert result is not None and result.advantage == 3.5


def test_another_rows_turns_are_no_pairs() -> None:
    line = dataclasses.replace(FASTER, against=("peer", "others"))
    result = judge(line, turns("ours", 240, 250, 130) + turns("peer", 100, 100, 50, run="others"))
    assert result is not None and result.advantage == 2.4


def test_a_limit_needs_no_other_side_to_compare() -> None:
    line = Line("restart", Metric.SECONDS, "restart", None, floor=3, aim=1)
    for seconds, verdict in ((0.9, Verdict.AIM), (3, Verdict.FLOOR), (3.1, Verdict.BELOW)):
        result = judge(line, turns("ours", seconds, metric=Metric.SECONDS, run="restart"))
        assert result is not None and result.verdict is verdict and result.advantage is None


def test_what_was_not_measured_is_no_line() -> None:
    assert judge(FASTER, turns("peer", 100)) is None
    alone = judge(FASTER, turns("ours", 100))
    assert alone is not None and alone.base is None and alone.verdict is Verdict.NONE


def test_one_lying_turn_voids_the_row() -> None:
    lie = dataclasses.replace(turns("ours", 900)[0], void="100 acknowledged, 99 stored")
    result = judge(FASTER, [*turns("ours", 900, 900), lie, *turns("peer", 100)])
    assert result is not None and result.verdict is Verdict.VOID and result.ours.void == lie.void
    broken = Turn("sends", "peer", {}, void="did not start")
    result = judge(FASTER, [*turns("ours", 900), broken])
    assert result is not None and result.verdict is Verdict.VOID and result.advantage is None


def test_nothing_is_divided_by_zero() -> None:
    assert advantage(Metric.RATE, 5, 0) is None
    assert advantage(Metric.P99, 0, 5) is None
    assert advantage(Metric.P99, 2, 5) == 2.5


def test_a_run_is_believed_when_the_counts_agree() -> None:
    assert void_reason(RESULT, 100) == ""
    assert void_reason(RESULT, 99) == "100 acknowledged, 99 stored"
    assert "101 stored" in void_reason(RESULT, 101)
    refused = dataclasses.replace(RESULT, sent=110, codes={"0": 100, "10": 6}, unanswered=4)
    assert void_reason(refused, 110) == ""  # a flush that timed out is stored, an unanswered send may be
    assert void_reason(refused, 111) != ""
    assert "lost" in void_reason(dataclasses.replace(RESULT, errors=("connection 0: lost",)), 100)
    assert "nothing" in void_reason(dataclasses.replace(RESULT, total_messages=0), 0)


def test_every_line_has_its_run() -> None:
    names = {run.name for run in RUNS}
    assert len(names) == len(RUNS)
    for line in LINES:
        assert line.run in names and (line.against is None or line.against[1] in names)
    compared = {line.against[1] for line in LINES if line.against is not None}
    assert names == {line.run for line in LINES} | compared


def test_rows_are_selected_by_pattern() -> None:
    assert [run.name for run in select(["sync-*"], quick=False)] == ["sync-1", "sync-16", "sync-64", "sync-256"]
    assert [run.name for run in select(["restart-10g"], quick=True)] == ["restart-10g"]
    assert not any(run.long for run in select([], quick=True))
    with pytest.raises(RowError, match="no row 'snyc'"):
        select(["snyc"], quick=False)
