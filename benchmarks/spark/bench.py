"""`make bench-spark`: how fast stores are read in bulk, against the ways there were before.

    scanner     the kernel alone, one thread, no Spark: nine columns without the body; every column with it
    stats       the job in local[2], its fixed cost included
    python      the same sums in the same Spark by a parser in plain Python
    consumer    the same messages through RocketMQ's own pull consumer (Java, two threads), from a broker on this log

All on warm pages, best of a few turns, and what other processes burned meanwhile is told: on a busy machine the CPU
seconds of the scanner say more than its rate. Needs the peer lab for the consumer's jars, else that row is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from logs import TOPICS, make_log

from tallystick.spark.columns import SCHEMA
from tallystick.spark.jobs import stats
from tallystick.spark.options import ReadOptions
from tallystick.spark.runner import on_spark
from tallystick.spark.scan import SplitScan
from tallystick.spark.splits import Split, plan

HERE = Path(__file__).resolve().parent
SEGMENT_BYTES = 256 << 20
NUMBERS = (
    *("topic", "queue_id", "queue_offset", "physical_offset", "size", "store_timestamp_ms", "born_timestamp_ms"),
    *("sys_flag", "flag"),
)
# The client's Netty reaches into Java's buffers, which Java 17 has closed.
_OPENS = ("--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED")
_READY = re.compile(r"tally is ready in [0-9.]+ s: (.*)\n")


def main() -> int:
    parser = argparse.ArgumentParser(description="Bulk reading: scanner, Spark, plain Python, pull consumer.")
    parser.add_argument("--mib", type=int, default=1024, help="size of the log (1024)")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--peer", type=Path, default=HERE.parents[2] / "shared" / "peer", help="folder of peer.sh")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tally-bench-spark-") as folder:
        result = measure(Path(folder), options)
    print(json.dumps(result) if options.json else text_of(result))
    return 0


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    root = folder / "node" / "store"
    messages = make_log(root, options.mib << 20, SEGMENT_BYTES)
    read = ReadOptions.parse({"path": f"n0={root}", "committed": str(options.mib << 20)})
    splits = [split for volume in read.volumes() for split in plan(volume, split_bytes=read.split_bytes)]
    total = sum(split.bytes for split in splits)
    rows: list[dict[str, Any]] = []

    def row(name: str, turns: int, work: Callable[[], int]) -> None:
        taken = [timed(work, messages) for _ in range(turns)]
        best = min(taken, key=lambda turn: turn["seconds"])
        rows.append({"row": name, "bytes": total, "messages": messages, **best})

    row("scanner, 9 columns", options.turns, lambda: scan_all(splits, NUMBERS))
    row("scanner, all columns and bodies", options.turns, lambda: scan_all(splits, tuple(SCHEMA.names)))
    spark = session()
    run = on_spark(spark.sparkContext)
    row("stats, local[2]", options.turns, lambda: int(stats.run(read, run)["messages"]))
    row("plain Python, local[2]", 1, lambda: sum(sum(part.values()) for part in run(parsed_plainly, splits)))
    spark.stop()
    if (options.peer / "peer.sh").exists():
        rows.append(consumed(folder, root, options, messages, total))
    return {"cores": os.cpu_count(), "mib": options.mib, "rows": rows}


def timed(work: Callable[[], int], messages: int) -> dict[str, Any]:
    foreign, began = other_seconds(), time.perf_counter()
    cpu = time.process_time()
    count = work()
    seconds = time.perf_counter() - began
    assert count == messages, f"{count} messages instead of {messages}"
    return {
        "seconds": seconds,
        "cpu_seconds": time.process_time() - cpu,
        "machine_cores_busy": (other_seconds() - foreign) / seconds,
    }


def other_seconds() -> float:
    """CPU seconds that all processes of the machine have used."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return (fields[0] + fields[1] + fields[2] + fields[5] + fields[6]) / os.sysconf("SC_CLK_TCK")


def scan_all(splits: list[Split], columns: tuple[str, ...]) -> int:
    return sum(batch.num_rows for split in splits for batch in SplitScan(split, columns))


