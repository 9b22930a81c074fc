"""Reads the objects of a backup, and checks each of them before it is used."""

from __future__ import annotations

import hashlib

from tallystick.node.backup.errors import DamagedBackupError, MissingObjectError
from tallystick.node.backup.manifest import Manifest, StoredObject
from tallystick.node.backup.places import Place
from tallystick.node.backup.seals import Seal

_ATTEMPTS = 3


class Objects:
    """The objects of one backup."""

    def __init__(self, place: Place, manifest: Manifest, seal: Seal) -> None:
        self._place, self._seal = place, seal
        self._folder = manifest.source.folder

    def read(self, stored: StoredObject) -> bytes:
        """Returns the content of an object. It is read again if it is not what was stored: the network may have changed
        it. DamagedBackupError: it is missing or damaged; PlaceError."""
        data = self._checked(stored)
        content = self._seal.opened(stored.name, data)
        if self._seal.digest(content) != stored.digest:
            raise DamagedBackupError(f"{self._place.text}: {self._folder}/{stored.name} has another content")
        return content

    def check(self, stored: StoredObject) -> None:
        """Checks what is stored, without a key if there is none. Raises as `read`."""
        self._checked(stored)

    def _checked(self, stored: StoredObject) -> bytes:
        name = f"{self._folder}/{stored.name}"
        reason = ""
        for _ in range(_ATTEMPTS):
            try:
                data = self._place.read(name)
            except MissingObjectError:
                raise DamagedBackupError(f"{self._place.text}: {name} is missing") from None
            if len(data) != stored.bytes:
                reason = f"has {len(data)} bytes instead of {stored.bytes}"
            elif hashlib.sha256(data).hexdigest() != stored.sha256:
                reason = "is damaged: its SHA-256 differs"
            else:
                return data
        raise DamagedBackupError(f"{self._place.text}: {name} {reason}")
