"""`spark.read.format("tallystick")` on stores that RocketMQ wrote: contents, options, filters, damage."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from golden_rows import expected, same

from tallystick.spark.columns import SCHEMA, schema_of
from tallystick.spark.options import OptionError, ReadOptions
from tallystick.spark.scan import Wanted

datasource = pytest.importorskip("pyspark.sql.datasource", reason="needs the group `spark`")

from pyspark.sql.datasource import EqualTo, GreaterThan, In, LessThan, Not  # noqa: E402
from pyspark.sql.pandas.types import from_arrow_schema  # noqa: E402

from tallystick.spark.source import PushingReader, SplitPartition  # noqa: E402
from tallystick.spark.splits import Split  # noqa: E402

Golden = Callable[[str], Path]


def reading(spark: Any, root: Path | str, **options: Any) -> Any:
    reader = spark.read.format("tallystick")
    for name, value in options.items():
        reader = reader.option(name.rstrip("_"), value)
    return reader.load(str(root))


def splits_read(reader: PushingReader) -> list[Split]:
    found: list[Split] = []
    for part in reader.partitions():
        assert isinstance(part, SplitPartition)
        found += part.task.splits
    return found


def rows_of(frame: Any) -> list[dict[str, Any]]:
    return sorted((row.asDict() for row in frame.collect()), key=lambda row: row["physical_offset"])


@pytest.mark.parametrize("name", ["clean", "edge", "trimmed", "dledger-n2", "lost-queues"])
def test_a_table_with_every_message_and_every_field(spark: Any, golden: Golden, golden_folder: Path, name: str) -> None:
    messages = expected(golden_folder, name)["opened"]["messages"]
    rows = rows_of(reading(spark, golden(name), columns="*", splitBytes=100_000))
    assert len(rows) == len(messages)
    for row, message in zip(rows, messages, strict=True):
        same({**row, "body": bytes(row["body"])}, message)


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
    with pytest.raises(Exception, match="queue_offset is no time"):
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


def test_filters_reach_the_scanner(golden: Golden) -> None:
    """Handed over as Spark does: what comes back is what the scanner will not do."""
    options = ReadOptions.parse({"path": str(golden("clean"))})
    reader = PushingReader(options, from_arrow_schema(schema_of(["topic", "size"])))
    left = [GreaterThan(("size",), 5), Not(EqualTo(("topic",), "y"))]
    taken = [EqualTo(("topic",), "x"), GreaterThan(("queue_offset",), 3), In(("queue_id",), (1, 2))]
    assert list(reader.pushFilters([*taken, *left])) == left
    assert reader.wanted == Wanted(topics=("x",), queues=(1, 2), queue_offsets=(4, 2**63 - 1))
    assert reader.partitions()
    assert list(reader.pushFilters([LessThan(("queue_offset",), 4)])) == []
    assert reader.partitions() == [], "nothing is read for filters that contradict each other"


def test_what_spark_must_apply_still_says_what_to_read(golden: Golden) -> None:
    options = ReadOptions.parse({"path": f"n0={golden('clean')},n1={golden('edge')}"})
    reader = PushingReader(options, from_arrow_schema(schema_of(["topic"])))
    left = [EqualTo(("unique_key",), "u"), In(("tags",), ("a", "b"))]
    assert list(reader.pushFilters([*left, EqualTo(("source",), "n1")])) == left
    assert reader.wanted == Wanted(keys=("u",), tags=("a", "b"), sources=("n1",))
    assert {split.source for split in splits_read(reader)} == {"n1"}


def test_a_filter_on_the_unique_key_does_not_exclude_the_option_key(golden: Golden) -> None:
    """A message has both: a unique key, and other keys."""
    options = ReadOptions.parse({"path": str(golden("clean")), "key": "k1"})
    reader = PushingReader(options, from_arrow_schema(schema_of(["topic"])))
    assert list(reader.pushFilters([EqualTo(("unique_key",), "u1")])) == [EqualTo(("unique_key",), "u1")]
    assert reader.wanted == Wanted(keys=("k1",)) and not reader.impossible


def test_damage_of_the_whole_log_is_written_for_a_filter_too(golden: Golden, tmp_path: Path) -> None:
    root = golden("clean")

    def read_bytes(**given: str) -> int:
        options = ReadOptions.parse({"path": str(root), "queue": "1", "from": "3", "to": "4", "topic": "GoldA"} | given)
        reader = PushingReader(options, from_arrow_schema(schema_of(["topic"])))
        return sum(split.bytes for split in splits_read(reader))

    whole = read_bytes(pruning="false")
    assert read_bytes() < whole / 10
    assert read_bytes(damagePath=str(tmp_path)) == read_bytes(view="damage") == whole


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
