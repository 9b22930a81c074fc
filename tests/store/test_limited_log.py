"""A flood of events of one kind is a line per interval."""

import asyncio
import logging

import pytest

from tallystick.store.limited_log import LimitedLog, RepeatedError


def test_one_line_per_kind_and_interval_with_a_count(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    log = LimitedLog(logging.getLogger("tallystick.test"), lambda: now, interval_s=10)
    for n in range(100):
        now = n / 4
        log.warning("bad", "%d is bad", n)
    log.warning("worse", "worse")
    assert [record.getMessage() for record in caplog.records] == [
        "0 is bad",
        "40 is bad (and 39 more since the last such line)",
        "80 is bad (and 39 more since the last such line)",
        "worse",
    ]
    assert log.counts == {"bad": 100, "worse": 1}


def test_a_kind_and_member_has_one_line_an_interval(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    log = LimitedLog(logging.getLogger("x"), lambda: now, interval_s=10)
    for _ in range(5):
        log.warning("lost", "n%d is lost", 1, about=1)
        log.warning("lost", "n%d is lost", 2, about=2)
    now = 11
    log.warning("lost", "n%d is lost", 1, about=1)
    assert [record.getMessage() for record in caplog.records] == [
        "n1 is lost",
        "n2 is lost",
        "n1 is lost (and 4 more since the last such line)",
    ]
    assert log.counts == {"lost": 11}


def test_a_burst_comes_at_once_and_then_one_line_an_interval(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    log = LimitedLog(logging.getLogger("x"), lambda: now, interval_s=10, burst=3)
    for now in (0, 1, 2, 3, 11, 12, 21, 100, 100, 100, 100):
        log.warning("led", "at %d", now)
    assert [record.getMessage() for record in caplog.records] == [
        "at 0",
        "at 1",
        "at 2",
        "at 11 (and 1 more since the last such line)",
        "at 21 (and 1 more since the last such line)",
        *("at 100",) * 3,
    ]


def test_an_error_of_retried_work_is_logged_when_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    errors = RepeatedError(logging.getLogger("test.repeated"), "cannot save x")
    for text in ("full", "full", "gone", "full"):
        errors.failed(OSError(text))
    errors.worked()
    errors.failed(OSError("full"))
    assert [record.getMessage() for record in caplog.records] == [
        f"cannot save x: {text}" for text in ("full", "gone", "full", "full")
    ]


async def test_an_attempt_never_raises_and_a_bug_is_logged_with_its_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    errors = RepeatedError(logging.getLogger("test.repeated"), "work failed")
    outcomes: list[Exception | None] = [OSError("full"), KeyError("a"), KeyError("a"), None, KeyError("a")]

    async def work() -> None:
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome

    assert [await errors.attempt(work) for _ in range(5)] == [False, False, False, True, False]
    found = [(record.getMessage(), record.exc_info is not None) for record in caplog.records]
    bug = ("work failed: KeyError('a')", True)
    assert found == [("work failed: full", False), bug, bug]


async def test_an_attempt_takes_work_that_does_not_wait(caplog: pytest.LogCaptureFixture) -> None:
    errors = RepeatedError(logging.getLogger("test.repeated"), "work failed")
    done: list[int] = []
    assert await errors.attempt(lambda: done.append(1))
    assert not await errors.attempt(lambda: [][0])
    assert done == [1] and caplog.records[0].exc_info is not None


async def test_an_attempt_can_be_cancelled() -> None:
    errors = RepeatedError(logging.getLogger("test.repeated"), "work failed")
    task = asyncio.create_task(errors.attempt(asyncio.Event().wait))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
