"""From which backups a new cluster starts: `spec.bootstrap.recovery`, and what it leads to. Pure.

The source is a Backup of the namespace, or a destination with the newest backup of each group. It becomes an init
container of the pod of the first member (`Restore`). Credentials and the key are files of mounted Secrets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tallystick.operator.core.backup_place import VOLUMES, BackupPlace
from tallystick.operator.core.kube import Json
from tallystick.operator.core.manifests import container_security, environment
from tallystick.operator.core.names import Names
from tallystick.operator.core.pods import RESTORE

FIELD = "spec.bootstrap.recovery"
STORE, RESULT_FILE = "/data/store", "/dev/termination-log"
SOURCE_MISSING, BACKUP_NOT_COMPLETED, GROUPS_MISSING = "SourceMissing", "BackupNotCompleted", "GroupsMissing"
_ACTIVE = ("", "Pending", "Running", "Verifying")
"""Phases of a Backup that may still complete."""


@dataclass(frozen=True, slots=True)
class RecoverySpec:
    """`spec.bootstrap.recovery`. Either `backup` (a name) or `place` is set."""

    backup: str = ""
    place: BackupPlace | None = None
    cluster: str = ""
    """With `place`: name of the cluster that was backed up; empty: the name of the new cluster."""
    until: str = ""
    """Point in time with a time zone; empty: the end of the backup."""

    @classmethod
    def parse(cls, bootstrap: Mapping[str, Any]) -> RecoverySpec | None:
        """Parses `spec.bootstrap`; None: it asks for no recovery. BackupPlaceError: it is invalid."""
        recovery = bootstrap.get("recovery")
        if not recovery:
            return None
        backup, source = str(recovery.get("backupName") or ""), recovery.get("source")
        place = None
        if not backup:
            place = BackupPlace.parse(source or {}, recovery.get("encryption") or {}, f"{FIELD}.source")
        return cls(backup, place, str(recovery.get("clusterName") or ""), str(recovery.get("untilTime") or ""))


@dataclass(frozen=True, slots=True)
class Source:
    """A place, and the address of the backup of each group, by number."""

    place: BackupPlace
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """Why there is no usable source. `waits`: it may become usable without a user."""

    reason: str
    message: str
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Restore:
    """The parts of a pod that restore a backup into the claim before the broker starts."""

    container: Json
    volumes: tuple[Json, ...]


def find_source(recovery: RecoverySpec, own: str, groups: int, backup: Json | None) -> Source | Problem:
    """Returns the source for a cluster named `own`. `backup`: the Backup that the spec names, if it exists."""
    if recovery.place is not None:
        name, root = recovery.cluster or own, recovery.place.address
        return Source(
            recovery.place, tuple(f"{root}/{name}/{Names('', name).group(group)}/latest" for group in range(groups))
        )
    what = f"the Backup {recovery.backup}"
    if backup is None:
        return Problem(SOURCE_MISSING, f"{what} does not exist in this namespace")
    if backup["metadata"].get("deletionTimestamp"):
        return Problem(SOURCE_MISSING, f"{what} is being deleted")
    spec, status = backup.get("spec") or {}, backup.get("status") or {}
    phase = str(status.get("phase") or "")
    if phase != "Completed":
        told = str(status.get("message") or "")
        text = f"{what} is not completed: its phase is {phase or 'Pending'}" + (f" ({told})" if told else "")
        return Problem(BACKUP_NOT_COMPLETED, text, waits=phase in _ACTIVE)
    try:
        place = BackupPlace.parse(spec.get("destination") or {}, spec.get("encryption") or {}, "spec.destination")
    except ValueError as error:
        return Problem(SOURCE_MISSING, f"{what} is invalid: {error}")
    return _addresses(what, place, groups, status.get("groups") or ())


def _addresses(what: str, place: BackupPlace, groups: int, rows: Sequence[Json]) -> Source | Problem:
    stored = {
        int(row["group"]): str(row["address"])
        for row in rows
        if row.get("phase") == "Completed" and str(row.get("address") or "").startswith(f"{place.address}/")
    }
    most = max((int(row["group"]) for row in rows), default=-1) + 1
    if most > groups:
        message = f"{what} has {most} groups and spec.groups is {groups}: raise spec.groups to {most}"
        return Problem(GROUPS_MISSING, message)
    missing = [str(group) for group in range(groups) if group not in stored]
    if missing:
        return Problem(GROUPS_MISSING, f"{what} has no backup of group {', '.join(missing)}")
    return Source(place, tuple(stored[group] for group in range(groups)))


def restore(
    source: Source,
    recovery: RecoverySpec,
    names: Names,
    group: int,
    *,
    uid: str,
    image: str,
    pull_policy: str,
    segment_bytes: int,
    resources: Json,
) -> Restore:
    """Returns the parts of the pod of the first member of a group. `uid` of the cluster: it names the restore, so that
    the command can be run again, and does nothing after it has finished."""
    place = source.place
    volumes, mounts = place.volumes(read_only=True)
    command = ["tally", "backup", "restore", source.addresses[group], STORE, "--once", uid]
    command += ["--member", "n0", "--group", names.group(group), "--cluster", names.cluster]
    command += ["--segment-bytes", str(segment_bytes)]
    command += ["--brokers", ",".join(address.rsplit("/", 2)[1] for address in source.addresses)]
    command += ["--until-time", recovery.until] if recovery.until else []
    container: Json = {
        "name": RESTORE,
        "image": image,
        "imagePullPolicy": pull_policy,
        "command": [*command, *place.arguments(), "--json", "--result", RESULT_FILE],
        "env": environment({"HOME": "/tmp"} | place.environment()),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": container_security(),
        "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "tmp", "mountPath": "/tmp"}, *mounts],
    }
    if resources:
        container["resources"] = resources
    return Restore(container, tuple(volumes))


_OWN = ("name", "image", "imagePullPolicy", "command", "env", "terminationMessagePolicy", "securityContext")
"""Fields of the container that the operator sets, besides `volumeMounts` and `resources`."""


def restore_of(stateful_set: Json) -> Restore | None:
    """Returns the parts that a StatefulSet has; None: it restores nothing.

    They are kept while the source cannot be read: a restore that has begun does not depend on the resource that named
    its source.
    """
    pod = ((stateful_set.get("spec") or {}).get("template") or {}).get("spec") or {}
    found = next((each for each in pod.get("initContainers") or () if each.get("name") == RESTORE), None)
    if found is None:
        return None
    container = {name: found[name] for name in (*_OWN, "volumeMounts", "resources") if found.get(name)}
    return Restore(container, tuple(each for each in pod.get("volumes") or () if each.get("name") in VOLUMES))
