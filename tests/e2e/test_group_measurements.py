"""Numbers that a run prints: percentiles, pauses, limits."""

import pytest
from lab.measurements import Measurements, longest_pause_s, percentile


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert [percentile(values, each) for each in (1, 50, 99, 100)] == [1.0, 50.0, 99.0, 100.0]
    assert percentile([3.0], 50) == percentile([3.0], 99) == 3.0
    assert percentile([1.0, 2.0, 3.0], 99) == 3.0, "of a few, the worst"
    with pytest.raises(ValueError):
        percentile([], 50)


def test_a_pause_ends_with_the_measured_interval() -> None:
    assert longest_pause_s([1.0, 2.0, 2.5], 0.5, 3.0) == 1.0
    assert longest_pause_s([1.0], 0.0, 9.0) == 8.0
    assert longest_pause_s([], 2.0, 3.5) == 1.5
    assert longest_pause_s([0.0, 99.0], 2.0, 3.0) == 1.0, "what lies outside does not end it"


def test_limits_are_on_the_99th_percentile() -> None:
    measured = Measurements()
    measured.limit("change", 2.0)
    measured.limit("never measured", 1.0)
    for _ in range(100):
        measured.add("change", 0.7)
    assert measured.exceeded() == []
    measured.add("change", 9.0)
    assert measured.exceeded() == [], "one of 101 may be slow"
    measured.add("change", 9.0)
    assert measured.exceeded() == ["change: p99 is 9.000 s, not below 2 s"]


def test_the_table_has_a_line_for_each() -> None:
    measured = Measurements()
    measured.limit("change", 2.0)
    measured.add("change", 0.25)
    measured.count("failed", 0)
    assert measured.table().splitlines() == [
        "measured  n  p50 ms  p99 ms  max ms  limit ms",
        "change    1     250     250     250      2000",
        "failed    0",
    ]
    assert measured.to_json()["times"]["change"]["values_s"] == [0.25]
    assert measured.to_json()["counts"] == {"failed": 0}
