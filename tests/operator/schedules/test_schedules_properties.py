"""Properties of schedules: clocks that jump, summer time, and what the retention keeps."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tallystick.operator.core.schedule import CLOCK_SECONDS, Schedule
from tallystick.operator.schedules.decide import decide
from tallystick.operator.schedules.observed import Run, Seen, run_name, scheduled_of
from tallystick.operator.schedules.retention import surplus
from tallystick.operator.schedules.spec import Retention, ScheduledBackup, ScheduledBackupSpecError
from tallystick.operator.schedules.status import schedule_status

CLUSTER = {"metadata": {"name": "orders", "uid": "uid-1"}, "spec": {}}
EXPRESSIONS = ("*/5 * * * *", "30 2 * * *", "0 */4 * * *", "15 1-3 * * *", "0 2 * * 0")
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe")
DAYS = ("2026-03-29", "2026-10-25", "2026-11-01", "2026-10-04", "2026-06-01")
"""Days around which some of these clocks are changed, and one on which none is."""


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


class World:
    """One schedule and its Backups, which end at once. The status is what the last pass has written."""

    def __init__(self, expression: str, zone: str, created: float) -> None:
        self.schedule = Schedule.parse(expression, zone)
        self.created, self.status = created, dict[str, object]()
        self.runs: dict[str, Run] = {}

    def look(self, now: float) -> None:
        """One pass. AssertionError: it creates a Backup that exists."""
        schedule = ScheduledBackup(
            *("shop", "nightly", "uid-2", 1, self.created, self.schedule, "orders"), status=self.status
        )
        seen = Seen(now, CLUSTER, tuple(sorted(self.runs.values(), key=lambda run: run.scheduled)), (), [CLUSTER])
        decision = decide(schedule, seen)
        if decision.make is not None:
            name = run_name(schedule, decision.make)
            assert name not in self.runs and scheduled_of(schedule, name) == decision.make
            self.runs[name] = Run(name, name, decision.make, "Completed", now)
        self.status = schedule_status(schedule, seen, decision)

    def times(self) -> set[float]:
        return {run.scheduled for run in self.runs.values()}


@given(
    st.sampled_from(EXPRESSIONS),
    st.sampled_from(ZONES),
    st.sampled_from(DAYS),
    st.lists(st.tuples(st.integers(20, 7200), st.sampled_from((0, 0, 0, 0, -30, -4000, 90_000, -90_000)))),
)
@example("30 2 * * *", "Europe/Berlin", "2026-10-25", [(7200, 0), (3600, 0), (1800, -4000), (7200, 0)])
@example("*/5 * * * *", "UTC", "2026-06-01", [(7200, 90_000), (60, -90_000), (600, 0), (600, 0)])
def test_each_last_time_gets_one_backup_whatever_the_clock_does(
    expression: str, zone: str, day: str, steps: list[tuple[int, int]]
) -> None:
    """After a pass the last scheduled time has a Backup, unless the clock has been there before."""
    now = at(f"{day}T00:00:00Z") - 7200
    world = World(expression, zone, now)
    furthest = since = now
    for seconds, jump in steps:
        world.look(now)
        now += seconds
        world.look(now)
        last = world.schedule.last(now)
        if last is not None and last > max(since, world.created):
            assert last in world.times() or last <= furthest, f"{last} of {now} has no Backup"
        furthest = max(furthest, now)
        if jump < 0:
            since = now + jump
        now += jump


@given(
    st.sampled_from(EXPRESSIONS),
    st.sampled_from(ZONES),
    st.sampled_from(DAYS),
    st.integers(int(CLOCK_SECONDS) + 60, 200_000),
)
@example("0 */4 * * *", "Europe/Berlin", "2026-03-29", 3601)  # the recorded time is a second ahead: it had its Backup
def test_after_any_jump_back_the_next_time_gets_a_backup(expression: str, zone: str, day: str, back: int) -> None:
    """Otherwise a clock that was a year ahead for a minute would stop backups for a year."""
    now = at(f"{day}T00:00:00Z")
    world = World(expression, zone, now - 400_000)
    world.look(now)
    recorded = world.schedule.last(now)
    assert recorded is not None
    world.runs.clear()  # deleted since
    now -= back
    world.look(now)
    is_far_ahead = recorded > now + CLOCK_SECONDS
    following = world.schedule.after(now if is_far_ahead else max(now, recorded))
    assert following is not None
    world.look(following)
    assert following in world.times()


def runs(*rows: tuple[int, str, set[int]]) -> list[Run]:
    """Backups by hour of the scheduled time, phase and groups."""
    return [Run(f"r{hour}", f"u{hour}", hour * 3600.0, phase, groups=frozenset(groups)) for hour, phase, groups in rows]


rows = st.lists(
    st.tuples(
        st.integers(0, 60),
        st.sampled_from(("Completed", "Completed", "Failed", "Running", "")),
        st.sets(st.integers(0, 2)),
    ),
    unique_by=lambda row: row[0],
    max_size=20,
)


@given(rows, st.none() | st.integers(1, 8), st.none() | st.integers(1, 40), st.integers(0, 4))
def test_the_retention_keeps_what_one_of_its_rules_keeps(
    found: list[tuple[int, str, set[int]]], last: int | None, hours: int | None, failed: int
) -> None:
    listed = runs(*sorted(found))
    gone = surplus(listed, Retention(last, None if hours is None else hours * 3600.0, failed))
    assert gone == sorted(gone, key=lambda run: run.scheduled)
    complete = [run for run in listed if run.phase == "Completed"]
    for run in listed:
        newer = [other for other in complete if other.scheduled > run.scheduled]
        if run.phase == "Completed":
            groups_elsewhere = frozenset().union(*(other.groups for other in newer))
            kept = (
                not newer
                or (last is not None and len(newer) < last)
                or (hours is not None and newer[-1].scheduled - run.scheduled <= hours * 3600)
                or not run.groups <= groups_elsewhere
            )
        elif run.phase == "Failed":
            kept = sum(other.phase == "Failed" and other.scheduled > run.scheduled for other in listed) < failed
        else:
            kept = True
        assert (run not in gone) is kept, run


def test_without_a_new_success_no_age_is_too_old() -> None:
    old = runs((1, "Completed", {0}), (2, "Completed", {0}), (500, "Failed", set()))
    assert surplus(old, Retention(within_seconds=7200.0)) == []


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"timeZone": "Mars/Base"}, "spec.timeZone"),
        ({"schedule": "0 0 31 2 *"}, "spec.schedule"),
        ({"template": {"clusterName": "orders", "destination": {}}}, "spec.template.destination"),
        ({"retention": {"keepWithin": "soon"}}, "spec.retention.keepWithin"),
    ],
)
def test_what_is_no_schedule_names_its_field(spec: dict[str, object], told: str) -> None:
    place = {"persistentVolumeClaim": {"name": "b"}}
    whole = {"schedule": "@daily", "template": {"clusterName": "orders", "destination": place}} | spec
    with pytest.raises(ScheduledBackupSpecError, match=told):
        ScheduledBackup.parse({"metadata": {"namespace": "shop", "name": "nightly"}, "spec": whole})


@pytest.mark.parametrize("name", ["nightly", "nightly-1", "nightly-202602300000", "weekly-202602200000", "nightly-x"])
def test_other_names_are_no_names_of_its_backups(name: str) -> None:
    schedule = ScheduledBackup("shop", "nightly", "uid", 1, 0.0, Schedule.parse("@daily", "UTC"), "orders")
    assert scheduled_of(schedule, name) is None
    assert scheduled_of(schedule, run_name(schedule, 1_774_000_020.0)) == 1_774_000_020.0
