"""Deletions by age and a wall clock that jumps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tallystick.store.engine.age_clock import PATIENCE_MS, TOLERANCE_MS, AgeClock

NOW = 1_800_000_000_000
HOUR = 3_600_000
YEAR = 365 * 24 * HOUR


class Clocks:
    """A wall clock and a steady clock, and what is deleted by."""

    def __init__(self, newest_ms: int = NOW) -> None:
        self.wall_ms, self.steady_ms = NOW, 5_000
        self.ages = AgeClock(newest_ms, self.wall_ms, self.steady_ms)

    def pass_ms(self, ms: int, jump_ms: int = 0) -> int:
        self.steady_ms += ms
        self.wall_ms += ms + jump_ms
        return self.ages.now_ms(self.wall_ms, self.steady_ms)


def test_a_right_clock_is_followed():
    clocks = Clocks()
    for _ in range(1000):
        assert clocks.pass_ms(HOUR, jump_ms=100) == clocks.wall_ms


def test_a_jump_forward_makes_nothing_old_until_it_has_stood_for_a_day():
    clocks = Clocks()
    clocks.pass_ms(1000)
    assert clocks.pass_ms(1000, jump_ms=74 * YEAR) == clocks.wall_ms - 74 * YEAR
    assert clocks.ages.held_back_ms == 74 * YEAR
    assert clocks.pass_ms(PATIENCE_MS - 1) == clocks.wall_ms - 74 * YEAR
    assert clocks.pass_ms(1) == clocks.wall_ms
    assert clocks.ages.held_back_ms == 0


def test_a_jump_that_is_taken_back_is_forgotten():
    clocks = Clocks()
    clocks.pass_ms(1000, jump_ms=YEAR)
    assert clocks.pass_ms(1000, jump_ms=-YEAR) == clocks.wall_ms
    assert clocks.ages.held_back_ms == 0
    clocks.pass_ms(PATIENCE_MS // 2)
    assert clocks.pass_ms(0, jump_ms=YEAR) == clocks.wall_ms - YEAR
    assert clocks.pass_ms(PATIENCE_MS - 1) == clocks.wall_ms - YEAR


def test_a_clock_that_is_set_back_is_believed_at_once():
    clocks = Clocks()
    assert clocks.pass_ms(1000, jump_ms=-YEAR) == clocks.wall_ms
    assert clocks.pass_ms(1000, jump_ms=YEAR) == clocks.wall_ms - YEAR  # and its way forward is a jump


def test_a_start_with_a_clock_far_ahead_of_the_files_waits():
    clocks = Clocks(newest_ms=NOW - 10 * 24 * HOUR)
    assert clocks.pass_ms(0) == NOW - 10 * 24 * HOUR
    assert clocks.pass_ms(PATIENCE_MS) == clocks.wall_ms


def test_a_start_soon_after_the_last_one_or_on_an_empty_store_does_not_wait():
    assert Clocks(newest_ms=NOW - TOLERANCE_MS).pass_ms(0) == NOW
    assert Clocks(newest_ms=0).pass_ms(0) == NOW
    assert Clocks(newest_ms=NOW + YEAR).pass_ms(0) == NOW


@given(st.lists(st.tuples(st.integers(0, HOUR), st.integers(-100 * YEAR, 100 * YEAR)), max_size=20))
def test_no_sequence_of_jumps_within_a_day_makes_anything_older_than_time_that_passed(steps):
    clocks = Clocks()
    newest_ms, passed_ms, jumps = NOW, 0, 0
    for step_ms, jump_ms in steps:
        passed_ms += step_ms
        jumps += 1
        newest_ms = max(newest_ms, clocks.pass_ms(step_ms, jump_ms))
    assert newest_ms <= NOW + passed_ms + jumps * TOLERANCE_MS
