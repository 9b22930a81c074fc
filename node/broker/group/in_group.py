"""A broker whose messages and tables a group of members replicates: what that changes at its start and stop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Protocol

from tallystick.node.broker.group import queue_ends
from tallystick.node.broker.group.group_role import BrokerGroup
from tallystick.node.broker.group.leader_only import LeaderOnly
from tallystick.node.broker.tables.saving import NoFile

if TYPE_CHECKING:
    from tallystick.node.broker.broker import Broker
    from tallystick.node.broker.services.table_files import TableFiles
    from tallystick.node.broker.slaves.server import SlaveServer
    from tallystick.node.broker.tables.saving import ReplicatedTable
    from tallystick.node.remoting.connection import Connection
    from tallystick.node.remoting.endpoint import Handler
    from tallystick.replication.member.member import Member
    from tallystick.replication.metadata.tables import ReplicatedTables

_logger = logging.getLogger("tallystick.broker")

_HAND_OVER_S = 10.0  # then a leader stops without a successor; a hand-over usually takes 0.1 s


class CopyOfMaster(Protocol):
    """A group may follow a master of RocketMQ: `copying.group_copy.GroupCopy`. One member's part in it."""

    @property
    def table(self) -> ReplicatedTable:
        """What the group knows of the master."""

    @property
    def copies(self) -> bool:
        """Whether this member leads, and its group follows a master."""

    def join(self, broker: Broker, group: BrokerGroup, copied: Iterable[ReplicatedTable]) -> None:
        """This is the copy of `group`'s member; `copied`: the tables that come from the master."""

    def guard(self, routes: dict[int, Handler]) -> dict[int, Handler]:
        """The same requests, of which those that change something are refused while the group follows."""

    def unready(self) -> str | None:
        """Why the copy does not serve reads well; None if it does."""

    async def leave(self) -> None:
        """The broker will stop: completes what is in progress."""

    async def stop(self) -> None:
        """Ends the copy for good."""


class InGroup:
    """The `Role` of a member. Owns the broker's part in the group, and the requests that only the leader serves."""

    has_pictures = True
    group: BrokerGroup | None = None
    slaves: SlaveServer | None = None
    _broker: Broker
    _group: BrokerGroup
    _leader_only: LeaderOnly

    def __init__(self, member: Member, committed: ReplicatedTables, copy: CopyOfMaster) -> None:
        """`committed`: the group's tables when they were saved last."""
        self._member, self._committed = member, committed
        self.copy = copy

    def join(self, broker: Broker, files: TableFiles, routes: dict[int, Handler]) -> dict[int, Handler]:
        """See `Role`. The group's log completes the tables."""
        self._broker = broker
        copied = (broker.topics, broker.groups, broker.offsets, broker.schedule.offsets)
        replicated = (*copied, broker.expiry.offsets)
        access = broker.access
        accounts = [(access.table, NoFile())] if access is not None and access.table is not None else []
        self.group = self._group = BrokerGroup(
            broker,
            self._member,
            self._committed,
            # A new leader stages them in this order. Whether the group follows a master comes before all else.
            [(self.copy.table, NoFile()), *accounts, *((table, files.file(table.what)) for table in replicated)],
            (broker.schedule, broker.timers, broker.transactions, broker.expiry),
            door=broker.store.door,
            folder=broker.store.root / "config",
            address=str(broker.advertised),
        )
        self.copy.join(broker, self._group, copied)
        self._leader_only = LeaderOnly(self.copy.guard(routes), broker, self._group)
        return self.copy.guard(self._leader_only.routes)

    # -- what the member asks for --------------------------------------------------------------------------------------

    def saved_index(self) -> int:
        """The last entry whose effect on the tables is in their file."""
        return self._group.tables.saved_index

    def state(self) -> bytes:
        """All that a member needs beside the log when it begins behind the log's begin (L11)."""
        ends = self._broker.store.group.ends_before(self._member.ledger.base.pos)
        return queue_ends.joined(ends, self._group.tables.encoded())

    def take_state(self, state: bytes) -> int:
        """Saves the state durably and returns its applied index. Blocks. The ends of the queues are used from the next
        start on, which follows."""
        ends, tables = queue_ends.parted(state)
        store = self._broker.store
        queue_ends.save(store.door, store.root / "config", ends)
        return self._group.tables.restore(tables)

    # -- the role ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """See `Role`. The timers start with leadership."""
        self._group.start()

    def look(self) -> None:
        """See `Role`."""
        self._group.look_at_disk()

    def failure(self) -> str | None:
        """See `Role`."""
        return self._broker.store.admission.failure() if self._group.fatal is None else self._group.fatal

    def unready(self) -> str | None:
        """See `Role`: None also for a member that follows a leader closely."""
        if self.copy.copies:
            return self.failure() or self.copy.unready()
        return self._broker.store.admission.trouble() if self._group.leads else self._group.unready()

    def closed(self, connection: Connection) -> None:
        """See `Role`."""
        self._leader_only.closed(connection)

    async def leave(self) -> None:
        """See `Role`: a leader hands over its leadership."""
        await self.copy.leave()
        begin = time.perf_counter()
        try:
            async with asyncio.timeout(_HAND_OVER_S):
                successor = await self._group.hand_over()
        except TimeoutError:
            _logger.warning("stopping as leader: no other member took over within %.0f s", _HAND_OVER_S)
        else:
            if successor is not None:
                _logger.info("handed leadership to n%d in %.0f ms", successor, (time.perf_counter() - begin) * 1000)

    async def linger(self, connections: Callable[[], Collection[Connection]]) -> None:
        """See `Role`: clients may consider this member the master until they use new routes."""
        await self._leader_only.linger(connections, self._broker.settings.groupLingerMills / 1000)

    async def stop(self) -> None:
        """See `Role`."""
        await self.copy.stop()
        await self._leader_only.stop()

    async def save(self) -> None:
        """See `Role`. The filters alone are not in the group's log."""
        await self._group.stop()
        await self._broker.filters.try_save()
