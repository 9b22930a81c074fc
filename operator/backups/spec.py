"""A Backup as values, with the defaults of the CRD."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tallystick.operator.core.backup_place import BackupPlace, BackupPlaceError
from tallystick.operator.core.kube import GROUP, Json
from tallystick.operator.core.names import EXPIRED, SCHEDULE_LABEL, is_set
from tallystick.operator.core.times import seconds

FINALIZER = f"{GROUP}/stored-backup"
DEADLINE_SECONDS = 86400


class BackupSpecError(ValueError):
    """The spec is invalid; retrying will not help. The message names the field."""


@dataclass(frozen=True, slots=True)
class Backup:
    """A Backup: its identity, its spec and its status."""

    namespace: str
    name: str
    uid: str
    generation: int
    created: float
    cluster: str
    place: BackupPlace
    groups: tuple[int, ...] | None = None
    """None: all groups that the cluster has when the backup starts."""
    bytes_per_second: str = ""
    verify: bool = False
    deletes: bool = False
    """The stored backup is deleted with the resource: the user, or the retention of its schedule, wants it."""
    schedule: str = ""
    """The ScheduledBackup in its label; empty: none."""
    deadline_seconds: int = DEADLINE_SECONDS
    deleting: bool = False
    finalizers: tuple[str, ...] = ()
    status: Mapping[str, Any] = field(default_factory=dict)

    @property
    def marked(self) -> bool:
        return FINALIZER in self.finalizers

    @property
    def hibernated_seconds(self) -> float:
        """Time that the backup has waited for the end of hibernations; the deadline does not count it."""
        return float(self.status.get("hibernatedSeconds") or 0.0)

    @property
    def phase(self) -> str:
        return str(self.status.get("phase") or "")

    @classmethod
    def parse(cls, body: Json) -> Backup:
        """Parses a Backup. BackupSpecError: its spec is invalid."""
        metadata, spec = body["metadata"], body.get("spec") or {}
        groups = spec.get("groups")
        try:
            place = BackupPlace.parse(spec.get("destination") or {}, spec.get("encryption") or {}, "spec.destination")
        except BackupPlaceError as error:
            raise BackupSpecError(str(error)) from error
        return cls(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata.get("uid", ""),
            generation=metadata.get("generation", 0),
            created=seconds(metadata.get("creationTimestamp")) or 0.0,
            cluster=str(spec.get("clusterName") or ""),
            place=place,
            groups=None if groups is None else tuple(sorted({int(group) for group in groups})),
            bytes_per_second=str(spec.get("bytesPerSecond") or ""),
            verify=bool(spec.get("verify", False)),
            deletes=spec.get("deletionPolicy") == "Delete" or is_set(metadata, EXPIRED),  # an unknown policy: no
            schedule=str((metadata.get("labels") or {}).get(SCHEDULE_LABEL) or ""),
            deadline_seconds=int(spec.get("activeDeadlineSeconds") or DEADLINE_SECONDS),
            deleting=bool(metadata.get("deletionTimestamp")),
            finalizers=tuple(metadata.get("finalizers") or ()),
            status=body.get("status") or {},
        )
