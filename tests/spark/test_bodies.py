"""JSON, Avro and Protobuf in bodies as columns, and bodies that are something else."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark.sql", reason="needs the group `spark`")
fastavro = pytest.importorskip("fastavro", reason="needs the group `bodies`")
pytest.importorskip("ptars", reason="needs the group `bodies`")

import pyarrow as pa  # noqa: E402
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # noqa: E402
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field  # noqa: E402

from tallystick.spark.bodies import _AvroDecoder, _ProtobufDecoder, decoded, with_avro, with_json, with_protobuf  # noqa: E402

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "who", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "items", "type": {"type": "array", "items": {"type": "record", "name": "Item", "fields": [
            {"name": "name", "type": "string"}, {"name": "count", "type": "int"}]}}},
        {"name": "best", "type": ["null", "Item"]},
        {"name": "prices", "type": {"type": "map", "values": "double"}},
    ],
}  # fmt: skip
AT = datetime(2026, 11, 22, 1, 2, 3, 4000, UTC)
VALUE: dict[str, Any] = {
    "id": 7,
    "who": None,
    "at": AT,
    "items": [{"name": "a", "count": 2}],
    "best": None,
    "prices": {"x": 1.5},
}


def avro(value: Any, schema: Any = ORDER) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def framed(spark: Any, contents: list[bytes | None]) -> Any:
    rows = [("a", "T", 0, number, content) for number, content in enumerate(contents)]
    return spark.createDataFrame(rows, "source string, topic string, queue_id int, queue_offset bigint, content binary")


def found(frame: Any, into: str) -> list[tuple[Any, str | None]]:
    rows = frame.orderBy("queue_offset").collect()
    assert [row["queue_offset"] for row in rows] == list(range(len(rows))), "the other columns stay"
    return [(row[into] and row[into].asDict(recursive=True), row[f"{into}_error"]) for row in rows]


def test_json_of_a_schema(spark: Any) -> None:
    contents = [b'{"id": 1, "tags": ["x"]}', b"{", None, b'{"id": "no number"}', '{"other": "\u6807"}'.encode()]
    frame = with_json(framed(spark, contents), "id bigint, tags array<string>")
    wrong = "the content is not JSON of this schema"
    nothing = {"id": None, "tags": None}
    assert found(frame, "json") == [
        ({"id": 1, "tags": ["x"]}, None), (None, wrong), (None, None), (None, wrong), (nothing, None),
    ]  # fmt: skip


def test_json_of_an_inferred_schema(spark: Any) -> None:
    contents = [b'{"id": 1}', b"{", b'{"id": 2, "x": {"y": 1.5}}', None]
    rows = found(with_json(framed(spark, contents)), "json")
    assert [value for value, _ in rows] == [{"id": 1, "x": None}, None, {"id": 2, "x": {"y": 1.5}}, None]
    for nothing in ([], [None], [b"1"], [b"{"]):
        with pytest.raises(ValueError, match="no schema can be inferred"):
            with_json(framed(spark, nothing))


def test_avro(spark: Any) -> None:
    contents = [avro(VALUE), None, avro(VALUE)[:5], avro({**VALUE, "who": "w", "best": VALUE["items"][0]}) + b"x", b""]
    rows = found(with_avro(framed(spark, contents), ORDER), "avro")
    at = AT.astimezone().replace(tzinfo=None)
    assert rows[0] == ({**VALUE, "at": at}, None)
    assert rows[1] == (None, None)
    assert [value for value, _ in rows[2:]] == [None] * 3 and all(error for _, error in rows[2:])
    assert rows[3][1] == "ValueError: 1 bytes follow the datum"


def descriptors() -> bytes:
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    inner = message.nested_type.add(name="Item")
    inner.field.add(name="name", number=1, type=Field.TYPE_STRING, label=Field.LABEL_OPTIONAL)
    kinds = file.enum_type.add(name="Kind")
    kinds.value.add(name="OLD", number=0)
    kinds.value.add(name="NEW", number=1)
    message.field.add(name="id", number=1, type=Field.TYPE_UINT64, label=Field.LABEL_OPTIONAL)
    message.field.add(name="who", number=2, type=Field.TYPE_STRING, label=Field.LABEL_OPTIONAL)
    item = {"type": Field.TYPE_MESSAGE, "type_name": ".shop.Order.Item", "label": Field.LABEL_REPEATED}
    message.field.add(name="items", number=3, **item)
    kind = {"type": Field.TYPE_ENUM, "type_name": ".shop.Kind", "label": Field.LABEL_OPTIONAL}
    message.field.add(name="kind", number=4, **kind)
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


def protobuf(**values: Any) -> bytes:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors()).file:
        pool.Add(file)
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))(**values)
    data: bytes = message.SerializeToString()
    return data


def test_protobuf(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "shop.desc"
    path.write_bytes(descriptors())
    contents = [protobuf(id=2**64 - 1, who="w", items=[{"name": "a"}], kind=1), None, b"\xff", b""]
    rows = found(with_protobuf(framed(spark, contents), path, "shop.Order"), "protobuf")
    assert rows[0] == ({"id": 2**64 - 1, "who": "w", "items": [{"name": "a"}], "kind": "NEW"}, None)
    assert rows[1] == (None, None)
    assert rows[2][0] is None and "Protobuf" in str(rows[2][1])
    assert rows[3] == ({"id": 0, "who": "", "items": [], "kind": "OLD"}, None), "an empty message has no bytes"


@pytest.mark.parametrize("kind", ["json", "avro", "protobuf"])
def test_failfast_names_the_record(spark: Any, kind: str) -> None:
    frame = framed(spark, [None, b"\xff"]).coalesce(1)
    with_kind = {
        "json": lambda mode: with_json(frame, "id int", mode=mode),
        "avro": lambda mode: with_avro(frame, json.dumps(ORDER), mode=mode),
        "protobuf": lambda mode: with_protobuf(frame, descriptors(), "shop.Order", mode=mode),
    }[kind]
    with pytest.raises(Exception, match="source a, topic T, queue_id 0, queue_offset 1"):
        with_kind("failfast").collect()
    with pytest.raises(ValueError, match="mode must be"):
        with_kind("DROPMALFORMED")


def test_one_wrong_content_does_not_change_its_neighbours() -> None:
    decode = _ProtobufDecoder(descriptors(), "shop.Order")
    kind = decode(pa.array([], pa.binary())).type
    contents = [None if number % 7 == 0 else protobuf(id=number) for number in range(100)]
    contents[33] = contents[90] = b"\xff"
    structs, errors = decoded(pa.array([b"", *contents], pa.binary())[1:], kind, decode)
    expected = [None if number % 7 == 0 or number in (33, 90) else number for number in range(100)]
    assert [each and each["id"] for each in structs.to_pylist()] == expected
    assert [number for number, error in enumerate(errors.to_pylist()) if error is not None] == [33, 90]


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ('"long"', "must be that of a record"),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": ["int", "string"]}]}, "union"),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", "R"]}]}, "contains itself"),
    ],
)
def test_avro_schemas_without_a_counterpart_are_refused(schema: Any, reason: str) -> None:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    with pytest.raises(ValueError, match=reason):
        with_avro(None, text)  # before it looks at the frame
    assert _AvroDecoder(json.dumps(ORDER))(pa.array([avro(VALUE)])).to_pylist()[0]["id"] == 7


def test_unknown_messages_and_descriptors_are_refused() -> None:
    for data, reason in ((descriptors(), "do not contain shop.Nothing"), (b"\xff\xff", "not a FileDescriptorSet")):
        with pytest.raises(ValueError, match=reason):
            with_protobuf(None, data, "shop.Nothing")  # before it looks at the frame
