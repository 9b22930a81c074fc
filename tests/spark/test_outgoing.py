"""Rows as messages: what a broker reads of them, unique keys, and rows that cannot be sent."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.spark.outgoing import KeyMaker, Outgoing, RowError, check_columns, messages_of
from tallystick.store.formats import properties

KEYS = KeyMaker("write", "7", 3)
PREFIX = KEYS.prefix()


def messages(default_topic: str | None = "T", first_row: int = 0, /, **columns: Any) -> list[Outgoing]:
    batch = pa.record_batch(columns)
    check_columns(batch.schema)
    return list(messages_of(batch, KEYS, first_row, default_topic))


def part_of(data: bytes) -> tuple[bytes, str]:
    """Body and properties of a message of a batch, from RocketMQ's layout."""
    size, magic, crc, flag, body_bytes = struct.unpack_from(">iiiii", data)
    assert (size, magic, crc, flag) == (len(data), 0, 0, 0)
    (text_bytes,) = struct.unpack_from(">H", data, 20 + body_bytes)
    text = data[22 + body_bytes :]
    assert len(text) == text_bytes
    return data[20 : 20 + body_bytes], text.decode()


texts = st.text(st.characters(exclude_characters="\1\2", codec="utf-8"), min_size=1, max_size=9)


rows_of_a_frame = st.tuples(
    st.binary(max_size=40), texts | st.none(), st.lists(texts), st.dictionaries(texts.map("n".__add__), texts)
)


@given(st.lists(rows_of_a_frame, min_size=1))
def test_a_row_is_a_message_of_a_batch_and_alone(rows: list[tuple[bytes, Any, list[str], dict[str, str]]]) -> None:
    bodies, tags, keys, tables = zip(*rows, strict=True)
    kinds = (pa.string(), pa.list_(pa.string()), pa.map_(pa.string(), pa.string()))
    columns = {
        "tags": pa.array(tags, kinds[0]),
        "keys": pa.array(keys, kinds[1]),
        "properties": pa.array([list(table.items()) for table in tables], kinds[2]),
    }
    for number, message in enumerate(messages("T", 5, body=pa.array(bodies), **columns)):
        assert part_of(message.part) == (bodies[number], message.properties)
        assert message.body == bodies[number]
        expected = {**tables[number], "UNIQ_KEY": f"{PREFIX}{5 + number:010X}", "WAIT": "true"}
        expected |= {"KEYS": " ".join(keys[number])} if keys[number] else {}
        expected |= {"TAGS": tags[number]} if tags[number] else {}
        assert properties.decode(message.properties) == expected
        assert not message.delayed


def test_a_replay_has_the_same_unique_keys_and_nothing_else_has() -> None:
    def keys(maker: KeyMaker, first_row: int = 0) -> list[str]:
        batch = pa.record_batch({"body": pa.array([b"x"] * 3)})
        return [message.unique_key for message in messages_of(batch, maker, first_row, "T")]

    assert keys(KEYS) == keys(KeyMaker("write", "7", 3))
    makers = [KEYS, KeyMaker("write", "8", 3), KeyMaker("other", "7", 3), KeyMaker("write", "7", 4)]
    found = [key for maker in makers for key in keys(maker)] + keys(KEYS, 3)
    assert len(set(found)) == len(found) == 15
    assert {len(key) for key in found} == {32} and all(set(key) <= set("0123456789ABCDEF") for key in found)


def test_columns_of_a_row_decide_over_the_option_and_the_properties() -> None:
    pairs = [("KEYS", "old"), ("UNIQ_KEY", "u"), ("REAL_TOPIC", "r"), ("own", "1")]
    pairs = [("KEYS", "old"), ("UNIQ_KEY", "u"), ("REAL_TOPIC", "r"), ("own", "1")]
    table = pa.array([pairs] * 2, pa.map_(pa.string(), pa.string()))
    found = messages(
        body=pa.array(["a", "b"]),
        topic=pa.array([None, "Other"]),
        keys=pa.array(["new", None]),
        unique_key=pa.array(["mine", None]),
        delay_level=pa.array([0, 3]),
        properties=table,
    )
    assert [message.topic for message in found] == ["T", "Other"]
    assert [message.unique_key for message in found] == ["mine", f"{PREFIX}{1:010X}"]
    first, second = (properties.decode(message.properties) for message in found)
    assert first == {"UNIQ_KEY": "mine", "KEYS": "new", "own": "1", "WAIT": "true"}
    assert second == {"UNIQ_KEY": f"{PREFIX}{1:010X}", "KEYS": "old", "own": "1", "DELAY": "3", "WAIT": "true"}
    assert [message.delayed for message in found] == [False, True]


def test_a_time_of_delivery_is_in_milliseconds() -> None:
    at = datetime(2026, 11, 22, 1, 2, 3, 456789, UTC)
    (message,) = messages(body=pa.array([b""]), deliver_at=pa.array([at], pa.timestamp("us", "UTC")))
    assert properties.decode(message.properties)["TIMER_DELIVER_MS"] == "1795309323456"
    assert message.delayed


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"body": pa.array([b"x", None])}, "row 11 of partition 3 .*: the body is null"),
        ({"body": pa.array([b"x"]), "topic": pa.array([""])}, "the row has no topic"),
        ({"body": pa.array([b"x"]), "tags": pa.array(["a\1b"])}, "'TAGS': the characters 0x01 and 0x02"),
        ({"body": pa.array([b"x"]), "keys": pa.array([["a", "b\2"]])}, "'KEYS': the characters"),
        ({"body": pa.array([b"x"]), "keys": pa.array(["k" * 40_000])}, "more than 32767 bytes"),
        ({"body": pa.array([b"x"]), "keys": pa.array(["标" * 11_000])}, "more than 32767 bytes"),
    ],
)
def test_a_row_that_cannot_be_sent_is_named(columns: dict[str, pa.Array], reason: str) -> None:
    with pytest.raises(RowError, match=reason):
        messages(None if "topic" in columns else "T", 10, **columns)


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"topic": pa.array(["x"])}, "no column body"),
        ({"body": pa.array([1])}, "body must be binary or string, not int64"),
        ({"body": pa.array([b"x"]), "tag": pa.array(["x"])}, "the column tag has no meaning"),
        ({"body": pa.array([b"x"]), "keys": pa.array([[1]])}, "keys must be string or list"),
        ({"body": pa.array([b"x"]), "deliver_at": pa.array([1])}, "deliver_at must be timestamp"),
    ],
)
def test_a_frame_with_other_columns_is_refused(columns: dict[str, pa.Array], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        check_columns(pa.record_batch(columns).schema)
