"""The tables of a slave: taken from its master every ten seconds, as RocketMQ's slaves do.

The slave changes no row itself. The files in `config/` are written whenever a table has changed, so a slave that starts
again, or is promoted without its master, has them as they were last. `consumerFilter.json` is not among them: filters
come with the heartbeats of the consumers.

Source: SlaveSynchronize of RocketMQ 4.8.0.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from tallystick.node.broker.copying.master import Extent, Master, MasterError
from tallystick.node.broker.tables.consumer_groups import SubscriptionGroup, SubscriptionGroupTable
from tallystick.node.broker.tables.offsets import ConsumerOffsets
from tallystick.node.broker.tables.saving import ReplicatedTable, TableFile
from tallystick.node.broker.tables.topics import TopicConfig, TopicTable
from tallystick.node.remoting.codes import RequestCode
from tallystick.store.clock import steady_ms

PERIOD_S = 10.0

_CODES = {
    "topics.json": RequestCode.GET_ALL_TOPIC_CONFIG,
    "consumerOffset.json": RequestCode.GET_ALL_CONSUMER_OFFSET,
    "delayOffset.json": RequestCode.GET_ALL_DELAY_OFFSET,
    "subscriptionGroup.json": RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
}
_ROWS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    TopicTable.what: lambda row: TopicConfig.from_json(row).to_json(),
    SubscriptionGroupTable.what: lambda row: SubscriptionGroup.from_json(row).to_json(),
    ConsumerOffsets.what: lambda row: {str(queue_id): int(offset) for queue_id, offset in row.items()},
}


class CopiedTables:
    """A `TableReplica` of tables that only the master changes. `tables`: each with its file."""

    leads = False

    def __init__(self, tables: Iterable[tuple[ReplicatedTable, TableFile]]) -> None:
        self._files = {table.what: (table, file) for table, file in tables}
        self._saved: dict[str, dict[str, Any]] = {}
        self._pictures = itertools.count(1)
        self._written: dict[str, int] = {}  # the number of the picture in each file
        self._write_lock = threading.Lock()
        self._gone: dict[str, int] = {}  # topics that the master no longer has, with the end of its log then
        self._copying = asyncio.Lock()
        self.error: str | None = "the tables have not been copied yet"
        """Why they could not be copied the last time; None if they were."""
        self._copied_ms: int | None = None
        for table, _ in self._files.values():
            table.replica = self

    @property
    def age_ms(self) -> int | None:
        """Time since all tables were copied; None: they never were."""
        return None if self._copied_ms is None else steady_ms() - self._copied_ms

    def all(self) -> Iterable[ReplicatedTable]:
        """The tables that are copied."""
        return [table for table, _ in self._files.values()]

    # -- called by tables ----------------------------------------------------------------------------------------------

    def changed(self, table: ReplicatedTable, *rows: str) -> None:
        """See `TableReplica`: only the master changes rows."""

    def staged(self, table: ReplicatedTable, row: str) -> bool:
        """See `TableReplica`."""
        return True

    async def saved(self, table: ReplicatedTable) -> None:
        """See `TableReplica`."""

    # -- copying -------------------------------------------------------------------------------------------------------

    async def copy(self, master: Master, reach: Callable[[int], Awaitable[None]]) -> None:
        """Takes all tables of the master, and saves those that changed. MasterError; OSError: one cannot be saved.
        `error` has the text of either.

        `reach(pos)` returns when this log has everything up to `pos`, durably. The tables are taken after that: they
        tell what was delivered and consumed, and the records of this must be here, or they would be lost with the
        master.
        """
        try:
            async with self._copying:
                began_ms = steady_ms()
                found = {what: await master.table(code) for what, code in _CODES.items()}
                extent = await master.extent()
                await reach(extent.end)
                for table in self.all():
                    self._take(master, table, found[table.what], extent)
                await self.save()
        except (MasterError, OSError) as error:
            self.error = str(error)
            raise
        self.error, self._copied_ms = None, began_ms

    def _take(self, master: Master, table: ReplicatedTable, found: Mapping[str, Any], extent: Extent) -> None:
        known = set(table.row_names()) if table.what == TopicTable.what else set()
        try:
            rows = found.get(table.rows_field) or {}
            convert = _ROWS.get(table.what, int)
            picture = dict(found) | {table.rows_field: {str(name): convert(row) for name, row in rows.items()}}
            table.take(picture)
        except (AttributeError, TypeError, ValueError) as error:
            raise MasterError(f"{master.address} answered with what is no {table.what}: {error}") from error
        if table.what == TopicTable.what:
            present = set(table.row_names())
            self._gone |= dict.fromkeys(known - present, extent.end)
            for name in present & self._gone.keys():
                del self._gone[name]

    def deleted_topics(self, dispatched: int) -> list[str]:
        """Topics that the master deleted, once each: when all their records are dispatched here. A later topic of the
        same name begins at offset 0 again."""
        names = [name for name, end in self._gone.items() if end <= dispatched]
        for name in names:
            del self._gone[name]
        return names

    async def save(self) -> None:
        """Saves the tables that changed since the last time. OSError."""
        for what, (table, file) in self._files.items():
            picture = table.picture()
            if picture == self._saved.get(what):
                continue
            try:
                await asyncio.to_thread(self._write, table, file, picture, next(self._pictures))
            except OSError as error:
                table.save_error = str(error)
                raise
            table.save_error = ""

    def _write(self, table: ReplicatedTable, file: TableFile, picture: dict[str, Any], number: int) -> None:
        # One at a time: the thread of a copy that was cancelled continues, and the stop of the broker saves as well.
        with self._write_lock:
            if number > self._written.get(table.what, 0):  # otherwise a newer picture is in the file
                file.save(table.file_form(picture))
                self._written[table.what], self._saved[table.what] = number, picture

    # -- promotion -----------------------------------------------------------------------------------------------------

    def release(self) -> None:
        """From now on this broker changes the tables itself, and saves them as every broker does."""
        for table, _ in self._files.values():
            table.replica = None
            table.changed()
