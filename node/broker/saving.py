"""A table of the broker that lives in memory and is kept in a file of `config/`.

Changes are made on the event loop and counted. Writing takes a picture of the table on the loop and hands it to a
thread, because a write ends with syncs that take milliseconds. One write at a time: changes made while one is under way
go out together with the next, so a thousand topics created at once cost a handful of writes, not a thousand.

`await saved()` returns when everything changed before it is on disk: an administrator's request is answered after that.
A change that a client causes by the way (a send that creates its topic) calls `save_soon()`, and what depends on the
changed row waits at `gate` until the row is durable.

A table of a replicated group (`ReplicatedTable` with a `replica`) is kept in the group's log instead: changed rows go
there as entries, `saved()` returns when they are committed, and a member that does not lead changes nothing by itself:
its table is what the group committed. There nobody waits at the gate: a row's entry is staged in the log when the row
changes, so it stands before every message that depends on it, and is committed before that message is acknowledged. A
row that could not be staged refuses what depends on it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Protocol

from tallystick.node.broker.row_gate import RowGate

logger = logging.getLogger("tallystick.broker")


class TableFile(Protocol):
    """Where a table is kept: `tallystick.store.tables.JsonTable`."""

    def load(self) -> Any: ...

    def save(self, value: Any) -> None: ...


def rows(stored: dict[str, Any], name: str) -> dict[str, dict[str, Any]]:
    """The objects by name in field `name` of a file's content. ValueError: there is none, or something else."""
    table = stored.get(name)
    if not isinstance(table, dict) or not all(isinstance(row, dict) for row in table.values()):
        raise ValueError(f"it has no field {name} with a map of objects")
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
        self._pictured = 0  # changes that the write under way has, or the last one had
        self._soon: asyncio.Task[None] | None = None
        self.save_error = ""
        """Why the last write of the file failed; empty: it did not."""
        self._last_error = ""
        self._unsaved: dict[str, int] = {}  # rows that changed and are not in the file, with the number of the change
        self.gate = RowGate(self.row_durable, self.save_soon)
        """What depends on a row passes here before it happens."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """A picture of the whole table that later changes do not reach: it is written by another thread."""

    @property
    def dirty(self) -> bool:
        """Something changed that is not in the file."""
        return self._written < self._changes

    def changed(self, *rows: str) -> None:
        """Count a change, of these rows if any are named. A table in a file is written as a whole."""
        self._changes += 1
        self._unsaved.update(dict.fromkeys(rows, self._changes))

    def row_durable(self, row: str) -> bool:
        """The row as it is now, or that there is none, survives a kill."""
        return row not in self._unsaved

    def persist(self) -> None:
        """Write now, in this thread, if anything changed. OSError: as the file system says; it stays dirty then."""
        if self.dirty:
            self._save(self._changes, self.to_json())
            self._settle()

    async def saved(self) -> None:
        """Return when all changes made until now are on disk. OSError: they could not be written; it stays dirty."""
        wanted = self._changes
        while self._written < wanted:
            if self._writing is None:
                self._pictured = self._changes
                self._writing = asyncio.create_task(self._write(), name=f"write {self.what}")
            elif self._pictured < wanted:  # it does not say what becomes of our changes
                await asyncio.wait([self._writing])
                continue
            # Shielded: others may wait for the same write.
            await asyncio.shield(self._writing)

    async def _write(self) -> None:
        try:
            await asyncio.to_thread(self._save, self._changes, self.to_json())
            self._settle()
        finally:
            self._writing = None

    def _settle(self) -> None:
        """Rows whose last change is in the file now are durable."""
        rows = [row for row, change in self._unsaved.items() if change <= self._written]
        for row in rows:
            del self._unsaved[row]
        self.gate.release(rows)

    def _save(self, changes: int, value: dict[str, Any]) -> None:
        with self._write_lock:
            if self._written < changes:  # else a newer picture is in the file already
                try:
                    self._file.save(value)
                except OSError as error:
                    self.save_error = str(error)
                    raise
                self.save_error = ""
                self._written = changes

    def save_soon(self) -> None:
        """Begin to write what changed until now, without waiting; it all goes into the file, unless the disk fails.

        Without a running loop it stays dirty until `persist()`.
        """
        if self._soon is not None:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        self._soon = loop.create_task(self._save_quietly(), name=f"save {self.what}")

    async def _save_quietly(self) -> None:
        try:
            while self.dirty:  # also what changes while a picture without it is being written
                await self.saved()
            self._last_error = ""
        except OSError as error:
            # Not lost: it is still dirty, and the broker's timer tries again.
            if str(error) != self._last_error:  # not a line for each send that is refused
                logger.error("cannot save %s: %s", self.what, error)
            self._last_error = str(error)
            self.gate.fail(error)
        except Exception as error:  # a mistake of ours must not keep anybody waiting
            logger.exception("cannot save %s", self.what)
            self.gate.fail(OSError(f"{type(error).__name__}: {error}"))
        finally:
            self._soon = None


class NotReplicatedError(OSError):
    """A change may be kept or not: leadership of the group was lost before it was committed."""


class FollowsError(ValueError):
    """This member follows: tables are changed where the group's leader is."""


