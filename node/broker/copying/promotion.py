"""The promotion of a slave: it takes the place of its master, and no acknowledged message is lost or doubled.

     1  check     the copy follows closely, the master is the one that it copies, and no other slave has our id
     2  fence     the master refuses every put: `brokerRole=SLAVE` by code 25 (RocketMQ also writes it to its file)
     3  catch up  the master has stored what it accepted before the fence (`Master.stores`); the ends of both logs are
                  equal and stay equal; everything is dispatched; the last tables; the fence is still there
     4  decide    log and tables are on the disk, then the settings of this broker: brokerRole, brokerId 0
     5  serve     puts, delays, transactions, slaves; registered with all name servers as the master
     6  hand over the old master registers as a slave, with the id that this broker had

What ends before 4 leaves two slaves; the fence is taken back, or the next promotion continues, or `take_back` ends it.
From 4 on this broker is the master at each start. The master's settings before the fence are in `tally-promotion.json`
before the fence is set, so that a killed promotion can be taken back.

A master with `brokerRole=SLAVE` refuses puts in its message store, below everything that puts: sends, batches, messages
that are sent back, deliveries of delayed messages, ends of transactions. Nothing else in RocketMQ 4.8 does that while
it runs: `brokerPermission` refuses ordered topics only, and `startAcceptSendRequestTimeStamp` only sends.

Source: DefaultMessageStore.checkStoreStatus and AdminBrokerProcessor.updateBrokerConfig of RocketMQ 4.8.0, and trials.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any, Protocol

from tallystick.node.broker.copying.master import Master, MasterError
from tallystick.node.broker.copying.old_master import FENCE
from tallystick.node.broker.copying.record import Record

if TYPE_CHECKING:
    from tallystick.node.broker.broker import Broker
    from tallystick.node.broker.copying.follower import Follower
    from tallystick.node.broker.copying.record import Records

_logger = logging.getLogger("tallystick.broker")

MOST_BEHIND_BYTES = 32 << 20
"""A master is fenced only if so much is missing at most: sends fail until it is copied."""
CATCH_UP_S = 20.0
STAYS_EQUAL_S = 0.3
"""A put of a thread that waited for the lock of the log, which `Master.stores` does not show, is in the log by then."""
_LOOK_S = 0.02
_BEFORE = ("brokerRole", "slaveReadEnable", "brokerId", "brokerPermission")
"""What is changed at the master, and is taken back."""


class PromotionError(Exception):
    """The slave was not promoted; the text says why. It is still a slave."""


class Promotable(Protocol):
    """What is promoted: a slave (`slave_role.SlaveRole`), or a group that follows (`group_copy.GroupCopy`)."""

    @property
    def broker(self) -> Broker: ...

    @property
    def follower(self) -> Follower: ...

    @property
    def record_file(self) -> Records: ...

    @property
    def copied_end(self) -> int: ...

    async def become_master(self, master: str) -> None:
        """Decides durably. OSError: it was not decided. PromotionError: it is not known, or was not."""

    async def hand_over(self) -> int: ...


class Promotion:
    """Promotes `role`. Calls must not overlap."""

    def __init__(self, role: Promotable) -> None:
        self._role = role
        self._follower = role.follower
        self._file = role.record_file
        self._waits_for = "the master did not take the fence"

    async def run(self, *, master_is_stopped: bool) -> dict[str, Any]:
        """Promotes this slave; returns figures. PromotionError.

        `master_is_stopped`: no master is fenced, and what the master did not send is lost.
        """
        began_s = time.monotonic()
        master = self._follower.master
        if master_is_stopped:
            await self._without_master(master)
        else:
            if master is None or (problem := self._follower.unready()) is not None:
                raise PromotionError(f"the copy is not complete: {'no master' if master is None else problem}")
            if (conflict := await self._follower.others.conflict()) is not None:
                raise PromotionError(conflict)
            await self._fence_and_catch_up(master)
        missing = self._follower.behind_bytes
        try:
            await self._role.become_master("" if master is None else master.address)
        except OSError as error:
            self._follower.start()
            if not master_is_stopped and master is not None:
                await self._unfence(master)
            raise PromotionError(f"it cannot be saved that this broker is the master: {error}") from error
        millis = round((time.monotonic() - began_s) * 1000)
        await self._role.broker.tell_name_servers()
        stray = await self._role.hand_over()
        _logger.warning("promoted: this broker is the master, its log continues at %d", self._role.copied_end)
        return {"end": self._role.copied_end, "missingBytes": missing, "strayBytes": stray, "millis": millis}

    async def take_back(self) -> dict[str, Any]:
        """Lets a master that was fenced accept messages again. PromotionError."""
        master = self._follower.master
        if master is None:
            raise PromotionError("the address of the master is not known")
        if not (await self._file.loaded()).before:
            raise PromotionError("no master was fenced from here")
        if not await self._unfence(master):
            raise PromotionError(f"the master {master.address} does not take its settings back, see the log")
        return {"master": master.address}

    # -- the steps -----------------------------------------------------------------------------------------------------

    async def _without_master(self, master: Master | None) -> None:
        """Takes what was copied."""
        if master is not None:
            try:
                await master.extent()
            except MasterError:
                pass
            else:
                raise PromotionError(f"the master {master.address} answers: stop it, or promote with its consent")
        if self._follower.extent is None and self._follower.log.is_empty:
            raise PromotionError("nothing was copied from a master")
        await self._follower.stop()
        await self._settled()

    async def _fence_and_catch_up(self, master: Master) -> None:
        if self._follower.behind_bytes > MOST_BEHIND_BYTES:
            text = f"{self._follower.behind_bytes} bytes of the master's log are missing, {MOST_BEHIND_BYTES} may be"
            raise PromotionError(text)
        try:
            await self._fence(master)
            async with asyncio.timeout(CATCH_UP_S):
                await self._catch_up(master)
        except (MasterError, OSError, TimeoutError) as error:
            reason = str(error) or f"{self._waits_for} within {CATCH_UP_S:g} s"
            back = "accepts messages again" if await self._unfence(master) else "is fenced: promote again, or --back"
            raise PromotionError(f"{reason}; the master {master.address} {back}") from error

    async def _fence(self, master: Master) -> None:
        theirs = await master.settings()
        record = await self._file.loaded()
        if not record.before or record.master != master.address:
            if theirs.get("brokerRole") == "SLAVE":
                raise MasterError(f"{master.address} has the role SLAVE, and was not fenced from here")
            before = {key: theirs[key] for key in _BEFORE if key in theirs}
            await self._file.saved(Record(master.address, before))
        _logger.warning("fencing the master %s: it refuses all messages from now on", master.address)
        await master.change(FENCE)
        if (await master.settings()).get("brokerRole") != "SLAVE":
            raise MasterError(f"{master.address} did not take the role SLAVE")

    async def _catch_up(self, master: Master) -> None:
        """Returns when both logs end at one position, where nothing more can be stored at the master, and this broker
        has everything of the master. The caller has fenced the master."""
        follower = self._follower
        while True:
            await self._has_stored_all(master)
            self._waits_for = "the copy did not reach the master's end"
            end = (await master.extent()).end
            if not (follower.is_copying and follower.log.end == end and follower.log.is_settled):
                await asyncio.sleep(_LOOK_S)
                continue
            await asyncio.sleep(STAYS_EQUAL_S)
            await follower.copy_tables(master)
            if await master.stores():
                continue
            if (await master.extent()).end == end == follower.log.end and follower.log.is_settled:
                break
        if (await master.settings()).get("brokerRole") != "SLAVE":
            raise MasterError(f"the master {master.address} is no longer fenced: it was restarted, or changed")
        await follower.stop()

    async def _has_stored_all(self, master: Master) -> None:
        self._waits_for = f"the master {master.address} has not stored all sends that it accepted before the fence"
        while await master.stores():  # noqa: ASYNC110  # it is another program
            await asyncio.sleep(_LOOK_S)

    async def _settled(self) -> None:
        try:
            async with asyncio.timeout(CATCH_UP_S):
                while not self._follower.log.is_settled:  # noqa: ASYNC110  # dispatch has no event
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError as error:
            self._follower.start()
            raise PromotionError("the copied log is not dispatched yet: try again later") from error

    async def _unfence(self, master: Master) -> bool:
        try:
            before = (await self._file.loaded()).before
            if before:
                await master.change(before)
                await self._file.saved(Record())
                _logger.warning("the master %s accepts messages again", master.address)
        except (MasterError, OSError) as error:
            _logger.error("the fence of the master %s could not be taken back: %s", master.address, error)
            return False
        return True
