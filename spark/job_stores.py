"""The stores of the StoreJob in which a process runs: what the place `job:` means, and which volume is mounted here.

The driver of a StoreJob tells the planner and the tasks in variables of the environment:

    TALLYSTICK_JOB_STORES   {"c-0": ["http://c-0-1...:8080", ...]}: for each group the places of its members, in the
                            order in which they are tried
    TALLYSTICK_JOB_VOLUME   {"node": "c-0-1", "root": "/stores/c-0-1/store", "http": "http://c-0-1...:8080",
                            "members": ["http://c-0-1...:8080", ...]}: in an executor, the volume that it has mounted,
                            and the members of its group
    TALLYSTICK_JOB_READS    http://driver...:8080/reads: where a task reports what it read

All members of a group have the same log, so a task reads any part of it from the volume of its executor, wherever Spark
runs it. It does so if the broker of that volume has committed the part; otherwise it reads from the member that the
plan names, over HTTP.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tallystick.spark.access import Access
from tallystick.spark.store_client import StoreClient, StoreClientError

STORES_VARIABLE = "TALLYSTICK_JOB_STORES"
VOLUME_VARIABLE = "TALLYSTICK_JOB_VOLUME"
READS_VARIABLE = "TALLYSTICK_JOB_READS"
SECRET_VARIABLE = "_SPARK_AUTH_SECRET"
"""Spark's own variable, with which an executor gets the secret that it shares with the driver."""
SIGNATURE = "X-Tallystick-Signature"
LOCAL, HTTP, BACKUP = "local", "http", "backup"
_PATIENCE_S = 3.0
_REPORT_S = 5.0
_LEDGER = "dledger-"

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MountedVolume:
    """The volume that this executor has mounted. `members`: addresses of the brokers whose log it has as well."""

    node: str
    root: str
    http: str
    members: tuple[str, ...]

    def to_json(self) -> str:
        return json.dumps({"node": self.node, "root": self.root, "http": self.http, "members": self.members})

    def moves(self, root: str, files: Mapping[str, tuple[int, int]], access: Access) -> list[tuple[str, str]] | None:
        """Returns which folder takes the place of which, to read files of a store at `root` from this volume instead.

        `files`: their paths in the store, with their bytes and how many of them are read. None: the volume does not
        have them, or its broker has not committed them or does not answer.
        """
        folders = {path.partition("/")[0] for path in files if path.startswith(_LEDGER)}
        here = sorted(each.name for each in Path(self.root).glob(f"{_LEDGER}*"))
        if len(folders) > 1 or (folders and len(here) != 1):
            return None
        moves = [(f"{root}/{folder}", f"{self.root}/{here[0]}") for folder in folders]
        moves.append((root, self.root))
        needed = 0
        for path, (length, readable) in files.items():
            file = Path(moved(f"{root}/{path}", moves))
            if not file.is_file() or file.stat().st_size != length:
                return None
            needed = max(needed, int(file.name) + readable)
        return moves if needed <= self._committed(access) else None

    def _committed(self, access: Access) -> int:
        try:
            with StoreClient(self.http, access, patience_s=_PATIENCE_S) as client:
                return client.store().committed
        except StoreClientError as error:
            _logger.warning("the broker of the mounted volume gave no bound, it is not read: %s", error)
            return -1


def moved(path: str, moves: list[tuple[str, str]]) -> str:
    """Returns the path behind the first move that applies."""
    for old, new in moves:
        if path == old or path.startswith(old + "/"):
            return new + path[len(old) :]
    return path


def stores_of_job() -> dict[str, list[str]] | None:
    """Returns the places of each group's members; None: this process is not part of a StoreJob."""
    text = os.environ.get(STORES_VARIABLE)
    return None if text is None else {str(group): [str(each) for each in of] for group, of in json.loads(text).items()}


def mounted_volume(http: str | None) -> MountedVolume | None:
    """Returns the volume of this executor if it has the log of the broker at `http`."""
    volume = _mounted(os.environ.get(VOLUME_VARIABLE))
    return volume if volume is not None and http in volume.members else None


@cache
def _mounted(text: str | None) -> MountedVolume | None:
    if text is None:
        return None
    found = json.loads(text)
    return MountedVolume(found["node"], found["root"], found["http"], tuple(found["members"]))


def report_read(store: str, via: str, records: int, scanned: int) -> None:
    """Tells the driver how a task read a store, for the status. A report that is lost is missing there.

    `store`: address of its broker, or of the backup; `scanned`: bytes of the log.
    """
    address, secret = os.environ.get(READS_VARIABLE), os.environ.get(SECRET_VARIABLE)
    if address is None or secret is None:
        return
    body = json.dumps({"store": store, "via": via, "records": records, "bytes": scanned}).encode()
    request = urllib.request.Request(address, body, {SIGNATURE: signature(secret, body)}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=_REPORT_S):
            pass
    except OSError as error:
        _logger.warning("the driver did not take the report of a read: %s", error)


def signature(secret: str, body: bytes) -> str:
    return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
