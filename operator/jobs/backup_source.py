"""`spec.source`: a StoreJob that reads backups and no volumes. Pure.

The source is a Backup of the namespace, or a destination with the newest backup of each group. Driver and workers read
it in place. Credentials and the key are files of mounted Secrets, as in the pods of a Backup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tallystick.operator.core.backup_place import KEY_FOLDER, S3_FOLDER, BackupPlace, BackupPlaceError
from tallystick.operator.core.kube import Json
from tallystick.operator.core.members import GROUP_NOT_FOUND, Refusal
from tallystick.operator.core.names import Names
from tallystick.operator.jobs import reasons

SCHEME = "backup:"


@dataclass(frozen=True, slots=True)
class BackupSource:
    """Either `backup` (a name) or `place` is set."""

    backup: str = ""
    place: BackupPlace | None = None

    @classmethod
    def parse(cls, spec: Mapping[str, Any]) -> BackupSource:
        """Parses `spec.source`. BackupPlaceError: it is invalid."""
        backup = str(spec.get("backupName") or "")
        if backup:
            return cls(backup)
        field = "spec.source.destination"
        return cls("", BackupPlace.parse(spec.get("destination") or {}, spec.get("encryption") or {}, field))


def find_backups(
    source: BackupSource, cluster: str, groups: Sequence[int] | None, backup: Json | None
) -> Mapping[int, str] | Refusal:
    """Returns the address of the backup of each group to read, or why there are none. `groups`: None means all;
    `backup`: the Backup that the source names, if it exists."""
    place = place_of(source, backup)
    if isinstance(place, Refusal):
        return place
    if source.place is not None:
        names = {group: Names("", cluster).group(group) for group in groups or ()}
        return {group: f"{place.address}/{cluster}/{name}/latest" for group, name in names.items()}
    assert backup is not None
    spec, status, what = backup.get("spec") or {}, backup.get("status") or {}, f"the Backup {source.backup}"
    if status.get("phase") != "Completed":
        phase = status.get("phase") or "Pending"
        return Refusal(reasons.BACKUP_NOT_COMPLETED, f"{what} is not completed: its phase is {phase}")
    if spec.get("clusterName") != cluster:
        return Refusal(reasons.BACKUP_MISSING, f"{what} is of {spec.get('clusterName')}, not of {cluster}")
    stored = {int(row["group"]): str(row.get("address") or "") for row in status.get("groups") or ()}
    wanted = sorted(stored) if groups is None else groups
    if missing := [str(group) for group in wanted if not stored.get(group)]:
        return Refusal(GROUP_NOT_FOUND, f"{what} has no backup of group {', '.join(missing)}")
    return {group: stored[group] for group in wanted}


def place_of(source: BackupSource, backup: Json | None) -> BackupPlace | Refusal:
    """Returns where the backups are. `backup`: see `find_backups`."""
    if source.place is not None:
        return source.place
    what = f"the Backup {source.backup}"
    if backup is None or backup["metadata"].get("deletionTimestamp"):
        return Refusal(reasons.BACKUP_MISSING, f"{what} does not exist, or is being deleted")
    spec = backup.get("spec") or {}
    try:
        return BackupPlace.parse(spec.get("destination") or {}, spec.get("encryption") or {}, "spec.destination")
    except BackupPlaceError as error:
        return Refusal(reasons.BACKUP_MISSING, f"{what} is invalid: {error}")


def environment_of(place: BackupPlace) -> dict[str, str]:
    """Returns what the processes need to read the place. The names are not those of S3 clients, because an output can
    be in another store."""
    found = {
        "TALLY_BACKUP_KEY_FILE": f"{KEY_FOLDER}/{place.key_name}" if place.key_secret else "",
        "TALLYSTICK_BACKUP_S3_SETTINGS": S3_FOLDER if place.bucket else "",
        "TALLYSTICK_BACKUP_S3_ENDPOINT": place.endpoint,
        "TALLYSTICK_BACKUP_S3_REGION": place.region,
    }
    return {name: value for name, value in found.items() if value}
