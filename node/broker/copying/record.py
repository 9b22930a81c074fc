"""What a promotion has done so far: `config/tally-promotion.json`, written before the steps that it names."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

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


class Records(Protocol):
    """Where the record of a promotion is durable."""

    async def loaded(self) -> Record:
        """The record. TableError, OSError."""

    async def saved(self, record: Record) -> None:
        """Replaces the record, durably. OSError: it is not certain that it was replaced."""


class RecordFile:
    """The file of one broker."""

    def __init__(self, door: Door, root: Path) -> None:
        self._file = JsonTable(door, root / "config" / FILE_NAME)

    def load(self) -> Record:
        """The record. Blocks. TableError: the file cannot be read, or has other fields; OSError."""
        found: dict[str, Any] = self._file.load() or {}
        try:
            return replace(Record(), **found)
        except TypeError as error:
            raise TableError(self._file.path, str(error)) from error

    def save(self, record: Record) -> None:
        """Replaces the record, durably. Blocks. OSError."""
        self._file.save(asdict(record))

    async def loaded(self) -> Record:
        """See `Records`."""
        return await asyncio.to_thread(self.load)

    async def saved(self, record: Record) -> None:
        """See `Records`."""
        await asyncio.to_thread(self.save, record)