def parsed_plainly(split: Split) -> Counter[tuple[str, int, str, int]]:
    """Messages by topic, queue, tag and hour, as one would write it without the kernel."""
    with Path(split.path).open("rb") as file:
        file.seek(split.begin - split.file_start)
        data = file.read(split.bytes)
    found: Counter[tuple[str, int, str, int]] = Counter()
    at = 0
    while at < len(data):
        size, magic, _, queue = struct.unpack_from(">iIii", data, at)
        if magic != 0xDAA320A7:
            break
        (stored,) = struct.unpack_from(">q", data, at + 56)
        (body_bytes,) = struct.unpack_from(">i", data, at + 84)
        topic_at = at + 88 + body_bytes
        topic = data[topic_at + 1 : topic_at + 1 + data[topic_at]].decode()
        text = data[topic_at + 3 + data[topic_at] : at + size].decode()
        table = dict(pair.split("\x01", 1) for pair in text.split("\x02") if pair)
        found[topic, queue, table.get("TAGS", ""), stored // 3_600_000] += 1
        at += size
    return found


def session() -> Any:
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    spark.sparkContext.parallelize(range(8), 8).map(len_of_nothing).collect()  # workers are forked, modules loaded
    return spark


def len_of_nothing(_: int) -> int:
    return 0


def consumed(folder: Path, root: Path, options: argparse.Namespace, messages: int, total: int) -> dict[str, Any]:
    """The broker on this log, dispatched, and the consumer against it."""
    (root / "config").mkdir()
    table = {
        topic: {"topicName": topic, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "topicFilterType": "SINGLE_TAG"}
        for topic in TOPICS
    }
    (root / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": table, "dataVersion": {}}))
    (root / "abort").touch()  # the queues are made at the start
    arguments = ["--port", "0", "--nameserver-port", "0", "--http-port", "-1", "--set"]
    arguments += [f"mappedFileSizeCommitLog={SEGMENT_BYTES}"]
    with (folder / "log").open("w") as log:
        node = subprocess.Popen(
            [sys.executable, "-m", "tallystick.node.cli", "run", "--dir", str(folder / "node"), *arguments],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert node.stdout is not None
        ready = _READY.fullmatch(node.stdout.readline())
        assert ready, (folder / "log").read_text()[-2000:]
        places = dict(re.findall(r"([a-z ]+?) (?:at )?([0-9.]+:[0-9]+)", ready[1]))
        nameserver = next(place for name, place in places.items() if "name" in name)
        classpath = subprocess.run(
            [options.peer / "peer.sh", "classpath"], capture_output=True, text=True, check=True, timeout=300
        ).stdout.strip()
        classes = folder / "classes"
        subprocess.run(["javac", "-cp", classpath, "-d", classes, HERE / "PullAll.java"], check=True, timeout=300)
        began_cpu = resource.getrusage(resource.RUSAGE_CHILDREN)
        foreign, began = other_seconds(), time.perf_counter()
        found = subprocess.run(
            ["java", *_OPENS, "-cp", f"{classes}:{classpath}", "PullAll", nameserver, "2", *TOPICS],
            capture_output=True,
            text=True,
            timeout=600,
        )
        wall = time.perf_counter() - began
        assert found.returncode == 0, found.stderr[-2000:]
        count, seconds = found.stdout.split()[-2:]
        assert int(count) == messages, f"{count} messages instead of {messages}"
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return {
            "row": "RocketMQ pull consumer, 2 threads",
            "bytes": total,
            "messages": messages,
            "seconds": float(seconds),
            "cpu_seconds": children.ru_utime + children.ru_stime - began_cpu.ru_utime - began_cpu.ru_stime,
            "machine_cores_busy": (other_seconds() - foreign) / wall,
        }
    finally:
        node.terminate()
        node.wait(60)


def text_of(result: dict[str, Any]) -> str:
    by_name = {row["row"]: row for row in result["rows"]}
    lines = [f"{'':36}{'s':>8}{'MB/s':>9}{'k rows/s':>10}{'CPU s':>8}{'busy cores':>12}"]
    for row in result["rows"]:
        rate = row["bytes"] / row["seconds"] / 1e6
        rows = row["messages"] / row["seconds"] / 1e3
        lines.append(
            f"{row['row']:36}{row['seconds']:8.2f}{rate:9.0f}{rows:10.0f}{row['cpu_seconds']:8.2f}"
            f"{row['machine_cores_busy']:12.2f}"
        )
    job = by_name["stats, local[2]"]["seconds"]
    for name, row in by_name.items():
        if name.startswith(("plain", "RocketMQ")):
            lines.append(f"stats is {row['seconds'] / job:.1f} times as fast as: {name}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
