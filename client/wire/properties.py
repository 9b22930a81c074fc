"""The properties of a message: a text of `name 0x01 value 0x02`, one pair after the other.

There is no escape sequence: neither a name nor a value can contain the separators. A pair with an empty value is
written but not read. The last 0x02 may be missing: clients in other languages omit it. If a name occurs twice, the last
value counts: the properties of a batch are appended to those of each message.

Source: MessageDecoder.messageProperties2String / string2messageProperties and MessageConst of RocketMQ 4.8.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

# Fixed: they are on disks.
NAME_VALUE_SEPARATOR = "\x01"
PROPERTY_SEPARATOR = "\x02"
KEY_SEPARATOR = " "  # between the keys in KEYS

KEYS = "KEYS"
TAGS = "TAGS"
UNIQ_KEY = "UNIQ_KEY"
WAIT = "WAIT"
DELAY = "DELAY"
RETRY_TOPIC = "RETRY_TOPIC"
REAL_TOPIC = "REAL_TOPIC"
REAL_QID = "REAL_QID"
TRAN_MSG = "TRAN_MSG"
PGROUP = "PGROUP"
MIN_OFFSET = "MIN_OFFSET"
MAX_OFFSET = "MAX_OFFSET"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
RECONSUME_TIME = "RECONSUME_TIME"
MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
MSG_REGION = "MSG_REGION"
TRACE_ON = "TRACE_ON"
TRAN_PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
CHECK_IMMUNITY_TIME_IN_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
CLUSTER = "CLUSTER"
INSTANCE_ID = "INSTANCE_ID"
CORRELATION_ID = "CORRELATION_ID"
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
TTL = "TTL"
ARRIVE_TIME = "ARRIVE_TIME"
PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
MSG_TYPE = "MSG_TYPE"
CONSUME_START_TIME = "CONSUME_START_TIME"
BUYER_ID = "BUYER_ID"
TRANSFER_FLAG = "TRANSFER_FLAG"
CORRECTION_FLAG = "CORRECTION_FLAG"
MQ2_FLAG = "MQ2_FLAG"
BORN_TIMESTAMP = "BORN_TIMESTAMP"
TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
TIMER_OUT_MS = "TIMER_OUT_MS"
TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
TIMER_DEL_UNIQKEY = "TIMER_DEL_UNIQKEY"
TIMER_ORIGIN = "TIMER_ORIGIN"
"""tallystick's: queue offset and store time of the record of the timer topic that a record ends."""


class PropertyError(ValueError):
    """A name or value cannot be written; `name` is the property's name."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"property {name!r}: {reason}")
        self.name = name


def encode(properties: Mapping[str, str]) -> str:
    """The stored text of `properties`, in their order, with a separator at the end.

    Raises PropertyError if a name is empty, or a name or value contains a separator.
    """
    text = "".join([name + NAME_VALUE_SEPARATOR + value + PROPERTY_SEPARATOR for name, value in properties.items()])
    count = len(properties)
    # The usual case: no loop in Python over each name and value.
    if text.count(NAME_VALUE_SEPARATOR) != count or text.count(PROPERTY_SEPARATOR) != count or "" in properties:
        _refuse(properties)
    return text


def _refuse(properties: Mapping[str, str]) -> NoReturn:
    for name, value in properties.items():
        if not name:
            raise PropertyError(name, "a name is needed")
        if not _SEPARATORS.isdisjoint(name) or not _SEPARATORS.isdisjoint(value):
            raise PropertyError(name, "the characters 0x01 and 0x02 separate properties and cannot be part of one")
    raise AssertionError("one of the properties has a separator")


def decode(text: str) -> dict[str, str]:
    """The properties in a stored text. Never fails: it skips parts that are not a pair of two non-empty texts."""
    properties = {}
    for piece in text.split(PROPERTY_SEPARATOR):
        name, separator, value = piece.partition(NAME_VALUE_SEPARATOR)
        if name and separator and value and NAME_VALUE_SEPARATOR not in value:
            properties[name] = value
    return properties


_SEPARATORS = frozenset((NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR))
