"""What a driver leaves when it ends, understood or not; and what it says while it runs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.operator.core.members import Refusal
from tallystick.operator.jobs.observed import Ended, Progress, job_pod_of, progress_of
from tallystick.operator.jobs.result import Result, outcome


@pytest.mark.parametrize(
    ("ended", "reason", "told"),
    [
        (Ended(2, "Error", '{"error": "no store"}'), "NotDone", "no store"),
        (Ended(2, "Error", "a log\nits last line"), "NotDone", "its last line"),
        (Ended(1, "Error", "Traceback\nValueError: x"), "DriverFailed", "exit status 1: ValueError: x"),
        (Ended(137, "OOMKilled", ""), "DriverFailed", "exit status 137, OOMKilled"),
        (Ended(137, "DeadlineExceeded", ""), "DeadlineExceeded", "the run was stopped at its deadline"),
        (Ended(None, "Evicted", "low on memory"), "DriverLost", "Evicted: low on memory"),
        (Ended(0, "Completed", ""), "NoResult", "the driver succeeded but wrote no result"),
        (Ended(0, "Completed", "[]"), "NoResult", "the driver succeeded but wrote no result"),
        (Ended(0, "Completed", '{"verdict": "all well"}'), "NoResult", "the driver succeeded but wrote no result"),
        (Ended(0, "Completed", '{"verdict": 1}'), "NoResult", "the driver succeeded but wrote no result"),
    ],
)
def test_why_an_attempt_failed(ended: Ended, reason: str, told: str) -> None:
    assert outcome(ended) == Refusal(reason, told)


def test_a_result_that_came_before_the_deadline_is_one() -> None:
    found = outcome(Ended(0, "DeadlineExceeded", '{"verdict": "Done"}'))
    assert isinstance(found, Result) and found.verdict == "Done"


def test_only_what_the_status_has_room_for_gets_into_it() -> None:
    said = {
        "verdict": "Clean",
        "message": "m" * 5000,
        "seconds": 1.5,
        "figures": {"records": 1, "share": 0.5, "yes": True, "huge": 2**63},
        "sources": [{"node": "a", "bound": 1, "records": "x", "via": "local"}, {"node": "a"}, {"member": 1}, 7],
        "differences": ["d", 3],
        "output": None,
        "more": "of something",
    }
    found = outcome(Ended(0, "", json.dumps(said)))
    assert isinstance(found, Result)
    assert found.status == {
        "verdict": "Clean",
        "message": "m" * 1000,
        "seconds": 1.5,
        "figures": {"records": 1},
        "sources": [{"node": "a", "bound": 1, "via": "local"}],
        "differences": ["d", "3"],
    }


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)
KEYS = ("verdict", "message", "seconds", "figures", "sources", "differences", "output", "error")


@given(st.integers(0, 3), st.dictionaries(st.sampled_from(KEYS), VALUES) | VALUES)
def test_nothing_that_a_driver_leaves_ends_a_pass(code: int, said: Any) -> None:
    found = outcome(Ended(code, "Error", json.dumps(said)))
    if isinstance(found, Result):
        assert code == 0 and all(isinstance(value, int) for value in found.status.get("figures", {}).values())
        nodes = [row["node"] for row in found.status.get("sources", ())]
        assert len(nodes) == len(set(nodes)), "a map has each key once"
    else:
        assert found.reason and found.message


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"step": "reading", "done": 3, "of": 8, "executors": 3, "seconds": 1.2}, Progress("reading", 3, 8)),
        ({"step": "planning", "done": 0, "of": None}, Progress("planning", 0, None)),
        ({"step": "starting"}, Progress("starting")),
        ({"step": "starting", "done": 0, "of": 0}, Progress("starting")),
        ({"step": 1}, None),
        ([], None),
        (None, None),
    ],
)
def test_what_a_driver_says_while_it_runs(answer: Any, expected: Progress | None) -> None:
    assert progress_of(answer) == expected


def pod(status: dict[str, Any], role: str = "driver") -> Any:
    labels = {"tallystick.dev/job-role": role, "tallystick.dev/job-attempt": "2", "tallystick.dev/job-node": "o-0-1"}
    return job_pod_of({"metadata": {"name": "p", "uid": "u", "labels": labels}, "status": status})


def terminated(code: int) -> dict[str, Any]:
    return {"containerStatuses": [{"state": {"terminated": {"exitCode": code, "message": "m"}}}]}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({}, None),
        ({"phase": "Pending"}, None),
        ({"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}, None),
        ({"phase": "Running"} | terminated(0), Ended(0, "", "m")),
        ({"phase": "Failed", "reason": "DeadlineExceeded"} | terminated(137), Ended(137, "DeadlineExceeded", "m")),
        ({"phase": "Failed", "reason": "Evicted", "message": "why"}, Ended(None, "Evicted", "why")),
        ({"phase": "Unknown"}, None),
    ],
)
def test_when_a_driver_is_over(status: dict[str, Any], expected: Ended | None) -> None:
    assert pod(status).ended == expected
    assert pod(status, "worker").ended is None, "a worker is started again"
    assert (pod(status).attempt, pod(status).node) == (2, "o-0-1")
