"""The figures of a store, for metrics and for GET_BROKER_RUNTIME_INFO."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tallystick.store.clock import steady_ms, wall_ms
from tallystick.store.engine.distribution import Distribution
from tallystick.store.engine.put_times import PutTimes
from tallystick.store.formats.record import store_timestamp

if TYPE_CHECKING:
    from tallystick.store._kernel import Dispatch, Log
    from tallystick.store.engine.dispatcher import Dispatcher
    from tallystick.store.engine.durability import Durability
    from tallystick.store.engine.reads import Reads
    from tallystick.store.engine.upkeep import Upkeep
    from tallystick.store.settings import StoreSettings


class Figures:
    """Owns when the store was opened, and how long its puts took. Everything else is asked of the parts."""

    def __init__(
        self,
        settings: StoreSettings,
        log: Log,
        dispatch: Dispatch,
        dispatcher: Dispatcher,
        durability: Durability,
        reads: Reads,
        upkeep: Upkeep,
        *,
        entry_header_bytes: int,
    ) -> None:
        self._settings = settings
        self._log = log
        self._dispatch = dispatch
        self._dispatcher = dispatcher
        self._durability = durability
        self._reads = reads
        self._upkeep = upkeep
        self._entry_header_bytes = entry_header_bytes
        self._boot_ms = wall_ms()
        self.put_times = PutTimes(log.take_put_times, log.put_totals, steady_ms())

    @property
    def damaged_records(self) -> int:
        """Number of reads that found a damaged record, which was not served."""
        return self._dispatch.damaged

    @property
    def dispatch_behind_bytes(self) -> int:
        """Bytes of the log that may be dispatched and are not yet."""
        return self._dispatcher.behind_bytes

    @property
    def syncs(self) -> Distribution:
        """The durations of the syncs of the log since the start."""
        return Distribution(*self._log.sync_totals())

    @property
    def record_sizes(self) -> Distribution:
        """The bytes of the records that this process stored since the start, without copied ones."""
        return Distribution(*self._log.size_totals())

    def answers(self) -> dict[int, Distribution]:
        """The sends that the kernel stored and answered since the start: durations in ms, by the answer's code."""
        limits, answers = self._log.answer_totals()
        return {code: Distribution(limits, counts, total_ms) for code, (counts, total_ms) in answers.items()}

    def sample(self) -> None:
        """Notes what is needed for rates and distributions over time: call it once a second."""
        now_ms = steady_ms()
        self.put_times.settle(now_ms)
        self._reads.counts.sample(now_ms)

    def earliest_store_time(self) -> int:
        """Store time (ms) of the log's oldest record; -1 for an empty log."""
        record = self._reads.message_at(self._upkeep.min_pos + self._entry_header_bytes)
        return -1 if record is None else store_timestamp(record)

    def runtime_info(self) -> dict[str, str]:
        """The entries of the store in GET_BROKER_RUNTIME_INFO."""
        log = self._log
        stat = os.statvfs(self._settings.log_folder)
        total, free = stat.f_blocks * stat.f_frsize, stat.f_bfree * stat.f_frsize
        self.put_times.settle(steady_ms())
        ratio = f"{self._upkeep.disk_ratio:.4f}"
        return {
            "bootTimestamp": str(self._boot_ms),
            "runtime": _duration(wall_ms() - self._boot_ms),
            "commitLogDiskRatio": ratio,
            "consumeQueueDiskRatio": ratio,
            "commitLogMinOffset": str(self._upkeep.min_pos),
            "commitLogMaxOffset": str(self._durability.readable_end),
            "commitLogDirCapacity": f"Total : {_gib(total)}, Free : {_gib(free)}.",
            "dispatchBehindBytes": str(self.dispatch_behind_bytes),
            "dispatchMaxBuffer": "0",
            "pageCacheLockTimeMills": "0",
            "earliestMessageTimeStamp": str(self.earliest_store_time()),
            "putMessageEntireTimeMax": str(self.put_times.longest_ms),
            "putMessageDistributeTime": self.put_times.distribution(),
            "getMessageEntireTimeMax": str(self._reads.counts.longest_ms),
            **self._reads.counts.rates(),
            "remainTransientStoreBufferNumbs": str(self._free_buffers()),
            "remainHowManyDataToCommit": _bytes_text(log.staged - log.written),
            "remainHowManyDataToFlush": _bytes_text(log.written - log.flushed),
        }

    def _free_buffers(self) -> int:
        settings, log = self._settings, self._log
        if not settings.transient_pool_enabled:
            return 2**31 - 1  # as in RocketMQ without a pool
        used = -(-(log.staged - log.written) // settings.mappedFileSizeCommitLog)
        return max(0, settings.transientStorePoolSize - used)


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
