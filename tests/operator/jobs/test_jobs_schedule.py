"""Times of schedules, and templates as stories: what a CronJob does with Jobs."""

from __future__ import annotations

from bisect import bisect_right
from datetime import datetime
from functools import cache
from itertools import product
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jobs_lab import OVER, START, JobLab, Script
from simulated_api import stamp

from tallystick.operator.core.schedule import MOST_MISSED, Schedule, ScheduleError

RUNS = Script(seconds=20)
FOR_EVER = Script(code=None)


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


# -- times -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "zone", "now", "after", "last"),
    [
        ("*/5 * * * *", "UTC", "2026-03-01T10:02:30Z", "2026-03-01T10:05:00Z", "2026-03-01T10:00:00Z"),
        ("*/5 * * * *", "UTC", "2026-03-01T10:05:00Z", "2026-03-01T10:10:00Z", "2026-03-01T10:05:00Z"),
        ("0 3 * * *", "Europe/Berlin", "2026-01-10T02:00:00Z", "2026-01-11T02:00:00Z", "2026-01-10T02:00:00Z"),
        ("0 3 * * *", "Europe/Berlin", "2026-07-10T02:00:00Z", "2026-07-11T01:00:00Z", "2026-07-10T01:00:00Z"),
        # the night without a 02:30, and the one with two
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", "2026-03-29T01:00:00Z", "2026-03-28T01:30:00Z"),
        ("30 2 * * *", "Europe/Berlin", "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z", "2026-10-25T00:30:00Z"),
        # looking at it from between the two, within the second pass, and from before the gap that swallows two times
        ("30 2 * * *", "Europe/Berlin", "2026-10-25T00:59:00Z", "2026-10-26T01:30:00Z", "2026-10-25T00:30:00Z"),
        ("30 2 * * *", "Europe/Berlin", "2026-10-25T01:10:00Z", "2026-10-26T01:30:00Z", "2026-10-25T00:30:00Z"),
        ("0,30 2 * * *", "Europe/Berlin", "2026-03-29T01:00:00Z", "2026-03-30T00:00:00Z", "2026-03-29T01:00:00Z"),
        # every so often: in both passes, and past the gap, where half an hour is skipped or comes twice
        ("45 * * * *", "Australia/Lord_Howe", "2026-04-04T14:50:00Z", "2026-04-04T15:15:00Z", "2026-04-04T14:45:00Z"),
        ("0 */4 * * *", "Australia/Lord_Howe", "2026-10-03T14:00:00Z", "2026-10-03T17:00:00Z", "2026-10-03T13:30:00Z"),
        ("@weekly", "UTC", "2026-03-04T00:00:00Z", "2026-03-08T00:00:00Z", "2026-03-01T00:00:00Z"),
        ("0 0 29 2 *", "UTC", "2026-03-04T00:00:00Z", "2028-02-29T00:00:00Z", "2024-02-29T00:00:00Z"),
        ("0 12 * JAN MON#1", "UTC", "2026-03-04T00:00:00Z", "2027-01-04T12:00:00Z", "2026-01-05T12:00:00Z"),
    ],
)
def test_the_times_before_and_after(expression: str, zone: str, now: str, after: str, last: str) -> None:
    schedule = Schedule.parse(expression, zone)
    assert (schedule.after(at(now)), schedule.last(at(now))) == (at(after), at(last))


ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/St_Johns", "Pacific/Apia")
DAYS = ("2026-03-08", "2026-03-29", "2026-04-05", "2026-10-04", "2026-10-25", "2026-11-01", "2026-06-01", "2011-12-30")
"""Days around which some clock is changed, one when none is, and the one that Apia left out."""


@given(
    st.sampled_from(("0 3 * * *", "30 2 * * *", "*/15 * * * *", "0 */2 * * *", "15 1-3 * * *", "0 2 * * 0")),
    st.sampled_from(ZONES),
    st.sampled_from(DAYS),
    st.integers(-90_000, 90_000),
)
@example("30 2 * * *", "Europe/Berlin", "2026-10-25", 3540)  # 02:59 in the first pass
@example("30 2 * * *", "Europe/Berlin", "2026-10-25", 4200)  # 02:10 in the second
def test_looking_back_finds_what_looking_ahead_had_found(expression: str, zone: str, day: str, seconds: int) -> None:
    schedule, now = Schedule.parse(expression, zone), at(f"{day}T00:00:00Z") + seconds
    found, following = None, schedule.after(now - 10 * 86400)
    while following is not None and following <= now:
        found, following = following, schedule.after(following)
    assert schedule.last(now) == found
    assert schedule.missed(now - 10 * 86400, now)[0] == found


