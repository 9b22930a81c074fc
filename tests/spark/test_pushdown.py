"""Filters that Spark hands over, as it does from version 4.1 on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tallystick.spark.columns import DAMAGE_SCHEMA, schema_of
from tallystick.spark.options import ReadOptions
from tallystick.spark.scan import Wanted

datasource = pytest.importorskip("pyspark.sql.datasource", reason="needs the group `spark`")

from pyspark.sql.datasource import EqualTo, GreaterThan, In, LessThan, Not  # noqa: E402
from pyspark.sql.pandas.types import from_arrow_schema  # noqa: E402

from tallystick.spark.pushdown import PushingReader  # noqa: E402
from tallystick.spark.source import SplitPartition  # noqa: E402
from tallystick.spark.splits import Split  # noqa: E402

Golden = Callable[[str], Path]


def splits_read(reader: PushingReader) -> list[Split]:
    found: list[Split] = []
    for part in reader.partitions():
        assert isinstance(part, SplitPartition)
        found += part.task.splits
    return found


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
        columns = DAMAGE_SCHEMA if "view" in given else schema_of(["topic"])
        reader = PushingReader(options, from_arrow_schema(columns))
        return sum(split.bytes for split in splits_read(reader))

    whole = read_bytes(pruning="false")
    assert read_bytes() < whole / 10
    assert read_bytes(damagePath=str(tmp_path)) == read_bytes(view="damage") == whole
