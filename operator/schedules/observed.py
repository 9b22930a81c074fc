"""The observed state of a ScheduledBackup as values: the input of `decide.py`. Times are seconds since 1970."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tallystick.operator.backups.reasons import OVER, Phase
from tallystick.operator.backups.spec import FINALIZER
from tallystick.operator.core.kube import CLUSTERS, Json
from tallystick.operator.core.names import EXPIRED, SCHEDULE_LABEL, SCHEDULE_UID, is_set
from tallystick.operator.core.ownership import controller_of
from tallystick.operator.core.times import seconds
from tallystick.operator.schedules.spec import ScheduledBackup


@dataclass(frozen=True, slots=True)
class Run:
    """A Backup that the schedule has created."""

    name: str
    uid: str
    scheduled: float
    phase: str = ""
    """Empty: no pass has looked at it yet."""
    completed: float | None = None
    message: str = ""
    groups: frozenset[int] = frozenset()
    """Numbers of the broker groups that are stored."""
    place: tuple[str, str] = ("", "")
    """Claim and bucket of its destination; one of them is empty."""
    deleting_since: float | None = None
    is_expired: bool = False
    """The retention has given it up; it is about to be deleted."""
    is_marked: bool = False
    """It has the finalizer: it exists until what it has stored is deleted."""

    @property
    def is_active(self) -> bool:
        return self.phase not in OVER and self.deleting_since is None

    @property
    def is_complete(self) -> bool:
        return self.phase == Phase.COMPLETED and self.deleting_since is None


@dataclass(frozen=True, slots=True)
class Seen:
    """The state of a schedule."""

    now: float
    cluster: Json | None = None
    """None: it does not exist."""
    runs: tuple[Run, ...] = ()
    """Its Backups by scheduled time, the oldest first."""
    others: tuple[str, ...] = ()
    """Names of other Backups of the cluster whose Jobs run: they create, verify or delete a stored backup."""
    clusters: Sequence[Json] = ()
    """All clusters of the namespace: they may be restored from a Backup."""


def run_name(schedule: ScheduledBackup, scheduled: float) -> str:
    """Returns the name of a Backup with its scheduled time in UTC. There is one name for each time."""
    return f"{schedule.name}-{datetime.fromtimestamp(scheduled, UTC):%Y%m%d%H%M}"


def scheduled_of(schedule: ScheduledBackup, name: str) -> float | None:
    """Returns the scheduled time in the name of a Backup; None: the schedule does not give this name."""
    found = re.fullmatch(rf"{re.escape(schedule.name)}-([0-9]{{12}})", name)
    if found is None:
        return None
    try:
        return datetime.strptime(found[1], "%Y%m%d%H%M").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def is_own(schedule: ScheduledBackup, body: Json) -> bool:
    """Whether the schedule has created a Backup.

    A Backup has no owner by default, because it stays when its schedule is deleted. So label, UID and name decide,
    which have to fit each other. A copy under another name does not count, nor a Backup of an earlier schedule of this
    name, nor one that another object controls.
    """
    metadata = body["metadata"]
    uid = (metadata.get("annotations") or {}).get(SCHEDULE_UID)
    label = (metadata.get("labels") or {}).get(SCHEDULE_LABEL)
    if not schedule.uid or (uid, label) != (schedule.uid, schedule.name):
        return False
    owner = controller_of(body)
    if owner is not None and owner["uid"] != schedule.uid and owner.get("kind") != CLUSTERS.kind:
        return False
    return scheduled_of(schedule, metadata["name"]) is not None


def run_of(schedule: ScheduledBackup, body: Json) -> Run:
    """Returns a Backup of the schedule as values."""
    metadata, status = body["metadata"], body.get("status") or {}
    destination: dict[str, Any] = (body.get("spec") or {}).get("destination") or {}
    return Run(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        scheduled=scheduled_of(schedule, metadata["name"]) or 0.0,
        phase=str(status.get("phase") or ""),
        completed=seconds(status.get("completionTime")),
        message=str(status.get("message") or ""),
        groups=frozenset(int(each["group"]) for each in status.get("groups") or () if each.get("address")),
        place=place_of(destination),
        deleting_since=seconds(metadata.get("deletionTimestamp")),
        is_expired=is_set(metadata, EXPIRED),
        is_marked=FINALIZER in (metadata.get("finalizers") or ()),
    )


def place_of(destination: dict[str, Any]) -> tuple[str, str]:
    """Returns claim and bucket of a destination."""
    claim, s3 = destination.get("persistentVolumeClaim") or {}, destination.get("s3") or {}
    return str(claim.get("name") or ""), str(s3.get("bucket") or "")


def seen_of(schedule: ScheduledBackup, now: float, backups: Sequence[Json], clusters: Sequence[Json]) -> Seen:
    """Returns the state. `backups`, `clusters`: those of the namespace."""
    own = [body for body in backups if is_own(schedule, body)]
    names = {body["metadata"]["name"] for body in own}
    others = tuple(
        body["metadata"]["name"]
        for body in backups
        if body["metadata"]["name"] not in names
        and (body.get("spec") or {}).get("clusterName") == schedule.cluster
        and (body.get("status") or {}).get("phase") in (Phase.RUNNING, Phase.VERIFYING, Phase.DELETING)
    )
    runs = sorted((run_of(schedule, body) for body in own), key=lambda run: run.scheduled)
    cluster = next((each for each in clusters if each["metadata"]["name"] == schedule.cluster), None)
    return Seen(now, cluster, tuple(runs), others, clusters)
