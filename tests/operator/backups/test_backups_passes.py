"""Backups as short stories, in whole passes over the simulated API: what Jobs are created, and what the status says."""

from __future__ import annotations

import argparse
import json
from typing import Any

import pytest
from backup_storm import backups_reconciler
from jobs_lab import NAMESPACE, JobLab
from simulated_api import Json
from simulated_cluster import Operated

from tallystick.node.commands.backup import add_parsers
from tallystick.operator.backups.metrics import BackupMetrics
from tallystick.operator.backups.reconcile import BackupsReconciler
from tallystick.operator.backups.spec import FINALIZER
from tallystick.operator.core.work_queue import Key, Kind

PLACE = {"persistentVolumeClaim": {"name": "backups", "subPath": "daily"}}
DONE = {"address": "/backups/daily/orders/orders-0/1", "begin": 0, "committed": 900, "bytes": 900, "newBytes": 90}


class Lab(Operated[BackupsReconciler]):
    def __init__(self) -> None:
        self.world = JobLab()
        self.api = self.world.api
        self.api.hook = lambda *args: self.count_write()
        self.metrics = BackupMetrics(self.world.metrics.registry)
        self.world.put("persistentvolumeclaims", "backups", {"spec": {"accessModes": ["ReadWriteOnce"]}})

    def operator(self) -> BackupsReconciler:
        if self.reconciler is None:
            self.reconciler = backups_reconciler(self.world, self.world.settings, self.metrics)
        return self.reconciler

    def backup(self, name: str = "now", **spec: Any) -> None:
        spec = {"clusterName": "orders", "destination": PLACE} | spec
        self.world.put("backups", name, {"spec": spec})

    def step(self, seconds: float = 1.0, writes: int | None = None) -> float | None:
        self.world.time += seconds
        self.api.collect()
        return self.pass_over(Key(NAMESPACE, "now", Kind.BACKUP), writes)

    @property
    def status(self) -> Json:
        found: Json = (self.api.get("backups", "now") or {}).get("status") or {}
        return found

    def jobs(self) -> list[str]:
        return [body["metadata"]["name"] for body in self.api.all("jobs")]

    def end(self, name: str, code: int, message: Any) -> None:
        job = self.api.get("jobs", name)
        assert job is not None, f"{name} is not there: {self.jobs()}"
        owner = {"kind": "Job", "name": name, "uid": job["metadata"]["uid"], "controller": True}
        text = message if isinstance(message, str) else json.dumps(message)
        ended = {"state": {"terminated": {"exitCode": code, "message": text}}}
        labels = job["spec"]["template"]["metadata"]["labels"]
        status = {"phase": "Failed" if code else "Succeeded", "containerStatuses": [ended]}
        self.world.put("pods", f"{name}-x", {"status": status}, labels=labels, ownerReferences=[owner])

    def delete(self) -> None:
        body = self.api.objects["backups", NAMESPACE, "now"]
        body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"

    def delete_a_stored_one(self) -> None:
        """A Backup is completed, and then deleted with what it has stored."""
        self.backup(deletionPolicy="Delete")
        self.step()
        self.end("now-0-1", 0, DONE)
        self.step()
        self.delete()
        self.step()


@pytest.fixture
def lab() -> Lab:
    return Lab()


def test_a_backup_of_a_follower_from_beginning_to_end(lab: Lab) -> None:
    lab.backup()
    lab.step()
    assert lab.jobs() == ["now-0-1"] and lab.status["phase"] == "Running"
    assert lab.status["groups"][0]["node"] == "orders-0-1", "a follower"
    lab.end("now-0-1", 0, DONE)
    lab.step()
    assert lab.status["phase"] == "Completed" and lab.jobs() == [], "its pod no longer keeps the claim in use"
    group = lab.status["groups"][0]
    assert {name: group[name] for name in DONE} == DONE
    before = len(lab.api.writes)
    assert lab.step() is None and lab.api.writes[before:] == []
    assert lab.metrics.last_success.labels(NAMESPACE, "orders")._value.get() > 0


