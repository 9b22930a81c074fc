"""Backups in a storm: people who create and delete them, Jobs whose pods end in every way, and what must hold.

The Jobs are run by a few lines instead of Kubernetes. `check` looks at the world after each pass, `write` at each write
of the operator before it is done.
"""

from __future__ import annotations

import json
import random
from typing import Any

from foreign_objects import Foreign
from simulated_api import Json, Key
from simulated_cluster import CLUSTER, NAMESPACE, Cluster, Operated, operator_context

from tallystick.operator.backups.metrics import BackupMetrics
from tallystick.operator.backups.reconcile import BackupsReconciler
from tallystick.operator.core import kube
from tallystick.operator.core.settings import Settings
from tallystick.operator.core.work_queue import Key as WorkKey
from tallystick.operator.core.work_queue import Kind

OVER = ("Completed", "Failed")
NAMES = ("one", "two")
DESTINATION = "backups"


def backups_reconciler(world: Any, settings: Settings, metrics: BackupMetrics) -> BackupsReconciler:
    """The reconciler of Backups in a new process of the operator. `world`: has an `api`, a `time` and `metrics`."""
    return BackupsReconciler(operator_context(world, settings), metrics)


class Backups(Operated[BackupsReconciler]):
    """The Backups of a simulated cluster, and the pods of their Jobs."""

    def __init__(self, cluster: Cluster, foreign: Foreign, chance: random.Random) -> None:
        self.cluster, self.foreign, self.random = cluster, foreign, chance
        self.metrics = BackupMetrics(cluster.metrics.registry)
        self.sound = False
        """Every pod starts and succeeds."""
        path = kube.CLAIMS.path(NAMESPACE)
        cluster.by_hand("POST", path, {"metadata": {"name": DESTINATION}, "spec": {"accessModes": ["ReadWriteOnce"]}})

    def operator(self) -> BackupsReconciler:
        if self.reconciler is None:
            settings = Settings(node_image="node:1", pod_name="operator-0", pod_namespace="system")
            self.reconciler = backups_reconciler(self.cluster, settings, self.metrics)
        return self.reconciler

    # -- people --------------------------------------------------------------------------------------------------------

    def create(self) -> str:
        """Creates a Backup, unless it exists. Returns what was done."""
        name = self.random.choice(NAMES)
        place = {"persistentVolumeClaim": {"name": self.random.choice((DESTINATION, DESTINATION, "none"))}}
        spec: Json = {"clusterName": CLUSTER, "destination": place, "verify": self.random.random() < 0.5}
        spec |= {"deletionPolicy": self.random.choice(("Retain", "Delete"))}
        spec |= {"activeDeadlineSeconds": self.random.choice((60, 3600, 86400))}
        self.cluster.by_hand("POST", kube.BACKUPS.path(NAMESPACE), {"metadata": {"name": name}, "spec": spec})
        return f"backup {name}: {spec}"

    def delete(self) -> str:
        name = self.random.choice(NAMES)
        self._delete(name)
        return f"backup {name} is deleted"

    def _delete(self, name: str) -> None:
        body = self.cluster.api.get("backups", name)
        if body is not None and body["metadata"].get("finalizers"):
            body["metadata"].setdefault("deletionTimestamp", "2026-01-01T00:00:00Z")
        elif body is not None:
            self.cluster.api.remove(("backups", NAMESPACE, name))

    # -- time ----------------------------------------------------------------------------------------------------------

    def one_pass(self, writes: int | None = None, calls: int | None = None) -> None:
        for name in NAMES:
            self.pass_over(WorkKey(NAMESPACE, name, Kind.BACKUP), writes, calls)

    def tick(self) -> None:
        """Kubernetes creates and ends the pods of Jobs, and completes deletions."""
        api = self.cluster.api
        for body in list(api.all("backups")):
            metadata = body["metadata"]
            if "deletionTimestamp" in metadata and not metadata.get("finalizers"):
                api.remove(("backups", NAMESPACE, metadata["name"]))
        api.collect()
        for job in self._jobs():
            name = job["metadata"]["name"]
            pod = api.get("pods", f"{name}-x")
            if pod is None:
                self._start(job)
            elif self.sound or self.random.random() < 0.4:
                self._end(job, pod)
        self.check()

    def _jobs(self) -> list[Json]:
        return self.foreign.ours("jobs")

    def _start(self, job: Json) -> None:
        name, template = job["metadata"]["name"], job["spec"]["template"]
        owner = {"kind": "Job", "name": name, "uid": job["metadata"]["uid"], "apiVersion": "batch/v1"}
        metadata = {**template["metadata"], "name": f"{name}-x", "ownerReferences": [owner | {"controller": True}]}
        if not self.sound and self.random.random() < 0.2:
            return  # no Kubernetes node is suitable
        body = {"metadata": metadata, "spec": template["spec"], "status": {"phase": "Pending"}}
        self.cluster.by_hand("POST", kube.PODS.path(NAMESPACE), body)

    def _end(self, job: Json, pod: Json) -> None:
        container = pod["spec"]["containers"][0]
        if (pod["status"] or {}).get("containerStatuses"):
            return
        kind, good = container["command"][2], self.sound or self.random.random() < 0.6
        results: dict[str, dict[str, Any]] = {
            "create": {"address": f"/backups/{job['metadata']['name']}", "committed": 9, "bytes": 9, "newBytes": 1},
            "verify": {"sound": True},
            "delete": {"backups": ["1"], "waits": ""},
        }
        said = results[kind]
        state = {"terminated": {"exitCode": 0 if good else 3, "message": json.dumps(said) if good else "no"}}
        pod["status"] = {"phase": "Succeeded" if good else "Failed", "containerStatuses": [{"state": state}]}

    # -- what must hold ------------------------------------------------------------------------------------------------

    def write(self, method: str, resource: kube.Resource, key: Key, body: Json | None) -> None:
        """A write of the operator. AssertionError: it loses a result, or writes to the volume of a broker."""
        if resource is not kube.JOBS:
            return
        if method == "POST":
            assert body is not None
            for volume in body["spec"]["template"]["spec"]["volumes"]:
                claim = volume.get("persistentVolumeClaim") or {"claimName": "", "readOnly": True}
                assert claim["claimName"] == DESTINATION or claim["readOnly"], f"{key[2]} writes to {claim}"
            return
        if method != "DELETE":
            return
        job, pod = self.cluster.api.objects.get(key), self.cluster.api.get("pods", f"{key[2]}-x")
        if job is None or pod is None or not (pod["status"] or {}).get("containerStatuses"):
            return
        ended = pod["status"]["containerStatuses"][0]["state"]["terminated"]
        backup = self._owner(job)
        if backup is None or ended["exitCode"] != 0 or "-verify" in key[2] or "-delete" in key[2]:
            return
        address = json.loads(ended["message"])["address"]
        known = [group.get("address") for group in (backup.get("status") or {}).get("groups") or ()]
        released = "deletionTimestamp" in backup["metadata"] or backup["status"]["reason"] == "DeadlineExceeded"
        assert address in known or released, f"{key[2]} was deleted, and its result is not in the status: {known}"

    def _owner(self, job: Json) -> Json | None:
        uids = {owner["uid"] for owner in job["metadata"].get("ownerReferences") or ()}
        return next((each for each in self.cluster.api.all("backups") if each["metadata"]["uid"] in uids), None)

    def check(self) -> None:
        """No Job without its Backup, and never two attempts of a group at a time."""
        seen = set()
        for job in self._jobs():
            name = job["metadata"]["name"]
            backup = self._owner(job)
            assert backup is not None, f"Job {name} has no Backup"
            group = backup["metadata"]["uid"], name.removeprefix(backup["metadata"]["name"]).split("-")[1]
            assert group not in seen, f"two attempts of the group of {name}"
            seen.add(group)

    def settle(self) -> None:
        """No further faults. AssertionError: a Backup does not end and names nothing that it waits for."""
        self.sound = True
        for _ in range(300):
            self.one_pass()
            self.cluster.tick(10.0)
            self.tick()
            if all((each.get("status") or {}).get("phase") in OVER for each in self.cluster.api.all("backups")):
                break
        for body in self.cluster.api.all("backups"):
            status = body.get("status") or {}
            waits = status.get("reason") == "DestinationMissing" and "'none'" in status.get("message", "")
            assert status.get("phase") in OVER or waits, f"{body['metadata']['name']}: {status}"
        self.one_pass()
        left = [body["metadata"]["name"] for body in self._jobs()]
        assert not left, f"left after the end: {left}"
        for name in NAMES:
            self._delete(name)
        for _ in range(100):
            self.one_pass()
            self.cluster.tick(10.0)
            self.tick()
        left = [body["metadata"]["name"] for plural in ("backups", "jobs") for body in self.foreign.ours(plural)]
        assert not left, f"left after the deletion: {left}"
