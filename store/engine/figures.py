"""The figures of a store, for metrics and for GET_BROKER_RUNTIME_INFO."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tallystick.store.clock import wall_ms
from tallystick.store.formats.record import store_timestamp

if TYPE_CHECKING:
    from tallystick.store._kernel import Dispatch
    from tallystick.store.engine.message_store import MessageStore


class Figures:
    """Owns when the store was opened and where its log ended then. Everything else is asked of the parts."""

    def __init__(self, store: MessageStore, dispatch: Dispatch, *, entry_header_bytes: int, end_pos: int) -> None:
        self._store = store
        self._dispatch = dispatch
        self._entry_header_bytes = entry_header_bytes
        self._bytes_at_boot = end_pos
        self._boot_ms = wall_ms()

    @property
    def damaged_records(self) -> int:
        """Number of reads that found a damaged record, which was not served."""
        return self._dispatch.damaged

    @property
    def dispatch_behind_bytes(self) -> int:
        """Bytes of the log that may be dispatched and are not yet."""
        return self._store.dispatcher.behind_bytes

    def _earliest_store_time(self) -> int:
        """Store time (ms) of the log's oldest record; -1 for an empty log."""
        record = self._store.reads.message_at(self._store.min_pos + self._entry_header_bytes)
        return -1 if record is None else store_timestamp(record)

    def runtime_info(self) -> dict[str, str]:
        """The entries of the store in GET_BROKER_RUNTIME_INFO."""
        store, log = self._store, self._store.log
        stat = os.statvfs(store.settings.log_folder)
        total, free = stat.f_blocks * stat.f_frsize, stat.f_bfree * stat.f_frsize
        ratio = f"{store.upkeep.disk_ratio:.4f}"
        return {
            "bootTimestamp": str(self._boot_ms),
            "runtime": _duration(wall_ms() - self._boot_ms),
            "commitLogDiskRatio": ratio,
            "consumeQueueDiskRatio": ratio,
            "commitLogMinOffset": str(store.min_pos),
            "commitLogMaxOffset": str(store.max_pos),
            "commitLogDirCapacity": f"Total : {_gib(total)}, Free : {_gib(free)}.",
            "dispatchBehindBytes": str(self.dispatch_behind_bytes),
            "dispatchMaxBuffer": "0",
            "pageCacheLockTimeMills": "0",
            "earliestMessageTimeStamp": str(self._earliest_store_time()),
            "putMessageSizeTotal": str(log.written - self._bytes_at_boot),
            "remainTransientStoreBufferNumbs": str(self._free_buffers()),
            "remainHowManyDataToCommit": _bytes_text(log.staged - log.written),
            "remainHowManyDataToFlush": _bytes_text(log.written - log.flushed),
        }

    def _free_buffers(self) -> int:
        store = self._store
        if not store.settings.transient_pool_enabled:
            return 2**31 - 1  # as in RocketMQ without a pool
        log = store.log
        used = -(-(log.staged - log.written) // store.settings.mappedFileSizeCommitLog)
        return max(0, store.settings.transientStorePoolSize - used)


def _gib(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB"


def _bytes_text(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"


def _duration(milliseconds: int) -> str:
    minutes, seconds = divmod(milliseconds // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"
