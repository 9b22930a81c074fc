"""The columns of a message, as Arrow and Spark types. The kernel produces them.

Times are milliseconds since 1970, as in the record, not Spark timestamps: a record can contain any 64 bits, and a wrong
clock writes values that no timestamp can have. `timestamp_millis(store_timestamp_ms)` converts one. So does a schema
that requests the column as a timestamp; a value that no timestamp can have is then null.
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


def check_requested(wanted: pa.Schema, of: pa.Schema | None = None) -> None:
    """Checks that columns with these names can be produced with these types. `of`: all columns; None: of messages.

    ValueError: a column does not exist, or cannot have this type.
    """
    there = ALL if of is None else of
    for field in wanted:
        if field.name not in there.names:
            raise ValueError(f"there is no column {field.name!r}; there are {', '.join(there.names)}")
        has = there.field(field.name).type
        if not (_is_same(has, field.type) or _is_wider(has, field.type) or _is_time(field)):
            raise ValueError(f"the column {field.name} is {_DDL[has]}, and cannot be read as another type")


def _is_same(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether they differ at most in what may be null."""
    if pa.types.is_list(one) and pa.types.is_list(other):
        return bool(one.value_type.equals(other.value_type))
    if pa.types.is_map(one) and pa.types.is_map(other):
        return bool(one.key_type.equals(other.key_type) and one.item_type.equals(other.item_type))
    return bool(one.equals(other))


def _is_wider(has: pa.DataType, wanted: pa.DataType) -> bool:
    return bool(has.equals(pa.int32()) and wanted.equals(pa.int64()))


def _is_time(field: pa.Field) -> bool:
    return bool(field.name.endswith("_timestamp_ms") and pa.types.is_timestamp(field.type))


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Returns the same columns with the types and nullability of a schema that `check_requested` accepts. It copies a
    column only if its type differs."""
    if batch.schema.equals(schema):
        return batch
    columns = [_conformed(column, field) for column, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _conformed(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.type.equals(field.type):
        return column
    return time_of(column).cast(field.type) if _is_time(field) else column.cast(field.type)


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
