"""SEND_MESSAGE (10), its V2 (310) and SEND_BATCH_MESSAGE (320).

The kernel answers plain sends to known topics directly from the bytes of the socket. This processor handles all others.
Both store the same bytes: the request's properties, then CLUSTER. Some messages are stored in another topic:

    %RETRY% topic, tried too often   -> the group's dead letters
    TRAN_MSG                         -> half topic
    TIMER_DELAY_*, TIMER_DELIVER_MS  -> timer topic
    DELAY                            -> schedule topic

The processor does not give up the event loop before the store's append, so messages of one connection are stored in
the order in which they arrived. Only the first sends to a new topic wait until its row is durable (`rows_durable`);
they keep their order.

The messages of a batch cannot ask for a time: the broker refuses such a batch with code 13. (RocketMQ 5 ignores the
property there, and consumers get the message too early: a failed send is noticed sooner than a wrong time.)

Source: SendMessageProcessor of RocketMQ 4.8.0, and of 5.5.0 for timers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from tallystick.node.broker.processors.sending import (
    VERSION_WITH_MAX_RECONSUME,
    SendRequest,
    admit,
    choose_queue,
    put_answer,
    region,
    rows_durable,
    with_cluster,
)
from tallystick.node.broker.services.delay import DelayError, delay_level, to_schedule
from tallystick.node.broker.services.half import is_half, says_transaction, to_half
from tallystick.node.broker.services.timer_messages import (
    REQUESTS,
    TimerError,
    check_half,
    checked_batch,
    drop_own,
    handle_of,
    to_timer,
)
from tallystick.node.broker.services.timers import RecallError
from tallystick.node.broker.tables.topics import (
    DLQ_PREFIX,
    HALF_TOPIC,
    RETRY_PREFIX,
    TIMER_TOPIC,
    TopicConfig,
    dlq_topic,
)
from tallystick.node.core.settings import PERMISSION_WRITE
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import Command, ResponseError
from tallystick.store.formats import properties
from tallystick.store.formats.message import TRANSACTION_MASK, Message, MessageBatch, PutResult, SysFlag

if TYPE_CHECKING:
    from tallystick.node.broker.context import BrokerContext
    from tallystick.node.remoting.server import Connection, Handler

_MULTI_TAG = "MULTI_TAG"


class SendProcessor:
    """Stores the messages of producers."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker

    def routes(self) -> dict[int, Handler]:
        return {
            RequestCode.SEND_MESSAGE: self.send,
            RequestCode.SEND_MESSAGE_V2: self.send,
            RequestCode.SEND_BATCH_MESSAGE: self.send,
        }

    async def send(self, connection: Connection, command: Command) -> Command | None:
        """Handles one send. A one-way request gets no answer, even if it fails."""
        try:
            answer = await self._send(connection, command)
        except ResponseError as error:
            if error.code == ResponseCode.SERVICE_NOT_AVAILABLE:  # other codes are mistakes of the client
                self._broker.stats.send_failures += 1
            answer = command.reply(error.code, ext=region(self._broker), remark=error.remark)
        return None if command.is_oneway else answer

    async def _send(self, connection: Connection, command: Command) -> Command:
        request = SendRequest.read(command)
        config = admit(self._broker, request, connection.remote)
        queue_id = choose_queue(request, config)
        names = with_cluster(request.properties, self._broker.settings.brokerClusterName)
        drop_own(names)
        handle: str | None = None
        if request.batch:
            batch = self._batch(request, queue_id, names, connection, command.body)
            await rows_durable(self._broker, request.topic, queue_id)
            result = await self._broker.store.writes.put_batch(batch)
        else:
            message = self._message(request, config, queue_id, names, connection, command)
            stored = self._stored(message, names)
            group = request.topic.removeprefix(RETRY_PREFIX) if request.topic.startswith(RETRY_PREFIX) else None
            await rows_durable(self._broker, message.topic, message.queue_id, group)
            if stored.topic == TIMER_TOPIC and properties.TIMER_DEL_UNIQKEY in names:
                result = await self._recall(message.topic, stored)
            else:
                result = await self._broker.store.writes.put(stored)
                self._count(request, message, stored, result)
                handle = handle_of(stored, self._broker.settings.brokerName)
        answer = put_answer(self._broker, command, result, queue_id)
        if handle is not None and result.status.stored:
            answer.ext = {**(answer.ext or {}), "recallHandle": handle}
        return answer

    def _count(self, request: SendRequest, message: Message, stored: Message, result: PutResult) -> None:
        """`message`: with the topic from which consumers will read it; `stored`: in the form in which it was put."""
        if not result.status.stored:
            return
        if stored.topic == HALF_TOPIC:
            self._broker.transactions.opened(result.queue_offset, message.topic, message.born_timestamp_ms)
        elif message.topic != request.topic:  # it was tried too often
            origin = properties.decode(message.properties).get(properties.RETRY_TOPIC, message.topic)
            self._broker.stats.dead_letter(message.topic.removeprefix(DLQ_PREFIX), origin)

    async def _recall(self, topic: str, message: Message) -> PutResult:
        """A send with TIMER_DEL_UNIQKEY ends the timer with this unique key and time."""
        names = properties.decode(message.properties)
        key = names[properties.TIMER_DEL_UNIQKEY].removeprefix(f"{topic}+")  # appendTopicForTimerDeleteKey
        at_ms = int(names[properties.TIMER_OUT_MS]) + 1
        try:
            return await self._broker.timers.recall(topic, key, at_ms, {})
        except RecallError as error:
            code = ResponseCode.MESSAGE_ILLEGAL if error.is_final else ResponseCode.SYSTEM_ERROR
            raise ResponseError(code, f"recall failed, {error}") from error

    def _message(
        self,
        request: SendRequest,
        config: TopicConfig,
        queue_id: int,
        names: Mapping[str, str],
        connection: Connection,
        command: Command,
    ) -> Message:
        """Returns the message with the topic from which consumers will read it."""
        message = Message(
            topic=request.topic,
            queue_id=queue_id,
            body=command.body,
            properties=properties.encode(names),
            flag=request.flag,
            sys_flag=request.sys_flag,
            born_timestamp_ms=request.born_timestamp_ms,
            born_host=connection.remote,
            reconsume_times=request.reconsume_times,
        )
        if request.topic.startswith(RETRY_PREFIX):
            message, config = self._retried(message, config, request.max_reconsume_times, command.version)
        if config.topic_filter_type == _MULTI_TAG:
            message.sys_flag |= SysFlag.MULTI_TAGS
        return message

    def _stored(self, message: Message, names: Mapping[str, str]) -> Message:
        """Returns the message to store now: unchanged, or as a half or delayed message."""
        try:
            if is_half(message, names):
                if self._broker.settings.rejectTransactionMessage:
                    raise ResponseError(
                        ResponseCode.NO_PERMISSION,
                        f"the broker[{self._broker.settings.brokerIP1}] sending transaction message is forbidden",
                    )
                check_half(names, self._broker.store.settings, self._broker.now_ms())
                return to_half(message, names)
            if says_transaction(names):  # it was sent back after its transaction ended: it is not prepared again
                message.sys_flag &= ~TRANSACTION_MASK
            message = to_timer(message, self._broker.store.settings, self._broker.now_ms())
            return message if message.topic == TIMER_TOPIC else to_schedule(message, self._broker.schedule.levels)
        except DelayError as error:
            raise _illegal(str(error)) from error
        except TimerError as error:
            raise _refused(error) from error

    def _retried(
        self, message: Message, config: TopicConfig, limit: int | None, version: int
    ) -> tuple[Message, TopicConfig]:
        """Returns the message that a client sends to a retry topic, with that topic or with that of the dead
        letters."""
        name = message.topic.removeprefix(RETRY_PREFIX)
        group = self._broker.groups.get(name)
        if group is None:
            raise ResponseError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {name}")
        if limit is None or version < VERSION_WITH_MAX_RECONSUME:
            limit = group.retry_max_times
        if message.reconsume_times < limit:
            return message, config
        topic = dlq_topic(name)
        dead = self._broker.topics.create_on_send_back(topic, 1, PERMISSION_WRITE)
        if dead is None:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, f"topic[{topic}] not exist")
        return replace(message, topic=topic, queue_id=0), dead

    def _batch(
        self,
        request: SendRequest,
        queue_id: int,
        names: Mapping[str, str],
        connection: Connection,
        body: bytes,
    ) -> MessageBatch:
        if request.topic.startswith(RETRY_PREFIX):
            raise _illegal(f"batch request does not support retry group {request.topic}")
        try:
            plain = not says_transaction(names) and delay_level(names) <= 0
        except DelayError as error:
            raise _illegal(str(error)) from error
        if any(name in names for name in REQUESTS):
            raise _illegal("a batch cannot ask for a time of delivery")
        try:
            body = checked_batch(body)
        except TimerError as error:
            raise _refused(error) from error
        if not plain or request.sys_flag & TRANSACTION_MASK:
            raise _illegal("messages of a batch can be neither delayed nor part of a transaction")
        return MessageBatch(
            topic=request.topic,
            queue_id=queue_id,
            body=body,
            properties=properties.encode(names),
            flag=request.flag,
            sys_flag=request.sys_flag,
            born_timestamp_ms=request.born_timestamp_ms,
            born_host=connection.remote,
            reconsume_times=request.reconsume_times,
        )


def _refused(error: TimerError) -> ResponseError:
    return ResponseError(
        ResponseCode.SYSTEM_ERROR if error.is_disabled else ResponseCode.MESSAGE_ILLEGAL,
        str(error),
    )


def _illegal(remark: str) -> ResponseError:
    return ResponseError(ResponseCode.MESSAGE_ILLEGAL, remark)
