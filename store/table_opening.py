"""Opens a table under `config/` in any state of its file, and keeps files that cannot be read.

    topics.json is sound                      used
    topics.json is damaged                    kept as topics.json.damaged-1, the backup is used
    topics.json is missing                    the backup is used, if there is one
    the backup is damaged too                 kept as topics.json.bak.damaged-1, the table starts empty
    a file cannot be read (permission, EIO)   TableError: the content may be sound, a person must decide

A file is sound if it is JSON and its table can be created from it. Everything else is reported as a finding. The caller
rebuilds what other files contain about the table (`Opened.origin`). The table then counts as changed, so that the next
save writes it. A file that was set aside is never overwritten or removed here.

A member of a group has pictures: files to which it writes the tables of the group's log. They are opened in the same
way, but they never make a start fail.
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

# The errors of creating a table from content of a wrong form.
_SHAPE_ERRORS = (ValueError, TypeError, KeyError, AttributeError, OverflowError)


class Origin(enum.Enum):
    """Where a table's content came from."""

    FILE = enum.auto()
    BACKUP = enum.auto()
    """Changes since the backup are lost."""
    NOTHING = enum.auto()
    """No file exists, or none is sound."""


@dataclass(frozen=True, slots=True)
class Opened(Generic[T]):
    """A table, and how it was opened. `damaged`: whether a file was set aside."""

    table: T
    origin: Origin
    damaged: bool


class OpenedFile:
    """The file of a table that is being created: `load` returns the chosen content, `save` replaces the file."""

    def __init__(self, file: JsonTable, content: dict[Any, Any] | None) -> None:
        self._file, self._content = file, content

    def load(self) -> dict[Any, Any] | None:
        """The content; None if the table starts empty."""
        return self._content

    def save(self, table: dict[Any, Any]) -> None:
        """See `JsonTable.save`."""
        self._file.save(table)


def open_table(
    file: JsonTable, make: Callable[[OpenedFile], T], findings: FindingLog, *, lost: str, picture: bool = False
) -> Opened[T]:
    """Creates a table from the newest sound version of its file. Blocks.

    `make` raises an error such as ValueError or TypeError if the content has a wrong form. `lost` describes what is
    lost if no version is sound. `picture`: of a member of a group, see the docstring of the module. Raises TableError
    if a version cannot be read for a reason that a person must check; OSError if it cannot be set aside.
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
        f"cannot be read: {error.strerror}. Make it readable for this process, or move it away to start with the"
        " backup and what the store knows"
    )


def _set_aside(file: JsonTable, path: Path, *, must: bool) -> str:
    try:
        return f"kept as {file.set_aside(path).name}"
    except OSError as error:
        if must:
            raise
        return f"it cannot be set aside: {error.strerror}"
