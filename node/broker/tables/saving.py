"""A table of the broker that is held in memory and saved in a file of `config/`.

Changes are made on the event loop and counted. A write takes a picture of the table on the event loop and passes it to
a thread, because a write ends with syncs that take milliseconds. There is one write at a time: changes made meanwhile
go into the next one together, so a thousand topics created at once need a few writes, not a thousand.

`await saved()` returns when everything changed before is on disk: an administrator's request is answered after that. A
change that a client causes indirectly (a send that creates its topic) calls `save_soon()`, and what depends on the
changed row waits at `gate` until the row is durable.

A table of a replicated group (`ReplicatedTable` with a `replica`) is stored in the group's log instead. Changed rows
become entries, and `saved()` returns when they are committed. A member that does not lead changes nothing: its table is
what the group committed. There no send waits at the gate: a row's entry is staged when the row changes, so it precedes
every message that depends on it, and is committed before that message is acknowledged. If a row could not be staged,
what depends on it is refused.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Protocol

from tallystick.node.broker.tables.row_gate import RowGate
from tallystick.store.limited_log import RepeatedError

_logger = logging.getLogger("tallystick.broker")


class TableFile(Protocol):
    """The place where a table is stored: `tallystick.store.tables.JsonTable`."""

    def load(self) -> Any: ...

    def save(self, value: Any) -> None: ...


class NoFile:
    """The file of a table that has no file."""

    def load(self) -> Any:
        return None

    def save(self, value: Any) -> None:
        """Does nothing."""


def rows(stored: dict[str, Any], name: str) -> dict[str, dict[str, Any]]:
    """The objects by name in field `name` of a file's content. Raises ValueError if there is no such map."""
    table = stored.get(name)
    if not isinstance(table, dict) or not all(isinstance(row, dict) for row in table.values()):
        raise ValueError(f"it does not have a field {name} with a map of objects")
    return {str(key): row for key, row in table.items()}


class SavedTable(ABC):
    """Base class of tables that are stored in a file. `what` names the table in errors and logs."""

    what = "table"

    def __init__(self, file: TableFile) -> None:
        self._file = file
        self._changes = 0
        self._written = 0
        self._write_lock = threading.Lock()  # a file takes one writer at a time: `persist` may meet `saved`'s thread
        self._writing: asyncio.Task[None] | None = None
        self._pictured = 0  # number of changes in the present write, or in the last one
        self._soon: asyncio.Task[None] | None = None
        self.save_error = ""
        """Why the last write of the file failed; empty if it succeeded."""
        self._errors = RepeatedError(_logger, f"cannot save {self.what}")
        self._unsaved: dict[str, int] = {}  # rows that changed and are not in the file, with the number of the change
        self.gate = RowGate(self.row_durable, self.save_soon)
        """What depends on a row passes here first."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """A picture of the whole table that later changes do not affect: another thread writes it."""

    @property
    def dirty(self) -> bool:
        """Whether a change is not in the file."""
        return self._written < self._changes

    def changed(self, *rows: str) -> None:
        """Counts a change of these rows, if any are named. A table in a file is written as a whole."""
        self._changes += 1
        self._unsaved.update(dict.fromkeys(rows, self._changes))

    def row_durable(self, row: str) -> bool:
        """Whether the row's present state, or its absence, survives a kill."""
        return row not in self._unsaved

    def persist(self) -> None:
        """Writes now, in this thread, if anything changed. OSError: the table stays dirty."""
        if self.dirty:
            self._save(self._changes, self.to_json())
            self._settle()

    async def saved(self) -> None:
        """Waits until all changes made until now are on disk. OSError: they could not be written; it stays dirty."""
        wanted = self._changes
        while self._written < wanted:
            if self._writing is None:
                self._pictured = self._changes
                self._writing = asyncio.create_task(self._write(), name=f"write {self.what}")
            elif self._pictured < wanted:  # that write does not include these changes
                await asyncio.wait([self._writing])
                continue
            # Shielded: other callers may wait for the same write.
            await asyncio.shield(self._writing)

    async def _write(self) -> None:
        try:
            await asyncio.to_thread(self._save, self._changes, self.to_json())
            self._settle()
        finally:
            self._writing = None

    def _settle(self) -> None:
        """Rows whose last change is in the file are durable now."""
        rows = [row for row, change in self._unsaved.items() if change <= self._written]
        for row in rows:
            del self._unsaved[row]
        self.gate.release(rows)

    def _save(self, changes: int, value: dict[str, Any]) -> None:
        with self._write_lock:
            if self._written < changes:  # otherwise a newer picture is already in the file
                try:
                    self._file.save(value)
                except OSError as error:
                    self.save_error = str(error)
                    raise
                self.save_error = ""
                self._written = changes

    async def try_save(self) -> None:
        """Saves what changed. An error is logged when it changes, delays no other table, and leaves the table dirty for
        the next call."""
        await self._errors.attempt(self.saved)

    def save_soon(self) -> None:
        """Starts to write what changed until now, without waiting; all of it is written unless the disk fails.

        Without a running event loop the table stays dirty until `persist()`.
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
            while self.dirty:  # also for changes during the write
                await self.saved()
            self._errors.worked()
        except OSError as error:
            # Not lost: it is still dirty, and the broker's timer retries.
            self._errors.failed(error)
            self.gate.fail(error)
        except Exception as error:  # an internal error must not block callers
            _logger.exception("cannot save %s", self.what)
            self.gate.fail(OSError(f"{type(error).__name__}: {error}"))
        finally:
            self._soon = None


class NotReplicatedError(OSError):
    """It is unknown whether a change takes effect: leadership of the group was lost before it was committed."""


class FollowsError(ValueError):
    """This member is a follower: only the group's leader changes tables."""


