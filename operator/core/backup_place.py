"""Where backups are stored, as part of a pod: a PersistentVolumeClaim or an S3 bucket, and the key of encryption.

Credentials and keys are files of mounted Secrets. Arguments and environment contain only addresses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tallystick.operator.core.kube import Json

FOLDER, S3_FOLDER, KEY_FOLDER = "/backups", "/etc/tallystick-s3", "/etc/tallystick-key"
VOLUMES = ("backups", "backup-s3", "backup-key")
"""Names of the volumes of a pod: the claim, the Secret with credentials, the Secret with the key."""


class BackupPlaceError(ValueError):
    """A destination is invalid. The message names the field."""


@dataclass(frozen=True, slots=True)
class BackupPlace:
    """A destination of backups. Either `claim` or `bucket` is set."""

    claim: str = ""
    path: str = ""
    """Folder below the root of the claim, or prefix in the bucket."""
    bucket: str = ""
    endpoint: str = ""
    region: str = ""
    credentials: str = ""
    """Secret whose keys are AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and others of `tally backup --s3-settings`."""
    key_secret: str = ""
    key_name: str = "backup.key"

    @classmethod
    def parse(cls, destination: Mapping[str, Any], encryption: Mapping[str, Any], field: str) -> BackupPlace:
        """Parses a destination. BackupPlaceError: it is invalid. `field`: its path in the resource."""
        claim, s3 = destination.get("persistentVolumeClaim") or {}, destination.get("s3") or {}
        if bool(claim) == bool(s3):
            raise BackupPlaceError(f"{field}: set either persistentVolumeClaim or s3")
        path = str(claim.get("subPath") or s3.get("prefix") or "").strip("/")
        if any(part in ("", ".", "..") for part in path.split("/")) and path:
            raise BackupPlaceError(f"{field}: {path!r} must not contain empty parts, '.' or '..'")
        key = encryption.get("keySecret") or {}
        return cls(
            claim=str(claim.get("name") or ""),
            path=path,
            bucket=str(s3.get("bucket") or ""),
            endpoint=str(s3.get("endpoint") or ""),
            region=str(s3.get("region") or ""),
            credentials=str(s3.get("credentialsSecret") or ""),
            key_secret=str(key.get("name") or ""),
            key_name=str(key.get("key") or "backup.key"),
        )

    @property
    def address(self) -> str:
        """The place as `tally backup` names it, in a pod that mounts it."""
        root = FOLDER if self.claim else f"s3://{self.bucket}"
        return f"{root}/{self.path}" if self.path else root

    def arguments(self, *, key: bool = True) -> list[str]:
        """Returns the options of `tally backup` that name the mounted files. `key`: the command reads contents."""
        found = ["--s3-settings", S3_FOLDER] if self.bucket else []
        return found + (["--key-file", f"{KEY_FOLDER}/{self.key_name}"] if key and self.key_secret else [])

    def environment(self) -> dict[str, str]:
        """Returns endpoint and region. The same names in the Secret have priority."""
        found = {"AWS_ENDPOINT_URL": self.endpoint, "AWS_REGION": self.region}
        return {name: value for name, value in found.items() if value}

    def volumes(self, *, read_only: bool, key: bool = True) -> tuple[list[Json], list[Json]]:
        """Returns volumes of a pod and mounts of its container."""
        volumes: list[Json] = []
        mounts: list[Json] = []
        if self.claim:
            volumes.append({"name": VOLUMES[0], "persistentVolumeClaim": {"claimName": self.claim}})
            mounts.append({"name": VOLUMES[0], "mountPath": FOLDER} | ({"readOnly": True} if read_only else {}))
        if self.bucket:
            volumes.append({"name": VOLUMES[1], "secret": {"secretName": self.credentials, "defaultMode": 0o440}})
            mounts.append({"name": VOLUMES[1], "mountPath": S3_FOLDER, "readOnly": True})
        if key and self.key_secret:
            volumes.append({"name": VOLUMES[2], "secret": {"secretName": self.key_secret, "defaultMode": 0o440}})
            mounts.append({"name": VOLUMES[2], "mountPath": KEY_FOLDER, "readOnly": True})
        return volumes, mounts
