"""The columns of a message, as Arrow and Spark types. The kernel produces them.

Times are milliseconds since 1970, as in the record, not Spark timestamps: a record can contain any 64 bits, and a wrong
clock writes values that no timestamp can have. `timestamp_millis(store_timestamp_ms)` converts one.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

_TEXTS = pa.list_(pa.field("element", pa.string(), nullable=False))
_TABLE = pa.map_(pa.string(), pa.field("value", pa.string(), nullable=False))

SCHEMA = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("queue_id", pa.int32(), nullable=False),
        pa.field("queue_offset", pa.int64(), nullable=False),
        pa.field("physical_offset", pa.int64(), nullable=False),
        pa.field("size", pa.int32(), nullable=False),
        pa.field("message_id", pa.string(), nullable=False),
        pa.field("unique_key", pa.string()),
        pa.field("tags", pa.string()),
        pa.field("keys", _TEXTS, nullable=False),
        pa.field("properties", _TABLE, nullable=False),
        pa.field("flag", pa.int32(), nullable=False),
        pa.field("sys_flag", pa.int32(), nullable=False),
        pa.field("born_timestamp_ms", pa.int64(), nullable=False),
        pa.field("born_host", pa.string(), nullable=False),
        pa.field("store_timestamp_ms", pa.int64(), nullable=False),
        pa.field("store_host", pa.string(), nullable=False),
        pa.field("reconsume_times", pa.int32(), nullable=False),
        pa.field("prepared_transaction_offset", pa.int64(), nullable=False),
        pa.field("body_bytes", pa.int32(), nullable=False),
        pa.field("body", pa.binary(), nullable=False),
    ]
)
"""What a record contains, in the order of the columns."""

CONTENT_SCHEMA = pa.schema([pa.field("content", pa.binary()), pa.field("content_error", pa.string())])
"""What the scanner computes on request: the body, decompressed if the producer's client compressed it; null if that is
not possible, and then the reason."""

ALL = pa.schema([*SCHEMA, *CONTENT_SCHEMA])
BODIES = frozenset(("body", *CONTENT_SCHEMA.names))
"""Columns for which bodies are read."""

DAMAGE_SCHEMA = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("file", pa.string(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
    ]
)

WITHOUT_BODY = tuple(name for name in SCHEMA.names if name != "body")

_DDL = {
    pa.string(): "string",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.binary(): "binary",
    _TEXTS: "array<string>",
    _TABLE: "map<string,string>",
}


def schema_of(names: Iterable[str]) -> pa.Schema:
    """Returns the schema of these columns. KeyError: a column does not exist."""
    return pa.schema([ALL.field(name) for name in names])


def ddl_of(schema: pa.Schema) -> str:
    """Returns the schema in Spark's DDL."""
    return ", ".join(f"{field.name} {_DDL[field.type]}" for field in schema)


def in_spark(kind: pa.DataType) -> pa.DataType:
    """Returns the type in which Spark can have these values: it has no unsigned numbers. Fields may be null."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, in_spark(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", in_spark(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(in_spark(kind.key_type), in_spark(kind.item_type))
    signed = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20)}
    return signed.get(kind, kind)


TIME = pa.timestamp("us", "UTC")
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999, which Python and Spark have."""


def time_of(milliseconds: pa.Array) -> pa.Array:
    """Returns timestamps of milliseconds since 1970; null: outside of the years that Spark has."""
    known = pc.and_(pc.greater_equal(milliseconds, _FIRST_MS), pc.less_equal(milliseconds, _LAST_MS))
    return pc.if_else(known, milliseconds, pa.scalar(None, pa.int64())).cast(pa.timestamp("ms", "UTC")).cast(TIME)


def refuse_times(schema: pa.Schema) -> None:
    """ValueError: the schema asks for a number that is not a time as a timestamp."""
    for field in schema:
        if pa.types.is_timestamp(field.type) and not field.name.endswith("_ms"):
            raise ValueError(f"the column {field.name} is no time, so it cannot be read as a timestamp")
