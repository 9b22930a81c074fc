"""Settings of RocketMQ 4.8 and 4.9 that this broker does not have, and what happens to a file that contains one.

A configuration file of RocketMQ must be usable as it is. A setting that this broker declares itself is not in this
list, even if it has no effect (`store/setting.py`). Any other setting of RocketMQ's configuration classes is listed
here with the reason why it has no effect. It is accepted: the process logs one warning for each.

Some of them change what clients or operators see. With another value than RocketMQ's default, this broker behaves
differently, and `tally config check` says so.

Source: the setters of BrokerConfig, MessageStoreConfig, NettyServerConfig, NettyClientConfig and NamesrvConfig of
RocketMQ 4.8.0 and 4.9.7. A test compares the list with the jars where they are present.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class RocketmqSetting(NamedTuple):
    """A setting that is accepted and has no effect."""

    reason: str
    """Why it has no effect."""
    default: str = ""
    """RocketMQ's default as text."""
    is_visible: bool = False
    """With another value than the default, clients or operators of RocketMQ see a different behaviour."""

    def differs(self, value: str) -> bool:
        """Whether a RocketMQ broker with this value behaves differently from this broker."""
        return self.is_visible and value.strip().lower() != self.default.lower()


_NO_POOL = "there is no thread pool"
_NO_QUEUE = "the broker serves each request when it reads it, so no request waits in a queue"
_NO_BILLING = "there are no statistics for billing"
_UNUSED = "RocketMQ itself does not use it"
_NOT_NETTY = "connections are not Netty's: the size of buffers follows from connectionMemoryBytes"
_KERNEL_BUFFER = "the operating system chooses the size of socket buffers"
_NO_ASYNC_DELIVERY = "one loop delivers all delayed messages, and does not wait for single writes"


def _of_broker() -> Iterator[tuple[str, RocketmqSetting]]:
    for name in (
        "processReplyMessageThreadPoolNums",
        "clientManageThreadPoolNums",
        "consumerManageThreadPoolNums",
        "endTransactionThreadPoolNums",
        "putMessageFutureThreadPoolNums",
    ):
        yield name, RocketmqSetting(_NO_POOL)
    for name in (
        "replyThreadPoolQueueCapacity",
        "clientManagerThreadPoolQueueCapacity",
        "consumerManagerThreadPoolQueueCapacity",
        "putThreadPoolQueueCapacity",
    ):
        yield name, RocketmqSetting(_NO_QUEUE)
    for name in (
        "commercialEnable",
        "commercialBaseCount",
        "commercialBigCount",
        "commercialTimerCount",
        "commercialTransCount",
    ):
        yield name, RocketmqSetting(_NO_BILLING)
    for name in ("flushConsumerOffsetHistoryInterval", "highSpeedMode", "maxDelayTime"):
        yield name, RocketmqSetting(_UNUSED)
    yield "rocketmqHome", RocketmqSetting("the process needs no installation folder")
    yield "messageStorePlugIn", RocketmqSetting("the store has no plug-ins", is_visible=True)
    yield (
        "fetchNamesrvAddrByAddressServer",
        RocketmqSetting("addresses of name servers come from namesrvAddr only", "false", is_visible=True),
    )
    yield "filterServerNums", RocketmqSetting("there are no filter servers: use tags or SQL92", "0", is_visible=True)
    yield "autoDeleteUnusedStats", RocketmqSetting("statistics of deleted topics and groups end with them")
    yield "enableDetailStat", RocketmqSetting("the broker always counts by topic, queue and group")
    yield "isolateLogEnable", RocketmqSetting("each process writes its log to its own standard error")


def _of_store() -> Iterator[tuple[str, RocketmqSetting]]:
    yield "putMsgIndexHightWater", RocketmqSetting(_UNUSED)
    yield "enableBatchPush", RocketmqSetting("members always send all new entries of the log together")
    for name in ("enableLmq", "enableMultiDispatch"):
        yield name, RocketmqSetting("there are no light message queues", "false", is_visible=True)
    yield "maxLmqConsumeQueueNum", RocketmqSetting("there are no light message queues")
    for name in (
        "enableScheduleAsyncDeliver",
        "scheduleAsyncDeliverMaxPendingLimit",
        "scheduleAsyncDeliverMaxResendNum2Blocked",
    ):
        yield name, RocketmqSetting(_NO_ASYNC_DELIVERY)
    yield "enableScheduleMessageStats", RocketmqSetting("delivered messages are always counted")
    yield "slaveTimeout", RocketmqSetting("sends of a SYNC_MASTER wait for syncFlushTimeout, as in RocketMQ 4.8")
    for name in ("readOnlyCommitLogStorePaths", "storePathDLedgerCommitLog"):
        yield name, RocketmqSetting("the log is in one folder", is_visible=True)
    # Not in the classes: many published files have these, and 4.8 ignores them.
    for name in ("storePathConsumeQueue", "storePathIndex", "storeCheckpoint", "abortFile"):
        yield name, RocketmqSetting("the file is in storePathRootDir, as in RocketMQ 4.8")


