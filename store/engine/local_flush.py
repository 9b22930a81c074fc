"""A log of this disk alone: a message is safe when it is written (ASYNC_FLUSH) or synced (SYNC_FLUSH)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tallystick.store.clock import wall_ms
from tallystick.store.engine.copies import Copies
from tallystick.store.engine.durability import LogParts
from tallystick.store.engine.waiters import Waiters
from tallystick.store.formats.message import PutStatus
from tallystick.store.settings import BrokerRole, FlushDiskType

if TYPE_CHECKING:
    from tallystick.store.engine.admission import Admission

_FLUSH_DISK_TIMEOUT = 10
"""Fixed by the protocol: the answer's code for a send that was not flushed in time."""


class LocalFlush:
    """A `Durability` of this disk alone. Owns the puts that wait until they are written or flushed."""

    chores: tuple[tuple[str, Callable[[], None]], ...] = ()
    no_segment_status = PutStatus.CREATE_MAPEDFILE_FAILED
    serving = True
    kernel_may_store = True
    refusal: str | None = None

    def __init__(self, parts: LogParts) -> None:
        self.flushed = Waiters()
        self.is_pooled = parts.settings.transient_pool_enabled
        self._written = Waiters()
        self._settings = parts.settings
        self._log = parts.log
        self._advance = parts.dispatcher.advance
        self._deliver = parts.deliver
        self._sync_flush = parts.settings.flushDiskType is FlushDiskType.SYNC_FLUSH
        self.copies = Copies(parts.recovered.end_pos, parts.settings.haSlaveFallbehindMax)
        """What slaves may get of the log, and what they have."""
        self.kept_from: int | None = 0 if parts.settings.brokerRole is BrokerRole.SLAVE else None
        """A slave deletes only what its master has deleted: everything before this position. None: it is no slave."""

    @property
    def readable_end(self) -> int:
        """The written end."""
        return self._log.written

    def read_limits(self) -> tuple[int, bool]:
        """See `Durability`."""
        return self._log.written, True

    def start(self, admission: Admission) -> None:
        """See `Durability`. Recovery has dispatched everything that was written."""
        admission.set_hot(True)

    async def stored(self, end: int, *, waits: bool) -> PutStatus:
        """See `Durability`."""
        if waits and self._sync_flush:
            limit_s = self._settings.syncFlushTimeout / 1000
            return await self.flushed.in_time(end, limit_s, PutStatus.FLUSH_DISK_TIMEOUT)
        if self.is_pooled:
            return PutStatus.PUT_OK
        return await self._written.add(end)

    def log_written(self, written: int) -> None:
        """See `Durability`: what is written may be read, and with ASYNC_FLUSH it is answered."""
        if not self._sync_flush:
            self._deliver(self._log.release(written, wall_ms()))
        self._written.resolve(written)
        self._advance(written)
        if not self._sync_flush:
            self.copies.moved(written)

    def log_synced(self, flushed: int) -> None:
        """See `Durability`: with SYNC_FLUSH what is synced is answered."""
        if self._sync_flush:
            self._deliver(self._log.release(flushed, wall_ms()))
        self.flushed.resolve(flushed)
        if self._sync_flush:
            self.copies.moved(flushed)

    def log_failed(self, error: OSError, *, final: bool) -> None:
        """See `Durability`. The appender itself has refused the sends, and no one else depends on them."""

    def refuse(self, safe: int) -> None:
        """See `Durability`."""
        self._written.refuse(safe, PutStatus.UNKNOWN_ERROR)
        self.flushed.refuse(safe, PutStatus.UNKNOWN_ERROR)

    def expire(self) -> None:
        """See `Durability`. With ASYNC_FLUSH no send waits."""
        if self._sync_flush:
            now_ms = wall_ms()
            self._deliver(self._log.expire(now_ms - self._settings.syncFlushTimeout, _FLUSH_DISK_TIMEOUT, now_ms))

    def keep_from(self) -> int:
        """See `Durability`: what is not synced, or what the master of this log still has."""
        flushed = self._log.flushed
        return flushed if self.kept_from is None else min(flushed, self.kept_from)

    def release_before(self, pos: int) -> None:
        """See `Durability`. The segments alone tell where this log begins."""

    def close(self, orderly: bool) -> None:
        """See `Durability`. The file `abort` alone tells how this log was closed."""
