"""The role of a slave: it copies its master, serves reads, refuses changes, and may become a master.

Until then no timer runs and no table is changed here: delayed messages and transactions are the master's. Afterwards
everything is as in a broker that started as a master (`role.Alone`), to which this role passes all calls on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tallystick.node.broker.copying import beginning
from tallystick.node.broker.copying.follower import Follower
from tallystick.node.broker.copying.promotion import Promotion
from tallystick.node.broker.copying.tables import CopiedTables
from tallystick.node.broker.group.leader_only import CHANGES
from tallystick.node.broker.role import Alone
from tallystick.node.core import kept_settings
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.store.settings import BrokerRole

if TYPE_CHECKING:
    from tallystick.node.broker.broker import Broker
    from tallystick.node.broker.group.group_role import BrokerGroup
    from tallystick.node.broker.services.table_files import TableFiles
    from tallystick.node.broker.slaves.server import SlaveServer
    from tallystick.node.remoting.command import Command
    from tallystick.node.remoting.connection import Connection
    from tallystick.node.remoting.endpoint import Handler

_logger = logging.getLogger("tallystick.broker")

_ADMINISTRATION = frozenset({RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, RequestCode.CLEAN_UNUSED_TOPIC})
"""What changes the store and is served by every member of a group, and by no slave."""
_REFUSED = CHANGES | _ADMINISTRATION


class SlaveRole:
    """The `Role` of a slave. Owns the copy, and the role that it has after its promotion."""

    has_pictures = False
    group: BrokerGroup | None = None
    slaves: SlaveServer | None = None
    broker: Broker
    follower: Follower

    def __init__(self, slave_listeners: Sequence[socket.socket] = ()) -> None:
        self._alone = Alone(slave_listeners)
        self.is_master = False
        """Whether it was promoted."""
        self.copied_end = 0
        """Where the log ended when this broker was promoted."""
        self._promoting = asyncio.Lock()

    def join(self, broker: Broker, files: TableFiles, routes: dict[int, Handler]) -> dict[int, Handler]:
        """See `Role`. Lost tables come from the master."""
        self.broker = broker
        self._alone.take(broker)
        tables = (broker.topics, broker.groups, broker.offsets, broker.schedule.offsets)
        copied = CopiedTables((table, files.file(table.what)) for table in tables)
        self.follower = Follower(broker, copied, self._begin_copy_at)
        return {
            code: self._guarded(handler) if code in _REFUSED else handler
            for code, handler in routes.items()
            if code != RequestCode.RELAYED_HEART_BEAT
        }

    def _guarded(self, handler: Handler) -> Handler:
        def handle(connection: Connection, command: Command) -> object:
            if self.is_master:
                return handler(connection, command)
            remark = f"this broker is a slave of {self.follower.to_json()['master'] or 'a master that is not known'}"
            return command.reply(ResponseCode.SERVICE_NOT_AVAILABLE, ext={}, remark=remark)

        return handle  # type: ignore[return-value]  # whatever the handler returns

    def to_json(self) -> dict[str, object]:
        """For GET /node."""
        if self.is_master:
            return {"state": "promoted", "reason": None, "lasting": False, "promotedAtPos": self.copied_end}
        return self.follower.to_json()

    async def start(self) -> None:
        """See `Role`."""
        self.follower.start()

    # -- promotion -----------------------------------------------------------------------------------------------------

    async def promote(self, *, master_is_stopped: bool = False) -> dict[str, object]:
        """Takes the master's place. PromotionError. Figures; of a broker that is promoted already, `end` alone."""
        async with self._promoting:
            if self.is_master:
                return {"end": self.copied_end}
            return await Promotion(self).run(master_is_stopped=master_is_stopped)

    async def take_back(self) -> dict[str, object]:
        """See `Promotion.take_back`."""
        async with self._promoting:
            return await Promotion(self).take_back()

    async def become_master(self) -> None:
        """Decides that this broker is the master, durably, and accepts puts. The copy is stopped and settled. OSError:
        it is still a slave."""
        broker, store = self.broker, self.broker.store
        await store.flush()
        changes = {"brokerRole": BrokerRole.ASYNC_MASTER.name, "brokerId": "0"}
        await asyncio.to_thread(kept_settings.keep_settings, broker.kept_settings, changes)
        # Nothing is awaited until this broker is a master in all respects but its timers.
        self.is_master, self.copied_end = True, store.log.written
        self.follower.log.own()
        self.follower.tables.release()
        broker.take_role(0, 0)
        store.change_settings(replace(store.settings, brokerRole=BrokerRole.ASYNC_MASTER))
        self._alone.open_for_slaves()
        broker.slaves = self.slaves = self._alone.slaves
        broker.start_serving()
        await self._alone.start()

    # -- the role ------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """See `Role`."""

    def failure(self) -> str | None:
        """See `Role`."""
        return self._alone.failure()

    def unready(self) -> str | None:
        """See `Role`."""
        return self._alone.unready() if self.is_master else self.follower.unready()

    def closed(self, connection: Connection) -> None:
        """See `Role`."""

    async def leave(self) -> None:
        """See `Role`. A promotion under way is brought to its end."""
        async with self._promoting:
            pass

    async def linger(self, connections: Callable[[], Collection[Connection]]) -> None:
        """See `Role`."""

    async def stop(self) -> None:
        """See `Role`."""
        await self.follower.close()
        if self.is_master:
            await self._alone.stop()

    async def save(self) -> None:
        """See `Role`. The tables of a slave are in their files since they were copied."""
        if self.is_master:
            await self._alone.save()
            return
        with contextlib.suppress(OSError):  # the log is flushed once more when the store is closed, which reports it
            await self.broker.store.flush()
        await self.broker.filters.try_save()

    def _begin_copy_at(self, pos: int) -> None:
        """The log of the master begins at `pos`, and this one is empty: the next start of the broker begins there."""
        store = self.broker.store
        try:
            beginning.plan(store.door, store.settings, pos)
        except OSError as error:
            _logger.error("the position at which the master's log begins could not be saved: %s", error)
            return
        for restart in self.broker.on_restart:
            restart()
