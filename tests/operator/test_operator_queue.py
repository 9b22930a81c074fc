"""The queue: one pass for many events, one of a key at a time, later after failures, and again by itself."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.operator.core.work_queue import (
    FIRST_BACKOFF_SECONDS,
    LONGEST_BACKOFF_SECONDS,
    MIN_GAP_SECONDS,
    Key,
    Kind,
    Schedule,
    WorkQueue,
)

A, B = Key("shop", "orders"), Key("shop", "orders", Kind.TOPICS)


def test_many_events_are_one_pass() -> None:
    schedule = Schedule()
    for _ in range(5):
        schedule.add(A, 0.0)
    assert schedule.take(0.0) == A
    assert schedule.take(0.0) is None


def test_an_event_during_a_pass_is_one_more_pass_and_not_two_at_once() -> None:
    schedule = Schedule()
    schedule.add(A, 0.0)
    schedule.take(0.0)
    schedule.add(A, 1.0)
    assert schedule.take(1.0) is None
    schedule.done(A, 2.0, 100.0)
    assert schedule.take(2.0) is None
    assert schedule.take(2.0 + MIN_GAP_SECONDS) == A


def test_a_key_comes_up_again_by_itself_unless_there_is_nothing_left() -> None:
    schedule = Schedule()
    schedule.add(A, 0.0)
    schedule.take(0.0)
    schedule.done(A, 1.0, 10.0)
    assert (schedule.next_due(), schedule.take(10.9), schedule.take(11.0)) == (11.0, None, A)
    schedule.done(A, 12.0, None)
    assert A not in schedule and schedule.next_due() == float("inf")


def test_an_event_keeps_a_key_that_has_nothing_left() -> None:
    schedule = Schedule()
    schedule.add(A, 0.0)
    schedule.take(0.0)
    schedule.add(A, 0.5)
    schedule.done(A, 1.0, None)
    assert A in schedule


def test_events_do_not_hurry_what_failed() -> None:
    schedule = Schedule()
    schedule.add(A, 0.0)
    waits = []
    now = 0.0
    for _ in range(10):
        assert schedule.take(now) == A
        waits.append(schedule.failed(A, now))
        schedule.add(A, now)
        assert schedule.take(now + waits[-1] / 2) is None
        now += waits[-1]
    assert waits[:3] == [FIRST_BACKOFF_SECONDS, 2 * FIRST_BACKOFF_SECONDS, 4 * FIRST_BACKOFF_SECONDS]
    assert waits[-1] == LONGEST_BACKOFF_SECONDS
    schedule.take(now)
    schedule.done(A, now, 0.0)
    schedule.take(now + MIN_GAP_SECONDS)
    assert schedule.failed(A, now) == FIRST_BACKOFF_SECONDS, "a pass that ended well makes good"


def test_the_longest_wait_is_of_what_is_due_or_runs() -> None:
    schedule = Schedule()
    assert schedule.longest_wait(0.0) == 0.0
    schedule.add(A, 0.0, delay=5.0)
    assert schedule.longest_wait(4.0) == 0.0
    assert schedule.longest_wait(7.0) == 2.0
    schedule.take(7.0)
    assert schedule.longest_wait(8.0) == 1.0


@given(st.lists(st.tuples(st.sampled_from("atdf"), st.sampled_from((A, B)), st.floats(0.0, 40.0)), max_size=60))
def test_nothing_is_lost_and_nothing_runs_twice(deeds: list[tuple[str, Key, float]]) -> None:
    """Against a model: the keys that were requested since their last pass began."""
    schedule, now, running, asked = Schedule(), 0.0, set[Key](), set[Key]()
    for deed, key, seconds in deeds:
        now += seconds
        if deed == "a":
            schedule.add(key, now)
            asked.add(key)
        elif deed == "t":
            taken = schedule.take(now)
            if taken is not None:
                assert taken not in running
                running.add(taken)
                asked.discard(taken)
        elif key in running:
            running.discard(key)
            schedule.done(key, now, None) if deed == "d" else schedule.failed(key, now)
            asked |= {key} if deed == "f" else set()
        assert asked <= {each for each in (A, B) if each in schedule}
    now += LONGEST_BACKOFF_SECONDS
    while (taken := schedule.take(now)) is not None:
        asked.discard(taken)
    assert asked <= running


async def test_a_failing_key_is_reported_and_does_not_delay_others() -> None:
    done: list[str] = []
    enough = asyncio.Event()

    async def work(key: Key) -> float | None:
        done.append(key.kind.value)
        if key == A:
            raise ValueError("no")
        enough.set()
        return None

    heard: list[tuple[Key, bool]] = []
    queue = WorkQueue(work, workers=1, ended=lambda key, seconds, error: heard.append((key, error is None)))
    running = asyncio.create_task(queue.run())
    queue.add(A)
    queue.add(B)
    async with asyncio.timeout(10):
        await enough.wait()
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert done[:2] == ["cluster", "topics"]
    assert heard[0] == (A, False)
    assert queue.last_pass_ended is not None


async def test_a_pass_that_takes_too_long_is_ended() -> None:
    failed = asyncio.Event()

    async def work(key: Key) -> float | None:
        await asyncio.Event().wait()
        return None

    def ended(key: Key, seconds: float, error: BaseException | None) -> None:
        assert isinstance(error, TimeoutError)
        failed.set()

    queue = WorkQueue(work, pass_seconds=0.01, ended=ended)
    running = asyncio.create_task(queue.run())
    queue.add(A)
    async with asyncio.timeout(10):
        await failed.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
