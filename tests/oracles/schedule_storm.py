"""ScheduledBackups in a storm: people who change, suspend and delete them, and their Backups.

`ScheduleJudge` looks at each write. The Backups themselves are those of `backup_storm.py`: their Jobs end in every way.
"""

from __future__ import annotations

import random
from typing import Any

from backup_storm import DESTINATION, OVER, Backups
from foreign_objects import Foreign
from schedule_lab import SCHEDULE, UID, ScheduleJudge, is_going, phase_of, schedules_reconciler
from simulated_api import Json, stamp
from simulated_cluster import CLUSTER, NAMESPACE, Cluster, Operated

from tallystick.operator.core import kube
from tallystick.operator.core.settings import Settings
from tallystick.operator.core.work_queue import Key as WorkKey
from tallystick.operator.core.work_queue import Kind
from tallystick.operator.schedules.metrics import ScheduleMetrics
from tallystick.operator.schedules.reconcile import SchedulesReconciler

NAME = "each"
RETENTIONS: tuple[Json | None, ...] = (None, {"keepLast": 1}, {"keepLast": 2, "keepFailed": 0}, {"keepWithin": "1h"})


class Schedules(Operated[SchedulesReconciler]):
    """A schedule of each minute or of five minutes, over the Backups of a storm."""

    def __init__(self, cluster: Cluster, foreign: Foreign, backups: Backups, chance: random.Random) -> None:
        self.cluster, self.foreign, self.backups, self.random = cluster, foreign, backups, chance
        self.metrics = ScheduleMetrics(cluster.metrics.registry)
        self.judge = ScheduleJudge(cluster.api, lambda: cluster.time)
        self.judge.foreign = lambda key: key in foreign.made

    def operator(self) -> SchedulesReconciler:
        if self.reconciler is None:
            settings = Settings(node_image="node:1", pod_name="operator-0", pod_namespace="system")
            self.reconciler = schedules_reconciler(self.cluster, settings, self.metrics)
        return self.reconciler

    def one_pass(self, writes: int | None = None, calls: int | None = None) -> None:
        self.pass_over(WorkKey(NAMESPACE, NAME, Kind.SCHEDULE), writes, calls)
        for name in self.names():
            self.backups.pass_over(WorkKey(NAMESPACE, name, Kind.BACKUP), None)

    def names(self) -> list[str]:
        """The Backups of any schedule of this name."""
        return [
            body["metadata"]["name"]
            for body in self.foreign.ours("backups")
            if (body["metadata"].get("labels") or {}).get(SCHEDULE) == NAME
        ]

    # -- people --------------------------------------------------------------------------------------------------------

    def spec(self) -> Json:
        place = {"persistentVolumeClaim": {"name": DESTINATION}}
        template = {"clusterName": CLUSTER, "destination": place, "verify": self.random.random() < 0.3}
        template |= {"deletionPolicy": self.random.choice(("Retain", "Delete")), "activeDeadlineSeconds": 120}
        spec: Json = {"schedule": self.random.choice(("* * * * *", "*/5 * * * *")), "template": template}
        spec |= {"suspend": self.random.random() < 0.1, "immediate": self.random.random() < 0.5}
        spec |= {"backupOwnerReference": self.random.choice(("none", "none", "self", "cluster"))}
        if retention := self.random.choice(RETENTIONS):
            spec["retention"] = retention
        return spec

    def change(self) -> str:
        """Creates the schedule, or changes it."""
        spec, live = self.spec(), self.cluster.api.get("scheduledbackups", NAME)
        if live is None:
            body = {"metadata": {"name": NAME}, "spec": spec}
            self.cluster.by_hand("POST", kube.SCHEDULED_BACKUPS.path(NAMESPACE), body)
        else:
            body = {"spec": {"retention": None} | spec}
            self.cluster.by_hand("PATCH", kube.SCHEDULED_BACKUPS.path(NAMESPACE, NAME), body)
        return f"schedule: {spec}"

    def delete(self) -> str:
        self.cluster.api.remove(("scheduledbackups", NAMESPACE, NAME))
        return "the schedule is deleted"

    def delete_backup(self) -> str:
        names = self.names()
        if not names:
            return "no backup of the schedule"
        name = self.random.choice(names)
        self._delete(name)
        return f"{name} is deleted by a user"

    def _delete(self, name: str) -> None:
        self.judge.made = [(uid, made) for uid, made in self.judge.made if made != name]
        self.cluster.delete(kube.BACKUPS, name)

    def foreign_backup(self) -> str:
        """A Backup of others with the next name, perhaps with the labels of the schedule."""
        live = self.cluster.api.get("scheduledbackups", NAME) or {"metadata": {"uid": "uid-of-none"}}
        time = (self.cluster.time // 60 + self.random.randint(0, 3)) * 60
        name = f"{NAME}-" + "".join(character for character in stamp(time) if character.isdigit())[:12]
        uid, labels = self.random.choice(("uid-of-earlier", live["metadata"]["uid"])), {SCHEDULE: NAME}
        metadata: dict[str, Any] = {"labels": labels, "annotations": {UID: uid}}
        if uid != "uid-of-earlier":
            owner = {"kind": "Deployment", "name": "mine", "uid": "uid-of-mine", "controller": True}
            metadata["ownerReferences"] = [owner]
        self.foreign.put("backups", name, **metadata)
        return f"backups/{name} of others"

    # -- time ----------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """One Backup runs at a time, unless a user has deleted and created the schedule."""
        live = self.cluster.api.get("scheduledbackups", NAME)
        if live is None:
            return
        own = self.judge.of(live["metadata"]["uid"])
        active = [body["metadata"]["name"] for body in own if phase_of(body) not in OVER and not is_going(body)]
        assert len(active) < 2, f"{active} run at a time"

    def settle(self) -> None:
        """No further faults. AssertionError: the schedule creates no Backups, or keeps too many of them."""
        self.backups.sound = True
        self.delete()
        self.change()
        retention = {"keepLast": 2, "keepFailed": 0, "keepWithin": None}
        spec = {"suspend": False, "schedule": "* * * * *", "retention": retention}
        self.cluster.by_hand("PATCH", kube.SCHEDULED_BACKUPS.path(NAMESPACE, NAME), {"spec": spec})
        for _ in range(80):
            self._turn()
        live = self.cluster.api.get("scheduledbackups", NAME)
        assert live is not None and live["status"]["phase"] in ("Scheduled", "Waiting"), live
        assert live["status"].get("lastSuccessfulBackup"), live["status"]
        self.cluster.by_hand("PATCH", kube.SCHEDULED_BACKUPS.path(NAMESPACE, NAME), {"spec": {"schedule": "@yearly"}})
        for _ in range(240):  # one deletion at a time, and a failed one waits for up to five minutes
            self._turn()
            own = self.judge.of(live["metadata"]["uid"])
            phases = sorted(map(phase_of, own))
            if phases == ["Completed", "Completed"]:
                break
        assert phases == ["Completed", "Completed"], (phases, live["status"])
        self.delete()
        for name in self.names():
            self._delete(name)
        for _ in range(60):
            self._turn()
        assert self.names() == [], f"left after the deletion: {self.names()}"

    def _turn(self) -> None:
        self.one_pass()
        self.backups.one_pass()
        self.cluster.tick(10.0)
        self.backups.tick()
        self.check()
