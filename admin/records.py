"""Stored messages: how they are read from brokers, and how they are shown."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import NamedTuple

from tallystick.admin.models import Message, MessageSummary
from tallystick.admin.names import TOOLS_GROUP
from tallystick.admin.servers import Place, Question
from tallystick.client import ProtocolError, Stored
from tallystick.client.core.errors import refused
from tallystick.client.core.message import decode_stored
from tallystick.client.core.queue import Queue
from tallystick.client.wire.codes import RequestCode, ResponseCode
from tallystick.client.wire.pulling import pull_fields

BATCH = 32
"""Messages of one pull: brokers of RocketMQ 4.8 give no more."""
_EMPTY = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)


class Pulled(NamedTuple):
    """A part of a queue. The next one begins at `next_offset`; the queue has the offsets from `low` to `high` - 1."""

    messages: list[Stored]
    next_offset: int
    low: int
    high: int


async def pull(question: Question, place: Place, queue: Queue, offset: int, count: int = BATCH) -> Pulled:
    """Reads messages of a queue from an offset on. Refused, ConnectionFailed, NoAnswer, ProtocolError."""
    ext = pull_fields(TOOLS_GROUP, queue.topic, queue.id, offset, count=count)
    answer = await question.call(place, RequestCode.PULL_MESSAGE, ext)
    if answer.code != ResponseCode.SUCCESS and answer.code not in _EMPTY:
        raise refused(place.address, answer.code, answer.remark)
    fields = answer.ext or {}
    messages = decode_stored(answer.body, queue.broker, Stored) if answer.code == ResponseCode.SUCCESS else []
    return Pulled(
        messages,
        int(fields.get("nextBeginOffset", offset)),
        int(fields.get("minOffset", 0)),
        int(fields.get("maxOffset", 0)),
    )


async def offset_at(question: Question, place: Place, queue: Queue, at_ms: int) -> int:
    """Returns the offset of the first message that was stored at a time or later; RocketMQ 4 may take the one before.
    ClientError."""
    ext = {"topic": queue.topic, "queueId": str(queue.id), "timestamp": str(at_ms), "boundaryType": "LOWER"}
    answer = await question.ask(place, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext)
    return max(0, int((answer.ext or {}).get("offset", 0)))


def summary_of(message: Stored) -> MessageSummary:
    """Returns what a list shows of a message."""
    return MessageSummary(
        message.message_id,
        message.unique_key or "",
        message.stored_in,
        message.broker,
        message.queue_id,
        message.offset,
        message.tag or "",
        message.keys,
        len(message.stored_body),
        message.born_ms,
        message.store_ms,
        str(message.born_host),
        str(message.store_host),
        message.attempts,
    )


def message_of(message: Stored) -> Message:
    """Returns a message with its content. A body that cannot be decompressed is shown as it is stored."""
    try:
        body = message.body
    except ProtocolError:
        body = message.stored_body
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = None
    return Message(
        summary_of(message), dict(message.properties), base64.b64encode(body).decode(), text, message.is_sound
    )


def newest_first(messages: Iterable[Stored]) -> list[Stored]:
    """Returns messages by the time at which they were stored, each once: copies of a log answer the same."""
    unique = {message.message_id: message for message in messages}
    return sorted(unique.values(), key=lambda each: (-each.store_ms, each.broker, each.queue_id, -each.offset))
