"""A backup that `tally backup` made, read in place: the log of the store, without queues and index.

    backup:PLACE/CLUSTER/BROKER/ID      one backup; `latest` is the newest one
    backup:PLACE                        the newest backup of each broker that the place has

PLACE is a folder or `s3://bucket/prefix`. Each object is checked, and decrypted, before a byte of it is used. Endpoint
and credentials of S3 come from the environment of each process, as for `tally backup`. In a StoreJob, whose output can
be in another store, they come from the folder that TALLYSTICK_BACKUP_S3_SETTINGS names, with a file for each name, and
from the variables beside it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.spark.access import Access
from tallystick.spark.store_client import RemoteQueues, RemoteStore
from tallystick.spark.volume import VolumeError
from tallystick.store.formats.segment_files import segment_name, segment_start

if TYPE_CHECKING:
    from tallystick.node.backup.manifest import LogPiece, Manifest
    from tallystick.node.backup.places import Place
    from tallystick.node.backup.seals import Seal

SCHEME = "backup:"
_S3_SETTINGS = "TALLYSTICK_BACKUP_S3_SETTINGS"
_S3_VARIABLES = {
    "AWS_ENDPOINT_URL": "TALLYSTICK_BACKUP_S3_ENDPOINT",
    "AWS_REGION": "TALLYSTICK_BACKUP_S3_REGION",
}
_PIECES_HELD = 2


class BackupStore:
    """The files that a restore of a backup would write, for a `Mirror`. `address`: `PLACE/CLUSTER/BROKER/ID`.

    All methods raise VolumeError: the backup is missing or damaged, or the place does not answer.
    """

    def __init__(self, address: str, access: Access) -> None:
        self.address = address
        with _as_volume_errors(address):
            from tallystick.node.backup.manifest import load, parse_address
            from tallystick.node.backup.objects import Objects

            text, source, backup_id = parse_address(address)
            place, seal = _opened(text), _seal(access)
            self._manifest = load(place, source, backup_id, seal)
            self._read_piece = lru_cache(_PIECES_HELD)(Objects(place, self._manifest, seal).read)

    def __exit__(self, *_: object) -> None:
        self._read_piece.cache_clear()

    def store(self, under: str | None = None) -> RemoteStore:
        """Returns the state of the store at the time of the backup. Only the folder of the log has files."""
        manifest = self._manifest
        folder = log_folder(manifest)
        starts = range(manifest.begin, manifest.committed, manifest.segment_bytes)
        files = [(f"{folder}/{segment_name(start)}", manifest.segment_bytes) for start in starts]
        return RemoteStore(
            log_folder=folder,
            begin=manifest.begin,
            committed=manifest.committed,
            closed=True,
            files=tuple(files) if under in (None, folder) else (),
            group=manifest.broker,
            tells_queues=True,
        )

    def queues(self, below: int) -> RemoteQueues:
        """Returns no queue: a backup has none."""
        return RemoteQueues()

    def read(self, path: str, begin: int, end: int) -> Iterator[bytes]:
        """Yields bytes [begin, end) of a file of the log, in pieces. Bytes that the backup does not have are zeros."""
        start = segment_start(path.rpartition("/")[2])
        if start is None:
            raise FileNotFoundError(f"{self.address}: there is no {path}")
        for piece in self._manifest.log:
            low, high = max(piece.start, start + begin), min(piece.end, start + end)
            if low < high:
                yield self._content(piece)[low - piece.start : high - piece.start]

    def _content(self, piece: LogPiece) -> bytes:
        with _as_volume_errors(self.address):
            return self._read_piece(piece)


def log_folder(manifest: Manifest) -> str:
    """Returns the folder of the log in the store that was backed up."""
    return "commitlog" if manifest.group is None else f"dledger-{manifest.group.member}/data"


@dataclass(frozen=True, slots=True)
class FoundBackup:
    """`address`: PLACE/CLUSTER/BROKER/ID; `committed`: the end of its log."""

    broker: str
    address: str
    committed: int


def backups_at(text: str, access: Access) -> list[FoundBackup]:
    """Returns the backup that `text` names, or the newest one of each broker of a place. VolumeError: there is none, it
    is damaged, or the place does not answer."""
    with _as_volume_errors(text):
        from tallystick.node.backup.errors import BackupError
        from tallystick.node.backup.manifest import LATEST, load, parse_address, resolve, sources_of

        try:
            where, source, backup_id = parse_address(text)
            place, sources = _opened(where), [source]
        except BackupError:
            where, backup_id = text.rstrip("/"), LATEST
            place = _opened(where)
            sources = sources_of(place)
        if not sources:
            raise BackupError(f"{text}: there are no backups")
        found = []
        for each in sources:
            manifest = load(place, each, resolve(place, each, backup_id), _seal(access))
            address = f"{where.rstrip('/')}/{each.folder}/{manifest.id}"
            found.append(FoundBackup(each.broker, address, manifest.committed))
        return found


def _opened(text: str) -> Place:
    from tallystick.node.backup.places import open_place
    from tallystick.node.backup.s3 import S3Place, s3_settings

    folder = os.environ.get(_S3_SETTINGS)
    if folder is None or not text.startswith("s3://"):
        return open_place(text)
    given = {name: os.environ[variable] for name, variable in _S3_VARIABLES.items() if os.environ.get(variable)}
    return S3Place(text, s3_settings(Path(folder), given))


def _seal(access: Access) -> Seal:
    from tallystick.node.backup.seals import Seal, seal_of

    return Seal() if access.key is None else seal_of(access.key, "the key file")


@contextmanager
def _as_volume_errors(address: str) -> Iterator[None]:
    """The errors of backups, as those of other stores."""
    from tallystick.node.backup.errors import BackupError

    try:
        yield
    except BackupError as error:
        raise VolumeError(str(error)) from error
    except OSError as error:
        raise VolumeError(f"{address}: {error}") from error
