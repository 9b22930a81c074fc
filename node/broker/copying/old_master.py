"""Watches the master whose place was taken, until it is fenced and registered under another id.

A fenced master of RocketMQ still registers with id 0, every 10 to 60 seconds. One that was dead at the promotion
may be started again, and accept messages. Both would divide the clients between two masters. So the promoted broker
asks the old address again and again, in every process from its promotion on, and makes what answers there a slave.

Consumers commit offsets to the old master until they use new routes (30 s by default). These offsets are taken, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tallystick.node.broker.copying.master import Master, MasterError
from tallystick.node.broker.tables.offsets import SEPARATOR, ConsumerOffsets
from tallystick.node.remoting.codes import RequestCode
from tallystick.store.fastjson import int_keys

if TYPE_CHECKING:
    from tallystick.node.broker.broker import Broker
    from tallystick.node.broker.copying.record import Record, Records
    from tallystick.node.remoting.client import RemotingClient

_logger = logging.getLogger("tallystick.broker")

LOOK_S = 2.0
LATE_OFFSETS_S = 120.0
FENCE = {"brokerRole": "SLAVE", "slaveReadEnable": "true"}


class OldMaster:
    """The old master of a promoted broker. `run` ends when it was handed over, and its late offsets were taken.

    Until then it is fenced again whenever it is not: what an earlier promotion sent to take its fence back may be late.
    """

    def __init__(
        self,
        master: Master,
        broker_name: str,
        file: Records,
        record: Record,
        copied: Mapping[str, Mapping[int, int]] | None = None,
    ) -> None:
        """`copied`: the offsets that were copied last; None: they are not known."""
        self.record = record
        self._master = master
        self._broker_name = broker_name
        self._file = file
        self._offsets = copied
        self._stray_bytes = 0

    async def run(self, offsets: ConsumerOffsets, *, late_offsets_s: float) -> None:
        """Looks at once, and then every `LOOK_S`."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + late_offsets_s
        while not self.record.handed_over or loop.time() < until_s:
            try:
                await self.hand_over()
                if loop.time() < until_s:
                    self.take_late(offsets, await self._master.table(RequestCode.GET_ALL_CONSUMER_OFFSET))
            except (MasterError, OSError) as error:
                _logger.debug("the old master: %s", error)
            await asyncio.sleep(LOOK_S)

    async def hand_over(self) -> int:
        """Makes the broker at the old address a slave, if it is the old master. The bytes that it stored behind the
        copied log. MasterError, OSError."""
        theirs = await self._master.settings()
        if theirs.get("brokerName") != self._broker_name:
            raise MasterError(f"{self._master.address} is now the broker {theirs.get('brokerName')}")
        number = str(self.record.number)
        if theirs.get("brokerRole") != "SLAVE" or theirs.get("brokerId") == "0":
            # RocketMQ registers at once when a change names the permission.
            permission = theirs.get("brokerPermission", "6")
            await self._master.change(FENCE | {"brokerId": number, "brokerPermission": permission})
            theirs = await self._master.settings()
            if theirs.get("brokerRole") != "SLAVE" or theirs.get("brokerId") == "0":
                raise MasterError(f"{self._master.address} did not become a slave")
            _logger.warning("the old master %s is a slave now, with id %s", self._master.address, number)
        if not self.record.handed_over:
            self.record = replace(self.record, handed_over=True)
            await self._file.saved(self.record)
        stray = (await self._master.extent()).end - self.record.ended_at
        if stray > self._stray_bytes:
            _logger.error("the old master has %d bytes that were not copied, from %d on", stray, self.record.ended_at)
        self._stray_bytes = max(0, stray)
        return self._stray_bytes

    def take_late(self, offsets: ConsumerOffsets, table: dict[str, Any]) -> int:
        """Takes offsets that were committed to the old master since the last call, where they are ahead of those here.
        Returns how many."""
        found = {
            str(key): {queue_id: int(offset) for queue_id, offset in int_keys(queues).items()}
            for key, queues in (table.get("offsetTable") or {}).items()
        }
        before, self._offsets = self._offsets, found
        if before is None:
            return 0
        taken = 0
        for key, queues in found.items():
            topic, _, group = key.partition(SEPARATOR)
            for queue_id, offset in queues.items():
                if offset > before.get(key, {}).get(queue_id, -1) and offset > offsets.query(group, topic, queue_id):
                    offsets.commit(group, topic, queue_id, offset)
                    taken += 1
        return taken


class OldMasterWatch:
    """Watches the old master of `broker` after its promotion, in a task. `file`: where the promotion's record is."""

    def __init__(self, broker: Broker, client: RemotingClient, file: Records) -> None:
        self._broker, self._client, self._file = broker, client, file
        self._old_master: OldMaster | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def record(self) -> Record | None:
        """The record of the promotion, as far as it was done; None: `begin` was not called."""
        return None if self._old_master is None else self._old_master.record

    @property
    def has_task(self) -> bool:
        """Whether a task was started, and not ended with `end`."""
        return self._task is not None

    def begin(self, record: Record, *, late_offsets_s: float) -> None:
        """Begins with a record, in place of an earlier one. `late_offsets_s`: how long offsets that consumers commit to
        the old master are taken."""
        self.end()
        offsets = self._broker.offsets
        copied = offsets.to_json()["offsetTable"] if late_offsets_s else None
        name = self._broker.settings.brokerName
        self._old_master = OldMaster(Master(self._client, record.master), name, self._file, record, copied)
        if record.master:
            run = self._old_master.run(offsets, late_offsets_s=late_offsets_s)
            self._task = asyncio.get_running_loop().create_task(run, name="watch the old master")

    def end(self) -> None:
        """Ends the task."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def hand_over(self) -> int:
        """Makes the old master a slave, if it answers, and registers this broker again. The bytes that the old master
        stored behind the copied log, as far as they are known."""
        stray = 0
        if self._old_master is not None and self._old_master.record.master:
            try:
                stray = await self._old_master.hand_over()
            except (MasterError, OSError) as error:
                _logger.warning("the old master is not a slave yet, it is made one when it answers: %s", error)
        await self._broker.tell_name_servers()
        return stray