class TableReplica(Protocol):
    """What a table needs of the group that keeps it: `replicated.GroupTables`."""

    @property
    def leads(self) -> bool:
        """This member is the group's leader, and its tables are the ones that change."""

    def changed(self, table: ReplicatedTable, *rows: str) -> None:
        """These rows changed, at once; none is named: any may have."""

    def staged(self, table: ReplicatedTable, row: str) -> bool:
        """The row as it is now stands in the log, before all that is appended from now on; or this member follows."""

    async def saved(self, table: ReplicatedTable) -> None:
        """Return when all changes made until now are committed. NotReplicatedError."""


class ReplicatedTable(SavedTable):
    """A table that a group of brokers may keep in its log. Without a `replica` it is in its file, as any other.

    Its picture is the file's content with all keys as text: rows by name in the field `rows_field`, and a head.
    """

    rows_field = ""
    at_once = False
    """Each change goes into the log when it is made, before what is sent because of it; else by time."""

    def __init__(self, file: TableFile) -> None:
        super().__init__(file)
        self.replica: TableReplica | None = None

    @property
    def follows(self) -> bool:
        """Somebody else's table is the one that changes; this one goes by what the group committed."""
        return self.replica is not None and not self.replica.leads

    def must_lead(self) -> None:
        """FollowsError: an administrator asked a follower for a change."""
        if self.follows:
            raise FollowsError(f"this broker follows in its group: {self.what} is changed at the leader")

    @abstractmethod
    def row_names(self) -> Collection[str]:
        """The names of all rows."""

    @abstractmethod
    def row_json(self, name: str) -> Any:
        """One row as the picture has it; None: there is none of that name."""

    @abstractmethod
    def take_row(self, name: str, row: Any) -> None:
        """Make a row what the group committed; None: it is gone. Tells whoever listens to changes, counts none."""

    def head_json(self) -> dict[str, Any]:
        """The fields beside the rows."""
        return {}

    def take_head(self, picture: Mapping[str, Any]) -> None:
        """Make the head what the group committed."""

    def picture(self) -> dict[str, Any]:
        """The whole table as it goes into the log."""
        return {self.rows_field: {name: self.row_json(name) for name in self.row_names()}, **self.head_json()}

    def file_form(self, picture: Mapping[str, Any]) -> dict[str, Any]:
        """A picture as RocketMQ writes it into the file."""
        return dict(picture)

    def take(self, picture: Mapping[str, Any], rows: Iterable[str] | None = None) -> None:
        """Become what the group committed, in these rows or in all of them. ValueError, TypeError: no such table."""
        committed = picture.get(self.rows_field) or {}
        if rows is None:
            rows = {*self.row_names(), *committed}
        self.take_head(picture)
        for name in rows:
            row = committed.get(name)
            if row != self.row_json(name):
                self.take_row(name, row)

    def changed(self, *rows: str) -> None:
        if self.replica is None:
            super().changed(*rows)
        else:
            super().changed()
            self.replica.changed(self, *rows)

    def row_durable(self, row: str) -> bool:
        return super().row_durable(row) if self.replica is None else self.replica.staged(self, row)

    async def saved(self) -> None:
        if self.replica is None:
            await super().saved()
        else:
            await self.replica.saved(self)

    def save_soon(self) -> None:
        if self.replica is None:
            super().save_soon()
        else:
            self.gate.fail(NotReplicatedError(f"the group's log takes no changes of {self.what} now"))

    def persist(self) -> None:
        if self.replica is None:
            super().persist()
