"""Whether the store accepts puts now, and why not: it is closed, follows in a group, failed, or its disk is full."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Protocol

from tallystick.store.engine.lock import FolderLostError
from tallystick.store.formats.message import PutResult, PutStatus
from tallystick.store.settings import BrokerRole

if TYPE_CHECKING:
    from tallystick.store._kernel import Log
    from tallystick.store.engine.appender import Appender
    from tallystick.store.engine.dispatcher import Dispatcher
    from tallystick.store.engine.durability import Durability
    from tallystick.store.settings import StoreSettings


class Disk(Protocol):
    """What is known of the disk of the log."""

    @property
    def free_bytes(self) -> int:
        """Free bytes on the disk of the log."""
        ...

    def refusal(self) -> str | None:
        """Why puts are refused because of the disk usage; None if they are not."""
        ...


class Admission:
    """Owns whether the store is open, whether the kernel may store plain sends itself, and the last segment that could
    not be created. A store that refuses puts still serves every read."""

    def __init__(
        self,
        settings: StoreSettings,
        log: Log,
        durability: Durability,
        appender: Appender,
        dispatcher: Dispatcher,
        disk: Disk,
    ) -> None:
        self.is_open = True
        self._settings = settings
        self._log = log
        self._durability = durability
        self._appender = appender
        self._dispatcher = dispatcher
        self._disk = disk
        self._hot = False
        self._no_segment: tuple[OSError, int] | None = None  # why the log could not grow beyond this position

    def close(self) -> None:
        """Refuses all puts from now on."""
        self.is_open = False
        self._log.set_hot(False)

    def set_hot(self, hot: bool) -> None:
        """Sets whether the kernel stores plain sends itself. It never does while puts are refused."""
        self._hot = hot
        appender = self._appender
        ready = self._durability.kernel_may_store and not appender.busy and not appender.lacks_buffers
        self._log.set_hot(hot and self.is_open and self.writable and ready)

    def look_again(self) -> None:
        """Checks again whether puts are refused."""
        self.set_hot(self._hot)

    def refused(self, *, makes_room: bool = False) -> PutResult | None:
        """The result of a put that is refused now; None if it is accepted. `makes_room`: old segments can be deleted
        after the put, so a full disk is no reason to refuse it."""
        reason = self.refusal(makes_room=makes_room)
        if reason is not None:
            return PutResult(PutStatus.SERVICE_NOT_AVAILABLE, detail=reason)
        if self._appender.lacks_buffers:
            return PutResult(PutStatus.NO_BUFFER, detail="the buffers of transientStorePoolEnable are full")
        if self._appender.busy:
            return PutResult(PutStatus.OS_PAGECACHE_BUSY, detail="the page cache does not accept writes in time")
        return None

    def no_segment(self, error: OSError) -> PutResult:
        """The result of a put for which the log could not be extended."""
        self._no_segment = error, self._log.staged
        return PutResult(self._durability.no_segment_status, detail=str(error))

    @property
    def is_busy(self) -> bool:
        """Whether a recent write to the log took longer than `osPageCacheBusyTimeOutMills`."""
        return self._appender.busy

    @property
    def writable(self) -> bool:
        """Whether puts are accepted now."""
        return self.refusal() is None

    def failure(self) -> str | None:
        """The error that only a restart can repair; None without one."""
        failure = self._appender.failure
        if failure is not None:
            return str(failure) if isinstance(failure, FolderLostError) else f"the log could not be flushed: {failure}"
        return self._dispatcher.failure

    def trouble(self) -> str | None:
        """Why a put would fail now, or failed last; None if puts work. `/readyz` shows it.

        This is more than `refusal`: after a put that found no room, or whose write failed, the next one still tries.
        """
        refusal = self.refusal()
        if refusal is not None:
            return refusal
        if self._appender.write_failure is not None:
            return f"the log cannot be written: {self._appender.write_failure}"
        if self._no_segment is not None:
            error, staged = self._no_segment
            room = self._settings.mappedFileSizeCommitLog
            if self._log.staged == staged and (error.errno != errno.ENOSPC or self._disk.free_bytes < room):
                return f"the log cannot be extended: {error}"
        return None

    def no_room(self) -> str | None:
        """Why derived files cannot be written to the disk; None if they can."""
        return self._dispatcher.refusal or self._disk.refusal()

    def refusal(self, *, makes_room: bool = False) -> str | None:
        """Why puts are refused now; None if they are not. `makes_room`: see `refused`."""
        if not self.is_open:
            return "the store is shut down"
        if self._settings.brokerRole is BrokerRole.SLAVE:
            return "the store belongs to a slave"
        if not self._durability.serving:
            return "this member does not lead its group"
        if self._appender.failure is not None:
            return self.failure()
        if makes_room:
            return self._durability.refusal or self._dispatcher.refusal
        return self._durability.refusal or self.no_room()
