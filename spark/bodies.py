"""Contents of messages as columns: JSON, Avro and Protobuf.

    orders = spark.read.format("tallystick").option("columns", "topic,queue_id,queue_offset,content").load(path)
    with_json(orders, "id bigint, items array<string>").select("json.id", "json_error")

Each function appends two columns: `into`, a struct, and `into`_error, a text. A content that does not fit the schema
has no struct and an error (PERMISSIVE), or ends the query with the place of its record (FAILFAST). A null content has
neither.

JSON is parsed by Spark. Spark's own functions for Avro and Protobuf need packages that its distribution does not
contain, so this module uses `fastavro` and `ptars` (the extra `bodies`). ptars converts a batch at a time; fastavro
creates one Python object for each message.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StringType, StructField, StructType

from tallystick.spark.columns import in_spark

PLACE = ("source", "topic", "queue_id", "queue_offset", "physical_offset")
"""Columns that name a record in an error, if the frame has them."""
_CORRUPT = "_corrupt_record"
_NO_JSON = "the content is not JSON of this schema"

Decode = Callable[[pa.Array], pa.Array]
"""Returns a struct for each content of a binary array; null has null. Any exception: one of them does not fit."""


class BodyError(Exception):
    """A content does not fit its schema, in the mode FAILFAST."""


# -- JSON --------------------------------------------------------------------------------------------------------------


def with_json(
    frame: DataFrame,
    schema: str | StructType | None = None,
    *,
    column: str = "content",
    into: str = "json",
    mode: str = "PERMISSIVE",
    sample: int = 1000,
) -> DataFrame:
    """Appends the JSON in `column`. `schema`: DDL; None: it is inferred from the first `sample` contents, so fields
    that occur only later are missing. ValueError: there is nothing to infer it from, or `mode` is unknown."""
    failing = _is_failing(mode)
    text = sql.col(column).cast("string")
    wanted = _inferred(frame.select(text), sample) if schema is None else _struct(schema)
    with_corrupt = StructType([*wanted.fields, StructField(_CORRUPT, StringType())])
    parsed = sql.from_json(text, with_corrupt, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT})
    is_wrong = sql.col(column).isNotNull() & (parsed.isNull() | parsed[_CORRUPT].isNotNull())
    error = sql.when(is_wrong, sql.raise_error(_failure(frame)) if failing else sql.lit(_NO_JSON)).cast("string")
    content = sql.when(~is_wrong, parsed.dropFields(_CORRUPT))
    return frame.withColumns({into: content, f"{into}_error": error})


def _struct(schema: str | StructType) -> StructType:
    found: Any = schema if isinstance(schema, StructType) else StructType.fromDDL(schema)
    return StructType([StructField(field.name, field.dataType) for field in found.fields])


def _inferred(texts: DataFrame, sample: int) -> StructType:
    spark = texts.sparkSession
    found = [row[0] for row in texts.where(texts[0].isNotNull()).limit(sample).collect()]
    fields = spark.read.json(spark.sparkContext.parallelize(found, 1)).schema.fields if found else []
    known = [field for field in fields if field.name != _CORRUPT]
    if not known:
        raise ValueError(f"no schema can be inferred: {len(found)} contents, none of them is a JSON object")
    return StructType(known)


def _failure(frame: DataFrame) -> Any:
    places = [sql.concat(sql.lit(f"{name} "), sql.col(name).cast("string")) for name in PLACE if name in frame.columns]
    return sql.concat_ws(", ", sql.lit(_NO_JSON), *places)


# -- Avro --------------------------------------------------------------------------------------------------------------


def with_avro(
    frame: DataFrame,
    schema: str | Mapping[str, Any],
    *,
    column: str = "content",
    into: str = "avro",
    mode: str = "PERMISSIVE",
) -> DataFrame:
    """Appends the Avro record in `column`: one datum without a header, of this schema (JSON). ValueError: `mode` is
    unknown, or a type has no counterpart."""
    text = schema if isinstance(schema, str) else json.dumps(schema)
    return _with_struct(frame, column, into, mode, _avro_type(text), _AvroDecoder(text))


class _AvroDecoder:
    def __init__(self, schema: str) -> None:
        self._schema = schema

    def __call__(self, contents: pa.Array) -> pa.Array:
        from fastavro import schemaless_reader

        schema, kind = _avro_schema(self._schema), _avro_type(self._schema)
        found: list[Any] = []
        for content in contents.to_pylist():
            if content is None:
                found.append(None)
                continue
            data = io.BytesIO(content)
            found.append(schemaless_reader(data, schema, None))
            if data.tell() != len(content):
                raise ValueError(f"{len(content) - data.tell()} bytes follow the datum")
        return pa.array(found, kind)


@cache
def _avro_schema(text: str) -> Any:
    from fastavro import parse_schema

    return parse_schema(json.loads(text))


@cache
def _avro_type(text: str) -> pa.DataType:
    from fastavro.schema import expand_schema

    found = _arrow_of_avro(expand_schema(json.loads(text)), frozenset())
    if not pa.types.is_struct(found):
        raise ValueError("the schema must be that of a record")
    return found


_AVRO_PRIMITIVES = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
_AVRO_LOGICAL = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
    "uuid": pa.string(),
}


def _arrow_of_avro(schema: Any, parents: frozenset[str]) -> pa.DataType:
    if isinstance(schema, list):
        kinds = [each for each in schema if each != "null"]
        if len(kinds) != 1:
            raise ValueError(f"a union of several types has no counterpart in Spark: {schema}")
        return _arrow_of_avro(kinds[0], parents)
    if isinstance(schema, str):
        schema = {"type": schema}
    kind, logical = schema["type"], schema.get("logicalType")
    if isinstance(kind, (dict, list)):
        return _arrow_of_avro(kind, parents)
    if logical == "decimal":
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    if logical in _AVRO_LOGICAL:
        return _AVRO_LOGICAL[logical]
    if logical in ("time-millis", "time-micros"):
        raise ValueError(f"the type {logical} has no counterpart in Spark")
    if kind == "array":
        return pa.list_(_arrow_of_avro(schema["items"], parents))
    if kind == "map":
        return pa.map_(pa.string(), _arrow_of_avro(schema["values"], parents))
    if kind == "record":
        parents |= {schema["name"]}
        return pa.struct([(field["name"], _arrow_of_avro(field["type"], parents)) for field in schema["fields"]])
    if kind not in _AVRO_PRIMITIVES:
        recursive = kind in parents or kind.rpartition(".")[2] in parents
        raise ValueError(f"the type {kind} {'contains itself' if recursive else 'is unknown'}")
    return _AVRO_PRIMITIVES[kind]


# -- Protobuf ----------------------------------------------------------------------------------------------------------


def with_protobuf(
    frame: DataFrame,
    descriptors: str | Path | bytes,
    message: str,
    *,
    column: str = "content",
    into: str = "protobuf",
    mode: str = "PERMISSIVE",
) -> DataFrame:
    """Appends the Protobuf message in `column`. `descriptors`: a FileDescriptorSet, or its file (`protoc
    --include_imports --descriptor_set_out`); `message`: the full name of its type. Enumerations are texts.

    ValueError: the descriptors are unreadable or do not have this message, `mode` is unknown, or a type has no
    counterpart. OSError.
    """
    data = descriptors if isinstance(descriptors, bytes) else Path(descriptors).read_bytes()
    decode = _ProtobufDecoder(data, message)
    return _with_struct(frame, column, into, mode, decode(pa.array([], pa.binary())).type, decode)


class _ProtobufDecoder:
    def __init__(self, descriptors: bytes, message: str) -> None:
        self._descriptors, self._message = descriptors, message

    def __call__(self, contents: pa.Array) -> pa.Array:
        batch = _protobuf_handler(self._descriptors, self._message).array_to_record_batch(contents)
        found = batch.to_struct_array()
        # A null content is an empty message for ptars.
        fields = [found.field(number) for number in range(found.type.num_fields)]
        made = pa.StructArray.from_arrays(fields, fields=list(found.type), mask=contents.is_null())
        return made.cast(in_spark(made.type))


@cache
def _protobuf_handler(descriptors: bytes, message: str) -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool
    from google.protobuf.message import DecodeError
    from ptars import HandlerPool, PtarsConfig

    pool = descriptor_pool.DescriptorPool()
    try:
        for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
            pool.Add(file)
        found = pool.FindMessageTypeByName(message)
    except DecodeError as error:
        raise ValueError(f"the descriptors are not a FileDescriptorSet: {error}") from error
    except (KeyError, TypeError) as error:
        raise ValueError(f"the descriptors do not contain {message}: {error}") from error
    units: Any = {"timestamp_unit": "us", "time_unit": "us", "duration_unit": "us"}
    config = PtarsConfig(list_value_name="element", enum_repr="string", **units)
    return HandlerPool([found.file], config).get_for_message(found)


# -- both --------------------------------------------------------------------------------------------------------------


def _is_failing(mode: str) -> bool:
    if mode.upper() not in ("PERMISSIVE", "FAILFAST"):
        raise ValueError(f"mode must be PERMISSIVE or FAILFAST, not {mode!r}")
    return mode.upper() == "FAILFAST"


def _with_struct(frame: DataFrame, column: str, into: str, mode: str, kind: pa.DataType, decode: Decode) -> DataFrame:
    failing = _is_failing(mode)
    added = [StructField(into, from_arrow_type(kind)), StructField(f"{into}_error", StringType())]

    def append(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            structs, errors = decoded(batch.column(column), kind, decode)
            if failing and errors.null_count < len(errors):
                raise BodyError(_named(batch, errors))
            batch = batch.append_column(into, structs)
            yield batch.append_column(f"{into}_error", errors)

    return frame.mapInArrow(append, StructType([*frame.schema.fields, *added]))


def decoded(contents: pa.Array, kind: pa.DataType, decode: Decode) -> tuple[pa.Array, pa.Array]:
    """Returns the structs and the errors of contents. A batch with an error is halved until the content is found."""
    try:
        return decode(contents), pa.nulls(len(contents), pa.string())
    except Exception as error:  # each library has its own
        if len(contents) == 1:
            return pa.nulls(1, kind), pa.array([f"{type(error).__name__}: {error}"])
    middle = len(contents) // 2
    halves = [decoded(half, kind, decode) for half in (contents[:middle], contents[middle:])]
    structs, errors = zip(*halves, strict=True)
    return pa.concat_arrays(structs), pa.concat_arrays(errors)


def _named(batch: pa.RecordBatch, errors: pa.Array) -> str:
    number = errors.is_valid().index(True).as_py()
    places = [f"{name} {batch.column(name)[number]}" for name in PLACE if name in batch.schema.names]
    return ", ".join([str(errors[number]), *places])
