"""Opens a table under `config/` whatever state its file is in, and keeps what cannot be read.

    topics.json is sound                      used
    topics.json is damaged                    kept as topics.json.damaged-1, the backup is used
    topics.json is missing                    the backup is used, if there is one
    the backup is damaged too                 kept as topics.json.bak.damaged-1, the table begins empty
    a file cannot be read (permission, EIO)   TableError: what is in it may be sound, only a person can tell

A file is sound if it is JSON and its table can be made from it. Everything that is not sound is reported as a finding.
Who opens a table rebuilds what the other files tell about it (`Opened.origin`); the table itself begins changed then,
so that the next save writes it. A file that was set aside is never overwritten or removed here.

A member of a group has pictures: files that the tables of the group's log are written to. They are opened in the same
way, but nothing about them may fail the start.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from tallystick.store.finding_log import FindingLog
from tallystick.store.findings import FindingKind
from tallystick.store.tables import JsonTable, TableError

T = TypeVar("T")

# What a table of the wrong shape raises while it is made from a file's content.
_SHAPE_ERRORS = (ValueError, TypeError, KeyError, AttributeError, OverflowError)


class Origin(enum.Enum):
    """Where a table's content came from."""

    FILE = enum.auto()
    BACKUP = enum.auto()
    """Changes since the backup are lost."""
    NOTHING = enum.auto()
    """There was no file, or none that could be used."""


@dataclass(frozen=True, slots=True)
class Opened(Generic[T]):
    """A table, and how it was opened. `damaged`: a file was set aside."""

    table: T
    origin: Origin
    damaged: bool


class OpenedFile:
    """The file of a table that is being made: `load` gives the content that was chosen, `save` replaces the file."""

    def __init__(self, file: JsonTable, content: dict[Any, Any] | None) -> None:
        self._file, self._content = file, content

    def load(self) -> dict[Any, Any] | None:
        """The content; None: the table begins empty."""
        return self._content

    def save(self, table: dict[Any, Any]) -> None:
        """See `JsonTable.save`."""
        self._file.save(table)


def open_table(
    file: JsonTable, make: Callable[[OpenedFile], T], findings: FindingLog, *, lost: str, picture: bool = False
) -> Opened[T]:
    """Makes a table of the newest sound version of its file. Blocks.

    `make` raises ValueError, TypeError and their like if the content has the wrong shape. `lost` says in words what is
    lost when no version is sound. `picture`: of a group's member, see the head of the module.
    TableError: a version cannot be read for a reason that a person has to look at. OSError: it cannot be set aside.
    """
    faults: dict[Path, str] = {}
    opened: Opened[T] | None = None
    for origin, path in ((Origin.FILE, file.path), (Origin.BACKUP, file.backup)):
        try:
            content = file.read(path)
            if content is not None:
                opened = Opened(make(OpenedFile(file, content)), origin, bool(faults))
                break
        except _SHAPE_ERRORS as error:
            faults[path] = str(error) or type(error).__name__
        except OSError as error:
            if not picture and not isinstance(error, IsADirectoryError):
                raise TableError(path, _unreadable(error)) from error
            faults[path] = f"it cannot be read: {error.strerror}"
    consequence = ""
    if opened is None:
        opened = Opened(make(OpenedFile(file, None)), Origin.NOTHING, bool(faults))
        consequence = "; no version of it can be used: " + ("the group's log has the table" if picture else lost)
    for path, reason in faults.items():
        kept = _set_aside(file, path, must=not picture)
        findings.add(FindingKind.DAMAGE, path, f"{reason}; {kept}{consequence}")
    if opened.origin is Origin.BACKUP:
        findings.add(FindingKind.REPAIRED, file.path, "its backup is used; changes since the backup are lost")
    return opened


def _unreadable(error: OSError) -> str:
    return (
        f"cannot be read: {error.strerror}. Make it readable for this process; or move it away, to start with the"
        " backup and what the store knows"
    )


def _set_aside(file: JsonTable, path: Path, *, must: bool) -> str:
    try:
        return f"kept as {file.set_aside(path).name}"
    except OSError as error:
        if must:
            raise
        return f"it cannot be set aside: {error.strerror}"
