"""SEND_REPLY_MESSAGE (324) and its V2 (325): the answer to a request message.

The broker pushes the reply to the client that waits for it. With `storeReplyMessageEnable` it then stores the reply
unchanged in its topic, `<cluster>_REPLY_TOPIC`; RocketMQ adds no CLUSTER here. The code of the answer is the result of
the push. Its ids are those of the record, or zeros without a record, because clients require the fields.

Source: ReplyMessageProcessor of RocketMQ 4.8.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallystick.node.broker.processors.sending import SendRequest, admit, choose_queue, region, rows_durable
from tallystick.node.broker.services.request_reply import push_command, push_reply
from tallystick.node.broker.services.timer_messages import without_own
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import Command, ResponseError
from tallystick.store.formats import properties
from tallystick.store.formats.message import Message

if TYPE_CHECKING:
    from tallystick.node.broker.context import BrokerContext
    from tallystick.node.remoting.server import Connection, Handler


class ReplyProcessor:
    """Passes replies on to the clients that wait for them."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker

    def routes(self) -> dict[int, Handler]:
        return {RequestCode.SEND_REPLY_MESSAGE: self.reply, RequestCode.SEND_REPLY_MESSAGE_V2: self.reply}

    async def reply(self, connection: Connection, command: Command) -> Command | None:
        """Handles one reply. A one-way request gets no answer."""
        try:
            answer = await self._reply(connection, command)
        except ResponseError as error:
            answer = command.reply(error.code, ext=region(self._broker), remark=error.remark)
        return None if command.is_oneway else answer

    async def _reply(self, connection: Connection, command: Command) -> Command:
        broker = self._broker
        request = SendRequest.read(command)
        config = admit(broker, request, connection.remote)
        message = Message(
            topic=request.topic,
            queue_id=choose_queue(request, config),
            body=command.body,
            properties=without_own(request.properties),
            flag=request.flag,
            sys_flag=request.sys_flag,
            born_timestamp_ms=request.born_timestamp_ms,
            born_host=connection.remote,
            reconsume_times=request.reconsume_times,
        )
        waiting = properties.decode(request.properties).get(properties.REPLY_TO_CLIENT)
        push = push_command(request, message, broker.host, broker.now_ms())
        problem = await push_reply(broker.producers, waiting, push)
        ext = region(broker)
        ext |= {"msgId": "0", "queueId": str(message.queue_id), "queueOffset": "0"}
        if broker.settings.storeReplyMessageEnable:
            await rows_durable(broker, message.topic, message.queue_id)
            result = await broker.store.writes.put(message)
            if result.status.stored:
                ext["msgId"] = result.message_id
                ext["queueOffset"] = str(result.queue_offset)
        code = ResponseCode.SUCCESS if problem is None else ResponseCode.SYSTEM_ERROR
        return command.reply(code, ext=ext, remark=problem)
