"""`make bench-spark`: how fast stores are read in bulk, against the ways there were before.

    scanner     the kernel alone, one thread, no Spark: nine columns without the body; every column with it, for bodies
                of 100 to 1000 bytes and of 128, 1024 and 4096 bytes
    copy        the same bytes, copied once in memory by one thread: no scanner can be faster
    python      the same sums as `stats` in the same Spark by a parser in plain Python
    stats       the job in local[2], its fixed cost included; and in turns with it
    consumer    the same messages through RocketMQ's own pull consumer (Java, two threads), from a tallystick broker
                that runs on this log

All on warm pages. The first rows are the best of some turns, `stats` and the consumer medians; the ratio is the median
of the ratios of neighbouring turns. What other processes burned meanwhile is told: on a busy machine the CPU seconds of
the scanner say more than its rate. Without the peer lab, which has the consumer's jars, `stats` runs alone.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
BODY_SIZES = (128, 1024, 4096)
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
    parser.add_argument("--pairs", type=int, default=5, help="turns of `stats` and the consumer (5)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--peer", type=Path, default=HERE.parents[2] / "shared" / "peer", help="folder of peer.sh")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tally-bench-spark-") as folder:
        result = measure(Path(folder), options)
    print(json.dumps(result) if options.json else text_of(result))
    return 0


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    root = folder / "node" / "store"
    messages, splits, read = store_of(root, options.mib << 20)
    total = sum(split.bytes for split in splits)

    def best(name: str, work: Callable[[], int], turns: int = options.turns) -> dict[str, Any]:
        taken = [timed(work, messages) for _ in range(turns)]
        row = min(taken, key=lambda turn: float(turn["seconds"]))
        return {"row": name, "bytes": total, "messages": messages, **row}

    rows = [
        best("scanner, 9 columns", lambda: scan_all(splits, NUMBERS)),
        best("scanner, all columns and bodies", lambda: scan_all(splits, tuple(SCHEMA.names))),
        *(of_one_size(folder / str(size), size, options) for size in BODY_SIZES),
        best("copy in memory", lambda: copied(splits, messages)),
    ]
    spark = session()
    run = on_spark(spark.sparkContext)
    rows.append(
        best("plain Python, local[2]", lambda: sum(sum(part.values()) for part in run(parsed_plainly, splits)), 1)
    )
    pairs: list[tuple[dict[str, Any], dict[str, Any] | None]] = []
    with consumer_of(folder, root, options) as consume:
        for _ in range(options.pairs):
            job = timed(lambda: int(stats.run(read, run)["messages"]), messages)
            pairs.append((job, None if consume is None else consume(messages)))
    spark.stop()
    sides = (
        ("stats, local[2]", [job for job, _ in pairs]),
        ("RocketMQ pull consumer, 2 threads", [c for _, c in pairs if c]),
    )
    for name, taken in sides:
        if taken:
            rows.append({"row": name, "bytes": total, "messages": messages, **middle(taken)})
    ratios = [consumer["seconds"] / job["seconds"] for job, consumer in pairs if consumer is not None]
    return {"cores": os.cpu_count(), "mib": options.mib, "rows": rows, "ratios": ratios}


def store_of(root: Path, total_bytes: int, body_bytes: int | None = None) -> tuple[int, list[Split], ReadOptions]:
    """Makes a log. Returns its number of messages, its splits, and options that read it."""
    messages = make_log(root, total_bytes, SEGMENT_BYTES, body_bytes)
    read = ReadOptions.parse({"path": f"n0={root}", "committed": str(total_bytes)})
    return messages, [split for volume in read.volumes() for split in plan(volume, split_bytes=read.split_bytes)], read


def of_one_size(root: Path, body_bytes: int, options: argparse.Namespace) -> dict[str, Any]:
    messages, splits, _ = store_of(root, SEGMENT_BYTES, body_bytes)
    taken = [timed(lambda: scan_all(splits, tuple(SCHEMA.names)), messages) for _ in range(options.turns)]
    shutil.rmtree(root)
    row = min(taken, key=lambda turn: float(turn["seconds"]))
    return {"row": f"the same, bodies of {body_bytes} bytes", "bytes": SEGMENT_BYTES, "messages": messages, **row}


def middle(taken: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the turn with the median of seconds."""
    return sorted(taken, key=lambda turn: float(turn["seconds"]))[len(taken) // 2]


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


def copied(splits: list[Split], messages: int) -> int:
    """Copies the log from the page cache into memory that is used again, and from there once more, as a scanner does
    with bodies."""
    first, second = bytearray(1 << 19), bytearray(1 << 19)
    for split in splits:
        with Path(split.path).open("rb", buffering=0) as file:
            file.seek(split.begin - split.file_start)
            for _ in range(0, split.bytes, len(first)):
                file.readinto(first)
                second[:] = first
    return messages


def parsed_plainly(split: Split) -> Counter[tuple[str, int, str, int]]:
    """Messages by topic, queue, tag and hour, as one would write it without the kernel."""
    with Path(split.path).open("rb") as file:
        file.seek(split.begin - split.file_start)
        data = file.read(split.bytes)
    found: Counter[tuple[str, int, str, int]] = Counter()
    at = 0
    while at < len(data):
        size, magic = struct.unpack_from(">iI", data, at)  # the blank at the end of a file has no more than these
        if magic != 0xDAA320A7:
            break
        (queue,) = struct.unpack_from(">i", data, at + 12)
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


Consume = Callable[[int], dict[str, Any]]


@contextmanager
def consumer_of(folder: Path, root: Path, options: argparse.Namespace) -> Iterator[Consume | None]:
    """Runs a broker on this log, dispatched. Yields what reads all its messages once; None: there is no peer lab."""
    if not (options.peer / "peer.sh").exists():
        yield None
        return
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
        command = ["java", *_OPENS, "-cp", f"{classes}:{classpath}", "PullAll", nameserver, "2", *TOPICS]
        yield lambda messages: consumed(command, messages)
    finally:
        node.terminate()
        node.wait(60)


def consumed(command: list[str], messages: int) -> dict[str, Any]:
    """One turn of the consumer, whose JVM is new each time: its own seconds, from its first request on."""
    began_cpu = resource.getrusage(resource.RUSAGE_CHILDREN)
    foreign, began = other_seconds(), time.perf_counter()
    found = subprocess.run(command, capture_output=True, text=True, timeout=600)
    wall = time.perf_counter() - began
    assert found.returncode == 0, found.stderr[-2000:]
    count, seconds = found.stdout.split()[-2:]
    assert int(count) == messages, f"{count} messages instead of {messages}"
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "seconds": float(seconds),
        "cpu_seconds": children.ru_utime + children.ru_stime - began_cpu.ru_utime - began_cpu.ru_stime,
        "machine_cores_busy": (other_seconds() - foreign) / wall,
    }


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
    plain = by_name["plain Python, local[2]"]["seconds"] / by_name["stats, local[2]"]["seconds"]
    lines.append(f"stats is {plain:.1f} times as fast as plain Python")
    if ratios := sorted(result["ratios"]):
        lowest, highest = ratios[0], ratios[-1]
        lines.append(
            f"stats is {ratios[len(ratios) // 2]:.1f} times as fast as the pull consumer"
            f" (median of {len(ratios)} pairs of turns, {lowest:.1f} to {highest:.1f})"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