MINUTES = {"0": {0}, "45": {45}, "0,30": {0, 30}, "*/15": {0, 15, 30, 45}, "*": set(range(60)), "59": {59}}
HOURS = {"*": set(range(24)), "*/4": set(range(0, 24, 4)), "1-3": {1, 2, 3}, "2": {2}, "0": {0}, "1,2,23": {1, 2, 23}}


@cache
def read(zone: str, begin: int, end: int) -> list[int]:
    """What the clock on the wall reads at each minute, in minutes."""
    local = ZoneInfo(zone)
    walls = [datetime.fromtimestamp(now, local) for now in range(begin, end, 60)]
    return [(wall.toordinal() * 24 + wall.hour) * 60 + wall.minute for wall in walls]


def watched(minute: str, hour: str, zone: str, begin: int, end: int) -> list[float]:
    """The slow twin: someone watches the clock on the wall from minute to minute, and notes when it is time.

    For what is fixed he looks at what the clock reads for the first time, or has passed over; else at what it reads.
    """
    fixed = "*" not in minute[0] + hour[0]
    highest, *readings = read(zone, begin - 60, end)
    times = []
    for now, reads in zip(range(begin, end, 60), readings, strict=True):
        looked_at = range(highest + 1, reads + 1) if fixed else [reads]
        if any(each % 60 in MINUTES[minute] and each // 60 % 24 in HOURS[hour] for each in looked_at):
            times.append(float(now))
        highest = max(highest, reads)
    return times


@pytest.mark.parametrize(
    ("zone", "changed"),
    [
        ("Europe/Berlin", "2026-03-29T01:00:00Z"),
        ("Europe/Berlin", "2026-10-25T01:00:00Z"),
        ("America/New_York", "2026-03-08T07:00:00Z"),
        ("America/New_York", "2026-11-01T06:00:00Z"),
        ("America/Havana", "2026-11-01T05:00:00Z"),  # midnight comes twice
        ("Australia/Lord_Howe", "2026-10-03T15:30:00Z"),  # by half an hour
        ("Australia/Lord_Howe", "2026-04-04T15:00:00Z"),
        ("Antarctica/Troll", "2026-03-29T01:00:00Z"),  # by two hours
        ("Antarctica/Troll", "2026-10-25T01:00:00Z"),
        ("Pacific/Apia", "2011-12-30T10:00:00Z"),  # by a day
    ],
)
def test_times_are_those_of_who_watches_the_clock(zone: str, changed: str) -> None:
    middle = int(at(changed))
    for minute, hour in product(MINUTES, HOURS):
        schedule = Schedule.parse(f"{minute} {hour} * * *", zone)
        times = watched(minute, hour, zone, middle - 2 * 86400, middle + 2 * 86400)
        for now in range(middle - 4 * 3600, middle + 4 * 3600, 600):
            passed = bisect_right(times, now)
            assert schedule.last(now) == times[passed - 1], (minute, hour, now)
            assert schedule.after(now) == times[passed], (minute, hour, now)


@pytest.mark.parametrize(
    ("expression", "zone", "told"),
    [
        ("61 * * * *", "UTC", "spec.schedule '61"),
        ("* * * *", "UTC", "spec.schedule"),
        ("0 0 31 2 *", "UTC", "spec.schedule"),
        ("@often", "UTC", "spec.schedule"),
        ("* * * * *", "Mars/Base", "spec.timeZone"),
        ("* * * * *", "../etc/passwd", "spec.timeZone"),
        ("* * * * *", "Europe", "spec.timeZone"),
    ],
)
def test_what_is_no_schedule_names_its_field(expression: str, zone: str, told: str) -> None:
    with pytest.raises(ScheduleError, match=told):
        Schedule.parse(expression, zone)


def test_missed_times_are_counted_to_a_limit() -> None:
    schedule = Schedule.parse("* * * * *", "UTC")
    assert schedule.missed(0.0, 300.0) == (300.0, 5)
    assert schedule.missed(300.0, 300.0) == (None, 0)
    assert schedule.missed(0.0, 1e9) == (1e9 // 60 * 60, MOST_MISSED + 1)


# -- templates ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def lab() -> JobLab:
    return JobLab()


def template(lab: JobLab, *scripts: Script, schedule: str = "*/10 * * * *", **spec: Any) -> None:
    lab.job("nightly", *(scripts or (RUNS,)), schedule=schedule, **spec)


def play(lab: JobLab, seconds: float, step: float = 5.0) -> None:
    """The template and all of its runs are looked at every `step` seconds."""
    until = lab.time + seconds
    while lab.time < until:
        for name in lab.jobs():
            if name in lab.jobs() and (name == "nightly" or lab.phase(name) not in OVER):
                lab.one_pass(name)
        lab.tick(step)


def runs(lab: JobLab) -> list[str]:
    """Minutes after the beginning that the runs are for, those that are there."""
    return [f"{int(name.rpartition('-')[2]) - int(START // 60)}" for name in lab.jobs() if name != "nightly"]


BEGIN = int(-(-START // 600)) * 10 - int(START // 60)
"""Minutes from the beginning to the first time of a schedule of ten minutes."""


def test_runs_are_made_when_it_is_time(lab: JobLab) -> None:
    template(lab)
    assert lab.one_pass("nightly") == pytest.approx(60.0)
    assert lab.phase("nightly") == "Scheduled" and runs(lab) == []
    assert lab.status("nightly")["nextScheduleTime"] == _stamp(BEGIN)
    play(lab, 600)
    assert runs(lab) == [str(BEGIN)]
    status = lab.status("nightly")
    assert status["lastScheduleTime"] == _stamp(BEGIN) and status["nextScheduleTime"] == _stamp(BEGIN + 10)
    assert status["lastSuccessfulTime"] > status["lastScheduleTime"] and "active" not in status
    assert lab.events("nightly") == ["JobStarted"]


def _stamp(minutes: int) -> str:
    return stamp(START // 60 * 60 + minutes * 60)


def test_a_run_is_what_its_template_says_without_the_schedule(lab: JobLab) -> None:
    template(lab, timeZone="Europe/Berlin", job="stats", groups=[0], executor={"cores": 2}, maxRetries=0, suspend=False)
    play(lab, 600)
    (name,) = [name for name in lab.jobs() if name != "nightly"]
    assert lab.body(name)["spec"] == {
        "clusterName": "orders",
        "job": "stats",
        "groups": [0],
        "executor": {"cores": 2},
        "maxRetries": 0,
    }
    (owner,) = lab.body(name)["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("StoreJob", lab.body("nightly")["metadata"]["uid"])
    assert lab.looked_at[0].name == name, "it is begun without waiting for an event"


def test_it_sleeps_until_it_is_time(lab: JobLab) -> None:
    template(lab)
    lab.time = START // 600 * 600 + 590
    wait = lab.one_pass("nightly")
    assert wait is not None and 10.0 <= wait <= 10.2
    before = len(lab.api.writes)
    lab.tick(5)
    lab.one_pass("nightly")
    assert lab.api.writes[before:] == []


def test_of_all_that_was_missed_the_last_counts(lab: JobLab) -> None:
    template(lab)
    lab.one_pass("nightly")
    lab.tick(3600)
    play(lab, 60)
    assert len(runs(lab)) == 1 and int(runs(lab)[0]) > 50


def test_what_was_missed_for_too_long_is_not_made_up_for(lab: JobLab) -> None:
    template(lab, startingDeadlineSeconds=60)
    lab.one_pass("nightly")
    lab.time = START // 600 * 600 + 600 + 120
    play(lab, 60)
    assert runs(lab) == []
    lab.time = START // 600 * 600 + 1200 + 30
    play(lab, 10)
    assert runs(lab) == [str(BEGIN + 10)]


def test_more_than_a_hundred_missed_times_are_worth_a_word(lab: JobLab) -> None:
    template(lab, schedule="* * * * *")
    lab.one_pass("nightly")
    lab.tick(7200)
    play(lab, 10)
    assert "TooManyMissedTimes" in lab.events("nightly") and len(runs(lab)) == 1


def test_forbid_waits_for_the_active_run_and_then_takes_the_last_time(lab: JobLab) -> None:
    template(lab, Script(seconds=1500))
    play(lab, 600 * 4)
    first, second = runs(lab)
    assert (int(first), int(second)) == (BEGIN, BEGIN + 20)
    waited = {BEGIN + minutes for minutes in (10, 20, 30)}
    assert lab.events("nightly").count("JobAlreadyActive") == len(waited), "once for each time, not in every pass"


def test_allow_makes_another(lab: JobLab) -> None:
    template(lab, FOR_EVER, concurrencyPolicy="Allow")
    play(lab, 600 * 3)
    assert len(runs(lab)) == 3 and len(lab.status("nightly")["active"]) == 3


def test_replace_deletes_the_active_run(lab: JobLab) -> None:
    template(lab, FOR_EVER, concurrencyPolicy="Replace")
    play(lab, 600 * 3)
    assert runs(lab) == [str(BEGIN + 20)] and len(lab.pods(f"nightly-{_minutes(20)}")) == 4
    assert len(lab.api.all("pods")) == 4


def _minutes(more: int) -> int:
    return int(START // 60) + BEGIN + more


def test_history_is_kept_and_no_more(lab: JobLab) -> None:
    template(lab, successfulJobsHistoryLimit=2)
    play(lab, 600 * 5)
    assert runs(lab) == [str(BEGIN + 30), str(BEGIN + 40)]
    lab.scripts["nightly"] = (Script(5, 1),)
    play(lab, 600 * 4)
    assert runs(lab) == [str(BEGIN + minutes) for minutes in (30, 40, 80)], "one that failed, as is the default"


def test_nothing_is_made_while_it_is_suspended_and_then_the_last_time_counts(lab: JobLab) -> None:
    template(lab, suspend=True)
    play(lab, 1800)
    assert lab.phase("nightly") == "Suspended" and runs(lab) == []
    assert "nextScheduleTime" not in lab.status("nightly")
    lab.change("nightly", suspend=False)
    play(lab, 10)
    assert runs(lab) == [str(BEGIN + 20)]


def test_an_invalid_schedule_is_reported_and_can_be_corrected(lab: JobLab) -> None:
    template(lab, timeZone="Mars/Base")
    assert lab.one_pass("nightly") is None
    assert lab.phase("nightly") == "Failed" and "Mars/Base" in lab.status("nightly")["message"]
    lab.change("nightly", timeZone="UTC")
    play(lab, 600)
    assert lab.phase("nightly") == "Scheduled" and len(runs(lab)) == 1
    assert {each["type"] for each in lab.status("nightly")["conditions"]} == {"Scheduled"}


def test_runs_go_with_their_template(lab: JobLab) -> None:
    template(lab, FOR_EVER)
    play(lab, 600)
    lab.delete("storejobs", "nightly")
    for _ in range(4):
        lab.tick()
    assert lab.jobs() == [] and lab.api.all("pods") == []


def test_a_template_of_the_same_name_does_not_take_over_the_runs_of_the_last(lab: JobLab) -> None:
    template(lab, FOR_EVER)
    play(lab, 600)
    del lab.api.objects["storejobs", "shop", "nightly"]
    template(lab, FOR_EVER)
    lab.one_pass("nightly")
    assert "active" not in lab.status("nightly")


@pytest.mark.simulation
@pytest.mark.parametrize("policy", ["Allow", "Forbid", "Replace"])
def test_cut_off_at_every_write_a_time_has_one_run(policy: str) -> None:
    """The judge sees a run that is made twice, and one that is made beside another."""

    def played(cut_off: int | None = None) -> JobLab:
        lab = JobLab()
        template(lab, Script(seconds=700), concurrencyPolicy=policy, successfulJobsHistoryLimit=1)
        lab.fuse = cut_off
        lab.fuse_counts = lambda key: key[0] == "storejobs"
        play(lab, 600 * 3, step=60)
        return lab

    whole = played()
    for write in range(len([each for each in whole.api.writes if "storejobs" in each])):
        lab = played(write)
        assert sorted(lab.judge.runs) == sorted(whole.judge.runs), f"cut off before write {write}"
        assert lab.jobs() == whole.jobs(), f"cut off before write {write}"
