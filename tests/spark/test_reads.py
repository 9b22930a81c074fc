"""What is read of logs is counted: in tasks of the data source, in streams, and in jobs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark.sql.datasource", reason="needs the group `spark`")

from tallystick.spark.cluster.result import figures_of
from tallystick.spark.jobs import stats
from tallystick.spark.jobs.cli import main
from tallystick.spark.options import ReadOptions
from tallystick.spark.planning import plan_sources
from tallystick.spark.reads import _EARLIER, CountingRunner, Reads, _StagesParam, so_far
from tallystick.spark.runner import inline
from tallystick.spark.scan import SplitScan
from tallystick.spark.source import register

Golden = Callable[[str], Path]


def read_directly(root: Path, **given: str) -> Reads:
    """What the splits of a store have, one by one."""
    options = ReadOptions.parse({"path": str(root)} | given)
    total = Reads()
    for split in (split for planned in plan_sources(options, inline) for split in planned.splits):
        scan = SplitScan(split, ("topic",))
        assert list(scan)
        assert scan.bytes_read >= split.bytes, "a record across two pieces is read twice"
        total += Reads(scan.bytes_read, scan.records, 1)
    return total


def frame_of(session: Any, root: Path, **given: str) -> Any:
    reader = session.read.format("tallystick").option("columns", "topic,queue_id,physical_offset")
    return reader.options(**given).load(str(root))


@pytest.mark.spark_versions
def test_tasks_of_a_session_count_what_they_read(spark: Any, golden: Golden, tmp_path: Path) -> None:
    session = spark.newSession()
    reads = register(session)
    if spark.version.startswith("4.0."):
        assert reads is None, "it does not replace the source that it found by itself"
        return
    assert reads is not None and reads.total == Reads()
    root = golden("clean")
    whole = read_directly(root, splitBytes="100000")
    assert whole.tasks > 3
    assert frame_of(session, root, splitBytes="100000").count() == whole.records
    assert reads.total == whole
    (stage,) = reads.stages
    assert session.sparkContext.statusTracker().getStageInfo(stage).numTasks == whole.tasks

    topic = frame_of(session, root).first().topic
    before = reads.total
    frame_of(session, root, topic=topic, queue="0", to="2").collect()
    one_queue = reads.total - before
    assert 0 < one_queue.bytes < whole.bytes / 10 and one_queue.tasks == 1

    before = reads.total
    follow = session.readStream.format("tallystick").option("columns", "topic").load(str(root))
    query = follow.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()
    assert (reads.total - before).records == whole.records


def test_the_last_stages_are_kept_and_all_are_in_the_sum() -> None:
    param = _StagesParam()
    found = param.zero({})
    for stage in range(2500):
        found = param.addInPlace(found, {stage // 2: Reads(10, 1, 1)})
    assert len(found) == 1001 and found[1249] == Reads(20, 2, 2)
    assert sum(found.values(), Reads()) == Reads(25_000, 2500, 2500)
    assert min(stage for stage in found if stage != _EARLIER) == 250


def test_a_runner_counts_what_its_items_read(golden: Golden) -> None:
    root = golden("clean")
    options, runner = ReadOptions.parse({"path": str(root)}), CountingRunner(inline)
    assert stats.run(options, runner)["messages"] == runner.reads.records
    assert runner.reads.bytes == read_directly(root).bytes
    before = so_far()
    (split,) = plan_sources(options, inline)[0].splits[:1]
    (result,) = runner.stream(stats.sums_of, [split])
    assert result.records == (so_far() - before).records > 0


def test_a_job_says_what_was_read(golden: Golden, capsys: pytest.CaptureFixture[str]) -> None:
    root = golden("clean")
    assert main(["stats", "--path", str(root), "--master", "none", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["bytes_read"] == figures_of(summary)["bytesRead"] == read_directly(root).bytes
