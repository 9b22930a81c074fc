"""Timers: how a message is stored until its time, and how it is delivered, recalled or stored again.

A producer asks for a time with one of three properties. The broker stores the message in queue 0 of the topic
rmq_sys_wheel_timer, with its real topic and queue in REAL_TOPIC and REAL_QID, as RocketMQ 5 does:

    TIMER_DELAY_SEC, TIMER_DELAY_MS   a time from now; the first of the three that exists counts
    TIMER_DELIVER_MS                  the time; here it always has the exact one afterwards
    TIMER_OUT_MS                      the time, rounded down to `timerPrecisionMs` (RocketMQ 5 delivers from that)

Each record that ends a timer has the property TIMER_ORIGIN with queue offset and store time of the timer's record. The
log thereby says itself what is delivered: no kill and no change of leader makes a second delivery.

    delivered     the message in its real topic and queue, without REAL_TOPIC and REAL_QID
    recalled      a record in rmq_sys_wheel_timer with TIMER_DEL_UNIQKEY, which is RocketMQ 5's recall
    rolled        the message again in rmq_sys_wheel_timer, because its segment of the log is to be deleted

Everything here is pure; the time is an argument. Source: HookUtils, TimerMessageStore, RecallMessageProcessor and
RecallMessageHandle of RocketMQ 5.5.0.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tallystick.node.broker.services.delay import again, delay_level, real_queue
from tallystick.node.broker.tables.topics import RETRY_PREFIX, TIMER_TOPIC
from tallystick.store.formats import properties
from tallystick.store.formats.message import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NONE, Message
from tallystick.store.formats.record import Record
from tallystick.store.settings import StoreSettings

REQUESTS = (properties.TIMER_DELAY_SEC, properties.TIMER_DELAY_MS, properties.TIMER_DELIVER_MS)
"""Properties that ask for a time; the first one that a message has counts."""
RECALL_TAG = "_RECALL_TAG_"
_OWN = (properties.TIMER_ORIGIN, properties.TIMER_ROLL_TIMES)
_PREFIX = "TIMER_"
_ROOM_BYTES = 256
"""A delivery adds properties: a timer's own must leave so much of their longest length."""
_MOST_PROPERTIES = 32_767
_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")
_LONG = 2**63
_BATCH_HEAD = struct.Struct(">5i")  # size, magic, CRC, flag, size of the body


class TimerError(ValueError):
    """A timer cannot be accepted. `is_disabled`: because timers are switched off."""

    def __init__(self, reason: str, *, is_disabled: bool = False) -> None:
        super().__init__(reason)
        self.is_disabled = is_disabled


def may_be_timer(message: Message) -> bool:
    """Whether the message may have a property that matters here. The usual case costs one search, no parsing."""
    return _PREFIX in message.properties


def deliver_ms(names: Mapping[str, str], now_ms: int) -> int | None:
    """The time for which a message asks, in ms since 1970; None if for none. TimerError: it is not a number."""
    for name in REQUESTS:
        text = names.get(name)
        if text is None:
            continue
        if not _NUMBER.fullmatch(text) or not -_LONG <= (number := int(text)) < _LONG:
            raise TimerError(f"the property {name} is not a number: {text[:40]!r}")
        if name == properties.TIMER_DELIVER_MS:
            return number
        return now_ms + number * (1000 if name == properties.TIMER_DELAY_SEC else 1)
    return None


def out_ms(at_ms: int, precision_ms: int) -> int:
    """TIMER_OUT_MS of a time: the last multiple of the precision before it."""
    return (at_ms - 1) // precision_ms * precision_ms


