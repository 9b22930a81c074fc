"""Backups of a live cluster to a volume: under load, incremental, verified, and deleted with their resource.

The Jobs mount the brokers' volumes in place, so this also tries what only a real kubelet decides: permissions of the
files, the affinity to the member's machine, and the result of a pod.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from harness.api import Api, Json
from harness.brokers import API_VERSION, Brokers
from harness.jobs import Jobs
from harness.lab import Lab
from harness.load import loaded
from harness.shell import apply
from harness.waiting import NotYetError, wait_for

CLAIM = "backups"


def _apply(brokers: Brokers, name: str, policy: str = "Retain") -> None:
    spec = {
        "clusterName": brokers.name,
        "destination": {"persistentVolumeClaim": {"name": CLAIM}},
        "verify": True,
        "deletionPolicy": policy,
    }
    metadata = {"name": name, "namespace": brokers.namespace}
    apply({"apiVersion": API_VERSION, "kind": "Backup", "metadata": metadata, "spec": spec})


def _completed(api: Api, brokers: Brokers, name: str) -> Json:
    """The status of a Backup that is over, which has to be completed and verified."""

    def look() -> Json:
        status = api.get("backups", brokers.namespace, name).get("status") or {}
        if status.get("phase") not in ("Completed", "Failed"):
            raise NotYetError(json.dumps(status))
        return dict(status)

    status = wait_for(f"the Backup {name} is over", look, 240)
    assert status["phase"] == "Completed", json.dumps(status)
    conditions = {each["type"]: each["status"] for each in status["conditions"]}
    assert conditions["Complete"] == conditions["Verified"] == "True", json.dumps(status)
    return status


@pytest.fixture
def claim(orders: Brokers, lab: Lab) -> Iterator[None]:
    Jobs(lab.api, orders.namespace, orders.name).claim(CLAIM)
    yield
    for each in lab.api.list("backups", orders.namespace):
        lab.api.delete("backups", orders.namespace, each["metadata"]["name"])
    lab.api.delete("persistentvolumeclaims", orders.namespace, CLAIM)


@pytest.mark.usefixtures("claim")
def test_backups_under_load_are_verified_incremental_and_deleted(orders: Brokers, lab: Lab) -> None:
    with loaded(orders, lab.images.node) as load:
        _apply(orders, "first")
        first = _completed(lab.api, orders, "first")
        load.finish()
        verdict = load.verdict()
    assert verdict.problems == [] and load.failed() == 0
    assert first["bytes"] > 0

    _apply(orders, "second", policy="Delete")
    second = _completed(lab.api, orders, "second")
    assert second["bytes"] >= first["bytes"]
    assert second["newBytes"] < second["bytes"], "sealed parts are stored once"

    lab.api.delete("backups", orders.namespace, "second")

    def gone() -> None:
        left = [each["metadata"]["name"] for each in lab.api.list("backups", orders.namespace)]
        if left != ["first"]:
            raise NotYetError(", ".join(left))

    wait_for("the second Backup and what it stored are deleted", gone, 120)
    _apply(orders, "third")
    _completed(lab.api, orders, "third")
