"""Checks the small files of a store: the tables in `config/`, and the files of progress that a start reads.

    config/NAME.json      damaged: damage; the broker uses a sound backup and loses the changes since the backup
                          unreadable: damage; the file may be sound, so no backup replaces it
    config/NAME.json.bak  damaged: a note; damage if the table is damaged too
    tally-progress        no sound slot: a note; the next start reads more of the log and writes the file again
    tally-queues          wrong magic or CRC: a note; the same
    tally-scrub           no sound content: a note; the scrub begins a new pass

A file that the disk cannot read (EIO) is damage as well. The check of a table covers its form, and its CRC if it has
one. The broker checks the content at its start.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tallystick.store import tables
from tallystick.store.findings import FindingKind
from tallystick.store.formats.mapped import UNREADABLE
from tallystick.store.formats.progress import FILE_NAME as PROGRESS_NAME
from tallystick.store.formats.progress import ProgressMark
from tallystick.store.formats.queue_table import FILE_NAME as QUEUES_NAME
from tallystick.store.formats.queue_table import QueueTable
from tallystick.store.tables import DamagedTableError

SCRUB_NAME = "tally-scrub"


@dataclass(frozen=True, slots=True)
class TableFault:
    """What is wrong with one file. `kind`: DAMAGE, or MARK and NOTE if the next start repairs it.

    `backup`: the sound version that a start, or a repair, uses instead.
    """

    path: Path
    reason: str
    kind: FindingKind = FindingKind.DAMAGE
    backup: Path | None = None

    @property
    def unreadable(self) -> bool:
        """The disk could not read the file. The file may be sound."""
        return self.reason.startswith(UNREADABLE)


def table_faults(root: Path) -> list[TableFault]:
    """All faults of the small files of the store in `root`. Raises OSError if a folder cannot be read."""
    return [*_config_faults(root / "config"), *_progress_faults(root)]


def _config_faults(folder: Path) -> list[TableFault]:
    found: list[TableFault] = []
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        backup = path.with_name(path.name + ".bak")
        reason, backup_reason = _reason(path, _check_json), _reason(backup, _check_json)
        if reason:
            fault = TableFault(path, reason, backup=backup if backup.exists() and not backup_reason else None)
            found.append(replace(fault, backup=None) if fault.unreadable else fault)
        if backup_reason:
            found.append(TableFault(backup, backup_reason, FindingKind.DAMAGE if reason else FindingKind.NOTE))
    return found


def _progress_faults(root: Path) -> list[TableFault]:
    checks: tuple[tuple[str, Callable[[bytes], str], FindingKind], ...] = (
        (PROGRESS_NAME, _check_progress, FindingKind.MARK),
        (QUEUES_NAME, _check_queues, FindingKind.MARK),
        (SCRUB_NAME, _check_scrub, FindingKind.NOTE),
    )
    found = []
    for name, check, kind in checks:
        if reason := _reason(root / name, check):
            found.append(TableFault(root / name, reason, kind))
    return found


def _reason(path: Path, check: Callable[[bytes], str]) -> str:
    """Why the file is not sound; "" if it is sound or does not exist."""
    try:
        return check(path.read_bytes())
    except FileNotFoundError:
        return ""
    except OSError as error:
        if error.errno not in (errno.EIO, errno.EISDIR):
            raise
        return f"{UNREADABLE}: {error.strerror}"


def _check_json(data: bytes) -> str:
    try:
        tables.decode(data)
    except DamagedTableError as error:
        return f"is damaged: {error}"
    return ""


def _check_progress(data: bytes) -> str:
    return "" if ProgressMark.newest(data) is not None else "has no sound slot"


def _check_queues(data: bytes) -> str:
    return "" if QueueTable.decode(data) is not None else "its magic or CRC is wrong"


def _check_scrub(data: bytes) -> str:
    try:
        return "" if isinstance(json.loads(data), dict) else "is no JSON object"
    except ValueError as error:
        return f"is no JSON: {error}"