def _of_connections() -> Iterator[tuple[str, RocketmqSetting]]:
    for name in ("serverWorkerThreads", "serverSelectorThreads", "serverCallbackExecutorThreads"):
        yield name, RocketmqSetting(_NO_POOL)
    for name in ("clientWorkerThreads", "clientCallbackExecutorThreads"):
        yield name, RocketmqSetting(_NO_POOL)
    for name in (
        "serverAsyncSemaphoreValue",
        "serverOnewaySemaphoreValue",
        "clientAsyncSemaphoreValue",
        "clientOnewaySemaphoreValue",
    ):
        yield name, RocketmqSetting("connectionMemoryBytes limits what is on its way")
    for name in (
        "serverSocketSndBufSize",
        "serverSocketRcvBufSize",
        "clientSocketSndBufSize",
        "clientSocketRcvBufSize",
    ):
        yield name, RocketmqSetting(_KERNEL_BUFFER)
    for name in (
        "serverPooledByteBufAllocatorEnable",
        "clientPooledByteBufAllocatorEnable",
        "writeBufferHighWaterMark",
        "writeBufferLowWaterMark",
        "useEpollNativeSelector",
    ):
        yield name, RocketmqSetting(_NOT_NETTY)
    yield "serverSocketBacklog", RocketmqSetting("it is 1024, as in RocketMQ")
    for name in ("connectTimeoutMillis", "channelNotActiveInterval", "clientChannelMaxIdleTimeSeconds"):
        yield name, RocketmqSetting("the limits for connections to name servers and members are fixed")
    yield "clientCloseSocketIfTimeout", RocketmqSetting("a connection that does not answer in time is always closed")
    yield (
        "useTLS",
        RocketmqSetting("tls.enable says whether own connections use TLS", "false", is_visible=True),
    )


def _of_nameserver() -> Iterator[tuple[str, RocketmqSetting]]:
    yield "configStorePath", RocketmqSetting("changed settings are kept in the folder of kvConfigPath")
    yield "productEnvName", RocketmqSetting("only the test mode of RocketMQ uses it")
    yield "clusterTest", RocketmqSetting("there is no test mode", "false", is_visible=True)


ROCKETMQ_SETTINGS: dict[str, RocketmqSetting] = dict(
    (*_of_broker(), *_of_store(), *_of_connections(), *_of_nameserver())
)
"""By name. A name means the same in a broker's file and in a name server's."""

_UNLIMITED = str(2**31 - 1)
SHOWN: dict[str, str] = {
    # -- BrokerConfig
    "autoDeleteUnusedStats": "true",
    **dict.fromkeys(
        (
            "clientManageThreadPoolNums",
            "consumerManageThreadPoolNums",
            "endTransactionThreadPoolNums",
            "processReplyMessageThreadPoolNums",
            "clientManagerThreadPoolQueueCapacity",
            "consumerManagerThreadPoolQueueCapacity",
            "replyThreadPoolQueueCapacity",
        ),
        "0",
    ),
    "commercialEnable": "false",
    **dict.fromkeys(("commercialBaseCount", "commercialBigCount", "commercialTimerCount", "commercialTransCount"), "0"),
    "fetchNamesrvAddrByAddressServer": "false",
    "filterServerNums": "0",
    "flushConsumerOffsetHistoryInterval": "60000",
    "highSpeedMode": "false",
    "maxDelayTime": "40",
    "messageStorePlugIn": "",
    # -- MessageStoreConfig
    "putMsgIndexHightWater": "600000",
    # -- NettyServerConfig: one loop serves all connections
    "serverSelectorThreads": "1",
    "serverWorkerThreads": "0",
    "serverCallbackExecutorThreads": "0",
    "serverAsyncSemaphoreValue": _UNLIMITED,
    "serverOnewaySemaphoreValue": _UNLIMITED,
    "serverSocketSndBufSize": "0",
    "serverSocketRcvBufSize": "0",
    "serverPooledByteBufAllocatorEnable": "false",
    "useEpollNativeSelector": "true",
    # -- NettyClientConfig: connections to name servers and clients
    "clientWorkerThreads": "0",
    "clientCallbackExecutorThreads": "0",
    "clientAsyncSemaphoreValue": _UNLIMITED,
    "clientOnewaySemaphoreValue": _UNLIMITED,
    "connectTimeoutMillis": "3000",
    "channelNotActiveInterval": "60000",
    "clientChannelMaxIdleTimeSeconds": "120",
    "clientSocketSndBufSize": "0",
    "clientSocketRcvBufSize": "0",
    "clientPooledByteBufAllocatorEnable": "false",
    "clientCloseSocketIfTimeout": "true",
    "useTLS": "false",
}
"""What GET_BROKER_CONFIG tells of those of RocketMQ 4.8: how this broker behaves, or the default if RocketMQ itself
does not use it. 0 threads or places in a queue: there are none; 0 bytes of a buffer: the system chooses."""
