"""A client process: requests over the simulated network, in the product's own codec.

It retries nothing and hides nothing: the caller gets the answer, or learns that there was no answer.
"""

from __future__ import annotations

import asyncio
import json
import struct
import zlib
from collections.abc import Coroutine
from contextvars import copy_context
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from simulation.world import Host, Process, current
from tallystick.node.remoting.client import RemotingClient
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import Command
from tallystick.store.formats import properties
from tallystick.store.formats.record import Record

if TYPE_CHECKING:
    from simulation.loop import SimLoop

GROUP = "sim"
"""Of all producers."""
_BATCH_HEAD = struct.Struct(">iiiii")
COMMIT, ROLLBACK = 8, 12


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One message as its producer means it."""

    key: str
    topic: str
    queue_id: int
    body: bytes
    tag: str = ""
    delay_level: int = 0
    wait_ms: int = 0
    """It asks for a time so much later."""
    half: bool = False
    """The first part of a transaction: no consumer sees it before its producer commits it."""

    @property
    def kept(self) -> dict[str, str]:
        """Properties that its consumers get as its producer gave them."""
        pairs = {properties.KEYS: self.key, "sum": str(zlib.crc32(self.body))}
        return pairs | {properties.TAGS: self.tag} if self.tag else pairs

    def properties(self) -> str:
        """As they are sent."""
        pairs = {properties.UNIQ_KEY: self.key, properties.WAIT: "true", **self.kept}
        if self.delay_level:
            pairs[properties.DELAY] = str(self.delay_level)
        if self.wait_ms:
            pairs[properties.TIMER_DELAY_MS] = str(self.wait_ms)
        if self.half:
            pairs |= {properties.TRAN_MSG: "true", properties.PGROUP: GROUP}
        return properties.encode(pairs)


@dataclass(frozen=True, slots=True)
class Read:
    """The answer to a pull."""

    code: int
    remark: str
    records: list[Record]
    next_offset: int
    min_offset: int
    max_offset: int


_SHORT = "abcdefghijkm"
_LONG = (
    *("producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp"),
    *("flag", "properties", "reconsumeTimes", "unitMode", "batch"),
)


class Client:
    """One client process on a separate host."""

    def __init__(self, loop: SimLoop, name: str, ip: str, dice: Random) -> None:
        self.loop = loop
        self.dice = dice
        self.host = Host(name, ip)
        loop.network.add(self.host)
        self.process = Process(name, self.host)
        self._context = copy_context()
        self._context.run(current.set, self.process)
        self.remoting: RemotingClient = self._context.run(lambda: RemotingClient(name=name))

    def run(self, coro: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """A task of this process."""
        return self._context.copy().run(self.loop.create_task, coro)

    async def close(self) -> None:
        """Ends its connections in order."""
        await self.remoting.close()

    async def call(
        self, address: str, code: int, ext: dict[str, str], body: bytes = b"", timeout_s: float = 3.0
    ) -> Command:
        """RemotingError: there was no answer. To be called from a task of this process."""
        return await self.remoting.call(address, Command(code, ext=ext, body=body), timeout_s)

    async def send(self, address: str, message: Outgoing, timeout_s: float = 3.0) -> Command:
        """One message, in either form of the header."""
        now_ms = self.loop.wall_ns() // 1_000_000
        values = (
            GROUP, message.topic, "TBW102", "4", str(message.queue_id), "4" if message.half else "0", str(now_ms), "0",
            message.properties(), "0", "false", "false",
        )  # fmt: skip
        if self.dice.random() < 0.8:
            return await self.call(
                address, RequestCode.SEND_MESSAGE_V2, dict(zip(_SHORT, values, strict=True)), message.body, timeout_s
            )
        ext = dict(zip(_LONG, values, strict=True))
        return await self.call(address, RequestCode.SEND_MESSAGE, ext, message.body, timeout_s)

    async def pull(
        self,
        address: str,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        wait_s: float = 0.0,
        count: int = 32,
        filtered_by: dict[str, str] | None = None,
        version: int = 0,
    ) -> Read:
        """`filtered_by`: the subscription; empty: the one of the group's heartbeat. RecordError: what came back is no
        sequence of records."""
        if filtered_by is None:
            filtered_by = {"subscription": "*", "expressionType": "TAG"}
        ext = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": str(queue_id),
            "queueOffset": str(offset),
            "maxMsgNums": str(count),
            "sysFlag": str((2 if wait_s else 0) | (4 if filtered_by else 0)),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(int(wait_s * 1000)),
            "subVersion": str(version),
            **filtered_by,
        }
        answer = await self.call(address, RequestCode.PULL_MESSAGE, ext, timeout_s=3.0 + wait_s)
        fields = answer.ext or {}
        records, at = [], 0
        while answer.code == ResponseCode.SUCCESS and at < len(answer.body):
            records.append(Record.decode(answer.body, at))
            at += records[-1].size
        return Read(
            answer.code,
            answer.remark or "",
            records,
            int(fields.get("nextBeginOffset") or -1),
            int(fields.get("minOffset") or -1),
            int(fields.get("maxOffset") or -1),
        )

    async def offset(self, address: str, code: int, topic: str, queue_id: int) -> Command:
        """GET_MIN_OFFSET, GET_MAX_OFFSET."""
        return await self.call(address, code, {"topic": topic, "queueId": str(queue_id)})

    async def send_batch(self, address: str, messages: list[Outgoing]) -> Command:
        """Several messages for one queue in one request."""
        parts = []
        for message in messages:
            text = message.properties().encode()
            size = _BATCH_HEAD.size + len(message.body) + 2 + len(text)
            parts.append(_BATCH_HEAD.pack(size, 0, 0, 0, len(message.body)) + message.body)
            parts.append(len(text).to_bytes(2, "big") + text)
        now_ms = self.loop.wall_ns() // 1_000_000
        first = messages[0]
        values = (
            GROUP,
            first.topic,
            "TBW102",
            "4",
            str(first.queue_id),
            "0",
            str(now_ms),
            "0",
            "",
            "0",
            "false",
            "true",
        )
        ext = dict(zip(_SHORT, values, strict=True))
        return await self.call(address, RequestCode.SEND_BATCH_MESSAGE, ext, b"".join(parts))

    async def end_transaction(self, address: str, key: str, pos: int, offset: int, decision: int) -> Command:
        """COMMIT or ROLLBACK of a half message that lies at `pos`, the `offset`-th of all."""
        ext = {
            "producerGroup": GROUP,
            "tranStateTableOffset": str(offset),
            "commitLogOffset": str(pos),
            "commitOrRollback": str(decision),
            "fromTransactionCheck": "false",
            "msgId": key,
            "transactionId": key,
        }
        return await self.call(address, RequestCode.END_TRANSACTION, ext)

    async def recall(self, address: str, topic: str, handle: str) -> Command:
        """Takes back a message that waits for its time."""
        ext = {"topic": topic, "recallHandle": handle, "producerGroup": GROUP}
        return await self.call(address, RequestCode.RECALL_MESSAGE, ext)

    async def commit(self, address: str, group: str, topic: str, queue_id: int, offset: int) -> Command:
        """The group continues there."""
        ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id), "commitOffset": str(offset)}
        return await self.call(address, RequestCode.UPDATE_CONSUMER_OFFSET, ext)

    async def committed(self, address: str, group: str, topic: str, queue_id: int) -> int | None:
        """Where the group continues; None: it never said."""
        ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id), "setZeroIfNotFound": "false"}
        answer = await self.call(address, RequestCode.QUERY_CONSUMER_OFFSET, ext)
        return int((answer.ext or {})["offset"]) if answer.code == ResponseCode.SUCCESS else None

    async def set_topic(self, address: str, topic: str, queues: int, perm: int) -> Command:
        """Makes a topic, or changes it."""
        ext = {
            "topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(queues), "writeQueueNums": str(queues),
            "perm": str(perm), "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        }  # fmt: skip
        return await self.call(address, RequestCode.UPDATE_AND_CREATE_TOPIC, ext)

    async def set_group(self, address: str, group: str, retries: int) -> Command:
        """Makes a subscription group, or changes it."""
        body = {"groupName": group, "consumeEnable": True, "consumeFromMinEnable": True, "retryMaxTimes": retries,
                "consumeBroadcastEnable": True, "retryQueueNums": 1, "brokerId": 0,
                "whichBrokerWhenConsumeSlowly": 1, "notifyConsumerIdsChangedEnable": True}  # fmt: skip
        return await self.call(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json.dumps(body).encode())

    async def table(self, address: str, code: int, field: str) -> dict[str, dict[str, Any]]:
        """GET_ALL_TOPIC_CONFIG, GET_ALL_SUBSCRIPTIONGROUP_CONFIG: the rows by name."""
        answer = await self.call(address, code, {})
        rows: dict[str, dict[str, Any]] = json.loads(answer.body)[field]
        return rows

    async def find_key(self, address: str, topic: str, key: str) -> list[Record]:
        """Messages of a topic that have a key."""
        ext = {"topic": topic, "key": key, "maxNum": "64", "beginTimestamp": "0", "endTimestamp": str(1 << 62)}
        answer = await self.call(address, RequestCode.QUERY_MESSAGE, ext)
        records, at = [], 0
        while answer.code == ResponseCode.SUCCESS and at < len(answer.body):
            records.append(Record.decode(answer.body, at))
            at += records[-1].size
        return records
