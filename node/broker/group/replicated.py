"""The tables of a broker that is a member of a group: stored in the group's log, equal on every member (B5).

    leader    change ─▶ live table ─▶ staged entry ─▶ log ─▶ committed ─┐
    follower            live table ◀─ rows that changed ◀───────────────┴─▶ committed pictures ─▶ files

A leader's live tables are ahead of the committed ones. Topics and groups are staged at the moment of the change, so
that they precede the message that created them; offsets are staged at intervals. When leadership is lost, the live
tables return to the committed state, and follow it from then on. A member that does not lead changes no table.

A leader that becomes ready stages what its tables have and the log lacks: everything in a new group (so a broker's
topics are kept when it becomes the first leader), and topics that a new setting adds later.

Files: `tally-metadata` has the committed tables with their index, and a start continues from it. The files with
RocketMQ's names beside it are copies of the same tables for people, tools, and a return to RocketMQ; a member reads
them only if there is no `tally-metadata`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tallystick.node.broker.tables.saving import NotReplicatedError, ReplicatedTable, TableFile
from tallystick.replication.member.errors import NotAcceptingError, OutcomeUnknownError
from tallystick.replication.metadata import snapshot
from tallystick.replication.metadata.entry import TablePatch
from tallystick.replication.metadata.merge_patch import PatchError, Picture
from tallystick.replication.metadata.staging import StagedTables
from tallystick.replication.metadata.tables import ReplicatedTables
from tallystick.store.formats.ledger_format import EntryKind

if TYPE_CHECKING:
    from tallystick.store._kernel import Door

_logger = logging.getLogger("tallystick.broker.group")

SAVE_PERIOD_S = 5.0
"""How often changed committed tables are written to their files. A start applies the entries since."""


class Proposer(Protocol):
    """What tables need from a member: `tallystick.replication.member.member.Member`."""

    @property
    def accepting(self) -> bool: ...

    @property
    def committed_index(self) -> int: ...

    def propose(self, kind: EntryKind, body: bytes) -> int: ...

    async def committed(self, index: int) -> None: ...


class GroupTables:
    """All replicated tables of one member. The owner connects the member's callbacks to the `on_...` methods.

    Every table informs its own listeners when it takes committed rows (`TopicTable.on_change`).
    """

    def __init__(
        self,
        member: Proposer,
        committed: ReplicatedTables,
        tables: Iterable[tuple[ReplicatedTable, TableFile]],
        *,
        door: Door,
        folder: Path,
    ) -> None:
        """`committed`: the loaded tables. Tables that it contains are set to it; the others stay as they are.

        Raises ValueError or TypeError for a picture that its table cannot take.
        """
        self.committed = committed
        self.saved_index = committed.applied_index
        """Entries up to here are in the files: the tables do not need the log before (D10)."""
        self._member = member
        self._tables = {table.what: table for table, _ in tables}
        self._files = {table.what: file for table, file in tables}
        self._door = door
        self._folder = folder
        self._staged: StagedTables | None = None  # not None while this member leads
        self._waiting: dict[str, set[str] | None] = {}  # changed and not staged: rows by table; None: all
        self._last_index: dict[str, int] = {}  # of the last entry staged, by table
        self._under_way: deque[tuple[int, bytes]] = deque()  # entries staged and not applied yet, by index
        self._unfit: dict[str, str] = {}  # by table: why its changes fit into no entry
        self._restored: ReplicatedTables | None = None
        self._saving = asyncio.Lock()
        self._pictures_in_files: dict[str, Picture] = {}
        for table in self._tables.values():
            table.replica = self
        self._take_all()

    def all(self) -> list[ReplicatedTable]:
        return list(self._tables.values())

    # -- called by tables ----------------------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        return self._staged is not None

    def changed(self, table: ReplicatedTable, *rows: str) -> None:
        """See `TableReplica.changed`."""
        if self._staged is None:
            return
        waiting = self._waiting.setdefault(table.what, set())
        if not rows:
            self._waiting[table.what] = None
        elif waiting is not None:
            waiting.update(rows)
        if table.at_once:
            self._stage(table)

    def staged(self, table: ReplicatedTable, row: str) -> bool:
        """See `TableReplica.staged`."""
        if self._staged is None or table.what not in self._waiting:
            return True
        waiting = self._waiting[table.what]
        return waiting is not None and row not in waiting

    async def saved(self, table: ReplicatedTable) -> None:
        """See `TableReplica.saved`."""
        if self._staged is None:
            return
        if not self._stage(table):
            raise NotReplicatedError(f"{table.what}: the group accepts no entries now; retrying")
        if (reason := self._unfit.pop(table.what, None)) is not None:
            raise NotReplicatedError(f"{table.what}: {reason}")
        index = self._last_index.get(table.what)
        if index is None:
            return
        try:
            await self._member.committed(index)
        except (OutcomeUnknownError, NotAcceptingError) as error:
            raise NotReplicatedError(f"{table.what}: {error}") from error

    def _stage(self, table: ReplicatedTable) -> bool:
        """Puts the changed rows of a table into the log. False if the log accepts nothing now: the rows wait."""
        staged, what = self._staged, table.what
        if staged is None or what not in self._waiting:
            return True
        if not self._member.accepting:
            return False
        rows = self._waiting.pop(what)
        try:
            if rows is None:
                bodies = staged.replace(what, table.picture())
            else:
                named = {name: table.row_json(name) for name in rows}
                bodies = staged.replace_rows(what, table.rows_field, named, table.head_json())
        except PatchError as error:
            _logger.error("%s cannot be replicated: %s", what, error)
            self._unfit[what] = str(error)
            return True
        for body in bodies:
            try:
                self._last_index[what] = self._member.propose(EntryKind.METADATA, body)
            except NotAcceptingError as error:
                _logger.warning("%s is not replicated yet: %s", what, error)
                self._waiting.setdefault(what, rows)  # all rows, if the log dropped what was staged
                return False
            staged.took(body)
            self._under_way.append((self._last_index[what], body))
        table.gate.release(table.row_names() if rows is None else rows)
        return True

    # -- events of the member ------------------------------------------------------------------------------------------

    def on_apply(self, index: int, kind: EntryKind, body: bytes) -> TablePatch | None:
        """Applies a committed entry that is not a message; returns its change. MetadataError: the member must stop."""
        if kind != EntryKind.METADATA:
            self.committed.pass_over(index)
            return None
        while self._under_way and self._under_way[0][0] <= index:
            self._under_way.popleft()
        new = {what for what in self._tables if not self.committed.picture(what)}
        change = self.committed.apply(index, body)
        if change is None or self.leads:
            return change
        table = self._tables.get(change.table)
        if table is not None:
            rows = None if change.table in new else change.patch.get(table.rows_field, {})
            table.take(self.committed.picture(change.table), rows)
        return change

    def on_ready(self) -> None:
        """This member leads, and all earlier entries are applied."""
        self._staged = StagedTables(self.committed)
        self._last_index.clear()
        self._under_way.clear()
        self._unfit.clear()
        self._waiting = dict.fromkeys(self._tables)  # all rows: what the log lacks is staged
        self.stage_all()

    def stage_all(self) -> bool:
        """Puts what waits into the log, as far as it is accepted. Called when the member accepts again, before sends
        do.

        False if the log did not accept everything. Rows of offsets continue to wait for their interval.
        """
        due = [table for table in self._tables.values() if table.at_once or self._is_new(table)]
        return all(self._stage(table) for table in due)

    def stage_rest(self) -> None:
        """Puts everything that waits into the log, regardless of intervals, as far as it is accepted."""
        for table in self._tables.values():
            self._stage(table)

    def _is_new(self, table: ReplicatedTable) -> bool:
        return self._waiting.get(table.what, ()) is None

    def on_lost(self) -> None:
        """Leadership is lost: returns to the committed state."""
        if self._staged is None:
            return
        self._staged = None
        self._waiting.clear()
        self._last_index.clear()
        self._under_way.clear()
        self._take_all()

    def on_abandoned(self, last_index: int) -> None:
        """The log dropped what was staged behind this entry, because the disk was full: no row in it is staged.

        A member that continues to lead stages these rows again before the next message.
        """
        if self._staged is None or not self._under_way or self._under_way[-1][0] <= last_index:
            return
        while self._under_way and self._under_way[-1][0] > last_index:
            self._under_way.pop()
        self._staged = StagedTables(self.committed)
        for _, body in self._under_way:
            self._staged.took(body)
        self._waiting = dict.fromkeys(self._tables)

    def _take_all(self) -> None:
        for table in self._tables.values():
            # A table that the group never wrote stays as its file had it: the first leader adds its own.
            if picture := self.committed.picture(table.what):
                table.take(picture)

    # -- files ---------------------------------------------------------------------------------------------------------

    def encoded(self) -> bytes:
        """The committed tables, for a member that starts from a snapshot (L11)."""
        return snapshot.encode(self._point())

    def restore(self, data: bytes) -> int:
        """Durably replaces this member's tables; returns their applied index. Blocks. MetadataError, OSError.

        `on_installed` sets the live tables to them, on the event loop.
        """
        restored = snapshot.decode(data)
        snapshot.save(self._door, self._folder, data)
        self._restored = restored
        return restored.applied_index

    def on_installed(self) -> None:
        """The log starts at the restored snapshot."""
        assert self._restored is not None, "a snapshot contains its tables"
        self.committed, self._restored = self._restored, None
        self.saved_index = self.committed.applied_index
        self._take_all()

    def _point(self) -> ReplicatedTables:
        """The present committed tables, which later entries do not change."""
        point = ReplicatedTables(self.committed.applied_index, self.committed.pictures())
        point.pass_over(self._member.committed_index)  # messages since the last entry of a table
        return point

    async def save(self) -> None:
        """Writes the committed tables to their files. OSError: the previous files can still be loaded."""
        async with self._saving:
            point = self._point()
            if point.applied_index <= self.saved_index:
                return
            writing = asyncio.ensure_future(asyncio.to_thread(self._save, point))
            try:
                await asyncio.shield(writing)
            except asyncio.CancelledError:
                # The thread continues, and the next save would write the same temporary file at the same time.
                await asyncio.wait([writing])
                raise
            self.saved_index = max(self.saved_index, point.applied_index)

    def _save(self, point: ReplicatedTables) -> None:
        snapshot.save(self._door, self._folder, snapshot.encode(point))
        for what, picture in point.pictures().items():
            # A picture is never changed in place: the same object has the same content.
            if what in self._files and self._pictures_in_files.get(what) is not picture:
                self._files[what].save(self._tables[what].file_form(picture))
                self._pictures_in_files[what] = picture
