"""RECALL_MESSAGE (370): a producer takes back a message that waits for its time.

RocketMQ answers with success whatever became of the message: its recall is a note for the moment of the delivery. Here
success means that the message was waiting and is never delivered, also after a kill; otherwise the answer says so.

Source: RecallMessageProcessor of RocketMQ 5.5.0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallystick.node.broker.services.timer_messages import RecallHandle
from tallystick.node.broker.services.timers import RecallError
from tallystick.node.core.settings import PERMISSION_WRITE
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import Command, ResponseError, need_str, opt_str
from tallystick.store.formats import properties

if TYPE_CHECKING:
    from tallystick.node.broker.context import BrokerContext
    from tallystick.node.remoting.server import Connection, Handler


class RecallProcessor:
    """Recalls messages."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker

    def routes(self) -> dict[int, Handler]:
        return {RequestCode.RECALL_MESSAGE: self.recall}

    async def recall(self, connection: Connection, command: Command) -> Command | None:
        """Recalls one message. The answer has its unique key."""
        ext = {properties.MSG_REGION: self._broker.settings.regionId}
        try:
            key = await self._recall(command)
        except ResponseError as error:
            answer = command.reply(error.code, ext=ext, remark=error.remark)
        else:
            answer = command.reply(ext={"msgId": key, **ext})
        return None if command.is_oneway else answer

    async def _recall(self, command: Command) -> str:
        topic, text = need_str(command.ext, "topic"), opt_str(command.ext, "recallHandle")
        handle = self._checked(topic, text)
        extra = {
            properties.BORN_TIMESTAMP: str(self._broker.now_ms()),
            properties.PGROUP: opt_str(command.ext, "producerGroup"),
        }
        try:
            await self._broker.timers.recall(topic, handle.unique_key, handle.at_ms, extra)
        except RecallError as error:
            code = ResponseCode.ILLEGAL_OPERATION if error.is_final else ResponseCode.SYSTEM_ERROR
            raise ResponseError(code, f"recall failed, {error}") from error
        return handle.unique_key

    def _checked(self, topic: str, text: str) -> RecallHandle:
        """The handle of a request that may be tried. ResponseError: it may not."""
        broker, settings = self._broker, self._broker.settings
        if not settings.recallMessageEnable:
            raise ResponseError(ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden")
        accepted = broker.now_ms() >= settings.startAcceptSendRequestTimeStamp
        if not accepted or not (
            settings.brokerPermission & PERMISSION_WRITE or settings.allowRecallWhenBrokerNotWriteable
        ):
            raise ResponseError(ResponseCode.SERVICE_NOT_AVAILABLE, "recall failed, broker service not available")
        if broker.topics.get(topic) is None:
            raise ResponseError(ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{topic}] not exist")
        try:
            handle = RecallHandle.decode(text)
        except ValueError as error:
            raise ResponseError(ResponseCode.ILLEGAL_OPERATION, str(error)) from error
        if handle.topic != topic:
            raise ResponseError(ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match")
        if handle.broker != settings.brokerName:
            raise ResponseError(ResponseCode.ILLEGAL_OPERATION, "recall failed, broker service not available")
        store = broker.store.settings
        # The time in the handle is rounded down: the message may wait for another `timerPrecisionMs`.
        left_ms = handle.at_ms - broker.now_ms()
        if left_ms <= -max(store.timerPrecisionMs, 1000) or left_ms >= store.timerMaxDelaySec * 1000:
            raise ResponseError(ResponseCode.ILLEGAL_OPERATION, "recall failed, timestamp invalid")
        return handle
