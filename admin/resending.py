"""How a stored message is sent again to one group.

Source: the fallback of DefaultMQPushConsumerImpl.sendMessageBack and CONSUME_MESSAGE_DIRECTLY of RocketMQ 4.8.0.
"""

from __future__ import annotations

import time

from tallystick.admin.consumption import online_at
from tallystick.admin.models import Resent, StepState
from tallystick.admin.names import RETRY_PREFIX
from tallystick.admin.servers import Place, Question
from tallystick.client import ClientError, NotFound, Stored
from tallystick.client.wire import properties as names
from tallystick.client.wire.codes import RequestCode, ResponseCode
from tallystick.client.wire.sending import send_fields

_PRODUCER = "TOOLS_PRODUCER"
_MAX_RETRIES = 16
_DROPPED = (
    *(names.DELAY, names.REAL_TOPIC, names.REAL_QID, names.RECONSUME_TIME, names.MAX_RECONSUME_TIMES),
    *(names.TRAN_MSG, names.MIN_OFFSET, names.MAX_OFFSET, names.CONSUME_START_TIME, names.CLUSTER),
    *(names.TIMER_DELAY_MS, names.TIMER_DELAY_SEC, names.TIMER_DELIVER_MS),
)
"""Properties of the first delivery: the copy would be delayed, or not be delivered at all."""


async def resend_to_group(question: Question, place: Place, message: Stored, group: str, dry_run: bool) -> Resent:
    """Stores a copy in the topic of retries of a group, at a master. The copy has the unique key and the topic of the
    original, and begins with all its attempts. It raises nothing: the result has the error."""
    topic = RETRY_PREFIX + group
    if place.id != 0:
        return Resent(message.message_id, StepState.FAILED, None, topic, "the broker has no master now")
    if dry_run:
        return Resent(message.message_id, StepState.PLANNED, None, topic)
    try:
        answer = await question.ask(place, RequestCode.SEND_MESSAGE_V2, _fields(message, topic), message.stored_body)
    except ClientError as error:
        return Resent(message.message_id, StepState.FAILED, None, topic, str(error))
    return Resent(message.message_id, StepState.DONE, (answer.ext or {}).get("msgId"), topic)


def _fields(message: Stored, topic: str) -> dict[str, str]:
    pairs = {name: value for name, value in message.properties.items() if name not in _DROPPED}
    pairs[names.RETRY_TOPIC] = message.topic
    pairs.setdefault(names.ORIGIN_MESSAGE_ID, message.message_id)
    now_ms = int(time.time() * 1000)
    fields = send_fields(
        *(_PRODUCER, topic, 0, names.encode(pairs), now_ms),
        sys_flag=message.sys_flag & _KEPT_FLAGS,
        flag=message.flag,
    )
    return fields | {"l": str(_MAX_RETRIES)}


_KEPT_FLAGS = 0x01 | 0x02 | 0x700
"""Bits of the system flags that describe the body and the tags: the others are of the first sending."""


async def consume_now(
    question: Question, place: Place, message: Stored, group: str, client_id: str, dry_run: bool
) -> Resent:
    """Lets one member of a group consume a message now. It raises nothing: the result has the error."""
    try:
        members = await online_at(question, place, group)
        if members is None or client_id not in members.connections:
            reason = f"{client_id} is not a member of group {group} that is connected to this broker"
            raise NotFound(place.address, ResponseCode.CONSUMER_NOT_ONLINE, reason)
        if dry_run:
            return Resent(message.message_id, StepState.PLANNED, None, client_id)
        ext = {"consumerGroup": group, "clientId": client_id, "msgId": message.message_id, "brokerName": place.name}
        answer = await question.table(place, RequestCode.CONSUME_MESSAGE_DIRECTLY, ext)
    except ClientError as error:
        return Resent(message.message_id, StepState.FAILED, None, client_id, str(error))
    result = str(answer.get("consumeResult"))
    if result in ("CR_SUCCESS", "CR_COMMIT"):
        return Resent(message.message_id, StepState.DONE, None, client_id)
    remark = str(answer.get("remark") or "")
    return Resent(message.message_id, StepState.FAILED, None, client_id, f"{result} {remark}".strip())