def test_the_pod_reads_in_place_and_has_no_secret_in_clear_text(lab: Lab) -> None:
    s3 = {"bucket": "safe", "prefix": "a/b", "endpoint": "http://minio:9000", "credentialsSecret": "s3"}
    lab.backup(destination={"s3": s3}, encryption={"keySecret": {"name": "key"}}, bytesPerSecond="50M")
    lab.step()
    pod = lab.api.all("jobs")[0]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    volumes = {each["name"]: each for each in pod["volumes"]}
    assert volumes["store"]["persistentVolumeClaim"] == {"claimName": "data-orders-0-1", "readOnly": True}
    assert volumes["backup-s3"]["secret"]["secretName"] == "s3"
    terms = pod["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert terms[0]["labelSelector"]["matchLabels"]["tallystick.dev/member"] == "1"
    assert {each["name"] for each in container["env"]} == {"HOME", "AWS_ENDPOINT_URL"}
    parser = argparse.ArgumentParser()
    add_parsers(parser.add_subparsers())
    args = parser.parse_args(container["command"][1:])
    assert (args.place, args.http) == ("s3://safe/a/b", "orders-0-1.shop.svc:8080")
    assert str(args.key_file) == "/etc/tallystick-key/backup.key"


def test_another_member_is_tried_and_the_leader_is_the_last(lab: Lab) -> None:
    lab.backup()
    nodes = []
    for attempt in range(1, 7):
        lab.step(400)
        nodes.append(lab.status["groups"][0]["node"])
        lab.end(f"now-0-{attempt}", 1, "trace\nthe store has a damaged record")
        lab.step()
    assert nodes == ["orders-0-1", "orders-0-2", "orders-0-0"] * 2
    assert lab.status["phase"] == "Failed" and lab.status["reason"] == "AttemptsFailed"
    assert "the store has a damaged record" in lab.status["message"]
    assert lab.metrics.failures.labels(NAMESPACE, "orders")._value.get() == 1


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"clusterName": "other"}, "ClusterNotFound"),
        ({"groups": [7]}, "GroupNotFound"),
        ({"destination": {"persistentVolumeClaim": {"name": "none"}}}, "DestinationMissing"),
        ({"destination": {"persistentVolumeClaim": {"name": "data-orders-0-2"}}}, "DestinationIsStore"),
        ({"destination": {"persistentVolumeClaim": {"name": "backups", "subPath": "../x"}}}, "InvalidSpec"),
    ],
)
def test_what_cannot_start_says_why(lab: Lab, spec: Json, reason: str) -> None:
    lab.backup(**spec)
    lab.step()
    assert lab.status["reason"] == reason and lab.jobs() == []


def test_a_job_of_someone_else_is_not_changed(lab: Lab) -> None:
    lab.world.put("jobs", "now-0-1", {"spec": {}})
    lab.backup()
    lab.step()
    assert lab.status["reason"] == "NameTaken"
    assert (lab.api.get("jobs", "now-0-1") or {})["spec"] == {}


@pytest.mark.parametrize("writes", range(6))
def test_a_kill_after_any_write_loses_and_repeats_nothing(lab: Lab, writes: int) -> None:
    lab.backup(deletionPolicy="Delete", verify=True)
    lab.step(writes=writes)
    lab.step()
    assert lab.jobs() == ["now-0-1"]
    lab.end("now-0-1", 0, DONE)
    lab.step(writes=writes)
    lab.step()
    assert lab.status["phase"] in ("Verifying", "Running") and lab.jobs() == ["now-0-1-verify"]
    lab.end("now-0-1-verify", 0, {"sound": True})
    lab.step(writes=writes)
    lab.step()
    assert lab.status["phase"] == "Completed" and lab.status["groups"][0]["verified"] is True


def test_the_stored_backup_goes_with_the_resource_if_it_is_to(lab: Lab) -> None:
    lab.delete_a_stored_one()
    assert lab.jobs() == ["now-0-1-delete"]
    lab.end("now-0-1-delete", 0, {"backups": ["1"], "waits": ""})
    lab.step()
    assert FINALIZER not in (lab.api.get("backups", "now") or {"metadata": {}})["metadata"].get("finalizers", [])


def test_a_policy_that_changes_after_the_end_counts(lab: Lab) -> None:
    lab.backup()
    lab.step()
    lab.end("now-0-1", 0, DONE)
    lab.step()
    body = lab.api.objects["backups", NAMESPACE, "now"]
    assert not body["metadata"].get("finalizers")
    lab.api._store(("backups", NAMESPACE, "now"), {**body, "spec": {**body["spec"], "deletionPolicy": "Delete"}})
    lab.step()
    assert (lab.api.get("backups", "now") or {})["metadata"]["finalizers"] == [FINALIZER]
    assert lab.status["phase"] == "Completed"
    lab.delete()
    lab.step()
    assert lab.jobs() == ["now-0-1-delete"]


