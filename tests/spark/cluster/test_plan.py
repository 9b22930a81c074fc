"""A plan is taken as it was meant or refused by the field that is wrong."""

from __future__ import annotations

from typing import Any

import pytest
from plan_lab import PLAN, parsed

from tallystick.spark.cluster.plan import BucketPlace, FolderPlace, JobPlan, PlanError
from tallystick.spark.cluster.work import options_of, places_of


def test_a_plan_says_what_to_read_and_where() -> None:
    plan = parsed()
    assert (plan.job.name, plan.name, plan.attempt, plan.executor_memory_mib) == ("audit", "nightly", 2, 600)
    assert plan.arguments.own == {"lagMillis": 5000, "settings": None} and plan.arguments.topics is None
    assert [place.node for place in plan.workers] == ["c-0-0", "c-0-1"]
    assert sorted(places_of(plan)) == ["c-0-0", "c-0-1", "c-0-2"], "an audit's sources are members"
    sources = options_of(plan).sources(members=True)
    assert [(each.source, each.group, each.http) for each in sources][2] == ("c-0-2", "c-0", "http://c-0-2.n.svc:8080")


def test_other_jobs_name_a_store_by_its_group() -> None:
    one = PLAN["sources"][:1]
    plan = parsed(
        ("job", "export"),
        ("sources", one),
        ("output", {"folder": "/out", "shared": True}),
        ("arguments", {"topics": ["a", "b"], "queues": [3], "from": "2026-11-22T00:00:00Z", "to": "7"}),
    )
    assert plan.output == FolderPlace("/out", True) and sorted(places_of(plan)) == ["c-0"]
    options = options_of(plan)
    assert [each.source for each in options.sources()] == ["c-0"]
    assert options.wanted.topics == ("a", "b") and options.wanted.queues == (3,)
    assert options.wanted.store_times_ms is not None and options.wanted.queue_offsets is not None
    s3 = {"s3": {"uri": "s3://bucket/prefix/", "endpoint": None}}
    assert parsed(("job", "export"), ("sources", one), ("output", s3)).output == BucketPlace(
        "s3://bucket/prefix", None, None
    )


@pytest.mark.parametrize(
    ("place", "value", "field", "words"),
    [
        ("version", 2, "version", "must be 1, not 2"),
        ("version", ..., "version", "is missing"),
        ("job", "repair", "job", "one of audit, export"),
        ("name", "", "name", "must not be empty"),
        ("attempt", 0, "attempt", "at least 1"),
        ("attempt", True, "attempt", "a whole number, not true"),
        ("speed", 3, "speed", "is unknown"),
        ("driver.cores", 3, "driver.cores", "is unknown"),
        ("driver", "x", "driver", "must be an object"),
        ("executor.memoryMiB", "512m", "executor.memoryMiB", "a whole number"),
        ("driver.memoryMiB", 300, "driver.memoryMiB", "at least 480"),
        ("arguments.topics", "orders", "arguments.topics", "must be a list"),
        ("arguments.queues", [1, "2"], "arguments.queues[1]", "a whole number"),
        ("arguments.settings", {"a": 1}, "arguments.settings.a", "must be a text"),
        ("arguments.form", "x", "arguments.form", "is unknown"),
        ("sources", [], "sources", "at least one node"),
        ("sources.1.host", 3, "sources[1].host", "must be a text"),
        ("sources.1.node", "c-0-0", "sources", "each once"),
        ("sources.1.root", ..., "sources[1].root", "is missing"),
        ("job", "stats", "sources", "one member of a group"),
        ("output", {"folder": "/out"}, "output.shared", "is missing"),
        ("output", {"s3": {"uri": "http://x"}}, "output.s3.uri", "must begin with s3://"),
        ("output", {"s3": {"uri": "s3://x"}, "folder": "/out"}, "output.folder", "is unknown"),
    ],
)
def test_what_is_wrong_is_named(place: str, value: Any, field: str, words: str) -> None:
    with pytest.raises(PlanError, match=words.replace("(", "\\(")) as raised:
        parsed((place, value))
    assert raised.value.field == field and field in str(raised.value)


def test_jobs_that_need_more_say_so() -> None:
    one = ("sources", PLAN["sources"][:1])
    with pytest.raises(PlanError, match="output is needed for export"):
        parsed(("job", "export"), one)
    with pytest.raises(PlanError, match=r"arguments\.key is needed for trace"):
        parsed(("job", "trace"), one)
    with pytest.raises(PlanError, match="is not JSON"):
        JobPlan.parse("{")
    with pytest.raises(PlanError, match="must be an object, not 3"):
        JobPlan.parse("3")
