"""A table of the broker that lives in memory and is kept in a file of `config/`.

Changes are made on the event loop and counted. Writing takes a picture of the table on the loop and hands it to a
thread, because a write ends with syncs that take milliseconds. One write at a time: changes made while one is under way
go out together with the next, so a thousand topics created at once cost a handful of writes, not a thousand.

`await saved()` returns when everything changed before it is on disk: an administrator's request is answered after that.
What clients cause by the way (a topic made by sending) only calls `save_soon()`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from typing import Any, Protocol

logger = logging.getLogger("tallystick.broker")


class TableFile(Protocol):
    """Where a table is kept: `tallystick.store.tables.JsonTable`."""

    def load(self) -> Any: ...

    def save(self, value: Any) -> None: ...


def rows(stored: dict[str, Any], name: str) -> dict[str, dict[str, Any]]:
    """The objects by name in field `name` of a file's content. ValueError: there is something else."""
    table = stored.get(name) or {}
    if not isinstance(table, dict) or not all(isinstance(row, dict) for row in table.values()):
        raise ValueError(f"{name} is no map of objects")
    return {str(key): row for key, row in table.items()}


class SavedTable(ABC):
    """The base of tables that are kept in a file. `what` names it in errors and logs."""

    what = "table"

    def __init__(self, file: TableFile) -> None:
        self._file = file
        self._changes = 0
        self._written = 0
        self._write_lock = threading.Lock()  # a file takes one writer at a time: `persist` may meet `saved`'s thread
        self._writing: asyncio.Task[None] | None = None
        self._soon: asyncio.Task[None] | None = None

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """A picture of the whole table that later changes do not reach: it is written by another thread."""

    @property
    def dirty(self) -> bool:
        """Something changed that is not in the file."""
        return self._written < self._changes

    def changed(self) -> None:
        """Count a change."""
        self._changes += 1

    def persist(self) -> None:
        """Write now, in this thread, if anything changed. OSError: as the file system says; it stays dirty then."""
        if self.dirty:
            self._save(self._changes, self.to_json())

    async def saved(self) -> None:
        """Return when all changes made until now are on disk. OSError: they could not be written; it stays dirty."""
        wanted = self._changes
        while self._written < wanted:
            if self._writing is None:
                self._writing = asyncio.create_task(self._write(), name=f"write {self.what}")
            # Shielded: others may wait for the same write.
            await asyncio.shield(self._writing)

    async def _write(self) -> None:
        try:
            await asyncio.to_thread(self._save, self._changes, self.to_json())
        finally:
            self._writing = None

    def _save(self, changes: int, value: dict[str, Any]) -> None:
        with self._write_lock:
            if self._written < changes:  # else a newer picture is in the file already
                self._file.save(value)
                self._written = changes

    def save_soon(self) -> None:
        """Begin to write what changed, without waiting. Without a running loop: it stays dirty until `persist()`."""
        if self._soon is not None:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        self._soon = loop.create_task(self._save_quietly(), name=f"save {self.what}")

    async def _save_quietly(self) -> None:
        try:
            await self.saved()
        except OSError as error:
            # Not lost: it is still dirty, and the broker's timer tries again.
            logger.error("cannot save %s: %s", self.what, error)
        finally:
            self._soon = None
