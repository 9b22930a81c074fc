"""The records of RocketMQ's message traces, as its Java client writes them. Without I/O.

The body of a message in the trace topic has records, each of fields that are separated by 0x01, with 0x02 at the end:

    Pub             time, region, group, topic, unique key, tag, keys, broker, body bytes, cost, kind, message id,
                    success, client id
    SubBefore       time, region, group, request, unique key, attempts before, keys, client id
    SubAfter        request, unique key, cost, success, keys, code, time, group
    EndTransaction  time, region, group, topic, unique key, tag, keys, broker, kind, transaction id, state, checked

Each begins with its type. Times are milliseconds since 1970, costs milliseconds. A request connects a SubAfter with its
SubBefore. The keys of the trace message are the unique keys and the keys of its records, so that a query by one of them
finds the trace. A text that does not exist is `null`.

Source: TraceDataEncoder of RocketMQ 4.8.0; EndTransaction is of 4.9 and newer.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

from tallystick.client.core.message import Message, Stored
from tallystick.client.observing.observer import Ending, Processed
from tallystick.client.wire import properties as names

_FIELD, _RECORD = "\x01", "\x02"
_SEPARATORS = {ord(_FIELD): None, ord(_RECORD): None}
_NOT_IN_KEYS = _SEPARATORS | {ord(names.KEY_SEPARATOR): None}
DEFAULT_REGION = "DefaultRegion"


class Kind(enum.IntEnum):
    """The kind of a message, as its number in records."""

    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAYED = 3


CODES = {Processed.SUCCESS: 0, Processed.EXCEPTION: 2, Processed.FAILED: 4}
"""How a consumer's function ended, as its number in SubAfter."""


class Record(NamedTuple):
    """A record, the region in which its message was stored, and the keys that find it."""

    region: str
    text: str
    keys: tuple[str, ...]

    @property
    def size(self) -> int:
        """Bytes that it takes in memory and in a message, roughly."""
        return len(self.text) + sum(map(len, self.keys)) + 64


def published(
    message: Message,
    *,
    group: str,
    region: str,
    unique_key: str,
    message_id: str,
    broker: str,
    begun_ms: int,
    cost_ms: int,
    kind: Kind,
    success: bool,
    client_id: str,
) -> Record:
    """A message was stored; `success`: as safely as the broker is configured."""
    keys = [message.keys] if isinstance(message.keys, str) else list(message.keys)
    fields = (
        *("Pub", begun_ms, region, group, message.topic, unique_key, message.tag, _joined(keys), broker),
        *(len(message.body), cost_ms, int(kind), message_id, success, client_id),
    )
    return Record(region, _text(fields), _findable(unique_key, *keys))


def begun(message: Stored, *, group: str, request: str, now_ms: int, client_id: str) -> Record:
    """A consumer begins to process a message."""
    region = message.properties.get(names.MSG_REGION)
    key = message.unique_key or message.message_id
    fields = ("SubBefore", now_ms, region, group, request, key, message.attempts, _joined(message.keys), client_id)
    return Record(region or DEFAULT_REGION, _text(fields), _findable(key, *message.keys))


def ended(message: Stored, how: Processed, *, group: str, request: str, now_ms: int, cost_ms: int) -> Record:
    """A consumer has processed a message, with others if it is one of a batch; `cost_ms`: for each of them."""
    region = message.properties.get(names.MSG_REGION)
    key = message.unique_key or message.message_id
    success = how is Processed.SUCCESS
    fields = ("SubAfter", request, key, cost_ms, success, _joined(message.keys), CODES[how], now_ms, group)
    return Record(region or DEFAULT_REGION, _text(fields), _findable(key, *message.keys))


def transaction_ended(what: Ending, *, now_ms: int) -> Record:
    """A broker was told how a transaction ended."""
    fields = (
        *("EndTransaction", now_ms, DEFAULT_REGION, what.group, what.topic, what.unique_key, what.tag),
        *(what.keys or None, what.address, int(Kind.COMMIT), what.unique_key, what.state, what.checked),
    )
    return Record(DEFAULT_REGION, _text(fields), _findable(what.unique_key, *what.keys.split()))


def _findable(*keys: str) -> tuple[str, ...]:
    """Returns keys as a message can have them: a foreign client may have put anything into a unique key."""
    return tuple(filter(None, (key.translate(_NOT_IN_KEYS) for key in keys)))


def _joined(keys: Sequence[str]) -> str | None:
    return names.KEY_SEPARATOR.join(keys) or None


def _text(fields: Sequence[str | int | bool | None]) -> str:
    return _FIELD.join(map(_field, fields)) + _RECORD


def _field(value: str | int | bool | None) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.translate(_SEPARATORS) if isinstance(value, str) else str(value)
