"""What a promotion has done so far: `config/tally-promotion.json`, written before the steps that it names."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tallystick.store.tables import JsonTable, TableError

if TYPE_CHECKING:
    from pathlib import Path

    from tallystick.store._kernel import Door

FILE_NAME = "tally-promotion.json"


@dataclass(frozen=True, slots=True)
class Record:
    """A promotion. Without one, all fields are empty."""

    master: str = ""
    """Address of the master for clients."""
    before: dict[str, str] = field(default_factory=dict)
    """The master's settings before it was fenced; empty: it was not fenced."""
    number: int = 0
    """The broker id that this broker had as a slave, from the decision on; 0: it is not decided."""
    ended_at: int = 0
    """Where the log ended then."""
    handed_over: bool = False
    """Whether the old master was seen fenced, and under another id than 0."""


class RecordFile:
    """The file of one broker. All methods block."""

    def __init__(self, door: Door, root: Path) -> None:
        self._file = JsonTable(door, root / "config" / FILE_NAME)

    def load(self) -> Record:
        """The record. TableError: the file cannot be read, or has other fields; OSError."""
        found: dict[str, Any] = self._file.load() or {}
        try:
            return replace(Record(), **found)
        except TypeError as error:
            raise TableError(self._file.path, str(error)) from error

    def save(self, record: Record) -> None:
        """Replaces the record, durably. OSError."""
        self._file.save(asdict(record))
