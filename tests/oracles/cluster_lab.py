"""A StoreJob's driver and workers as processes on loopback, each worker on a separate host."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

from ports import free_ports

PATIENCE_S = 180.0
"""For steps that take ten seconds on an idle machine."""


class Cluster:
    """Processes of one run. `places`: what the plan has for each source."""

    def __init__(self, folder: Path, places: list[dict[str, Any]], job: str = "audit", **more: Any) -> None:
        self.folder = folder
        self.ports = free_ports(3)
        self.plan = folder / "plan.json"
        plan = {
            "version": 1,
            "job": job,
            "name": "test-run",
            "attempt": 1,
            "arguments": {},
            "driver": {"host": "127.0.0.1", "memoryMiB": 512},
            "executor": {"cores": 1, "memoryMiB": 512},
            "executorsWaitSeconds": 120,
            "sources": places,
            "output": None,
        }
        self.plan.write_text(json.dumps(plan | more))
        (folder / "secret").write_text("a secret of this test")
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, role: str, *arguments: str) -> subprocess.Popen[bytes]:
        common = [
            f"--plan={self.plan}",
            f"--secret={self.folder / 'secret'}",
            f"--ports={','.join(map(str, self.ports))}",
        ]
        command = [sys.executable, "-m", "tallystick.spark.cluster.main", role, *arguments, *common]
        with (self.folder / f"{role}{len(self.processes)}.log").open("wb") as log:
            self.processes.append(subprocess.Popen(command, stdout=log, stderr=log))
        return self.processes[-1]

    def worker(self, node: str, number: int = 1) -> subprocess.Popen[bytes]:
        return self.start("worker", f"--node={node}", f"--number={number}")

    def driver(self) -> subprocess.Popen[bytes]:
        return self.start("driver", f"--result={self.folder / 'result'}")

    @property
    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "result").read_text())
        return found

    def progress(self) -> dict[str, Any] | None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[2]}/progress", timeout=5) as answer:
                found: dict[str, Any] = json.loads(answer.read())
                return found
        except (OSError, http.client.HTTPException):  # the driver may end while it answers
            return None

    def told(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("*.log")))

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            process.wait(30)


def place(number: int, root: Path, http: str = "http://127.0.0.1:9", *, host: bool = True) -> dict[str, Any]:
    return {
        "node": f"c-0-{number}",
        "group": "c-0",
        "member": number,
        "root": str(root),
        "host": f"127.0.0.{number + 2}" if host else None,
        "http": http,
    }
