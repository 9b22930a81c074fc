"""The only writer of the log: writes what one iteration of the event loop staged, and releases the answers.

    feed, append  ->  staged  --write_out-->  written  --sync-->  flushed
                                   |                     |
          ASYNC_FLUSH answers here +                     + SYNC_FLUSH answers here

Each iteration of the event loop ends with one `write_out` of everything that was staged in it. With SYNC_FLUSH a thread
then syncs the log (`sync_thread.py`); one sync answers all sends that were written before it began (group commit).

Whether a write or a sync answers sends is decided by the strategy (`durability.py`), which learns of both: a replicated
log is written and synced in the same way, but only a commit of the group answers its sends.

With the transient store pool (ASYNC_FLUSH only) sends are answered when they are staged, and a timer commits them to
the files. Staged messages are lost if the process dies. This option accepts the loss, in RocketMQ as well.

Errors: a failed write drops everything that was staged behind it, and these sends are refused; later sends try again. A
failed sync is final: the operating system may have dropped the pages that it could not write, so the success of a
second sync would prove nothing. The log then refuses all puts until the process is restarted and reads the log again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from tallystick.store.clock import steady_ms, wall_ms
from tallystick.store.engine import locking
from tallystick.store.engine.flush import PageFlush
from tallystick.store.engine.sync_thread import SyncThread
from tallystick.store.settings import FlushDiskType

if TYPE_CHECKING:
    from tallystick.store._kernel import Log
    from tallystick.store.engine.connections import Answers
    from tallystick.store.engine.durability import Durability
    from tallystick.store.engine.pace import Pace
    from tallystick.store.settings import StoreSettings

_logger = logging.getLogger("tallystick.store")

_SYSTEM_ERROR = 1
"""Fixed by the protocol: the answer's code for a send that could not be stored."""


