"""The records of transactions: half messages, their ends and their copies.

    sent with TRAN_MSG   -> RMQ_SYS_TRANS_HALF_TOPIC, queue 0: unseen by consumers; REAL_TOPIC and REAL_QID say where to
    committed            -> the real topic again, sysFlag 8, preparedTransactionOffset = the half's position in the log
    committed or not     -> RMQ_SYS_TRANS_OP_HALF_TOPIC, queue 0: tag "d", body = the half's queue offset in decimal
    checked              -> a new copy of the half with TRANSACTION_CHECK_TIMES incremented; the old one is done
    checked too often    -> TRANS_CHECK_MAX_TIME_TOPIC, where an operator can find it

A copy has the producer's flag; RocketMQ's have 0 instead, and so has what is committed from them.

Everything here is pure. Properties keep their order, and new ones come last; RocketMQ's order is that of a Java HashMap
and means nothing.

Source: TransactionalMessageBridge, EndTransactionProcessor and AbstractTransactionalMessageCheckListener of RocketMQ
4.8.0; forms as in the golden store `clean`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tallystick.node.broker.services.delay import again, delay_level, real_queue
from tallystick.node.broker.tables.topics import CHECK_MAX_TOPIC, HALF_TOPIC, OPERATION_TOPIC
from tallystick.store.formats import properties
from tallystick.store.formats.message import TRANSACTION_COMMIT, TRANSACTION_MASK, Host, Message
from tallystick.store.formats.record import Record

GROUP = "CID_RMQ_SYS_TRANS"
"""Consumer group that stores the offsets of the half queue and the op queue."""

_OP_TAG = "d"
_OP_PROPERTIES = properties.encode({properties.WAIT: "true", properties.TAGS: _OP_TAG})


def says_transaction(names: Mapping[str, str]) -> bool:
    """Whether TRAN_MSG is set: a half message, or one that was a half message before."""
    return names.get(properties.TRAN_MSG, "").lower() == "true"


def is_half(message: Message, names: Mapping[str, str]) -> bool:
    """Whether the producer sent a half message.

    A committed message keeps TRAN_MSG. If a consumer's client before 4.6.1 sends one back by a normal send, it arrives
    here with TRAN_MSG, reconsume times and a delay level: that is not a half message.
    """
    return says_transaction(names) and not (message.reconsume_times > 0 and delay_level(names) > 0)


def to_half(message: Message, names: Mapping[str, str]) -> Message:
    """The message as it is stored until its transaction ends. `names`: its properties, decoded."""
    renamed = {
        **names,
        properties.REAL_TOPIC: message.topic,
        properties.REAL_QID: str(message.queue_id),
    }
    return replace(
        message,
        topic=HALF_TOPIC,
        queue_id=0,
        sys_flag=message.sys_flag & ~TRANSACTION_MASK,
        properties=properties.encode(renamed),
    )


def to_commit(half: Record) -> Message:
    """The message that consumers see. Raises DelayError if the half does not name its topic and queue.

    TRAN_MSG, REAL_TOPIC and REAL_QID stay, as in RocketMQ's stores. A delay level counts from the commit: the caller
    passes this through `delay.to_schedule`.
    """
    message = again(half, *real_queue(properties.decode(half.properties)))
    message.sys_flag = half.sys_flag & ~TRANSACTION_MASK | TRANSACTION_COMMIT
    message.prepared_transaction_offset = half.pos
    return message


def to_op(queue_id: int, half_offset: int, host: Host, now_ms: int) -> Message:
    """The note that the half message with this queue offset has ended."""
    return Message(
        topic=OPERATION_TOPIC,
        queue_id=queue_id,
        body=str(half_offset).encode(),
        properties=_OP_PROPERTIES,
        born_timestamp_ms=now_ms,
        born_host=host,
    )


def ended_offsets(op: Record) -> list[int]:
    """Half offsets that an op record ends: one in 4.8, several with commas between in 5.x; the rest is no offset."""
    if properties.decode(op.properties).get(properties.TAGS) != _OP_TAG:
        return []
    return [int(part) for part in op.body.split(b",") if part.isdigit() and len(part) < 20]


def to_discard(half: Record) -> Message:
    """The copy of a half message that was never ended."""
    return again(half, CHECK_MAX_TOPIC, 0)


def with_properties(half: Record, changes: Mapping[str, str]) -> Record:
    """The same record with some properties set."""
    return half._replace(properties=properties.encode({**properties.decode(half.properties), **changes}))


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """CHECK_TRANSACTION_STATE (39): header and body for the producer."""

    group: str
    ext: dict[str, str]
    body: bytes


def check_request(half: Record, *, queue_offset: int, pos: int, message_id: str) -> CheckRequest:
    """The request for a check of a half message at position `pos` (bytes) with this queue offset and offset id.

    The body is a whole record with the real topic and queue. DelayError: the half does not name them.
    """
    names = properties.decode(half.properties)
    topic, queue_id = real_queue(names)
    key = names.get(properties.UNIQ_KEY, "")
    ext = {
        "commitLogOffset": str(pos),
        "msgId": key,
        "tranStateTableOffset": str(queue_offset),
        "offsetMsgId": message_id,
        "transactionId": key,
    }
    record = half._replace(topic=topic, queue_id=queue_id, queue_offset=queue_offset, pos=pos)
    return CheckRequest(names.get(properties.PGROUP, ""), {name: v for name, v in ext.items() if v}, record.encode())
