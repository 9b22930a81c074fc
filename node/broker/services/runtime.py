"""The broker's state under RocketMQ's keys: the answer to GET_BROKER_RUNTIME_INFO, which mqadmin clusterList parses.

The store has its own keys; this module adds the others, so that every key of RocketMQ 4.8 exists. There are no thread
pools with queues: their sizes and waits are 0, and their capacities are the limits in the settings.

Source: AdminBrokerProcessor.prepareRuntimeInfo, StoreStatsService of RocketMQ 4.8.0; a recording is in `admin`.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING

from tallystick.node.remoting.command import VERSION
from tallystick.store.formats.record import Record, RecordError

if TYPE_CHECKING:
    from tallystick.node.broker.context import BrokerContext

VERSION_NAME = "V4_8_0"


def uptime(milliseconds: int) -> str:
    """In RocketMQ's format: `[ 0 days, 0 hours, 1 minutes, 16 seconds ]`."""
    minutes, seconds = divmod(max(0, milliseconds) // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def earliest_message_ms(broker: BrokerContext) -> int:
    """Store time (ms) of the log's first record; -1 if the log is empty or its first bytes are not a record."""
    data = broker.store.reads.message_at(broker.store.min_pos)
    if data is None:
        return -1
    try:
        return Record.decode(data).store_timestamp_ms
    except RecordError:
        return -1


@cache
def _own_version() -> str:
    return version("tallystick")


def runtime_info(broker: BrokerContext) -> dict[str, str]:
    """All keys; all values are text."""
    settings, stats, store = broker.settings, broker.stats, broker.store
    broker.count_puts()
    now_ms = broker.now_ms()
    idle = ("send", "pull", "query")
    info = {
        # Keys that a store may override.
        "bootTimestamp": str(stats.boot_ms),
        "runtime": uptime(now_ms - stats.boot_ms),
        "putMessageTimesTotal": str(stats.put_totals.now),
        "putMessageSizeTotal": str(stats.put_bytes),
        "putMessageAverageSize": str(stats.put_bytes / max(1, stats.put_totals.now)),
        "dispatchMaxBuffer": "0",  # as in RocketMQ: nothing sets it
        "commitLogDiskRatio": "0.0",
        "consumeQueueDiskRatio": "0.0",
        "commitLogMinOffset": str(store.min_pos),
        "commitLogMaxOffset": str(store.max_pos),
        "commitLogDirCapacity": "Total : 0 B, Free : 0 B.",
        "remainHowManyDataToFlush": f"{store.max_pos - store.flushed_pos} B",
        "remainTransientStoreBufferNumbs": str(2**31 - 1),
        "pageCacheLockTimeMills": "0",
        "earliestMessageTimeStamp": str(earliest_message_ms(broker)),
        **stats.runtime_info(),
        **store.figures.runtime_info(),
        **broker.schedule.runtime_info(),
        **broker.timers.runtime_info(),
        # Keys that the broker knows.
        "tallystickVersion": _own_version(),  # by this, tools recognize what RocketMQ does not have
        "brokerVersionDesc": VERSION_NAME,
        "brokerVersion": str(VERSION),
        "startAcceptSendRequestTimeStamp": str(settings.startAcceptSendRequestTimeStamp),
        "dispatchBehindBytes": str(store.figures.dispatch_behind_bytes),
        "EndTransactionQueueSize": "0",
        "EndTransactionThreadPoolQueueCapacity": str(settings.endTransactionPoolQueueCapacity),
        **{f"{name}ThreadPoolQueueSize": "0" for name in idle},
        **{f"{name}ThreadPoolQueueHeadWaitTimeMills": "0" for name in idle},
        "sendThreadPoolQueueCapacity": str(settings.sendThreadPoolQueueCapacity),
        "pullThreadPoolQueueCapacity": str(settings.pullThreadPoolQueueCapacity),
        "queryThreadPoolQueueCapacity": str(settings.queryThreadPoolQueueCapacity),
    }
    if broker.group is not None:
        info |= broker.group.runtime_info()
    return dict(sorted(info.items()))
