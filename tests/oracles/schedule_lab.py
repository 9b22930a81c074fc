"""ScheduledBackups in memory: the Backups that they create run to their end, time passes, and `ScheduleJudge` watches.

The judge looks at each write of the operator before it is done: one Backup for each time and one at a time, and no
Backup is deleted that is needed, that others made, or whose stored data would stay.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from backup_storm import backups_reconciler
from jobs_lab import NAMESPACE, JobLab
from simulated_api import Json, Key, SimulatedApi
from simulated_cluster import Operated, operator_context

from tallystick.operator.backups.metrics import BackupMetrics
from tallystick.operator.core import kube
from tallystick.operator.core.settings import Settings
from tallystick.operator.core.work_queue import Key as WorkKey
from tallystick.operator.core.work_queue import Kind
from tallystick.operator.schedules.metrics import ScheduleMetrics
from tallystick.operator.schedules.reconcile import SchedulesReconciler

SCHEDULE, UID, EXPIRED = (f"tallystick.dev/{name}" for name in ("schedule", "schedule-uid", "expired"))
FINALIZER = "tallystick.dev/stored-backup"
OVER = ("Completed", "Failed")


def schedules_reconciler(world: Any, settings: Settings, metrics: ScheduleMetrics) -> SchedulesReconciler:
    """The reconciler of ScheduledBackups in a new process. `world`: has an `api`, a `time` and `metrics`."""
    return SchedulesReconciler(operator_context(world, settings), metrics)


def phase_of(body: Json) -> str:
    return str((body.get("status") or {}).get("phase") or "")


class ScheduleJudge:
    """What must hold at each write. It has its own ideas of ownership, names and times."""

    def __init__(self, api: SimulatedApi, now: Callable[[], float]) -> None:
        self._api, self._now = api, now
        self.made: list[tuple[str, str]] = []
        """UID of the schedule and name of each Backup that was created."""
        self.deleted: list[str] = []
        self.foreign: Callable[[Key], bool] = lambda key: False
        self.is_clock_sound = True

    def of(self, uid: str) -> list[Json]:
        """The Backups of a schedule by name, without those of others."""
        return [
            body
            for body in self._api.all("backups")
            if (body["metadata"].get("annotations") or {}).get(UID) == uid
            and not self.foreign(("backups", NAMESPACE, body["metadata"]["name"]))
        ]

    def write(self, method: str, resource: kube.Resource, key: Key, body: Json | None) -> None:
        if resource is not kube.BACKUPS:
            return
        if method == "POST":
            assert body is not None
            self._creation(key[2], body)
        elif method == "DELETE":
            self._deletion(key)

    def _creation(self, name: str, body: Json) -> None:
        uid = body["metadata"]["annotations"][UID]
        if ("backups", NAMESPACE, name) in self._api.objects:
            return  # refused
        assert (uid, name) not in self.made, f"{name} is created twice"
        going = [each["metadata"]["name"] for each in self.of(uid) if phase_of(each) not in OVER and not is_going(each)]
        assert not going, f"{name} is created while {going} run"
        time = datetime.strptime(name.rpartition("-")[2], "%Y%m%d%H%M").replace(tzinfo=UTC).timestamp()
        assert time <= self._now() or not self.is_clock_sound, f"{name} is created at {self._now()}"
        self.made.append((uid, name))

    def _deletion(self, key: Key) -> None:
        body = self._api.objects.get(key)
        if body is None:
            return
        name, uid = key[2], (body["metadata"].get("annotations") or {}).get(UID, "")
        schedules = {each["metadata"]["uid"]: each for each in self._api.all("scheduledbackups")}
        assert uid in schedules and not self.foreign(key), f"{name} is deleted, and no schedule owns it"
        assert phase_of(body) in OVER, f"{name} is deleted while it is {phase_of(body)!r}"
        stored = {each["group"] for each in (body.get("status") or {}).get("groups") or () if each.get("address")}
        later = [
            each
            for each in self.of(uid)
            if phase_of(each) == "Completed" and not is_going(each) and each["metadata"]["name"] > name
        ]
        if phase_of(body) == "Completed":
            kept = {each["group"] for other in later for each in other["status"]["groups"]}
            assert later and stored <= kept, f"{name} is deleted, and it is the last one of {stored - kept}"
        finalizers = body["metadata"].get("finalizers") or ()
        assert FINALIZER in finalizers, f"{name} is deleted, and what it has stored stays"
        for cluster in self._api.all("brokerclusters"):
            conditions = (cluster.get("status") or {}).get("conditions") or ()
            over = any(each["type"] == "Recovered" and each["status"] == "True" for each in conditions)
            recovery = ((cluster.get("spec") or {}).get("bootstrap") or {}).get("recovery") or {}
            assert over or recovery.get("backupName") != name, f"{name} is deleted while a cluster is restored from it"
        self.deleted.append(name)


def is_going(body: Json) -> bool:
    return "deletionTimestamp" in body["metadata"]


class ScheduleLab(Operated[SchedulesReconciler]):
    """A cluster, one schedule (`nightly`), and the pods of the Jobs of its Backups."""

    def __init__(self, groups: int = 1) -> None:
        self.world = JobLab(groups=groups)
        self.api = self.world.api
        self.judge = ScheduleJudge(self.api, lambda: self.world.time)
        self.api.hook = self.write
        self.metrics = ScheduleMetrics(self.world.metrics.registry)
        self.backup_metrics = BackupMetrics(self.world.metrics.registry)
        self.backups = backups_reconciler(self.world, self.world.settings, self.backup_metrics)
        self.seconds = 20.0
        """Duration of a Backup."""
        self.code = 0
        self.world.put("persistentvolumeclaims", "backups", {"spec": {"accessModes": ["ReadWriteOnce"]}})

    def operator(self) -> SchedulesReconciler:
        if self.reconciler is None:
            self.reconciler = schedules_reconciler(self.world, self.world.settings, self.metrics)
        return self.reconciler

    def write(self, method: str, resource: kube.Resource, key: Key, body: Json | None, subresource: str) -> None:
        self.count_write()
        self.judge.write(method, resource, key, body)

    # -- people --------------------------------------------------------------------------------------------------------

    def schedule(self, expression: str = "*/10 * * * *", name: str = "nightly", **spec: Any) -> None:
        """Creates or changes the schedule. `template`: fields beside cluster and destination."""
        place = {"persistentVolumeClaim": {"name": "backups"}}
        template = {"clusterName": "orders", "destination": place} | spec.pop("template", {})
        self.world.put("scheduledbackups", name, {"spec": {"schedule": expression, "template": template} | spec})

    def change(self, **spec: Any) -> None:
        body = self.body()
        self.api._store(("scheduledbackups", NAMESPACE, "nightly"), {**body, "spec": body["spec"] | spec})

    def annotate_cluster(self, **values: str) -> None:
        annotations = {f"tallystick.dev/{name}": value for name, value in values.items()}
        self.api.objects["brokerclusters", NAMESPACE, "orders"]["metadata"]["annotations"] = annotations

    # -- time ----------------------------------------------------------------------------------------------------------

    def one_pass(self, writes: int | None = None) -> float | None:
        return self.pass_over(WorkKey(NAMESPACE, "nightly", Kind.SCHEDULE), writes)

    def play(self, seconds: float, step: float = 20.0) -> None:
        """All is looked at every `step` seconds."""
        until = self.world.time + seconds
        while self.world.time < until:
            self.one_pass()
            self.tick(step)

    def tick(self, seconds: float = 15.0) -> None:
        """The Backups take a step, and pods of their Jobs end after a while."""
        for body in self.api.all("backups"):
            if phase_of(body) in OVER and not is_going(body):
                continue
            other, self.reconciler = self.reconciler, self.backups  # type: ignore[assignment]
            self.pass_over(WorkKey(NAMESPACE, body["metadata"]["name"], Kind.BACKUP), None)
            self.reconciler = other
        self.world.time += seconds
        self.api.collect()
        for job in self.api.all("jobs"):
            self._run(job)

    def _run(self, job: Json) -> None:
        """The pod of a Job begins at once, and ends after `seconds`."""
        name, begun = job["metadata"]["name"], datetime.fromisoformat(job["metadata"]["creationTimestamp"]).timestamp()
        kind = job["spec"]["template"]["spec"]["containers"][0]["command"][2]
        results: dict[str, Json] = {
            "create": {"address": f"/backups/orders/{name}", "committed": 9, "bytes": 9, "newBytes": 1},
            "verify": {"sound": True},
            "delete": {"backups": ["1"], "waits": ""},
        }
        owner = {"kind": "Job", "name": name, "uid": job["metadata"]["uid"], "controller": True}
        code = self.code if kind == "create" else 0
        state: Json = {"running": {}}
        if self.world.time >= begun + self.seconds:
            state = {"terminated": {"exitCode": code, "message": "no" if code else json.dumps(results[kind])}}
        labels = job["spec"]["template"]["metadata"]["labels"]
        status = {"phase": "Running", "containerStatuses": [{"name": "backup", "state": state}]}
        self.world.put("pods", f"{name}-x", {"status": status}, labels=labels, ownerReferences=[owner])

    # -- what is seen --------------------------------------------------------------------------------------------------

    def body(self) -> Json:
        found = self.api.get("scheduledbackups", "nightly")
        assert found is not None
        return found

    @property
    def status(self) -> Json:
        return self.body().get("status") or {}

    def condition(self, kind: str) -> tuple[str, str]:
        listed: list[Json] = self.status.get("conditions") or []
        found: Json = next((each for each in listed if each["type"] == kind), {})
        return found.get("status", ""), found.get("reason", "")

    def names(self) -> list[str]:
        """The Backups that exist, by name."""
        return [body["metadata"]["name"] for body in self.api.all("backups")]

    def events(self) -> list[str]:
        """Reasons of the events about the schedule, in their order."""
        found = [body for body in self.api.all("events") if body["involvedObject"]["kind"] == "ScheduledBackup"]
        found.sort(key=lambda body: int(body["metadata"]["name"].rpartition(".")[2]))
        return [body["reason"] for body in found]
