"""Backups on a schedule: one each minute, and a retention that deletes what is stored on the volume.

What only a real API server and kubelet decide is tried here: permissions of the operator, the finalizer of a Backup
that is deleted, Jobs that delete from a volume, and that Backups stay when their schedule is deleted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from harness.api import Api, Json
from harness.brokers import API_VERSION, Brokers
from harness.jobs import Jobs
from harness.lab import Lab
from harness.pods import Shell
from harness.shell import apply, kubectl
from harness.waiting import NotYetError, wait_for

CLAIM, NAME = "scheduled-backups", "minutely"


def _schedule(brokers: Brokers, keep: int, **spec: object) -> None:
    template = {"clusterName": brokers.name, "destination": {"persistentVolumeClaim": {"name": CLAIM}}}
    spec = {"schedule": "* * * * *", "retention": {"keepLast": keep}, "template": template} | spec
    metadata = {"name": NAME, "namespace": brokers.namespace}
    apply({"apiVersion": API_VERSION, "kind": "ScheduledBackup", "metadata": metadata, "spec": spec})


def _backups(api: Api, brokers: Brokers) -> dict[str, Json]:
    """The Backups of the schedule by name, the oldest first."""
    found = api.list("backups", brokers.namespace, f"tallystick.dev/schedule={NAME}")
    return {each["metadata"]["name"]: each for each in sorted(found, key=lambda each: str(each["metadata"]["name"]))}


def _status(api: Api, brokers: Brokers) -> Json:
    return dict(api.get("scheduledbackups", brokers.namespace, NAME).get("status") or {})


def _condition(status: Json, kind: str) -> str:
    return next((str(each["status"]) for each in status.get("conditions") or () if each["type"] == kind), "")


def _addresses(api: Api, brokers: Brokers) -> set[str]:
    """Where the Backups that exist are stored."""
    bodies = _backups(api, brokers).values()
    return {str(group["address"]) for body in bodies for group in body["status"]["groups"]}


@pytest.fixture
def claim(orders: Brokers, lab: Lab) -> Iterator[None]:
    Jobs(lab.api, orders.namespace, orders.name).claim(CLAIM)
    yield
    kubectl("delete", "scheduledbackups", "--all", "-n", orders.namespace)
    kubectl("delete", "backups", "--all", "-n", orders.namespace, "--timeout=120s", timeout_s=150)
    lab.api.delete("persistentvolumeclaims", orders.namespace, CLAIM)


@pytest.mark.usefixtures("claim")
def test_scheduled_backups_run_each_minute_and_old_ones_are_deleted_from_the_volume(
    orders: Brokers, lab: Lab, shell: Shell
) -> None:
    orders.topic("scheduled")
    shell.tally("produce", "scheduled", "one", "two", "--nameserver", orders.name_server)
    _schedule(orders, 1, immediate=True)
    seen: dict[str, str] = {}

    def two_have_run() -> None:
        for name, body in _backups(lab.api, orders).items():
            seen[name] = str((body.get("status") or {}).get("phase") or "")
        completed = [name for name, phase in seen.items() if phase in ("Completed", "Deleting")]
        if len(completed) < 3:
            raise NotYetError(json.dumps(seen))

    wait_for("the immediate Backup and two scheduled ones have completed", two_have_run, 300)
    assert "Failed" not in seen.values(), seen

    lab.api.merge("scheduledbackups", orders.namespace, NAME, {"spec": {"schedule": "@yearly"}})

    def pruned() -> None:
        status = _status(lab.api, orders)
        if status.get("active") or len(_backups(lab.api, orders)) != 1 or _condition(status, "Pruned") != "True":
            raise NotYetError(json.dumps(status))

    wait_for("one Backup is left", pruned, 180)
    status = _status(lab.api, orders)
    (left,) = _backups(lab.api, orders)
    assert (status["lastSuccessfulBackup"], status["backups"]) == (left, 1)
    assert [_condition(status, kind) for kind in ("Scheduled", "OnTime", "LastBackupComplete")] == ["True"] * 3
    assert len(seen) >= 3 and left >= max(seen), "the newest one is left"

    jobs = Jobs(lab.api, orders.namespace, orders.name)
    stored = json.loads(jobs.beside(CLAIM, lab.images.node, "tally", "backup", "list", "/out", "--json"))
    known = {address.removeprefix("/backups/") for address in _addresses(lab.api, orders)}
    assert {row["address"].removeprefix("/out/") for row in stored} == known, "the others are gone from the volume"
    columns = kubectl("get", "scheduledbackups", "-n", orders.namespace)
    assert NAME in columns and "@yearly" in columns and "Scheduled" in columns

    kubectl("delete", "scheduledbackup", NAME, "-n", orders.namespace)
    assert list(_backups(lab.api, orders)) == [left], "Backups stay when their schedule is deleted"