class Appender:
    """Drives one kernel `Log` on the running event loop. Owns the thread that syncs it, and what failed last.

    `deliver(answers)` gets the answers to send, as (connection, bytes). `on_written(pos)` is called with each new
    written end, `on_idle()` when the page cache accepts writes again. `failure`: the error after which the log refuses
    all puts; `write_failure`: the error of the last write. Both are None without an error.
    """

    def __init__(
        self,
        log: Log,
        settings: StoreSettings,
        durability: Durability,
        *,
        deliver: Callable[[Answers], None],
        on_written: Callable[[int], None],
        on_idle: Callable[[], None],
        pace: Pace,
    ) -> None:
        self.log = log
        self._durability = durability
        self.failure: OSError | None = None
        self._busy_until = 0.0
        self.write_errors = 0
        self.write_failure: OSError | None = None
        self._settings = settings
        self._deliver = deliver
        self._on_written = on_written
        self._on_idle = on_idle
        self._pace = pace
        self._loop = asyncio.get_running_loop()
        self._scheduled = False
        self._sync_flush = settings.flushDiskType is FlushDiskType.SYNC_FLUSH
        self._pooled = durability.is_pooled
        self._syncing = False
        self._pool_bytes = settings.transientStorePoolSize * settings.mappedFileSizeCommitLog
        now_ms = steady_ms()
        self._flush_rule, self._commit_rule = PageFlush(0, 0, now_ms), PageFlush(0, 0, now_ms)
        self.settings_changed()
        self._sync_thread = SyncThread(log, self._on_synced)
        self._timers: list[asyncio.Task[None]] = []

    def settings_changed(self) -> None:
        """Flushes and commits by the present settings from now on."""
        settings = self._settings
        self._woken_by_puts = not self._sync_flush and not settings.flushCommitLogTimed
        self._flush_rule.least_pages = settings.flushCommitLogLeastPages
        self._flush_rule.thorough_interval_ms = settings.flushCommitLogThoroughInterval
        self._commit_rule.least_pages = settings.commitCommitLogLeastPages
        self._commit_rule.thorough_interval_ms = settings.commitCommitLogThoroughInterval

    def start(self) -> None:
        self._sync_thread.start()
        if self._pooled:
            self._lock_buffers()
        self._timers.append(self._loop.create_task(self._flush_timer(), name="flush-log"))
        if self._pooled:
            self._timers.append(self._loop.create_task(self._commit_timer(), name="commit-log"))

    def _lock_buffers(self) -> None:
        """Staged messages that the system swaps out would have to be read again from the disk to be written."""
        reason = locking.forbidden(self._pool_bytes)
        try:
            self.log.lock_buffers()
        except (OSError, MemoryError) as error:  # ENOMEM: above the limit of the process
            reason = reason or str(error)
        if reason:
            _logger.warning(
                "the buffers of transientStorePoolEnable are not locked in memory, the system can swap them out: %s",
                reason,
            )

    async def close(self) -> None:
        """Writes and flushes the rest, releases the last answers, and ends the thread."""
        for timer in self._timers:
            timer.cancel()
        try:
            await self.flush()
        except OSError as error:
            _logger.error("the log could not be flushed at the shutdown: %s", error)
        await self._sync_thread.close()

    def kick(self) -> None:
        """Something was staged: writes it at the end of this iteration of the event loop."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    async def flush(self) -> None:
        """Returns when everything that is staged now is durable. Raises OSError if that is impossible."""
        error = self.write()
        if error is not None:
            raise error
        if self.log.flushed < self.log.written:
            flushed = self._durability.flushed.add(self.log.written)
            self._request_sync()
            await flushed
        if self.failure is not None:
            raise self.failure

    def _turn(self) -> None:
        self._scheduled = False
        if self._pooled:
            self._deliver(self.log.release(self.log.staged, wall_ms()))
            if not self._pool_is_full:
                return  # the commit timer writes it
            if self.lacks_buffers:
                self.log.set_hot(False)  # until the commit timer has written
                return
        self.write()

    def write(self) -> OSError | None:
        """Writes everything that is staged, and releases answers and waiters. Returns the error if the write failed."""
        if self.failure is not None:
            self._refuse(self.failure)
            return self.failure
        failed: OSError | None = None
        begin = time.perf_counter()
        try:
            written = self.log.write_out()
        except OSError as error:
            failed = error
            self._write_failed(error)
            written = self.log.written
        self._note_duration(time.perf_counter() - begin)
        self._durability.log_written(written)
        if self._sync_flush:
            if written > self.log.flushed:
                self._request_sync()
            else:
                # Upkeep has just synced the log on its thread, so no other sync will release the answers.
                self._durability.log_synced(self.log.flushed)
        elif self._woken_by_puts:
            self._flush_by_rule()
        self._on_written(written)
        if failed is not None:
            self._durability.log_failed(failed, final=False)
        else:
            self.write_failure = None
        return failed

    def _write_failed(self, error: OSError) -> None:
        # With the pool these sends are answered already: the commit timer retries as long as the pool has room.
        kept = self._pooled and not self._pool_is_full
        if self.write_failure is None or str(error) != str(self.write_failure):
            fate = "retrying" if kept else "its last sends are refused"
            _logger.error("the log could not be written, %s: %s", fate, error)
        self.write_errors += 1
        self.write_failure = error
        if not kept:
            self._refuse(error)

    def _note_duration(self, seconds: float) -> None:
        """Writes block this thread and so all requests: after a slow write, puts are refused for a moment."""
        limit = self._settings.osPageCacheBusyTimeOutMills / 1000
        if seconds > limit:
            self._busy_until = self._loop.time() + limit
            self.log.set_hot(False)
            self._loop.call_later(limit, self._on_idle)

    @property
    def busy(self) -> bool:
        """Whether a recent write took longer than `osPageCacheBusyTimeOutMills`: the page cache is overloaded."""
        return self._loop.time() < self._busy_until

    @property
    def _pool_is_full(self) -> bool:
        return self.log.staged - self.log.written >= self._pool_bytes

    @property
    def lacks_buffers(self) -> bool:
        """Whether sends are refused because the transient store pool is full (`fastFailIfNoBufferInStorePool`)."""
        return self._pooled and self._settings.fastFailIfNoBufferInStorePool and self._pool_is_full

    def _request_sync(self) -> None:
        self._syncing = True
        self._sync_thread.request()

    def _flush_by_rule(self) -> None:
        if self._syncing or self.failure is not None:
            return  # what is written meanwhile is looked at again with the next put, or by the timer
        if self._flush_rule.due(steady_ms(), self.log.written, self.log.flushed):
            self._request_sync()

    def _on_synced(self) -> None:
        self._syncing = False
        self._durability.log_synced(self.log.flushed)
        failure = self.log.sync_failure()
        if failure is not None:
            self.fail(failure)

    def fail(self, failure: OSError) -> None:
        """Nothing that is put from now on can be kept; what waits is refused, and only a restart can help."""
        if self.failure is None:
            self.failure = failure
            _logger.critical("the log failed, no put is accepted until a restart: %s", failure)
        self.log.set_hot(False)
        self._refuse(failure, everything=True)
        self._durability.log_failed(failure, final=True)

    def _refuse(self, error: OSError, *, everything: bool = False) -> None:
        """Refuses the sends that are not written, or (`everything`) all that wait: their fate is not known."""
        remark = f"the message could not be stored: {error.strerror}"
        now_ms = wall_ms()
        self._deliver(self.log.abandon(_SYSTEM_ERROR, remark, now_ms))
        if everything:
            self._deliver(self.log.expire(1 << 62, _SYSTEM_ERROR, now_ms))
        self._durability.refuse(-1 if everything else self.log.written)

    async def _flush_timer(self) -> None:
        """ASYNC_FLUSH by its rules; gives up on sends that waited too long for a disk, or for the group."""
        settings = self._settings
        while True:
            await self._pace.pause(1000 if self._sync_flush else settings.flushIntervalCommitLog)
            self._durability.expire()
            if not self._sync_flush:
                self._flush_by_rule()

    async def _commit_timer(self) -> None:
        while True:
            await self._pace.pause(self._settings.commitIntervalCommitLog)
            if self._commit_rule.due(steady_ms(), self.log.staged, self.log.written):
                self.write()
                self._on_idle()
