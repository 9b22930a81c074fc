"""Lists, checks and deletes backups.

A deletion removes the manifests first, then the objects that no other backup uses. A backup that runs at the same time
may share objects with a backup that is deleted, so both announce themselves before they read what the other one may
change: the deletion with an object below `deleting/`, the backup below `running/`. At least one of them sees the other:
the backup gives up, or the deletion leaves the objects for the next one.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from tallystick.node.backup.create import DELETING, missing_objects
from tallystick.node.backup.errors import BackupError, DamagedBackupError, PlaceError
from tallystick.node.backup.manifest import Manifest, SourceName, ids_of, load, new_id, sources_of
from tallystick.node.backup.objects import Objects
from tallystick.node.backup.places import Place
from tallystick.node.backup.seals import Seal
from tallystick.store.clock import wall_ms
from tallystick.store.findings import Progress


@dataclass(slots=True)
class Listed:
    """One backup of a list. `fault`: why its manifest cannot be used."""

    source: SourceName
    id: str
    manifest: Manifest | None = None
    fault: str = ""


@dataclass(slots=True)
class Deleted:
    """What a deletion removed. `waits`: why objects were left."""

    backups: list[str] = field(default_factory=list)
    objects: int = 0
    bytes: int = 0
    waits: str = ""


def listed(place: Place, source: SourceName | None = None) -> list[Listed]:
    """Returns all backups, oldest first, by source. Raises PlaceError."""
    found = []
    for each in sources_of(place) if source is None else [source]:
        for backup_id in ids_of(place, each):
            try:
                found.append(Listed(each, backup_id, load(place, each, backup_id)))
            except PlaceError:
                raise
            except BackupError as error:
                found.append(Listed(each, backup_id, fault=str(error)))
    return found


def interrupted(place: Place, source: SourceName) -> list[str]:
    """Returns the ids of backups that have begun and not ended: they run, or were killed."""
    return ids_of(place, source, "running")


def verify(place: Place, manifest: Manifest, seal: Seal, progress: Progress | None = None) -> list[str]:
    """Reads all objects of a backup and returns what is wrong. With a key, or without encryption, also the contents.

    Raises PlaceError.
    """
    objects, faults = Objects(place, manifest, seal), []
    total, done = sum(each.bytes for each in manifest.objects), 0
    readable = manifest.key_id == seal.key_id
    for each in manifest.objects:
        try:
            if readable:
                objects.read(each)
            else:
                objects.check(each)
        except DamagedBackupError as error:
            faults.append(str(error))
        done += each.bytes
        if progress is not None:
            progress("verify", done, total)
    return faults


def check_present(place: Place, manifest: Manifest) -> list[str]:
    """Returns the objects of a backup that are not there with their size. Lists, and reads nothing. PlaceError."""
    return missing_objects(manifest.objects, _objects(place, manifest.source))


def delete(place: Place, source: SourceName, ids: Iterable[str], *, force: bool = False) -> Deleted:
    """Deletes backups of a source, and all objects that no backup uses; without `ids` only these.

    A backup that does not exist is no error, so an interrupted deletion can be run again. `force`: also while a backup
    or another deletion is announced that was killed: the caller knows that none runs. BackupError: a manifest of
    another backup cannot be read, so it is unknown what it uses; PlaceError.
    """
    announcement = f"{source.folder}/{DELETING}/{new_id(wall_ms())}.json"
    result = Deleted()
    place.write(announcement, b"{}")
    try:
        present = set(ids_of(place, source))
        for backup_id in [each for each in ids if each in present]:
            place.remove(f"{source.folder}/backups/{backup_id}.json")
            result.backups.append(backup_id)
        running = interrupted(place, source)
        if running and not force:
            result.waits = (
                f"backup {running[0]} of {source} is running or was killed: its objects may be in use, so no object is "
                "removed. Delete again when it has ended, or with --force if no backup runs"
            )
            return result
        _sweep(place, source, result)
        for backup_id in running:
            place.remove(f"{source.folder}/running/{backup_id}.json")
    finally:
        with suppress(PlaceError):  # the next backup says so
            for name in place.names(f"{source.folder}/{DELETING}") if force else [announcement]:
                place.remove(name)
    return result


def _sweep(place: Place, source: SourceName, result: Deleted) -> None:
    """Removes the objects that no manifest names."""
    present = _objects(place, source)  # before the manifests: an object of a later backup is not in it
    used = {each.name for backup_id in ids_of(place, source) for each in load(place, source, backup_id).objects}
    for name, size in present.items():
        if name not in used:
            place.remove(f"{source.folder}/{name}")
            result.objects += 1
            result.bytes += size


def _objects(place: Place, source: SourceName) -> dict[str, int]:
    prefix = f"{source.folder}/"
    return {
        name.removeprefix(prefix): size
        for part in ("log", "tables")
        for name, size in place.names(f"{prefix}{part}").items()
    }
