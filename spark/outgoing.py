"""Rows of a frame as messages to send. Without Spark and without I/O.

Columns, of which only `body` is required:

body             binary or string
topic            string; without it, the option `topic`
tags             string
keys             string, or an array of strings
properties       map of strings; names that the sink or a broker sets are left out
delay_level      int, 0: none
deliver_at       timestamp of the delivery, for brokers that have timers
order_key        string: messages with the same key go to the same queue, as with RocketMQ's SelectMessageQueueByHash
unique_key       string; without it, the sink makes one (`KeyMaker`)
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from tallystick.store.formats import properties as names
from tallystick.store.formats.sending import MAX_PROPERTIES_BYTES, batch_part

COLUMNS = {
    "body": ("binary", "string"),
    "topic": ("string",),
    "tags": ("string",),
    "keys": ("string", "list"),
    "properties": ("map",),
    "delay_level": ("int",),
    "deliver_at": ("timestamp",),
    "order_key": ("string",),
    "unique_key": ("string",),
}
"""The columns, with the kinds of types that they may have."""

LEFT_OUT = frozenset(
    (
        *(names.UNIQ_KEY, names.WAIT, names.CLUSTER, names.MIN_OFFSET, names.MAX_OFFSET, names.TRAN_MSG, names.PGROUP),
        *(names.REAL_TOPIC, names.REAL_QID, names.RETRY_TOPIC, names.ORIGIN_MESSAGE_ID, names.RECONSUME_TIME),
        *(names.MAX_RECONSUME_TIMES, names.MSG_REGION, names.TRACE_ON, names.TRAN_PREPARED_QUEUE_OFFSET),
        *(names.TRANSACTION_CHECK_TIMES, names.CHECK_IMMUNITY_TIME_IN_SECONDS, names.TIMER_OUT_MS),
        *(names.TIMER_ENQUEUE_MS, names.TIMER_DEQUEUE_MS, names.TIMER_ROLL_TIMES, names.TIMER_DEL_UNIQKEY),
        *(names.TIMER_ORIGIN, names.CONSUME_START_TIME, names.TRANSFER_FLAG, names.CORRECTION_FLAG),
    )
)
"""Properties of a stored message that a new message does not have."""
_DELAYS = (names.DELAY, names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS, names.TIMER_DELIVER_MS)


class RowError(ValueError):
    """A row cannot be sent. The message names it."""


class Outgoing(NamedTuple):
    """One message. `part`: it as part of a batch; `body` and `properties`: it alone. `delayed`: a batch cannot have
    it."""

    topic: str
    order_key: str | None
    delayed: bool
    unique_key: str
    body: bytes
    properties: str
    part: bytes


@dataclass(frozen=True, slots=True)
class KeyMaker:
    """Unique keys that a replay of the same rows gets again: of the write, its batch, the partition and the row.

    `write`: identifies the query, or the write; `batch`: the number of a streaming query's batch.
    """

    write: str
    batch: str
    partition: int

    def prefix(self) -> str:
        """22 of the 32 hexadecimal digits; the row's number follows."""
        digest = hashlib.blake2b(f"{self.write}/{self.batch}".encode(), digest_size=8).hexdigest().upper()
        return f"{digest}{self.partition & 0xFFFFFF:06X}"


def check_columns(schema: pa.Schema) -> None:
    """ValueError: a column is missing, unknown, or has another type."""
    if "body" not in schema.names:
        raise ValueError("the frame has no column body")
    for field in schema:
        if field.name not in COLUMNS:
            raise ValueError(f"the column {field.name} has no meaning for a message; there are {', '.join(COLUMNS)}")
        if _kind(field.type) not in COLUMNS[field.name]:
            wanted = " or ".join(COLUMNS[field.name])
            raise ValueError(f"the column {field.name} must be {wanted}, not {field.type}")


def _kind(kind: pa.DataType) -> str:
    if pa.types.is_list(kind) and pa.types.is_string(kind.value_type):
        return "list"
    if pa.types.is_map(kind) and pa.types.is_string(kind.key_type) and pa.types.is_string(kind.item_type):
        return "map"
    checks = {
        "string": pa.types.is_string,
        "binary": pa.types.is_binary,
        "int": pa.types.is_integer,
        "timestamp": pa.types.is_timestamp,
    }
    return next((name for name, check in checks.items() if check(kind)), "other")


def messages_of(batch: pa.RecordBatch, keys: KeyMaker, first_row: int, topic: str | None) -> Iterator[Outgoing]:
    """Yields a message for each row. `first_row`: its number in the partition; `topic`: of rows without one.
    RowError."""
    columns = {name: batch.column(name) for name in batch.schema.names}
    count = batch.num_rows
    bodies = columns["body"].cast(pa.binary()).to_pylist()
    nothing: Sequence[Any] = [None] * count
    topics, tags, order_keys, unique_keys, levels, tables = (
        columns[name].to_pylist() if name in columns else nothing
        for name in ("topic", "tags", "order_key", "unique_key", "delay_level", "properties")
    )
    keyed = [_keys(value) for value in columns["keys"].to_pylist()] if "keys" in columns else nothing
    times = _milliseconds(columns["deliver_at"]) if "deliver_at" in columns else nothing
    prefix = keys.prefix()
    for number in range(count):
        row = first_row + number
        body, to = bodies[number], topics[number] or topic
        unique_key = unique_keys[number] or f"{prefix}{row:010X}"
        try:
            if body is None:
                raise ValueError("the body is null")
            if not to:
                raise ValueError("the row has no topic, and the option topic is not given")
            pairs = {names.UNIQ_KEY: unique_key}
            if tables[number]:
                pairs |= {name: value for name, value in tables[number] if name not in LEFT_OUT and value is not None}
            if keyed[number]:
                pairs[names.KEYS] = keyed[number]
            if tags[number]:
                pairs[names.TAGS] = tags[number]
            if levels[number]:
                pairs[names.DELAY] = str(levels[number])
            if times[number] is not None:
                pairs[names.TIMER_DELIVER_MS] = str(times[number])
            pairs[names.WAIT] = "true"
            text = encoded(pairs)
        except ValueError as error:
            raise RowError(f"row {row} of partition {keys.partition} (unique key {unique_key}): {error}") from error
        delayed = len(pairs) > 2 and any(name in pairs for name in _DELAYS)
        part = batch_part(body, text.encode())
        yield Outgoing(to, order_keys[number], delayed, unique_key, body, text, part)


def encoded(pairs: dict[str, str]) -> str:
    """Returns the text of the properties. ValueError: one of them contains a separator, or they are too long."""
    text = "".join([f"{name}\x01{value}\x02" for name, value in pairs.items()])
    if text.count("\x01") != len(pairs) or text.count("\x02") != len(pairs) or "" in pairs:
        return names.encode(pairs)  # raises, and says which
    if len(text) > MAX_PROPERTIES_BYTES // 4 and len(text.encode()) > MAX_PROPERTIES_BYTES:
        raise ValueError(f"the properties have more than {MAX_PROPERTIES_BYTES} bytes")
    return text


def _keys(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return names.KEY_SEPARATOR.join(key for key in value if key)


def _milliseconds(times: pa.Array) -> list[int | None]:
    found: list[int | None] = times.cast(pa.timestamp("ms", times.type.tz), safe=False).cast(pa.int64()).to_pylist()
    return found
