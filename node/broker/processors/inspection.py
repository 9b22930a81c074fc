"""Requests for troubleshooting: units of a queue (321), and another check of a half message (323).

Source: AdminBrokerProcessor of RocketMQ 4.8.0.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tallystick.node.broker.processors.answers import json_answer, refused
from tallystick.node.broker.services.delay import again
from tallystick.node.broker.services.half import with_properties
from tallystick.node.broker.tables.bloom import BloomFilter, has_bits
from tallystick.node.broker.tables.filters import FilterData, tag_filter
from tallystick.node.broker.tables.subscriptions import is_tag_type
from tallystick.node.broker.tables.topics import HALF_TOPIC
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import Command, need_int, need_long, need_str
from tallystick.store import fastjson
from tallystick.store.formats import properties
from tallystick.store.formats.message import PutStatus
from tallystick.store.formats.message_id import MessageIdError, decode_message_id
from tallystick.store.formats.record import Record, RecordError

if TYPE_CHECKING:
    from tallystick.node.broker.context import BrokerContext
    from tallystick.node.broker.tables.clients import Channel
    from tallystick.node.broker.tables.subscriptions import SubscriptionData
    from tallystick.node.remoting.endpoint import Handler
    from tallystick.store._kernel import ExtensionUnit

MAX_EXTENSION_ADDRESS = -(2**31) - 1
"""A tags code up to this one is the address of an extension."""
MAX_UNITS = 1000  # units in one answer; RocketMQ has no limit


class InspectionProcessor:
    """Answers requests for troubleshooting."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker

    def routes(self) -> dict[int, Handler]:
        return {
            RequestCode.QUERY_CONSUME_QUEUE: self.consume_queue,
            RequestCode.RESUME_CHECK_HALF_MESSAGE: self.resume_check,
        }

    def consume_queue(self, channel: Channel, command: Command) -> Command:
        """321: returns units of a queue from `index` on, their extensions, and what the broker knows of the group.

        `eval` says whether the group's filter accepts an extension. As in RocketMQ, it is false without an extension.
        """
        ext, store = command.ext or {}, self._broker.store
        topic, queue_id = need_str(ext, "topic"), need_int(ext, "queueId")
        index, count = need_long(ext, "index"), need_int(ext, "count")
        low, high = store.queues.min_offset(topic, queue_id), store.queues.max_offset(topic, queue_id)
        if high == 0 and (topic, queue_id) not in store.queues.names():
            raise refused(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!")
        body: dict[str, Any] = {"maxQueueIndex": high, "minQueueIndex": low}
        group = ext.get("consumerGroup")
        accepts = None
        if group is not None:
            subscription = self._broker.consumers.subscription(group, topic)
            filter_data = self._broker.filters.get(topic, group)
            if subscription is None:
                body["filterData"] = f"{group}@{topic} is not online!"
            else:
                body["subscriptionData"] = subscription.to_json()
                body["filterData"] = _shown(filter_data, self._broker.filters.bloom)
                accepts = _accepting(subscription, filter_data, self._broker.filters.bloom)
        rows = []
        for pos, size, tags_code in store.reads.units(topic, queue_id, index, max(0, min(count, MAX_UNITS))):
            row: dict[str, Any] = {"physicOffset": pos, "physicSize": size, "tagsCode": tags_code, "eval": False}
            if tags_code <= MAX_EXTENSION_ADDRESS:
                unit = store.reads.extension_unit(topic, queue_id, tags_code)
                row |= _extension(tags_code, unit)
                row["eval"] = unit is not None and accepts is not None and accepts(unit)
            rows.append(row)
        body["queueData"] = rows
        answer = json_answer(command, body)
        if not rows:
            answer.remark = f"Index {index} of {queue_id}@{topic} is not exist!"
        return answer

    async def resume_check(self, channel: Channel, command: Command) -> Command:
        """323: stores a half message again with its number of checks reset, so that the broker asks its producer
        again."""
        text = need_str(command.ext, "msgId")
        try:
            _, pos = decode_message_id(text)
            data = self._broker.store.reads.message_at(pos)
            record = None if data is None else Record.decode(data)
        except (MessageIdError, RecordError) as error:
            raise refused(ResponseCode.SYSTEM_ERROR, str(error)) from error
        if record is None or record.topic != HALF_TOPIC:
            raise refused(ResponseCode.SYSTEM_ERROR, f"no half message has the id {text}")
        fresh = with_properties(record, {properties.TRANSACTION_CHECK_TIMES: "0"})
        result = await self._broker.store.writes.put(again(fresh, HALF_TOPIC, 0))
        if result.status is not PutStatus.PUT_OK:
            raise refused(ResponseCode.SYSTEM_ERROR, f"Put message back to {HALF_TOPIC} error: {result.status.name}")
        return command.reply()


def _shown(data: FilterData | None, bloom: BloomFilter) -> str:
    """The expression of a group, as RocketMQ prints it; `null`: the broker has none of it."""
    content = None if data is None else data.to_json(bloom)
    if content is not None:  # Java's arrays are on one line
        content["bloomFilterData"]["bitPos"] = tuple(content["bloomFilterData"]["bitPos"])
    return fastjson.dumps(content, pretty=True).decode()


def _extension(address: int, unit: ExtensionUnit | None) -> dict[str, Any]:
    """The fields of a row for the extension of its unit."""
    if unit is None:
        return {"msg": f"Cq extend not exist!addr: {address}"}
    content: dict[str, Any] = {"msgStoreTime": unit.store_ms, "size": unit.size, "tagsCode": unit.tags_code}
    if not unit.bit_map:
        return {"extendDataJson": fastjson.dumps(content).decode()}
    content = {"filterBitMap": base64.b64encode(unit.bit_map).decode(), **content}
    return {"extendDataJson": fastjson.dumps(content).decode(), "bitMap": _bits(unit.bit_map)}


def _bits(bit_map: bytes) -> str:
    """In RocketMQ's form: the highest bit first, and a line break behind every byte whose number 8 divides."""
    highest = range(len(bit_map) - 1, -1, -1)
    return "".join(f"{bit_map[at]:08b}" + ("\n" if at % 8 == 0 else "") for at in highest)


def _accepting(
    subscription: SubscriptionData, data: FilterData | None, bloom: BloomFilter
) -> Callable[[ExtensionUnit], bool]:
    """Whether a group's filter accepts an extension, as far as the extension can tell."""
    if is_tag_type(subscription.expression_type):
        codes = tag_filter(subscription).codes
        return lambda unit: codes is None or unit.tags_code in codes

    def probably(unit: ExtensionUnit) -> bool:
        if data is None or unit.store_ms <= data.born_time or len(unit.bit_map) * 8 != bloom.bits:
            return True  # the bits do not know this expression
        return has_bits(unit.bit_map, data.bloom_positions)

    return probably