def to_timer(message: Message, settings: StoreSettings, now_ms: int) -> Message:
    """The message as it must be stored: unchanged, or in the timer topic if it asks for a time after `now_ms`.

    With a delay level the level counts, and the properties that ask for a time are dropped. A message that was
    delivered (TIMER_OUT_MS) is no timer again. Half messages and rollbacks (by their transaction bits) are not changed;
    a committed message is. TimerError: the time is no number or too far away, or timers are off. DelayError: DELAY is
    not a number.
    """
    if not may_be_timer(message) or message.sys_flag & TRANSACTION_MASK not in (TRANSACTION_NONE, TRANSACTION_COMMIT):
        return message
    names = properties.decode(message.properties)
    copied = drop_own(names)
    if message.sys_flag & TRANSACTION_MASK:  # a recall is no part of a transaction, and RocketMQ may have stored it
        copied = names.pop(properties.TIMER_DEL_UNIQKEY, None) is not None or copied
    if delay_level(names) > 0:
        for name in REQUESTS:
            copied = names.pop(name, None) is not None or copied
        at_ms = None
    else:
        at_ms = None if properties.TIMER_OUT_MS in names else deliver_ms(names, now_ms)
    if at_ms is None or at_ms <= now_ms:
        if at_ms is not None and properties.TIMER_DEL_UNIQKEY in names:
            raise TimerError("a recall needs the time of the message, which has passed")
        return replace(message, properties=properties.encode(names)) if copied else message
    check(at_ms, settings, now_ms)
    names[properties.TIMER_DELIVER_MS] = str(at_ms)
    names[properties.TIMER_OUT_MS] = str(out_ms(at_ms, settings.timerPrecisionMs))
    names[properties.REAL_TOPIC] = message.topic
    names[properties.REAL_QID] = str(message.queue_id)
    encoded = properties.encode(names)
    if len(encoded.encode(errors="surrogateescape")) > _MOST_PROPERTIES - _ROOM_BYTES:
        raise TimerError("the properties of the message are too long for a timer")
    return replace(message, topic=TIMER_TOPIC, queue_id=0, properties=encoded)


def check(at_ms: int, settings: StoreSettings, now_ms: int) -> None:
    """TimerError: timers are off, or the time is too far away."""
    if not settings.timerWheelEnable:
        raise TimerError("accurate timer message is not enabled, timerWheelEnable is false", is_disabled=True)
    most_ms = settings.timerMaxDelaySec * 1000
    if at_ms - now_ms > most_ms:
        raise TimerError(f"timer message illegal, the delay time should not be bigger than the max delay {most_ms}ms")


def drop_own(names: dict[str, str]) -> bool:
    """Removes what only the broker itself may say: that a message ends a timer. Returns whether there was any."""
    found = [name for name in _OWN if name in names]
    for name in found:
        del names[name]
    return bool(found)


def without_own(text: str) -> str:
    """Stored properties without what only the broker itself may say."""
    if not any(name in text for name in _OWN):
        return text
    names = properties.decode(text)
    drop_own(names)
    return properties.encode(names)


def check_half(names: Mapping[str, str], settings: StoreSettings, now_ms: int) -> None:
    """TimerError: a half message asks for a time at which it could not be delivered after its commit, or recalls."""
    if properties.TIMER_DEL_UNIQKEY in names:
        raise TimerError("a recall cannot be part of a transaction")
    at_ms = deliver_ms(names, now_ms)
    if at_ms is not None and at_ms > now_ms and delay_level(names) <= 0:
        check(at_ms, settings, now_ms)


def checked_batch(body: bytes) -> bytes:
    """A batch (the client's encoding) as it may be stored: without properties that only the broker may set. TimerError:
    one of its messages asks for a time. What is not a batch is returned unchanged: the store refuses it."""
    if _PREFIX.encode() not in body:
        return body
    parts: list[bytes] = []
    at = 0
    while at + _BATCH_HEAD.size <= len(body):
        size, _, _, _, body_bytes = _BATCH_HEAD.unpack_from(body, at)
        begin, end = at + _BATCH_HEAD.size + max(body_bytes, 0) + 2, at + size
        if size <= 0 or not begin <= end <= len(body):
            return body
        text = body[begin:end].decode(errors="surrogateescape")
        names = properties.decode(text)
        if properties.TIMER_OUT_MS not in names and any(name in names for name in REQUESTS):
            raise TimerError("messages of a batch cannot ask for a time of delivery")
        encoded = without_own(text).encode(errors="surrogateescape")
        size_now = begin - at + len(encoded)
        parts += (struct.pack(">i", size_now), body[at + 4 : begin - 2], struct.pack(">h", len(encoded)), encoded)
        at = end
    return b"".join(parts) if at == len(body) else body


