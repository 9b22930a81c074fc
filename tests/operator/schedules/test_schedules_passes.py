"""Schedules of backups as stories, in whole passes over the simulated API. `ScheduleJudge` looks at each write."""

from __future__ import annotations

from typing import Any

import pytest
from jobs_lab import NAMESPACE, START
from schedule_lab import EXPIRED, FINALIZER, SCHEDULE, UID, ScheduleLab, phase_of
from simulated_api import Json, RefusalError, stamp

from tallystick.operator.core import kube

BEGIN = -(-START // 600) * 600
"""The first time of a schedule of ten minutes, in seconds since 1970."""


def name(minutes: float) -> str:
    """The name of the Backup that is due so many minutes after the first time."""
    digits = stamp(BEGIN + 60 * minutes)
    return "nightly-" + "".join(character for character in digits if character.isdigit())[:12]


@pytest.fixture
def lab() -> ScheduleLab:
    return ScheduleLab()


def at(lab: ScheduleLab, minutes: float) -> None:
    """Continues until so many minutes after the first time."""
    lab.play(BEGIN + 60 * minutes - lab.world.time)


def test_a_backup_is_created_at_each_time_and_its_end_is_reported(lab: ScheduleLab) -> None:
    lab.schedule(timeZone="Europe/Berlin", template={"verify": True})
    assert lab.one_pass() == pytest.approx(60.0)
    assert lab.names() == [] and lab.status["nextScheduleTime"] == stamp(BEGIN)
    at(lab, 15)
    assert lab.names() == [name(0), name(10)]
    body = lab.api.get("backups", name(10)) or {}
    assert body["spec"] == lab.body()["spec"]["template"]
    assert body["metadata"]["labels"][SCHEDULE] == "nightly" and "ownerReferences" not in body["metadata"]
    assert body["metadata"]["annotations"] == {UID: lab.body()["metadata"]["uid"]}
    status = lab.status
    assert status["lastScheduleTime"] == stamp(BEGIN + 600) and status["nextScheduleTime"] == stamp(BEGIN + 1200)
    assert status["lastSuccessfulBackup"] == name(10) and status["lastSuccessfulTime"] > status["lastScheduleTime"]
    assert (status["phase"], status["backups"]) == ("Scheduled", 2) and "active" not in status
    assert [lab.condition(kind)[0] for kind in ("Scheduled", "OnTime", "LastBackupComplete")] == ["True"] * 3
    assert lab.events() == ["BackupCreated"] * 2
    before = len(lab.api.writes)
    lab.one_pass()
    assert lab.api.writes[before:] == [], "an unchanged state is not written again"


def test_the_first_one_can_be_created_at_once(lab: ScheduleLab) -> None:
    lab.schedule("0 2 * * *", immediate=True)
    lab.play(60)
    assert len(lab.names()) == 1 and lab.status["lastScheduleTime"] == stamp(START // 60 * 60)
    lab.play(3600, step=60)
    assert len(lab.names()) == 1


def test_an_immediate_one_that_had_to_wait_gives_way_to_a_scheduled_one(lab: ScheduleLab) -> None:
    lab.schedule(immediate=True)
    lab.annotate_cluster(hibernation="on")
    at(lab, 5)
    lab.annotate_cluster()
    at(lab, 8)
    assert lab.names() == [name(0)]


def test_an_immediate_one_and_a_time_in_the_same_minute_are_one(lab: ScheduleLab) -> None:
    lab.world.time = BEGIN
    lab.schedule("* * * * *", immediate=True)
    lab.play(59)
    assert lab.names() == [name(0)]
    lab.play(10)
    assert lab.names() == [name(0), name(1)]


def test_missed_times_get_one_backup_and_an_event_says_how_many(lab: ScheduleLab) -> None:
    lab.schedule()
    lab.one_pass()
    lab.world.time = BEGIN + 3600 + 30
    lab.play(60)
    assert lab.names() == [name(60)]
    assert lab.events() == ["MissedTimes", "BackupCreated"]
    told = next(body for body in lab.api.all("events") if body["reason"] == "MissedTimes")
    assert told["message"].startswith("6 scheduled times before") and told["type"] == "Warning"


def test_a_time_whose_starting_deadline_is_over_gets_none(lab: ScheduleLab) -> None:
    lab.schedule(startingDeadlineSeconds=60)
    lab.one_pass()
    lab.world.time = BEGIN + 120
    lab.play(60)
    assert lab.names() == [] and lab.condition("OnTime") == ("False", "StartingDeadlineExceeded")
    assert lab.events() == ["StartingDeadlineExceeded"], "once"
    at(lab, 11)
    assert lab.names() == [name(10)] and lab.condition("OnTime") == ("True", "OnTime")


def test_one_backup_runs_at_a_time_and_then_the_last_missed_time_counts(lab: ScheduleLab) -> None:
    lab.schedule()
    lab.seconds = 1500
    at(lab, 24)
    assert lab.names() == [name(0)] and lab.status["phase"] == "Waiting" and lab.status["active"] == [name(0)]
    assert lab.condition("OnTime") == ("False", "PreviousBackupRunning")
    at(lab, 29)
    assert lab.names() == [name(0), name(20)]
    assert lab.events().count("PreviousBackupRunning") == 2, "once for each time"


def test_a_schedule_that_is_suspended_creates_and_deletes_nothing(lab: ScheduleLab) -> None:
    lab.schedule(retention={"keepLast": 3})
    at(lab, 25)
    lab.change(suspend=True, retention={"keepLast": 1})
    at(lab, 60)
    assert lab.names() == [name(0), name(10), name(20)] and lab.status["phase"] == "Suspended"
    assert lab.condition("Scheduled") == ("False", "Suspended") and "nextScheduleTime" not in lab.status
    assert lab.status["lastScheduleTime"] == stamp(BEGIN + 1200) and lab.status["backups"] == 3
    lab.change(suspend=False)
    at(lab, 68)
    assert lab.names() == [name(60)], "one for the times that were missed, and the retention applies again"


def test_a_hibernation_suspends_it(lab: ScheduleLab) -> None:
    lab.schedule()
    at(lab, 5)
    lab.annotate_cluster(hibernation="on")
    at(lab, 35)
    assert lab.names() == [name(0)] and lab.condition("Scheduled") == ("False", "ClusterHibernated")
    lab.annotate_cluster()
    at(lab, 39)
    assert lab.names() == [name(0), name(30)]


def test_without_its_cluster_it_waits(lab: ScheduleLab) -> None:
    lab.schedule(template={"clusterName": "other"})
    at(lab, 1)
    assert lab.names() == [] and lab.condition("OnTime") == ("False", "ClusterNotFound")
    assert lab.condition("Scheduled")[0] == "True", "the alert counts from its creation"


def test_an_invalid_schedule_is_reported_and_can_be_corrected(lab: ScheduleLab) -> None:
    lab.schedule()
    at(lab, 5)
    lab.change(timeZone="Mars/Base")
    assert lab.one_pass() is None
    assert lab.status["phase"] == "Invalid" and "Mars/Base" in lab.status["message"]
    assert lab.status["lastScheduleTime"] == stamp(BEGIN) and lab.status["backups"] == 1
    lab.change(timeZone="UTC")
    at(lab, 11)
    assert lab.names() == [name(0), name(10)] and lab.condition("Scheduled") == ("True", "Scheduled")


@pytest.mark.parametrize(
    ("retention", "kept"),
    [
        (None, [0, 10, 20, 30, 40, 50]),
        ({"keepLast": 2}, [40, 50]),
        ({"keepWithin": "1h"}, [0, 10, 20, 30, 40, 50]),
        ({"keepLast": 100}, [0, 10, 20, 30, 40, 50]),
    ],
)
def test_the_retention_deletes_what_it_does_not_keep(lab: ScheduleLab, retention: Json | None, kept: list[int]) -> None:
    spec: dict[str, Any] = {} if retention is None else {"retention": retention}
    lab.schedule(**spec)
    at(lab, 58)
    assert lab.names() == [name(minutes) for minutes in kept]
    assert lab.judge.deleted == [name(minutes) for minutes in range(0, 60, 10) if minutes not in kept]
    assert lab.condition("Pruned") == (("True", "Pruned") if retention else ("", ""))
    deletions = [write for write in lab.api.writes if write.startswith("POST jobs/") and write.endswith("-delete")]
    assert len(deletions) == len(lab.judge.deleted), "a Job deletes what each of them has stored"


def test_the_retention_deletes_one_at_a_time(lab: ScheduleLab) -> None:
    lab.schedule()
    at(lab, 58)
    lab.change(retention={"keepLast": 1})
    lab.one_pass()
    lab.one_pass()
    assert lab.judge.deleted == [name(0)] and lab.condition("Pruned") == ("False", "Deleting")
    body = lab.api.get("backups", name(0)) or {}
    assert "deletionTimestamp" in body["metadata"] and FINALIZER in body["metadata"]["finalizers"]
    assert body["spec"].get("deletionPolicy") is None, "that is the choice of a user"
    at(lab, 69)
    assert lab.names() == [name(60)]


@pytest.mark.parametrize("phase", ["Running", "Verifying", "Deleting"])
def test_nothing_is_deleted_while_another_backup_of_the_cluster_is_at_work(lab: ScheduleLab, phase: str) -> None:
    lab.schedule()
    at(lab, 18)
    lab.world.put("backups", "by-hand", {"spec": lab.body()["spec"]["template"], "status": {"phase": phase}})
    lab.change(retention={"keepLast": 1})
    lab.one_pass()
    lab.one_pass()
    assert lab.judge.deleted == [] and lab.condition("Pruned") == ("False", "BackupRunning")
    del lab.api.objects["backups", NAMESPACE, "by-hand"]
    lab.one_pass()
    assert lab.judge.deleted == [name(0)]


def test_backups_that_take_longer_than_their_interval_are_deleted_all_the_same(lab: ScheduleLab) -> None:
    lab.schedule("* * * * *", retention={"keepLast": 1})
    lab.seconds = 90
    lab.play(1800)
    assert len(lab.judge.made) > 5 and len(lab.names()) <= 3


def test_many_deletions_delay_a_backup_for_ten_minutes_at_most(lab: ScheduleLab) -> None:
    lab.schedule("*/5 * * * *", retention={"keepLast": 1})
    lab.world.time = BEGIN + 1
    uid, done = lab.body()["metadata"]["uid"], stamp(BEGIN - 60)
    groups = [{"group": 0, "name": "orders-0", "phase": "Completed", "attempt": 1, "address": "/backups/a"}]
    for minutes in range(-60, 0):
        status = {"phase": "Completed", "completionTime": done, "groups": groups}
        marks = {"labels": {SCHEDULE: "nightly"}, "annotations": {UID: uid}}
        lab.world.put("backups", name(minutes), {"spec": lab.body()["spec"]["template"], "status": status}, **marks)
    at(lab, 9)
    assert lab.judge.made == [] and lab.condition("OnTime") == ("False", "DeletionRunning")
    at(lab, 11)
    assert [made for _, made in lab.judge.made] == [name(5)]
    assert len(lab.judge.deleted) > 10


def test_what_failed_is_kept_for_a_while_and_the_last_success_is_always_kept(lab: ScheduleLab) -> None:
    lab.schedule(retention={"keepLast": 1, "keepFailed": 2}, template={"activeDeadlineSeconds": 60})
    at(lab, 5)
    lab.code = 3
    at(lab, 58)
    assert lab.names() == [name(0), name(40), name(50)]
    assert lab.condition("LastBackupComplete")[0] == "False" and lab.status["lastSuccessfulBackup"] == name(0)
    assert (
        lab.world.metrics.registry.get_sample_value(
            "tallystick_operator_failed_backups", {"cluster_namespace": NAMESPACE, "cluster": "orders"}
        )
        == 2
    )
    lab.code = 0
    at(lab, 68)
    assert lab.names() == [name(40), name(50), name(60)]
    assert (
        lab.world.metrics.registry.get_sample_value(
            "tallystick_operator_failed_backups", {"cluster_namespace": NAMESPACE, "cluster": "orders"}
        )
        == 0
    ), "a later Backup of the schedule has completed"


def test_the_last_backup_of_each_group_is_kept() -> None:
    lab = ScheduleLab(groups=2)
    lab.schedule(retention={"keepLast": 1})
    at(lab, 5)
    lab.change(template={**lab.body()["spec"]["template"], "groups": [0]})
    at(lab, 25)
    assert lab.names() == [name(0), name(20)], "the first one has the only backup of group 1"


@pytest.mark.parametrize(
    "recovery",
    [
        {"backupName": name(0)},
        {"source": {"persistentVolumeClaim": {"name": "backups"}}, "clusterName": "orders"},
        None,  # spec.bootstrap was removed in the middle of a restore
    ],
)
def test_a_backup_is_kept_while_a_cluster_is_restored_from_it(lab: ScheduleLab, recovery: Json | None) -> None:
    lab.schedule(retention={"keepLast": 1})
    at(lab, 5)
    conditions = [{"type": "Recovered", "status": "False", "reason": "Restoring", "message": ""}]
    spec = {} if recovery is None else {"bootstrap": {"recovery": recovery}}
    lab.world.put("brokerclusters", "copy", {"spec": spec, "status": {"conditions": conditions}})
    at(lab, 15)
    assert lab.names() == [name(0), name(10)] and lab.condition("Pruned") == ("False", "InUse")
    conditions[0]["status"] = "True"
    lab.api.objects["brokerclusters", NAMESPACE, "copy"]["status"]["conditions"] = conditions
    at(lab, 18)
    assert lab.names() == [name(10)]


def test_a_restore_from_another_place_holds_nothing(lab: ScheduleLab) -> None:
    lab.schedule(retention={"keepLast": 1})
    source = {"s3": {"bucket": "other", "credentialsSecret": "s3"}}
    lab.world.put("brokerclusters", "copy", {"spec": {"bootstrap": {"recovery": {"source": source}}}})
    at(lab, 15)
    assert lab.names() == [name(10)]


def test_backups_of_others_are_never_deleted(lab: ScheduleLab) -> None:
    """With its label, with the UID of an earlier schedule, as a copy under another name, or controlled by another."""
    lab.schedule(retention={"keepLast": 1})
    uid, done = lab.body()["metadata"]["uid"], {"spec": {}, "status": {"phase": "Completed"}}
    label = {SCHEDULE: "nightly"}
    owner = {"kind": "Deployment", "name": "mine", "uid": "uid-of-mine", "controller": True}
    lab.world.put("backups", name(-40), done, labels=label)
    lab.world.put("backups", name(-30), done, labels=label, annotations={UID: "uid-of-earlier"})
    lab.world.put("backups", "before-upgrade", done, labels=label, annotations={UID: uid})
    lab.world.put("backups", "nightly-before-upgrade", done, labels=label, annotations={UID: uid})
    lab.world.put("backups", name(-20), done, labels=label, annotations={UID: uid}, ownerReferences=[owner])
    lab.api.collect = lambda: None  # type: ignore[method-assign]
    others = lab.names()
    lab.judge.foreign = lambda key: key[2] in others
    at(lab, 25)
    assert set(others) < set(lab.names()) and lab.status["backups"] == 1
    assert lab.judge.deleted == [name(0), name(10)]


def test_a_name_that_is_taken_is_not_changed(lab: ScheduleLab) -> None:
    lab.schedule()
    lab.world.put("backups", name(0), {"spec": {}, "status": {"phase": "Completed"}})
    at(lab, 5)
    assert lab.condition("OnTime") == ("False", "NameTaken") and "lastScheduleTime" not in lab.status
    assert (lab.api.get("backups", name(0)) or {})["spec"] == {}
    at(lab, 11)
    assert name(10) in lab.names() and lab.condition("OnTime") == ("True", "OnTime")


@pytest.mark.parametrize("status", [403, 422])
def test_what_the_api_server_refuses_is_told_and_tried_again(lab: ScheduleLab, status: int) -> None:
    lab.schedule()
    write = lab.write

    def refuse(method: str, resource: kube.Resource, *rest: object) -> None:
        if method == "POST" and resource is kube.BACKUPS:
            raise RefusalError(status, "Forbidden", "exceeded quota: team")
        write(method, resource, *rest)  # type: ignore[arg-type]

    lab.api.hook = refuse
    at(lab, 5)
    assert lab.condition("OnTime") == ("False", "Refused") and "exceeded quota" in lab.status["message"]
    assert lab.status["phase"] == "Waiting" and lab.events() == ["Refused"]
    lab.api.hook = lab.write
    at(lab, 6)
    assert lab.names() == [name(0)]


def test_a_deletion_that_is_refused_is_told(lab: ScheduleLab) -> None:
    lab.schedule(retention={"keepLast": 1})
    write = lab.write

    def refuse(method: str, resource: kube.Resource, *rest: object) -> None:
        if method == "DELETE" and resource is kube.BACKUPS:
            raise RefusalError(403, "Forbidden", "denied by a policy")
        write(method, resource, *rest)  # type: ignore[arg-type]

    lab.api.hook = refuse
    at(lab, 19)
    assert lab.condition("Pruned") == ("False", "Refused") and lab.condition("OnTime")[0] == "True"
    lab.change(retention={"keepLast": 5})
    lab.play(10)
    body = lab.api.get("backups", name(0)) or {}
    assert EXPIRED not in body["metadata"]["annotations"], "it is kept after all: a user who deletes it keeps the data"


def test_a_deletion_that_never_ends_delays_backups_for_an_hour(lab: ScheduleLab) -> None:
    lab.schedule(retention={"keepLast": 1})
    run = lab._run
    lab._run = lambda job: None if job["metadata"]["name"].endswith("-delete") else run(job)  # type: ignore[method-assign]
    at(lab, 25)
    assert lab.names() == [name(0), name(10)] and lab.condition("OnTime") == ("False", "DeletionRunning")
    at(lab, 78)
    assert lab.names() == [name(0), name(10), name(70)]


@pytest.mark.parametrize(("owner", "kind"), [("self", "ScheduledBackup"), ("cluster", "BrokerCluster")])
def test_backups_go_with_their_owner(lab: ScheduleLab, owner: str, kind: str) -> None:
    lab.schedule(backupOwnerReference=owner)
    at(lab, 5)
    (reference,) = (lab.api.get("backups", name(0)) or {})["metadata"]["ownerReferences"]
    assert (reference["kind"], reference["controller"], reference["blockOwnerDeletion"]) == (kind, True, False)
    lab.change(backupOwnerReference="none", retention={"keepLast": 1})
    at(lab, 15)
    assert lab.judge.deleted == [name(0)], "its owner does not matter"


def test_backups_stay_when_their_schedule_is_deleted(lab: ScheduleLab) -> None:
    lab.schedule(retention={"keepLast": 1})
    at(lab, 5)
    del lab.api.objects["scheduledbackups", NAMESPACE, "nightly"]
    lab.api.collect()
    assert lab.one_pass() is None and lab.names() == [name(0)]
    lab.schedule(retention={"keepLast": 1})
    at(lab, 25)
    assert lab.names() == [name(0), name(20)], "a later schedule of this name does not take it over"
    assert lab.status["backups"] == 1


def test_a_clock_that_jumps_ahead_and_back_does_not_stop_the_schedule(lab: ScheduleLab) -> None:
    lab.schedule()
    at(lab, 5)
    lab.judge.is_clock_sound = False
    lab.world.time += 30 * 86400
    lab.play(60)
    assert len(lab.names()) == 2
    lab.world.time -= 30 * 86400
    lab.play(5)
    assert "ClockSetBack" in lab.events() and lab.status["lastScheduleTime"] == stamp(BEGIN)
    at(lab, 11)
    assert name(10) in lab.names()


def test_a_clock_that_is_set_back_a_little_repeats_no_backup(lab: ScheduleLab) -> None:
    lab.schedule()
    at(lab, 1)
    del lab.api.objects["backups", NAMESPACE, name(0)]
    lab.world.time = BEGIN - 30
    at(lab, 9)
    assert lab.names() == [], "the time had its Backup"
    at(lab, 11)
    assert lab.names() == [name(10)]


@pytest.mark.simulation
def test_cut_off_at_every_write_a_time_has_one_backup() -> None:
    """The judge sees a Backup that is created twice, one beside another, and one that is deleted too early."""

    def played(cut_off: int | None = None) -> ScheduleLab:
        lab = ScheduleLab()
        lab.schedule(retention={"keepLast": 1}, immediate=True)
        left = cut_off
        while lab.world.time < BEGIN + 300:
            before = len(lab.api.writes)
            lab.one_pass(writes=left)
            if left is not None:
                left = left - (len(lab.api.writes) - before) if lab.reconciler is not None else None
            lab.tick(30)
        return lab

    whole, first = played(), name((START // 60 * 60 - BEGIN) / 60)
    assert whole.names() == [name(0)] and whole.judge.deleted == [first]
    for write in range(len([each for each in whole.api.writes if "backups" in each or "events" in each])):
        lab = played(write)
        assert [made for _, made in lab.judge.made] == [first, name(0)], f"cut off before write {write}"
        assert lab.names() == whole.names() and phase_of(lab.api.all("backups")[0]) == "Completed"


def test_metrics_name_the_time_after_which_a_backup_is_required(lab: ScheduleLab) -> None:
    labels = {"cluster_namespace": NAMESPACE, "cluster": "orders", "schedule": "nightly"}

    def value(of: str) -> float | None:
        return lab.world.metrics.registry.get_sample_value(f"tallystick_operator_schedule_{of}_seconds", labels)

    lab.schedule()
    lab.seconds = 10_000
    at(lab, 5)
    assert (value("last_success_timestamp"), value("required_timestamp")) == (0, None)
    at(lab, 11)
    assert value("required_timestamp") == BEGIN
    lab.seconds = 20
    at(lab, 19)
    success = value("last_success_timestamp")
    assert success is not None and success > BEGIN + 600
    lab.change(suspend=True)
    lab.play(5)
    assert value("required_timestamp") is None
    at(lab, 45)
    lab.change(suspend=False)
    at(lab, 55)
    assert value("required_timestamp") is None, "it had one time since"
    at(lab, 61)
    assert value("required_timestamp") == BEGIN + 3000
    del lab.api.objects["scheduledbackups", NAMESPACE, "nightly"]
    lab.one_pass()
    assert value("last_success_timestamp") is None
