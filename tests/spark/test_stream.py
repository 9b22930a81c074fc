"""The streaming reader on a growing store: every message once, over restarts, in bounded steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine_lab import message, opened, small

pytest.importorskip("pyspark.sql.datasource", reason="needs the group `spark`")

from pyspark.sql.pandas.types import from_arrow_schema

from tallystick.spark.columns import schema_of
from tallystick.spark.options import OptionError, ReadOptions
from tallystick.spark.stream import DataLossError, MessageStreamReader
from tallystick.spark.versions import HAS_READ_LIMITS

COLUMNS = ("physical_offset", "body")


def reader_of(root: Path, **options: str) -> MessageStreamReader:
    parsed = ReadOptions.parse({"path": f"n={root}", "columns": ",".join(COLUMNS)} | options)
    return MessageStreamReader(parsed, from_arrow_schema(schema_of(COLUMNS)))


def bodies(reader: MessageStreamReader, start: Any, end: Any) -> list[bytes]:
    found = [
        row["body"]
        for partition in reader.partitions(start, end)
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]
    return found


@pytest.mark.spark_versions
async def test_each_message_once_while_the_store_grows(tmp_path: Path) -> None:
    async with opened(small(tmp_path)) as store:
        reader = reader_of(tmp_path)
        offset = reader.initialOffset()
        seen: list[Any] = []
        for step in range(10):
            sent = [b"%d-%d" % (step, number) + b"x" * 100 for number in range(step * 3)]
            for body in sent:
                await store.writes.put(message(body, queue=len(body) % 2))
            end = reader.latestOffset(offset)
            more = bodies(reader, offset, end)
            assert more == sent
            await store.writes.put(message(b"later"))
            assert bodies(reader_of(tmp_path, splitBytes="700"), offset, end) == more, "the same offsets, the same rows"
            seen, offset = [*seen, *more], end
            assert bodies(reader, offset, reader.latestOffset(offset)) == [b"later"]
            offset = reader.latestOffset(offset)


@pytest.mark.spark_versions
async def test_bounded_steps_come_to_the_end(tmp_path: Path) -> None:
    async with opened(small(tmp_path)) as store:
        for number in range(60):
            await store.writes.put(message(b"%03d" % number + b"y" * 100))
    if not HAS_READ_LIMITS:
        with pytest.raises(OptionError, match=r"requires Spark 4\.2 or later"):
            reader_of(tmp_path, maxBytesPerTrigger="2000")
        return
    reader = reader_of(tmp_path, maxBytesPerTrigger="2000")
    offset, seen, steps = reader.initialOffset(), [], 0
    while (end := reader.latestOffset(offset, reader.getDefaultReadLimit())) != offset:
        assert end["n"] - offset["n"] <= 4096, "at most the limit and a half, or a file"
        seen += bodies(reader, offset, end)
        offset, steps = end, steps + 1
    assert [body[:3] for body in seen] == [b"%03d" % number for number in range(60)]
    assert steps > 4


async def test_what_comes_after_the_begin_of_a_run_to_the_end_is_not_read(tmp_path: Path) -> None:
    async with opened(small(tmp_path)) as store:
        await store.writes.put(message(b"before"))
    reader = reader_of(tmp_path)
    reader.prepareForTriggerAvailableNow()
    end = reader.latestOffset(reader.initialOffset())
    async with opened(small(tmp_path)) as store:
        await store.writes.put(message(b"later"))
    assert reader.latestOffset(end) == end
    assert bodies(reader, reader.initialOffset(), end) == [b"before"]
    assert reader_of(tmp_path).latestOffset()["n"] > end["n"]


async def test_what_was_deleted_unread_is_a_loss(tmp_path: Path) -> None:
    async with opened(small(tmp_path)) as store:
        for _ in range(60):
            await store.writes.put(message(b"y" * 100))
    reader = reader_of(tmp_path)
    start, end = reader.initialOffset(), reader.latestOffset()
    (tmp_path / "commitlog" / f"{0:020d}").unlink()
    with pytest.raises(DataLossError, match="4096 bytes of n"):
        reader.partitions(start, end)
    assert 0 < len(bodies(reader_of(tmp_path, failOnDataLoss="false"), start, end)) < 60
    assert reader_of(tmp_path, startingPosition="latest").initialOffset() == end


def test_a_query_continues_where_it_stopped(spark: Any, golden: Callable[[str], Path], tmp_path: Path) -> None:
    """Run to the end, then again from its checkpoint with a bound further on: no row twice, none missing."""
    root, out = golden("clean"), tmp_path / "out"
    total = reader_of(root).latestOffset()["n"]
    whole = spark.read.format("tallystick").option("columns", "physical_offset").load(str(root))
    middle = sorted(row[0] for row in whole.collect())[whole.count() // 2]
    steps: list[int] = []
    for committed in (middle, total, total):
        query = (
            spark.readStream.format("tallystick")
            .option("columns", "physical_offset,topic")
            .option("committed", committed)
            .option("maxBytesPerTrigger", total // 8)
            .load(f"n={root}")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(out))
        )
        query.awaitTermination(180)
        assert query.exception() is None
        steps.append(sum(1 for each in query.recentProgress if each["numInputRows"]))
        written = sorted(row[0] for row in spark.read.parquet(str(out)).select("physical_offset").collect())
        assert written == sorted(row[0] for row in whole.where(f"physical_offset < {committed}").collect())
    assert steps[0] > 1 and steps[1] > 1 and steps[2] == 0, "as many steps as the option makes of it"
