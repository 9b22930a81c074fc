"""CONSUMER_SEND_MSG_BACK (36): a consumer could not process a message, and gets it again later.

The broker reads the record from its log and stores a copy in the group's retry topic, through the schedule topic:
each attempt waits longer (level 3 plus the attempts so far) unless the client names a level. After the last attempt, or
with a negative level, it goes to the group's dead letters. A property DELAY of an earlier attempt stays on the message,
so dead letters wait that long once more; RocketMQ 4.8 does so, too.

If this request fails, the client sends the message to the retry topic by itself.

Source: SendMessageProcessor.consumerSendMsgBack of RocketMQ 4.8.0; forms as in the golden store `clean`.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from tallystick.node.broker.processors.sending import VERSION_WITH_MAX_RECONSUME, rows_durable
from tallystick.node.broker.services.delay import DelayError, again, to_schedule
from tallystick.node.broker.tables.topics import SYS_FLAG_UNIT_SUB, dlq_topic, retry_topic
from tallystick.node.core.settings import PERMISSION_READ, PERMISSION_WRITE
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import (
    Command,
    ResponseError,
    need_int,
    need_long,
    need_str,
    opt_bool,
    opt_int,
)
from tallystick.store.formats import properties
from tallystick.store.formats.message import Message, PutStatus
from tallystick.store.formats.record import Record, RecordError

if TYPE_CHECKING:
    from tallystick.node.broker.context import BrokerContext
    from tallystick.node.remoting.server import Connection, Handler

FIRST_RETRY_LEVEL = 3


def sent_back(record: Record, topic: str, queue_id: int, delay_level: int | None) -> Message:
    """Returns the message to store for a record that a consumer sent back. `delay_level` None: DELAY stays as it is.

    The first attempt adds the topic and the id of the original; later attempts keep them.
    """
    names = record.property_table()
    names.setdefault(properties.RETRY_TOPIC, record.topic)
    names.setdefault(properties.ORIGIN_MESSAGE_ID, record.message_id)
    names.pop(properties.TIMER_ORIGIN, None)
    names[properties.WAIT] = "false"
    if delay_level is not None:
        names[properties.DELAY] = str(delay_level)
    message = again(record, topic, queue_id)
    return replace(message, properties=properties.encode(names), reconsume_times=record.reconsume_times + 1)


class SendBackProcessor:
    """Stores messages again that consumers could not process."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker

    def routes(self) -> dict[int, Handler]:
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self.send_back}

    async def send_back(self, connection: Connection, command: Command) -> Command | None:
        """Stores the message again. The answer has no fields."""
        message = self._message(command)
        if message is not None:
            group = need_str(command.ext, "group")
            await rows_durable(self._broker, message.topic, message.queue_id, group)
            is_dead = message.topic == dlq_topic(group)
            message = self._delayed(message)
            result = await self._broker.store.writes.put(message)
            if result.status is not PutStatus.PUT_OK:
                remark = f"{result.status.name} {result.detail}".strip()
                raise ResponseError(ResponseCode.SYSTEM_ERROR, remark)
            origin = properties.decode(message.properties)[properties.RETRY_TOPIC]
            self._broker.stats.send_back(group, origin)
            if is_dead:
                self._broker.stats.dead_letter(group, origin)
        return None if command.is_oneway else command.reply()

    def _message(self, command: Command) -> Message | None:
        """Returns the message to store; None: the group has no retries. ResponseError: it cannot be sent back."""
        ext, broker = command.ext, self._broker
        pos, name = need_long(ext, "offset"), need_str(ext, "group")
        level = need_int(ext, "delayLevel")
        group = broker.groups.get(name)
        if group is None:
            raise ResponseError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {name}")
        if not broker.settings.brokerPermission & PERMISSION_WRITE:
            raise ResponseError(
                ResponseCode.NO_PERMISSION, f"the broker[{broker.settings.brokerIP1}] sending message is forbidden"
            )
        if group.retry_queue_nums <= 0:
            return None
        unit = SYS_FLAG_UNIT_SUB if opt_bool(ext, "unitMode") else 0
        topic = self._topic(retry_topic(name), group.retry_queue_nums, PERMISSION_READ | PERMISSION_WRITE, unit)
        data = broker.store.reads.message_at(pos)
        if data is None:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {pos}")
        try:
            record = Record.decode(data)
        except RecordError as error:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {pos}: {error}") from error
        limit = group.retry_max_times
        if command.version >= VERSION_WITH_MAX_RECONSUME:
            limit = opt_int(ext, "maxReconsumeTimes", limit)
        if level < 0 or record.reconsume_times >= limit:
            dead = self._topic(dlq_topic(name), 1, PERMISSION_WRITE, 0)
            return sent_back(record, dead, 0, None)
        level = level or FIRST_RETRY_LEVEL + record.reconsume_times
        return sent_back(record, topic, random.randrange(group.retry_queue_nums), level)

    def _delayed(self, message: Message) -> Message:
        try:
            return to_schedule(message, self._broker.schedule.levels)
        except DelayError as error:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, str(error)) from error

    def _topic(self, name: str, queues: int, perm: int, unit: int) -> str:
        """Creates a topic of the group if necessary, and returns its name. ResponseError: it cannot be created or
        written to."""
        config = self._broker.topics.create_on_send_back(name, queues, perm, unit)
        if config is None:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, f"topic[{name}] not exist")
        if not config.writable:
            raise ResponseError(ResponseCode.NO_PERMISSION, f"the topic[{name}] sending message is forbidden")
        return name
