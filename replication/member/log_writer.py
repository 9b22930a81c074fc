"""Writes and syncs one member's log. If a storage engine uses the log, the store's appender does this instead.

    kick ─▶ end of this turn ─▶ write: write_out ─▶ written ─▶ log_written
                                          └─ token ─▶ thread: fdatasync ─ token ─▶ log_synced

The thread is `store.sync_thread.SyncThread`: one sync covers all that was written before it began (group commit).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from tallystick.store.engine.sync_thread import SyncThread

if TYPE_CHECKING:
    from tallystick.store._kernel import Log


class LogListener(Protocol):
    """The object that is informed of writes and syncs; a part of `store.replica.Replica`."""

    def log_written(self) -> None: ...

    def log_synced(self) -> None: ...

    def log_failed(self, error: OSError, *, final: bool) -> None: ...


class Appending(Protocol):
    """What a member needs from the object that writes its log: `LogWriter`, or the store's `Appender`."""

    def kick(self) -> None:
        """Write what is staged at the end of this turn of the event loop."""
        ...

    def write(self) -> OSError | None:
        """Write what is staged now, and sync it soon. Returns the error if not everything was written."""
        ...


class LogWriter:
    """`sync`: every write is synced at once; otherwise only when `request_sync` is called."""

    def __init__(self, log: Log, listener: LogListener, *, sync: bool) -> None:
        self._log = log
        self._listener = listener
        self._sync = sync
        self._scheduled = False
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._sync_thread = SyncThread(log, self._on_synced)
        self._sync_thread.start()

    def kick(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        if not self._closed:
            self.write()

    def write(self) -> OSError | None:
        log = self._log
        failed: OSError | None = None
        try:
            log.write_out()
        except OSError as error:
            failed = error
        # Send a leader's entries first: waking the thread takes as long as sending, and the way through a follower is
        # longer.
        self._listener.log_written()
        if self._sync:
            if log.flushed < log.written:
                self.request_sync()
            else:
                self._listener.log_synced()  # another sync covered it: no other call reports that
        if failed is not None:
            self._listener.log_failed(failed, final=False)
        return failed

    def request_sync(self) -> None:
        self._sync_thread.request()

    def _on_synced(self) -> None:
        failure = self._log.sync_failure()
        if failure is not None:
            self._listener.log_failed(failure, final=True)
        else:
            self._listener.log_synced()

    async def close(self) -> None:
        """Ends the thread; the listener is no longer called. Data that is not synced stays so."""
        if not self._closed:
            self._closed = True
            await self._sync_thread.close()
