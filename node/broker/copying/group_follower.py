"""What a group's leader does to follow a master: as a slave does, but into the group's log, for one leadership."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

from tallystick.node.broker.copying.followed_log import FollowedComparison, FollowedLog
from tallystick.node.broker.copying.follower import Follower, check_settings
from tallystick.node.broker.copying.master import Master
from tallystick.node.broker.copying.protocol import ALL_FROM, Comparison, CopyError, CopyProblem
from tallystick.node.broker.copying.tables import CopiedTables
from tallystick.node.core.migration import OLD_MASTER_ID

if TYPE_CHECKING:
    from tallystick.node.broker.broker import Broker
    from tallystick.node.broker.copying.place_table import CopyTable
    from tallystick.node.broker.group.group_role import BrokerGroup
    from tallystick.node.broker.tables.saving import ReplicatedTable
    from tallystick.node.remoting.client import RemotingClient

_LOOK_S = 0.05


class GroupTablesCopy(CopiedTables):
    """The copied tables of a group: changes are entries of its log."""

    def __init__(self, tables: Iterable[ReplicatedTable]) -> None:
        super().__init__(())
        self._tables = {table.what: table for table in tables}

    def all(self) -> Iterable[ReplicatedTable]:
        """See `CopiedTables`."""
        return self._tables.values()

    async def save(self) -> None:
        """See `CopiedTables`: returns when the changes are committed. OSError."""
        for table in self._tables.values():
            table.changed()
            await table.saved()


class GroupFollower(Follower):
    """The copy of one leadership of `group`. `start` it once; `halt` ends it at once, and `stop` waits for its end."""

    log: FollowedLog

    def __init__(
        self,
        broker: Broker,
        group: BrokerGroup,
        client: RemotingClient,
        table: CopyTable,
        tables: Iterable[ReplicatedTable],
    ) -> None:
        self._own_log = FollowedLog(broker, group, table)
        super().__init__(broker, client, GroupTablesCopy(tables), self._own_log, self._own_log.begin_at)
        self._group, self._table = group, table
        self._own_log.on_room = self._go_on
        self._halted = False
        self._idle: set[tuple[str, int]] | None = None  # queues without a message, whose ends were asked for
        group.member.on_commit.append(self._committed)

    @property
    def is_started(self) -> bool:
        """Whether it copies, or tries to."""
        return bool(self._tasks)

    def start(self) -> None:
        """See `Follower`. Nothing happens after `halt`: the log may have another end since then."""
        if not self._halted:
            super().start()

    def halt(self) -> None:
        """This member does not lead any longer: takes nothing from now on, not even what has arrived."""
        if self._halted:
            return
        self._halted = True
        self._group.member.on_commit.remove(self._committed)
        for task in self._tasks:
            task.cancel()
        self.cut()

    async def stop(self) -> None:
        """See `Follower`. Where the log ends is known afterwards, also if no master ever answered.

        CopyError, OSError: it cannot be found out."""
        await super().stop()
        await self._own_log.close()
        if not self._halted and not self._own_log.is_located:
            await self._locate()

    async def _locate(self) -> None:
        self._own_log.write()
        await asyncio.to_thread(self._own_log.locate)

    def cut(self) -> None:
        """The log lost its end, or must not grow: ends the connection, and begins with what the log says."""
        if self._link is not None:
            self._link.end(CopyError(CopyProblem.DISK, "the group's log was cut back to what it could write"))

    def _own_ids(self) -> Collection[int]:
        status = self._group.member.status()
        return {number + 1 for number in (*status.voters, *status.learners)} | {OLD_MASTER_ID}

    def _part(self) -> None:
        super()._part()
        self._own_log.reader.close()

    # -- steps of `Follower` -------------------------------------------------------------------------------------------

    def _tell_safe(self, callback: Callable[[], None] | None) -> None:
        """See `Follower`: `_committed` reports."""

    def _committed(self, _: int) -> None:
        self._on_safe()
        self._go_on()

    @property
    def _segment_bytes(self) -> int:
        return self._own_log.segment_bytes

    async def _prepare(self, theirs: dict[str, str]) -> None:
        size = theirs.get("mappedFileSizeCommitLog", "")
        if size.isdecimal() and int(size) >= 64:  # the group's own may differ: its log is another one
            self._own_log.segment_bytes = int(size)
        check_settings(self._broker, theirs, own_segment_bytes=self._own_log.segment_bytes)
        await self._locate()

    async def _comparison(self) -> tuple[int, Comparison | FollowedComparison]:
        comparison = await asyncio.to_thread(self._own_log.comparison, again=self._was_compared)
        return max(ALL_FROM, comparison.begin), comparison

    def _agree(self) -> None:
        super()._agree()
        self._table.set_master(self._address, self._ha_address)

    def _took(self) -> None:
        if self._link is not None:
            self._link.pause(self._own_log.is_full)

    def _go_on(self) -> None:
        """Takes what waits, when there is room again."""
        link = self._link
        if link is None or self._halted or self._own_log.is_full:
            return
        try:
            self._records.take(b"")
        except CopyError as error:
            link.end(error)
        except OSError as error:
            link.end(CopyError(CopyProblem.DISK, str(error)))
        else:
            link.pause(self._own_log.is_full)

    async def copy_tables(self, master: Master) -> None:
        """See `Follower`."""
        self._idle = None  # asked for once more
        await super().copy_tables(master)

    async def _copy_tables_once(self, master: Master) -> None:
        """See `Follower`. Also takes the ends of queues that no longer have a message."""
        await super()._copy_tables_once(master)
        await self._copy_ends(master)

    async def _copy_ends(self, master: Master) -> None:
        own = self._broker.store.queues
        idle = {
            (name, queue_id)
            for name, topic in self._broker.topics.items()
            for queue_id in range(max(topic.read_queue_nums, topic.write_queue_nums))
            if own.max_offset(name, queue_id) == 0
        }
        if idle == self._idle:
            return
        ends: dict[tuple[str, int], int] = {}
        for name in sorted({name for name, _ in idle}):
            found = await master.queue_ends(name)
            ends |= {(name, queue_id): end for queue_id, end in found.items() if end > 0 and (name, queue_id) in idle}
        self._table.set_ends(ends)
        await self._table.saved()
        self._idle = idle

    async def _reach(self, pos: int) -> None:
        while self.log.safe_end < pos or not self.is_copying:  # noqa: ASYNC110  # the log has no event
            await asyncio.sleep(_LOOK_S)

    def _dispatched(self) -> int:
        return self._own_log.dispatched_end
