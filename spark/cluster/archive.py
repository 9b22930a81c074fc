"""Writes an archive of the classes that driver and executor load, so that Java need not load and verify them again.

A small run on this machine, with an empty store, lists the classes. It also shows that no jar is missing in the image.
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

from tallystick.spark.cluster.driver import DriverSettings, run_driver
from tallystick.spark.cluster.java import Java, Ports

_HOST = "127.0.0.1"
_PORTS = Ports(driver=17077, blocks=17078, progress=18080)
_CLASS_LIST = "-XX:DumpLoadedClassList="


def make_archive(target: Path) -> int:
    """Writes the archive. Returns 0 on success, otherwise the exit status of the run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        status = _run(folder)
        if status:
            return status
        lists = [(folder / f"{role}.classes").read_text().splitlines() for role in ("driver", "executor")]
        merged = folder / "classes"
        merged.write_text("\n".join(merged_classes(*lists)) + "\n")
        java = Java.found()
        options = ["-Xshare:dump", f"-XX:SharedClassListFile={merged}", f"-XX:SharedArchiveFile={target}"]
        command = [java.program, "-XX:+UseSerialGC", *options, "-cp", ":".join(java.jars)]
        return subprocess.run(command, stdout=subprocess.DEVNULL).returncode


def merged_classes(*lists: list[str]) -> list[str]:
    """Returns each line once, in their order, without lambdas: their lines contain positions in one list."""
    return list(dict.fromkeys(line for lines in lists for line in lines if not line.startswith(("@", "#"))))


def _run(folder: Path) -> int:
    (folder / "store" / "commitlog").mkdir(parents=True)
    (folder / "secret").write_text("only for this run, on this machine")
    plan = folder / "plan.json"
    plan.write_text(json.dumps(_plan(folder / "store")))
    common = [
        f"--plan={plan}",
        f"--secret={folder / 'secret'}",
        f"--ports={_PORTS.driver},{_PORTS.blocks},{_PORTS.progress}",
    ]
    environment = os.environ | {"JAVA_TOOL_OPTIONS": _CLASS_LIST + str(folder / "executor.classes")}
    command = [sys.executable, "-m", "tallystick.spark.cluster.main", "worker", "--node=here", *common]
    worker = subprocess.Popen(command, env=environment)
    try:
        options = (_CLASS_LIST + str(folder / "driver.classes"),)
        return run_driver(plan, DriverSettings(folder / "result", folder / "secret", _PORTS, options)) or worker.wait(
            60
        )
    finally:
        worker.terminate()
        worker.wait()


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
        "job": "stats",
        "name": "archive",
        "attempt": 1,
        "arguments": {},
        "driver": {"host": _HOST, "memoryMiB": 512},
        "executor": {"cores": 1, "memoryMiB": 512},
        "executorsWaitSeconds": 120,
        "sources": [source],
        "output": None,
    }
