"""Writes an archive of the classes that driver and executor load, so that Java need not load and verify them again.

Two small runs on this machine, with an empty store, list the classes: a job, and a program with tables and a stream.
They also show that no jar is missing in the image.
The archive is valid for one Java, one list of jars, and one path, so it is written when the image is built.
`TALLYSTICK_JAVA_ARCHIVE` names it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tallystick.spark.cluster.java import Java, Ports

_HOST = "127.0.0.1"
_PORTS = Ports(driver=17077, blocks=17078, progress=18080)
_PROGRAM = """
import sys
from pyspark.sql import SparkSession, functions as F

spark = SparkSession.builder.getOrCreate()
messages = spark.read.format("tallystick").load(sys.argv[1])
messages.where("queue_id = 0").groupBy("topic").agg(F.count("*"), F.sum("body_bytes")).orderBy("topic").collect()
numbers = spark.range(10).selectExpr("id", "id % 3 as k", "cast(id as string) as text")
numbers.join(numbers.groupBy("k").count(), "k").orderBy("id").show()
numbers.mapInArrow(lambda batches: batches, numbers.schema).write.parquet(sys.argv[1] + "-numbers")
spark.read.parquet(sys.argv[1] + "-numbers").createOrReplaceTempView("numbers")
assert spark.sql("select k, sum(id) from numbers group by k").count() == 3
stream = spark.readStream.format("tallystick").load(sys.argv[1]).groupBy("topic").count()
stream.writeStream.format("memory").queryName("topics").outputMode("complete").trigger(availableNow=True).start() \\
    .awaitTermination()
"""
_CLASS_LIST = "-XX:DumpLoadedClassList="


def make_archive(target: Path) -> int:
    """Writes the archive. Returns 0 on success, otherwise the exit status of the run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lists = []
        for job in ("stats", "program"):
            (folder / job).mkdir()
            status = _run(folder / job, job)
            if status:
                return status
            lists += [(folder / job / f"{role}.classes").read_text().splitlines() for role in ("driver", "executor")]
        merged = folder / "classes"
        merged.write_text("\n".join(merged_classes(*lists)) + "\n")
        java = Java.found()
        options = ["-Xshare:dump", f"-XX:SharedClassListFile={merged}", f"-XX:SharedArchiveFile={target}"]
        command = [java.program, "-XX:+UseSerialGC", *options, "-cp", ":".join(java.jars)]
        return subprocess.run(command, stdout=subprocess.DEVNULL).returncode


def merged_classes(*lists: list[str]) -> list[str]:
    """Returns each line once, in their order, without lambdas: their lines contain positions in one list."""
    return list(dict.fromkeys(line for lines in lists for line in lines if not line.startswith(("@", "#"))))


def _run(folder: Path, job: str) -> int:
    (folder / "store" / "commitlog").mkdir(parents=True)
    (folder / "secret").write_text("only for this run, on this machine")
    plan = folder / "plan.json"
    plan.write_text(json.dumps(_plan(folder / "store") | {"job": job} | (_program(folder) if job == "program" else {})))
    common = [
        f"--plan={plan}",
        f"--secret={folder / 'secret'}",
        f"--ports={_PORTS.driver},{_PORTS.blocks},{_PORTS.progress}",
    ]
    worker = _started(folder, "executor", ["worker", "--node=here", *common])
    try:
        driver = _started(folder, "driver", ["driver", f"--result={folder / 'result'}", *common])
        return driver.wait() or worker.wait(60)
    finally:
        worker.terminate()
        worker.wait()


def _started(folder: Path, role: str, arguments: list[str]) -> subprocess.Popen[bytes]:
    environment = os.environ | {"JAVA_TOOL_OPTIONS": _CLASS_LIST + str(folder / f"{role}.classes")}
    return subprocess.Popen([sys.executable, "-m", "tallystick.spark.cluster.main", *arguments], env=environment)


def _program(folder: Path) -> dict[str, object]:
    """Returns the program, as part of a plan: it also has the web pages of Spark, and its log of events."""
    file = folder / "program.py"
    file.write_text(_PROGRAM)
    settings = {
        "spark.ui.enabled": "true",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{folder}",
        "spark.sql.shuffle.partitions": "2",
    }
    return {"program": {"file": str(file), "arguments": [str(folder / "store")], "sparkConf": settings}}


def _plan(store: Path) -> dict[str, object]:
    source = {
        "node": "here",
        "group": "here",
        "member": 0,
        "root": str(store),
        "host": _HOST,
        "http": "http://127.0.0.1:9",
    }
    return {
        "version": 1,
        "name": "archive",
        "attempt": 1,
        "arguments": {},
        "driver": {"host": _HOST, "memoryMiB": 512},
        "executor": {"cores": 1, "memoryMiB": 512},
        "executorsWaitSeconds": 120,
        "sources": [source],
        "output": None,
    }
