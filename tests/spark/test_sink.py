"""`write` and `writeStream` to a real broker: what its store contains afterwards, and what the user is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tally_process import TallyProcess, tally

pytest.importorskip("pyspark.sql", reason="needs the group `spark`")

import pyarrow as pa

from tallystick.spark.options import ReadOptions
from tallystick.spark.outgoing import KeyMaker
from tallystick.spark.producer import Sent
from tallystick.spark.scan import SplitScan
from tallystick.spark.sink import MessageWriter, SinkOptions, Told, batched
from tallystick.spark.splits import plan

pytestmark = pytest.mark.process
COLUMNS = ("topic", "queue_id", "queue_offset", "unique_key", "tags", "keys", "properties", "body")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TallyProcess]:
    settings = ("--set", "autoCreateTopicEnable=false", "--set", "maxMessageSize=65536")
    with TallyProcess(tmp_path_factory.mktemp("broker"), *settings) as process:
        for topic in ("Plain", "Ordered", "Stream", "Replayed", "Direct"):
            assert tally("topic", "create", topic, "--queues", "4", "-n", process.nameserver).returncode == 0
        yield process


def stored(broker: TallyProcess, topic: str) -> list[dict[str, Any]]:
    options = ReadOptions.parse({"path": str(broker.store), "topic": topic})
    splits = [split for volume in options.volumes() for split in plan(volume)]
    scans = [SplitScan(split, COLUMNS, options.wanted, check_crc=True) for split in splits]
    return [row for scan in scans for batch in scan for row in batch.to_pylist()]


def writing(frame: Any, broker: TallyProcess, topic: str, **options: Any) -> None:
    writer = frame.write.format("tallystick").option("nameserver", broker.nameserver).option("topic", topic)
    for name, value in options.items():
        writer = writer.option(name, value)
    writer.mode(options.get("mode", "append")).save()


def test_rows_become_messages_with_all_their_columns(spark: Any, broker: TallyProcess, tmp_path: Path) -> None:
    frame = spark.range(0, 5000, 1, 3).selectExpr(
        "concat('body ', id) as body", "concat('tag', id % 3) as tags", "array(concat('k', id), 'all') as keys",
        "map('n', cast(id as string)) as properties",
    )  # fmt: skip
    writing(frame, broker, "Plain", writeId="w", batchBytes=20_000, summaryPath=str(tmp_path))
    rows = {int(row["body"].split()[1]): row for row in stored(broker, "Plain")}
    assert set(rows) == set(range(5000)) and len(stored(broker, "Plain")) == 5000
    for number, row in rows.items():
        assert (row["tags"], row["keys"]) == (f"tag{number % 3}", [f"k{number}", "all"])
        assert dict(row["properties"])["n"] == str(number)
    partitions = {KeyMaker("w", "", number).prefix() for number in range(3)}
    assert {row["unique_key"][:22] for row in rows.values()} == partitions
    assert len({row["unique_key"] for row in rows.values()}) == 5000
    assert {row["queue_id"] for row in rows.values()} == {0, 1, 2, 3}
    (summary,) = [json.loads(path.read_text()) for path in tmp_path.iterdir()]
    assert summary.items() >= {"messages": 5000, "doubled": 0, "unsynced": 0, "tasks": 3, "repeated_tasks": 0}.items()


def test_an_order_key_keeps_the_order_of_its_rows(spark: Any, broker: TallyProcess) -> None:
    frame = spark.range(0, 3000, 1, 1).selectExpr("cast(id as string) as body", "concat('k', id % 7) as order_key")
    writing(frame, broker, "Ordered", batchBytes=5000)
    rows = sorted(stored(broker, "Ordered"), key=lambda row: (row["queue_id"], row["queue_offset"]))
    for key in range(7):
        own = [row for row in rows if int(row["body"]) % 7 == key]
        assert len({row["queue_id"] for row in own}) == 1
        assert [int(row["body"]) for row in own] == [number for number in range(3000) if number % 7 == key]


def test_a_broker_without_a_name_server_is_enough(spark: Any, broker: TallyProcess) -> None:
    writer = spark.range(100).selectExpr("cast(id as string) as body", "'Direct' as topic").write
    writer.format("tallystick").option("broker", broker.places["broker"]).mode("append").save()
    assert sorted(int(row["body"]) for row in stored(broker, "Direct")) == list(range(100))
    assert {row["queue_id"] for row in stored(broker, "Direct")} <= {0, 1, 2, 3}


def test_a_stream_that_repeats_its_last_batch_repeats_its_unique_keys(
    spark: Any, broker: TallyProcess, tmp_path: Path
) -> None:
    """As after a kill between the sends and the checkpoint: the record that the batch was committed is missing."""
    source = tmp_path / "in"

    def run() -> None:
        frame = spark.readStream.schema("body string").option("maxFilesPerTrigger", 1).text(str(source))
        writer = frame.writeStream.format("tallystick").trigger(availableNow=True)
        writer = writer.option("nameserver", broker.nameserver).option("topic", "Stream")
        writer = writer.option("summaryPath", str(tmp_path / "told"))
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()

    source.mkdir()
    (source / "1.txt").write_text("".join(f"{number}\n" for number in range(500)))
    run()
    (tmp_path / "checkpoint/commits/0").unlink()
    for crc in (tmp_path / "checkpoint/commits").glob(".*.crc"):
        crc.unlink()
    run()
    (source / "2.txt").write_text("last\n")
    run()
    rows = stored(broker, "Stream")
    bodies = {row["unique_key"]: row["body"] for row in rows}
    assert len(rows) == 1001, "the batch was sent twice"
    assert sorted(bodies.values()) == sorted([b"last", *(str(number).encode() for number in range(500))])
    told = sorted((tmp_path / "told").iterdir())
    assert [path.name for path in told] == ["batch-000000000000.json", "batch-000000000001.json"]
    assert json.loads(told[1].read_text())["messages"] == 1


@pytest.mark.parametrize(
    ("select", "topic", "reason"),
    [
        ("cast(id as string) as body", "Nothing", "topic Nothing: .*refused"),
        ("repeat('x', 70000) as body", "Replayed", "the message is illegal.* were not confirmed"),
        ("cast(null as string) as body", "Replayed", "row 0 of partition 0 .*the body is null"),
        ("cast(id as string) as body; 1 as x", "Replayed", "the column x has no meaning"),
        ("id as body", "Replayed", "the column body must be binary or string"),
    ],
)
def test_errors_end_the_query_with_their_reason(
    spark: Any, broker: TallyProcess, select: str, topic: str, reason: str
) -> None:
    frame = spark.range(0, 1, 1, 1).selectExpr(*select.split("; "))
    with pytest.raises(Exception, match=reason):
        writing(frame, broker, topic)


def test_overwriting_is_refused(spark: Any, broker: TallyProcess) -> None:
    with pytest.raises(Exception, match="cannot be overwritten"):
        writing(spark.range(1).selectExpr("'x' as body"), broker, "Plain", mode="overwrite")


def test_messages_of_a_repeated_task_may_all_be_doubled(monkeypatch: pytest.MonkeyPatch, broker: TallyProcess) -> None:
    class Context:
        attempt = 0

        def getLocalProperty(self, name: str) -> str | None:  # noqa: N802
            return {"sql.streaming.queryId": "query", "streaming.sql.batchId": "5"}.get(name)

        def partitionId(self) -> int:  # noqa: N802
            return 2

        def attemptNumber(self) -> int:  # noqa: N802
            return self.attempt

    context = Context()
    monkeypatch.setattr("tallystick.spark.sink.TaskContext.get", lambda: context)
    options = SinkOptions.parse({"nameserver": broker.nameserver, "topic": "Replayed"})
    rows = [pa.record_batch({"body": pa.array([b"x"] * 10)})]
    writer = MessageWriter(options, rows[0].schema)
    first = writer.write(iter(rows))
    context.attempt = 1
    second = writer.write(iter(rows))
    assert (first, second) == (Told(Sent(10, 1, 0, 0), 0), Told(Sent(10, 1, 10, 0), 1))
    keys = [row["unique_key"] for row in stored(broker, "Replayed")]
    assert keys[:10] == keys[10:] and keys[0].startswith(KeyMaker("query", "5", 2).prefix())


def test_rows_of_spark_4_0_become_batches() -> None:
    schema = pa.schema([("body", pa.string()), ("keys", pa.list_(pa.string()))])
    batches = list(batched(iter([("a", ["x"]), ("b", None)] * 3000), schema))
    assert [batch.num_rows for batch in batches] == [4096, 1904]
    assert batches[1].to_pylist()[-1] == {"body": "b", "keys": None}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "one of the options nameserver and broker"),
        ({"nameserver": "a:1", "broker": "b:1"}, "one of the options nameserver and broker"),
        ({"nameserver": "a:1", "topics": "x"}, "option topics is unknown"),
        ({"broker": "a:1", "batchBytes": "0"}, "batchBytes must be 1 to"),
        ({"broker": "a:1", "retrySeconds": "soon"}, "retrySeconds must be a number"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, str], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        SinkOptions.parse(options)