def test_a_deletion_that_failed_often_leaves_its_next_pod_the_time_to_start(lab: Lab) -> None:
    """The pause before an attempt is longer than the time in which a pod must start: it is not counted."""
    lab.delete_a_stored_one()
    for attempt in range(1, 7):
        lab.end(f"now-0-{attempt}-delete", 3, "the store does not answer")
        lab.step()
        for _ in range(40):
            if f"now-0-{attempt + 1}-delete" in lab.jobs():
                break
            lab.step(10.0)
    assert lab.jobs() == ["now-0-7-delete"]
    lab.step(60.0)
    assert lab.jobs() == ["now-0-7-delete"], "its pod may still start"
    lab.step(61.0)
    assert lab.jobs() == [] and "did not start" in lab.status["message"]


def test_a_namespace_that_is_being_deleted_keeps_the_stored_backup(lab: Lab) -> None:
    lab.backup(deletionPolicy="Delete")
    lab.step()
    lab.end("now-0-1", 0, DONE)
    lab.step()
    lab.api.terminating.add(NAMESPACE)
    lab.delete()
    lab.step()
    assert lab.jobs() == []
    assert FINALIZER not in (lab.api.get("backups", "now") or {"metadata": {}})["metadata"].get("finalizers", [])


def annotate(lab: Lab, **values: str) -> None:
    lab.world.api.objects["brokerclusters", NAMESPACE, "orders"]["metadata"]["annotations"] = {
        f"tallystick.dev/{name}": value for name, value in values.items()
    }


def condition(lab: Lab, kind: str) -> tuple[str, str]:
    found = next(each for each in lab.status["conditions"] if each["type"] == kind)
    return found["status"], found["reason"]


def test_a_backup_waits_while_its_cluster_hibernates_and_its_deadline_does_not_count_that(lab: Lab) -> None:
    annotate(lab, hibernation="on")
    lab.backup(activeDeadlineSeconds=100)
    lab.step(50)
    assert lab.step(10_000) == 10.0
    assert lab.status["phase"] == "Pending" and condition(lab, "Started") == ("False", "ClusterHibernated")
    writes = len(lab.api.writes)
    lab.step(10)
    assert lab.jobs() == [] and lab.api.writes[writes:] == [], "a wait writes nothing"
    annotate(lab)
    lab.step()
    assert lab.jobs() == ["now-0-1"] and lab.status["hibernatedSeconds"] == 10_011
    assert "hibernatedSince" not in lab.status
    lab.step(47)
    assert lab.status["phase"] == "Running"
    lab.step(3)
    assert lab.status["reason"] == "DeadlineExceeded"


def test_a_hibernation_during_a_backup_interrupts_it(lab: Lab) -> None:
    lab.backup()
    lab.step()
    annotate(lab, hibernation="on")
    lab.step()
    assert lab.jobs() == [] and lab.status["reason"] == "ClusterHibernated", (
        "its pod would wait for the one of the broker"
    )
    annotate(lab)
    lab.step(60)
    assert lab.jobs() == ["now-0-2"]


def test_stored_backups_are_verified_and_deleted_while_the_cluster_hibernates(lab: Lab) -> None:
    lab.backup(verify=True, deletionPolicy="Delete")
    lab.step()
    lab.end("now-0-1", 0, DONE)
    annotate(lab, hibernation="on")
    lab.step()
    lab.end("now-0-1-verify", 0, {"sound": True})
    lab.step()
    assert lab.status["phase"] == "Completed"
    lab.delete()
    lab.step()
    assert lab.jobs() == ["now-0-1-delete"]


def test_a_fenced_member_is_not_chosen(lab: Lab) -> None:
    annotate(lab, fenced="orders-0-1")
    lab.backup()
    lab.step()
    assert lab.status["groups"][0]["node"] == "orders-0-2", "its BrokerNode is still ready"


def test_the_attempt_on_a_member_that_is_fenced_meanwhile_is_given_up_before_its_pod_starts(lab: Lab) -> None:
    lab.backup()
    lab.step()
    annotate(lab, fenced="orders-0-1,orders-0-0")
    lab.step()
    assert lab.jobs() == [] and "orders-0-1 is fenced" in lab.status["message"]
    lab.step(60)
    assert lab.status["groups"][0]["node"] == "orders-0-2" and lab.jobs() == ["now-0-2"]


def test_a_group_of_fenced_members_has_no_source_and_the_message_names_them(lab: Lab) -> None:
    annotate(lab, fenced="*")
    lab.backup()
    lab.step()
    assert lab.status["reason"] == "NoMemberReady" and condition(lab, "Started") == ("False", "NoMemberReady")
    assert "fenced: orders-0-0, orders-0-1, orders-0-2" in lab.status["message"]
