"""A ScheduledBackup as values, with the defaults of the CRD."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tallystick.operator.core.backup_place import BackupPlace, BackupPlaceError
from tallystick.operator.core.kube import Json
from tallystick.operator.core.schedule import Schedule, ScheduleError
from tallystick.operator.core.times import seconds

UNITS = {"h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
"""Units of `retention.keepWithin`, in seconds."""
KEPT_FAILED = 3


class ScheduledBackupSpecError(ValueError):
    """The spec is invalid; retrying will not help. The message names the field."""


class Owner(StrEnum):
    """With whom Kubernetes deletes the created Backups."""

    NONE = "none"
    SELF = "self"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Retention:
    """Which Backups are kept. A completed Backup is kept if one of `last` and `within_seconds` keeps it."""

    last: int | None = None
    within_seconds: float | None = None
    failed: int = KEPT_FAILED


@dataclass(frozen=True, slots=True)
class ScheduledBackup:
    """A ScheduledBackup: its identity, its spec and its status. Times are seconds since 1970."""

    namespace: str
    name: str
    uid: str
    generation: int
    created: float
    schedule: Schedule
    cluster: str
    template: Mapping[str, Any] = field(default_factory=dict)
    """`spec` of the Backups."""
    suspend: bool = False
    immediate: bool = False
    starting_deadline_seconds: int | None = None
    owner: Owner = Owner.NONE
    retention: Retention | None = None
    """None: all Backups are kept."""
    status: Mapping[str, Any] = field(default_factory=dict)

    @property
    def last(self) -> float | None:
        """Scheduled time of the last Backup that was created; None: there was none."""
        return seconds(self.status.get("lastScheduleTime"))

    @property
    def first(self) -> float:
        """The scheduled time of the first Backup with `immediate`, which is known before it is created."""
        return self.created // 60 * 60

    @classmethod
    def parse(cls, body: Json) -> ScheduledBackup:
        """Parses a ScheduledBackup. ScheduledBackupSpecError: its spec is invalid."""
        metadata, spec = body["metadata"], body.get("spec") or {}
        template = spec.get("template") or {}
        destination, encryption = template.get("destination") or {}, template.get("encryption") or {}
        try:
            schedule = Schedule.parse(str(spec.get("schedule") or ""), str(spec.get("timeZone") or "UTC"))
            BackupPlace.parse(destination, encryption, "spec.template.destination")
        except (ScheduleError, BackupPlaceError) as error:
            raise ScheduledBackupSpecError(str(error)) from error
        deadline = spec.get("startingDeadlineSeconds")
        return cls(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata.get("uid", ""),
            generation=metadata.get("generation", 0),
            created=seconds(metadata.get("creationTimestamp")) or 0.0,
            schedule=schedule,
            cluster=str(template.get("clusterName") or ""),
            template=template,
            suspend=bool(spec.get("suspend", False)),
            immediate=bool(spec.get("immediate", False)),
            starting_deadline_seconds=None if deadline is None else int(deadline),
            owner=Owner(spec.get("backupOwnerReference") or "none"),
            retention=_retention(spec.get("retention")),
            status=body.get("status") or {},
        )


def _retention(spec: Mapping[str, Any] | None) -> Retention | None:
    """Returns the retention. Without a rule for completed Backups, all are kept."""
    if not spec or (spec.get("keepLast") is None and spec.get("keepWithin") is None):
        return None
    within, failed = str(spec.get("keepWithin") or ""), spec.get("keepFailed")
    last = None if spec.get("keepLast") is None else max(int(spec["keepLast"]), 1)
    seconds_kept = None
    if within:
        if not within[:-1].isdecimal() or within[-1] not in UNITS:
            raise ScheduledBackupSpecError(f"spec.retention.keepWithin must be such as 30d, not {within!r}")
        seconds_kept = int(within[:-1]) * UNITS[within[-1]]
    return Retention(last, seconds_kept, KEPT_FAILED if failed is None else int(failed))
