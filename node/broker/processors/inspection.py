"""Requests for troubleshooting: units of a queue (321), and another check of a half message (323).

Source: AdminBrokerProcessor of RocketMQ 4.8.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tallystick.node.broker.processors.answers import json_answer, refused
from tallystick.node.broker.services.delay import again
from tallystick.node.broker.services.half import with_properties
from tallystick.node.broker.tables.filters import EVERYTHING, tag_filter
from tallystick.node.broker.tables.subscriptions import is_tag_type
from tallystick.node.broker.tables.topics import HALF_TOPIC
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import Command, need_int, need_long, need_str, opt_str
from tallystick.store.formats import properties
from tallystick.store.formats.message import PutStatus
from tallystick.store.formats.message_id import MessageIdError, decode_message_id
from tallystick.store.formats.record import Record, RecordError

if TYPE_CHECKING:
    from tallystick.node.broker.context import BrokerContext
    from tallystick.node.broker.tables.clients import Channel
    from tallystick.node.remoting.endpoint import Handler

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
        """321: returns units of a queue from `index` on, and whether the group's filter accepts each of them."""
        ext, store = command.ext, self._broker.store
        topic, queue_id = need_str(ext, "topic"), need_int(ext, "queueId")
        index, count = need_long(ext, "index"), need_int(ext, "count")
        low, high = store.queues.min_offset(topic, queue_id), store.queues.max_offset(topic, queue_id)
        if high == 0 and (topic, queue_id) not in store.queues.names():
            raise refused(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!")
        body: dict[str, Any] = {"maxQueueIndex": high, "minQueueIndex": low}
        wanted = EVERYTHING
        group = opt_str(ext, "consumerGroup")
        subscription = self._broker.consumers.subscription(group, topic) if group else None
        if subscription is not None:
            body["subscriptionData"] = subscription.to_json()
            if is_tag_type(subscription.expression_type):
                wanted = tag_filter(subscription)
        rows = []
        for pos, size, tags_code in store.reads.units(topic, queue_id, index, max(0, min(count, MAX_UNITS))):
            passes = wanted.codes is None or tags_code in wanted.codes
            rows.append({"physicOffset": pos, "physicSize": size, "tagsCode": tags_code, "eval": passes})
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
