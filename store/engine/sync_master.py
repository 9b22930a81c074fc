"""The log of a SYNC_MASTER: a message is safe when it is flushed here, as `flushDiskType` says, and a slave has it.

    written or flushed (LocalFlush) ─┐
                                     ├─▶ answered with 0
    stored by a slave (Copies) ──────┘
    no slave is near enough when it is staged ──▶ answered with 11, once it is safe here
    no slave has it after `syncFlushTimeout` ───▶ answered with 12

Both codes mean that the message is stored here and may not be on a slave. The kernel stores plain sends only while a
slave is near enough: all of them wait for it. Otherwise Python stores and answers each send.

Source: CommitLog.submitReplicaRequest, HAService.isSlaveOK and GroupTransferService of RocketMQ 4.8.0.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tallystick.store.clock import wall_ms
from tallystick.store.engine.durability import LogParts
from tallystick.store.engine.local_flush import LocalFlush
from tallystick.store.engine.waiters import Waiters
from tallystick.store.formats.message import PutStatus

if TYPE_CHECKING:
    from tallystick.store.engine.admission import Admission

_FLUSH_SLAVE_TIMEOUT = 12
"""Fixed by the protocol: the answer's code for a send that no slave stored in time."""


class SyncMaster(LocalFlush):
    """A `LocalFlush` whose senders also wait for a slave. Owns the puts that wait."""

    def __init__(self, parts: LogParts) -> None:
        super().__init__(parts)
        self._stored_waiters = Waiters()
        self._admission: Admission | None = None
        self.kernel_may_store = False
        self.copies.on_change = self._settle

    def start(self, admission: Admission) -> None:
        """See `Durability`."""
        self._admission = admission
        super().start(admission)

    async def stored(self, end: int, *, waits: bool) -> PutStatus:
        """See `Durability`. What happens here and at the slave is awaited together, for `syncFlushTimeout`."""
        if not waits:
            return await super().stored(end, waits=False)
        if not self.copies.available(end):
            here = await super().stored(end, waits=True)
            return PutStatus.SLAVE_NOT_AVAILABLE if here.stored else here
        # Both begin to wait now: the record may be written and sent before this coroutine runs again.
        deadline_s = asyncio.get_running_loop().time() + self._settings.syncFlushTimeout / 1000
        there = self._stored_waiters.add(end)
        here = await super().stored(end, waits=True)
        if not here.stored:
            there.cancel()
            return here
        try:
            async with asyncio.timeout_at(deadline_s):
                at_slave = await there
        except TimeoutError:
            at_slave = PutStatus.FLUSH_SLAVE_TIMEOUT
        return here if at_slave is PutStatus.PUT_OK else at_slave

    def log_written(self, written: int) -> None:
        """See `Durability`. Slaves get the bytes before anything else is done: their answers take the longest."""
        if not self._sync_flush:
            self.copies.moved(written)
        self._settle()
        self._written.resolve(written)
        self._advance(written)

    def log_synced(self, flushed: int) -> None:
        """See `Durability`."""
        self.flushed.resolve(flushed)
        if self._sync_flush:
            self.copies.moved(flushed)
            self._settle()

    def _settle(self) -> None:
        """Answers the sends that are safe here and at a slave. A slave never has more than what is safe here."""
        copied = max(0, min(self.copies.newest, self.copies.sendable))
        self._deliver(self._log.release(copied, wall_ms()))
        self._stored_waiters.resolve(copied)
        may_store = self.copies.available(self._log.staged)
        if may_store != self.kernel_may_store:
            self.kernel_may_store = may_store
            if self._admission is not None:
                self._admission.look_again()

    def refuse(self, safe: int) -> None:
        """See `Durability`."""
        super().refuse(safe)
        self._stored_waiters.refuse(safe, PutStatus.UNKNOWN_ERROR)

    def expire(self) -> None:
        """See `Durability`. If both disk and slave are late, the code is the slave's, as in RocketMQ."""
        now_ms = wall_ms()
        self._deliver(self._log.expire(now_ms - self._settings.syncFlushTimeout, _FLUSH_SLAVE_TIMEOUT, now_ms))
