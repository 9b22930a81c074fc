"""The role of a slave: it copies its master, serves reads, refuses changes, and may become a master.

Until then no timer runs and no table is changed here: delayed messages and transactions are the master's. Afterwards
everything is as in a broker that started as a master (`role.Alone`), to which this role passes all calls on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from tallystick.node.broker.copying import beginning
from tallystick.node.broker.copying.follower import Follower
from tallystick.node.broker.copying.old_master import LATE_OFFSETS_S, OldMasterWatch
from tallystick.node.broker.copying.promotion import Promotion, PromotionError
from tallystick.node.broker.copying.record import RecordFile
from tallystick.node.broker.copying.tables import CopiedTables
from tallystick.node.broker.group.leader_only import CHANGES
from tallystick.node.broker.services.rebuilding import all_queues, missing_topics
from tallystick.node.core import kept_settings
from tallystick.node.remoting.client import RemotingClient
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.store.engine.log_copy import LogCopy
from tallystick.store.settings import BrokerRole

if TYPE_CHECKING:
    from tallystick.node.broker.broker import Broker
    from tallystick.node.broker.group.group_role import BrokerGroup
    from tallystick.node.broker.role import Alone
    from tallystick.node.broker.services.table_files import TableFiles
    from tallystick.node.broker.slaves.server import SlaveServer
    from tallystick.node.remoting.command import Command
    from tallystick.node.remoting.connection import Connection
    from tallystick.node.remoting.endpoint import Handler

_logger = logging.getLogger("tallystick.broker")

_MOST_NAMED = 20
_ADMINISTRATION = frozenset({RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, RequestCode.CLEAN_UNUSED_TOPIC})
"""What changes the store and is served by every member of a group, and by no slave."""
REFUSED = CHANGES | _ADMINISTRATION
"""What a slave refuses."""


class SlaveRole:
    """The `Role` of a slave. Owns the copy, and the role that it has after its promotion."""

    has_pictures = False
    group: BrokerGroup | None = None
    slaves: SlaveServer | None = None
    broker: Broker
    follower: Follower

    def __init__(self, record_file: RecordFile, alone: Alone, *, promoted: bool) -> None:
        """`alone`: the role after the promotion. `promoted`: it is a master since an earlier process."""
        self._alone = alone
        self.record_file = record_file
        self.is_master = promoted
        """Whether it was promoted."""
        self._promoting = asyncio.Lock()

    @property
    def copies(self) -> bool:
        """Whether it copies a master, or tries to."""
        return not self.is_master

    @property
    def copied_end(self) -> int:
        """Where the log ended when this broker was promoted."""
        return 0 if self._old_master.record is None else self._old_master.record.ended_at

    @property
    def counterpart(self) -> str:
        """Address of the master that is copied, or whose place was taken; empty: it is not known."""
        if self.is_master:
            return "" if self._old_master.record is None else self._old_master.record.master
        return "" if self.follower.master is None else self.follower.master.address

    def join(self, broker: Broker, files: TableFiles, routes: dict[int, Handler]) -> dict[int, Handler]:
        """See `Role`. Lost tables come from the master."""
        self.broker = broker
        self._client = RemotingClient(name="broker.copy", sign=broker.sign, tls=broker.client_context)
        self._old_master = OldMasterWatch(broker, self._client, self.record_file)
        if self.is_master:
            routes = self._alone.join(broker, files, routes)
            self.slaves = self._alone.slaves
            return routes
        self._alone.take(broker)
        tables = (broker.topics, broker.groups, broker.offsets, broker.schedule.offsets)
        copied = CopiedTables((table, files.file(table.what)) for table in tables)
        self.follower = Follower(broker, self._client, copied, LogCopy(broker.store), self._begin_copy_at)
        broker.registration.on_master = self.follower.on_master
        return {
            code: self._guarded(handler) if code in REFUSED else handler
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
        if not self.is_master:
            self.follower.start()
            return
        await self._alone.start()
        self._old_master.begin(self.record_file.load(), late_offsets_s=0.0)

    # -- promotion -----------------------------------------------------------------------------------------------------

    async def promote(self, *, master_is_stopped: bool = False) -> dict[str, object]:
        """Takes the master's place, or what is left to do of it. Returns figures. PromotionError."""
        async with self._promoting:
            if self.is_master:
                return {"end": self.copied_end, "strayBytes": await self.hand_over()}
            return await Promotion(self).run(master_is_stopped=master_is_stopped)

    async def take_back(self) -> dict[str, object]:
        """See `Promotion.take_back`."""
        async with self._promoting:
            if self.is_master:
                raise PromotionError("this broker is the master: only RocketMQ as its slave can take its place")
            return await Promotion(self).take_back()

    async def become_master(self, master: str) -> None:
        """Decides that this broker takes the place of `master`, durably, and accepts puts. The copy is stopped and
        settled. OSError: it is still a slave."""
        broker, store = self.broker, self.broker.store
        await store.flush()
        record = await self.record_file.loaded()
        record = replace(record, master=master, number=broker.settings.brokerId, ended_at=store.log.written)
        await self.record_file.saved(record)
        changes = {"brokerRole": BrokerRole.ASYNC_MASTER.name, "brokerId": "0"}
        await asyncio.to_thread(kept_settings.keep_settings, broker.kept_settings, changes)
        # Nothing is awaited until this broker is a master in all respects but its timers.
        self.is_master = True
        assert isinstance(self.follower.log, LogCopy)
        self.follower.log.own()
        self.follower.tables.release()
        broker.registration.on_master = None
        broker.take_role(0, 0)
        store.change_settings(replace(store.settings, brokerRole=BrokerRole.ASYNC_MASTER))
        self._alone.open_for_slaves()
        broker.slaves = self.slaves = self._alone.slaves
        if not record.before:
            self._add_missing_topics()
        broker.start_serving()
        await self._alone.start()
        self._old_master.begin(record, late_offsets_s=LATE_OFFSETS_S)

    def _add_missing_topics(self) -> None:
        """The master died: topics that it made since the tables were copied last have messages and no row."""
        topics, default = self.broker.topics, self.broker.settings.defaultTopicQueueNums
        found = missing_topics(topics, all_queues(self.broker), {}, default)
        topics.update(*found)
        if found:
            names = ", ".join(each.topic_name for each in found[:_MOST_NAMED])
            _logger.warning("%d topics that were not copied get default settings: %s", len(found), names)

    async def hand_over(self) -> int:
        """See `OldMasterWatch.hand_over`."""
        return await self._old_master.hand_over()

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
        """See `Role`. A promotion in progress is completed first."""
        async with self._promoting:
            pass

    async def linger(self, connections: Callable[[], Collection[Connection]]) -> None:
        """See `Role`."""

    async def stop(self) -> None:
        """See `Role`."""
        self._old_master.end()
        if self.is_master:
            await self._alone.stop()
        else:
            await self.follower.stop()
        await self._client.close(grace_s=0.0)

    async def save(self) -> None:
        """See `Role`."""
        if self.is_master:
            await self._alone.save()
            return
        with contextlib.suppress(OSError):  # the log is flushed once more when the store is closed, which reports it
            await self.broker.store.flush()
        try:
            await self.follower.tables.save()
        except OSError as error:
            _logger.error("a table could not be saved, it is copied again: %s", error)
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