def _origin(record: Record) -> str:
    return f"{record.queue_offset},{record.store_timestamp_ms}"


def delivered(record: Record, now_ms: int) -> Message:
    """The message to deliver for a timer's record. DelayError: it does not name its topic and queue."""
    names = properties.decode(record.properties)
    topic, queue_id = real_queue(names)
    del names[properties.REAL_TOPIC], names[properties.REAL_QID]
    names[properties.TIMER_ENQUEUE_MS] = str(record.store_timestamp_ms)
    names[properties.TIMER_DEQUEUE_MS] = str(now_ms)
    names[properties.TIMER_ORIGIN] = _origin(record)
    return replace(again(record, topic, queue_id), properties=properties.encode(names))


def rolled(record: Record) -> Message:
    """The timer again, for a new place in the log."""
    names = properties.decode(record.properties)
    times = names.get(properties.TIMER_ROLL_TIMES, "")
    names[properties.TIMER_ROLL_TIMES] = str(int(times) + 1 if _NUMBER.fullmatch(times) else 1)
    names[properties.TIMER_ORIGIN] = _origin(record)
    return replace(again(record, TIMER_TOPIC, 0), properties=properties.encode(names))


def is_rolled(record: Record) -> bool:
    """Whether the broker stored this timer again."""
    return properties.TIMER_ROLL_TIMES in properties.decode(record.properties)


def recalled(record: Record, extra: Mapping[str, str]) -> Message:
    """The record that recalls a timer. `extra`: properties that only a client knows."""
    names = properties.decode(record.properties)
    key = names.get(properties.UNIQ_KEY, "")
    kept = {
        properties.TAGS: RECALL_TAG,
        properties.TIMER_DEL_UNIQKEY: key,
        properties.UNIQ_KEY: key,
        **{
            name: names[name]
            for name in (
                properties.TIMER_DELIVER_MS,
                properties.TIMER_OUT_MS,
                properties.REAL_TOPIC,
                properties.REAL_QID,
            )
            if name in names
        },
        **extra,
        properties.TIMER_ORIGIN: _origin(record),
    }
    return Message(
        topic=TIMER_TOPIC,
        queue_id=0,
        body=b"0",
        properties=properties.encode({name: value for name, value in kept.items() if value}),
        born_timestamp_ms=record.born_timestamp_ms,
        born_host=record.born_host,
    )


# -- handles of recalls ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RecallHandle:
    """What a client needs to recall a timer. `at_ms` is TIMER_OUT_MS + 1, as RocketMQ writes it."""

    topic: str
    broker: str
    at_ms: int
    unique_key: str

    def encode(self) -> str:
        raw = " ".join(("v1", self.topic, self.broker, str(self.at_ms), self.unique_key))
        return base64.urlsafe_b64encode(raw.encode()).decode()

    @classmethod
    def decode(cls, text: str) -> RecallHandle:
        """ValueError: it is not a handle. A time that is not a number is -1."""
        try:
            raw = base64.b64decode(text.encode() + b"=" * (-len(text) % 4), altchars=b"-_", validate=True).decode()
        except (binascii.Error, UnicodeError) as error:
            raise ValueError("recall handle is invalid") from error
        parts = raw.split(" ")
        if parts[0] != "v1" or len(parts) < 5:
            raise ValueError("recall handle is invalid")
        at = parts[3]
        return cls(parts[1], parts[2], int(at) if _NUMBER.fullmatch(at) and at.isascii() else -1, parts[4])


def handle_of(stored: Message, broker: str) -> str | None:
    """The handle for a message that is stored as a timer; None if the message cannot be recalled."""
    if stored.topic != TIMER_TOPIC:
        return None
    names = properties.decode(stored.properties)
    topic, key = names.get(properties.REAL_TOPIC, ""), names.get(properties.UNIQ_KEY, "")
    if topic.startswith(RETRY_PREFIX) or properties.TIMER_DEL_UNIQKEY in names:
        return None
    return RecallHandle(topic, broker, int(names[properties.TIMER_OUT_MS]) + 1, key or "null").encode()
