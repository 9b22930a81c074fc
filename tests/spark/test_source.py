"""`spark.read.format("tallystick")` on stores that RocketMQ wrote: contents, options, filters, damage."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from golden_rows import expected, same

from tallystick.spark.columns import SCHEMA
from tallystick.spark.options import OptionError, ReadOptions

pytest.importorskip("pyspark.sql.datasource", reason="needs the group `spark`")

Golden = Callable[[str], Path]


def reading(spark: Any, root: Path | str, **options: Any) -> Any:
    reader = spark.read.format("tallystick")
    for name, value in options.items():
        reader = reader.option(name.rstrip("_"), value)
    return reader.load(str(root))


def rows_of(frame: Any) -> list[dict[str, Any]]:
    return sorted((row.asDict() for row in frame.collect()), key=lambda row: row["physical_offset"])


@pytest.mark.spark_versions
@pytest.mark.parametrize("name", ["clean", "edge", "trimmed", "dledger-n2", "lost-queues"])
def test_a_table_with_every_message_and_every_field(spark: Any, golden: Golden, golden_folder: Path, name: str) -> None:
    messages = expected(golden_folder, name)["opened"]["messages"]
    rows = rows_of(reading(spark, golden(name), columns="*", splitBytes=100_000))
    assert len(rows) == len(messages)
    for row, message in zip(rows, messages, strict=True):
        same({**row, "body": bytes(row["body"])}, message)


@pytest.mark.spark_versions
def test_the_body_only_if_asked_for(spark: Any, golden: Golden) -> None:
    root = golden("clean")
    assert reading(spark, root).columns == [name for name in SCHEMA.names if name != "body"]
    assert reading(spark, root, columns="topic,body").columns == ["topic", "body"]
    chosen = spark.read.format("tallystick").schema("size int, topic string").load(str(root))
    assert chosen.columns == ["size", "topic"]
    assert chosen.count() == reading(spark, root).count()


def test_milliseconds_are_read_as_timestamps_if_asked_for(spark: Any, golden: Golden) -> None:
    root = golden("clean")
    times = spark.read.format("tallystick").schema("store_timestamp_ms timestamp").load(str(root))
    numbers = reading(spark, root, columns="store_timestamp_ms")
    found = times.selectExpr("unix_millis(store_timestamp_ms) as ms").groupBy("ms").count()
    assert sorted(found.collect()) == sorted(numbers.groupBy("store_timestamp_ms").count().collect())
    with pytest.raises(Exception, match="queue_offset is bigint, and cannot be read as another type"):
        spark.read.format("tallystick").schema("queue_offset timestamp").load(str(root)).collect()


def test_several_stores_are_one_table_and_rows_say_which(spark: Any, golden: Golden) -> None:
    first, second = golden("dledger-n0"), golden("dledger-n2")
    reader = spark.read.format("tallystick")
    frame = reader.load(f"n0={first},n2={second}")
    counts = {row["source"]: row["count"] for row in frame.groupBy("source").count().collect()}
    assert counts == {"n0": 430, "n2": 436}
    with pytest.raises(OptionError, match="the same name"):
        ReadOptions.parse({"path": f"n={first},n={second}"}).volumes()


COLUMNS = "source,topic,queue_id,queue_offset,store_timestamp_ms,tags,flag,physical_offset,unique_key"
FILTERS = [
    "topic = '{topic}'",
    "topic in ('{topic}', 'nosuch') and queue_id = 1",
    "queue_offset >= 2 and queue_offset < 5",
    "queue_offset > 3 and topic = '{topic}' and tags is not null",
    "store_timestamp_ms <= {middle}",
    "store_timestamp_ms between {middle} and {late}",
    "topic = '{topic}' and topic = 'other'",
    "queue_offset > 5 and queue_offset < 3",
    "topic like '%RETRY%' or queue_id = 0",
    "not (topic = '{topic}')",
    "queue_id in (0, 2) and flag = 0",
    "topic is null",
    "queue_offset = 1 and queue_id <> 0",
    "unique_key = '{unique_key}'",
    "unique_key in ('{unique_key}', 'x') and topic = '{topic}'",
    "tags = '{tag}' and topic = '{topic}'",
    "tags in ('{tag}', 'none') and topic = '{topic}' and queue_id = 1",
    "source = 'n0' and queue_offset = 1",
    "source = 'n1'",
]


@pytest.mark.spark_versions
def test_filters_by_spark_and_by_the_scanner_find_the_same_rows(spark: Any, golden: Golden) -> None:
    root = f"n0={golden('clean')}"
    plain = spark.createDataFrame(reading(spark, root, pushdown="false", columns=COLUMNS).toArrow()).cache()
    everything = rows_of(plain)
    times = [row["store_timestamp_ms"] for row in everything]
    topic = max({row["topic"] for row in everything}, key=[row["topic"] for row in everything].count)
    tagged = next(row for row in everything if row["topic"] == topic and row["tags"] and row["unique_key"])
    for condition in FILTERS:
        given = {"topic": topic, "middle": times[len(times) // 3], "late": times[len(times) // 2]}
        text = condition.format(unique_key=tagged["unique_key"], tag=tagged["tags"], **given)
        pushed = reading(spark, root, columns=COLUMNS).where(text)
        assert rows_of(pushed) == rows_of(plain.where(text)), text


def test_options_narrow_what_is_read(spark: Any, golden: Golden) -> None:
    root = golden("clean")
    everything = rows_of(reading(spark, root))
    middle = everything[len(everything) // 2]["store_timestamp_ms"]
    from datetime import UTC, datetime

    time = datetime.fromtimestamp(middle / 1000, UTC).isoformat()
    keyed = next(row for row in everything if len(row["keys"]) > 1)

    def same_rows(taken: Callable[[dict[str, Any]], bool], **options: Any) -> None:
        found = rows_of(reading(spark, root, **options))
        assert found and found == [row for row in everything if taken(row)]

    same_rows(lambda row: row["topic"] == keyed["topic"], topic=keyed["topic"])
    same_rows(lambda row: row["queue_id"] in (0, 3), queue="0,3")
    same_rows(lambda row: 2 <= row["queue_offset"] < 5, from_="2", to="5")
    same_rows(lambda row: row["store_timestamp_ms"] >= middle, from_=time)
    same_rows(lambda row: row["store_timestamp_ms"] < middle, to=time)
    same_rows(lambda row: keyed["keys"][1] in row["keys"], key=keyed["keys"][1])
    same_rows(lambda row: row["physical_offset"] < middle_offset(everything), committed=middle_offset(everything))


def middle_offset(rows: list[dict[str, Any]]) -> int:
    return rows[len(rows) // 2]["physical_offset"]


@pytest.mark.spark_versions
def test_damage_goes_to_a_side_output(spark: Any, golden: Golden, golden_folder: Path, tmp_path: Path) -> None:
    root, position = golden("flipped-body"), expected(golden_folder, "flipped-body")["opened"]["maxPhyOffset"]
    side = tmp_path / "damage"
    frame = reading(spark, root, verify="true", damagePath=str(side))
    count = frame.count()
    assert frame.count() == count, "a second run writes the same files again"
    (path,) = side.glob("*.json")
    (line,) = path.read_text().splitlines()
    assert (json.loads(line)["position"], json.loads(line)["reason"]) == (position, "body CRC differs")
    (row,) = reading(spark, root, view="damage").collect()
    assert row["position"] == position and row["file"].startswith(str(root / "commitlog"))
    assert reading(spark, root).count() == count + 1, "without the bodies it is not seen"
    with pytest.raises(Exception, match="body CRC differs"):
        reading(spark, root, columns="body", mode="FAILFAST").count()
    assert reading(spark, golden("clean"), view="damage").count() == 0


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({}, "path"),
        ({"path": "/x", "topics": "a"}, "topics"),
        ({"path": "/x", "mode": "DROPMALFORMED"}, "mode"),
        ({"path": "/x", "columns": "topic,boody"}, "boody"),
        ({"path": "/x", "from": "yesterday"}, "yesterday"),
        ({"path": "/x", "queue": "one"}, "queue"),
        ({"path": "/x", "committed": "-1"}, "committed"),
        ({"path": "/x", "splitBytes": "0"}, "splitBytes"),
    ],
)
def test_options_that_cannot_be(options: dict[str, str], word: str) -> None:
    with pytest.raises(OptionError, match=word):
        ReadOptions.parse(options)
