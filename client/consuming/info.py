"""What `mqadmin consumerStatus` shows of a consumer, in RocketMQ's form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tallystick.client.consuming.reader import Reader
from tallystick.client.core.queue import Queue
from tallystick.client.wire.fastjson import JsonObjectKey


def running_info(
    readers: Mapping[Queue, Reader], heartbeat: Mapping[str, Any], *, ordered: bool, begun_ms: int
) -> dict[str, Any]:
    """Returns a ConsumerRunningInfo."""
    table = {}
    for queue, reader in sorted(readers.items()):
        window = reader.window
        key = JsonObjectKey({"brokerName": queue.broker, "queueId": queue.id, "topic": queue.topic})
        table[key] = {
            "cachedMsgCount": len(window),
            "cachedMsgMaxOffset": max(window.committable, window.next_offset - 1),
            "cachedMsgMinOffset": window.committable,
            "cachedMsgSizeInMiB": window.bytes >> 20,
            "commitOffset": window.committable,
            "droped": window.dropped,
            "lastConsumeTimestamp": reader.pulled_ms,
            "lastLockTimestamp": 0,
            "lastPullTimestamp": reader.pulled_ms,
            "locked": window.usable_until_s is not None,
            "transactionMsgCount": 0,
            "transactionMsgMaxOffset": 0,
            "transactionMsgMinOffset": 0,
            "tryUnlockTimes": 0,
        }
    return {
        "mqTable": table,
        "properties": {
            "PROP_CLIENT_VERSION": "V4_8_0",
            "PROP_CONSUMEORDERLY": str(ordered).lower(),
            "PROP_CONSUMER_START_TIMESTAMP": str(begun_ms),
            "PROP_CONSUME_TYPE": str(heartbeat["consumeType"]),
            "PROP_NAMESERVER_ADDR": "",
            "PROP_THREADPOOL_CORE_SIZE": "1",
        },
        "statusTable": {},
        "subscriptionSet": list(heartbeat["subscriptionDataSet"]),
    }