class TableReplica(Protocol):
    """What a table needs from its group: `replicated.GroupTables`."""

    @property
    def leads(self) -> bool:
        """Whether this member is the group's leader, whose tables are the ones that change."""

    def changed(self, table: ReplicatedTable, *rows: str) -> None:
        """These rows changed; none named: any row may have changed."""

    def staged(self, table: ReplicatedTable, row: str) -> bool:
        """Whether the row's present state is in the log, before later appends; or this member is a follower."""

    async def saved(self, table: ReplicatedTable) -> None:
        """Waits until all changes made until now are committed. Raises NotReplicatedError."""


class ReplicatedTable(SavedTable):
    """A table that a group of brokers can store in its log. Without a `replica` it is in its file, like any other.

    Its picture is the file's content with all keys as text: rows by name in the field `rows_field`, and a head.
    """

    rows_field = ""
    at_once = False
    """True: each change goes into the log when it is made, before messages that depend on it. False: at intervals."""

    def __init__(self, file: TableFile) -> None:
        super().__init__(file)
        self.replica: TableReplica | None = None
        self.is_copied: Callable[[], bool] = lambda: False
        """Whether the table is the one of a master that the group follows. Then it changes by `take` alone."""

    @property
    def follows(self) -> bool:
        """Whether only another broker's table changes: the leader's, or the one of a master that the group follows."""
        return self.replica is not None and (not self.replica.leads or self.is_copied())

    def must_lead(self) -> None:
        """Raises FollowsError if the table is changed at another broker."""
        if self.is_copied():
            raise FollowsError(f"this group follows a master: {self.what} is changed there")
        if self.follows:
            raise FollowsError(f"this broker follows in its group: {self.what} is changed at the leader")

    @abstractmethod
    def row_names(self) -> Collection[str]:
        """The names of all rows."""

    @abstractmethod
    def row_json(self, name: str) -> Any:
        """One row as in the picture; None if it does not exist."""

    @abstractmethod
    def take_row(self, name: str, row: Any) -> None:
        """Sets a row to what the group committed; None removes it. Informs listeners, and counts no change."""

    def head_json(self) -> dict[str, Any]:
        """The fields beside the rows."""
        return {}

    def take_head(self, picture: Mapping[str, Any]) -> None:
        """Sets the head to what the group committed."""

    def picture(self) -> dict[str, Any]:
        """The whole table as it goes into the log."""
        return {self.rows_field: {name: self.row_json(name) for name in self.row_names()}, **self.head_json()}

    @staticmethod
    def file_form(picture: Mapping[str, Any]) -> dict[str, Any]:
        """A picture as RocketMQ writes it to the file."""
        return dict(picture)

    def take(self, picture: Mapping[str, Any], rows: Iterable[str] | None = None) -> None:
        """Takes what the group committed, in these rows or in all. ValueError, TypeError: not such a table."""
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
            self.gate.fail(NotReplicatedError(f"the group's log accepts no changes of {self.what} now"))

    def persist(self) -> None:
        if self.replica is None:
            super().persist()
