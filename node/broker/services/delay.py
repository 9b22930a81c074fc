"""Delay levels: how a message is delayed, and how it is delivered afterwards.

A producer requests a level (1 to 18 by default), not a time. The broker stores such a message in the topic
SCHEDULE_TOPIC_XXXX, in the queue of its level (queue id = level - 1), so that each queue is sorted by the time of
delivery. The properties REAL_TOPIC and REAL_QID keep the message's real topic and queue. The ConsumeQueue's unit has
the time of delivery in place of the tag's hash. A delivered message keeps DELAY, REAL_TOPIC and REAL_QID on disk, as in
RocketMQ.

Everything here is pure. The timer is in `schedule.py`. The message store never delays a message by itself: a caller of
`put` calls `to_schedule` first.

Source: ScheduleMessageService, CommitLog.putMessage of RocketMQ 4.8.0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tallystick.node.broker.tables.topics import SCHEDULE_TOPIC
from tallystick.store.formats import properties
from tallystick.store.formats.message import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE, Message
from tallystick.store.formats.record import Record

UNKNOWN_LEVEL_DELAY_MS = 1000
"""Delay of a level that is not in the table (stored under another table): RocketMQ's constant."""

_INTEGER = re.compile(r"[+-]?[0-9]{1,10}")


class DelayError(ValueError):
    """A message's delay level, or the properties of a delayed message, are invalid."""


class DelayLevels:
    """The table of levels: level n (from 1) waits `delays_ms[n - 1]` milliseconds (`StoreSettings.delay_levels_ms`)."""

    def __init__(self, delays_ms: Sequence[int]) -> None:
        self._delays_ms = tuple(delays_ms)

    @property
    def max_level(self) -> int:
        return len(self._delays_ms)

    def delay_ms(self, level: int) -> int:
        """Milliseconds that `level` waits."""
        return self._delays_ms[level - 1] if 1 <= level <= self.max_level else UNKNOWN_LEVEL_DELAY_MS


def delay_level(names: Mapping[str, str]) -> int:
    """The level that a message requests; 0 if none. Raises DelayError if DELAY is not a 32-bit number."""
    text = names.get(properties.DELAY)
    if text is None:
        return 0
    if not _INTEGER.fullmatch(text) or not -(2**31) <= int(text) < 2**31:
        raise DelayError(f"the property DELAY is not a number: {text[:40]!r}")
    return int(text)


def to_schedule(message: Message, levels: DelayLevels) -> Message:
    """The message as it must be stored: unchanged, or delayed if it requests a level above 0.

    A level above the highest becomes the highest. Half messages and rollbacks (by their transaction bits) are never
    delayed; a committed message is, from its commit on. Raises DelayError if DELAY is not a number.
    """
    if properties.DELAY not in message.properties:  # the usual case costs one search, no parsing
        return message
    if message.sys_flag & TRANSACTION_MASK not in (TRANSACTION_NONE, TRANSACTION_COMMIT):
        return message
    names = properties.decode(message.properties)
    level = min(delay_level(names), levels.max_level)
    if level <= 0:
        return message
    names[properties.DELAY] = str(level)
    names[properties.REAL_TOPIC] = message.topic
    names[properties.REAL_QID] = str(message.queue_id)
    return replace(message, topic=SCHEDULE_TOPIC, queue_id=level - 1, properties=properties.encode(names))


def from_schedule(record: Record) -> Message:
    """The message to deliver for a record of SCHEDULE_TOPIC_XXXX: unchanged, in its real topic and queue.

    Raises DelayError if REAL_TOPIC or REAL_QID is missing or invalid.
    """
    names = properties.decode(record.properties)
    return again(record, *real_queue(names))


def real_queue(names: Mapping[str, str]) -> tuple[str, int]:
    """Topic and queue id to which a delayed or half message was sent. DelayError: the properties lack them."""
    topic, queue = names.get(properties.REAL_TOPIC), names.get(properties.REAL_QID, "")
    if not topic or not (queue.isascii() and queue.isdigit() and int(queue) < 2**31):
        raise DelayError("the properties REAL_TOPIC and REAL_QID do not name a queue")
    return topic, int(queue)


def again(record: Record, topic: str, queue_id: int) -> Message:
    """A message for another queue with everything that `record` has from its producer, and its first store host."""
    return Message(
        topic=topic,
        queue_id=queue_id,
        body=record.body,
        properties=record.properties,
        flag=record.flag,
        sys_flag=record.sys_flag,
        born_timestamp_ms=record.born_timestamp_ms,
        born_host=record.born_host,
        store_host=record.store_host,
        reconsume_times=record.reconsume_times,
    )
