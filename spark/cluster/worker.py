"""The worker beside one volume: it waits for the driver, then runs an executor until the driver ends.

It polls the driver's `/progress`, because an executor that starts before the driver accepts executors gives up. Exit
status: 0 the run has ended, or the worker received SIGTERM; 1 the executor ended and the run continues, so Kubernetes
starts the worker again; 2 the plan is invalid, or does not contain the node.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tallystick.spark.access import TOKEN_FILE_VARIABLE
from tallystick.spark.cluster.java import SECRET_VARIABLE, Java, Ports, logging_options
from tallystick.spark.cluster.place import HOST_VARIABLE, NODE_VARIABLE
from tallystick.spark.cluster.plan import JobPlan, Place, PlanError
from tallystick.spark.cluster.progress import FINISHED, STARTING

_LOOK_S = 0.3
_ASK_S = 5.0
_END_S = 3.0


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Settings that are not in the plan. `token`: file with the token for reading stores over HTTP; it may not
    exist."""

    secret: Path = Path("/etc/tallystick-job-secret/secret")
    token: Path = Path("/etc/tallystick-reader/token")
    ports: Ports = Ports()  # noqa: RUF009 -- frozen
    java_options: tuple[str, ...] = ()


def run_worker(plan_file: Path, node: str, settings: WorkerSettings) -> int:
    """Runs the worker. Returns the exit status: see the module's docstring."""
    try:
        plan = JobPlan.parse(plan_file.read_text())
        place = place_of(plan, node)
        secret = settings.secret.read_text().strip()
    except (PlanError, OSError) as error:
        print(f"tally-spark: {error}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    java = Java.found()  # while the driver starts
    ask = _asking(plan.driver_host, settings.ports.progress)
    if not wait_for_driver(ask, time.sleep):
        return 0
    with tempfile.TemporaryDirectory(prefix="executor-") as folder:
        command = java.executor(
            number=executor_number(plan, node, int(time.time())),
            host=place.host or "",
            driver=f"{plan.driver_host}:{settings.ports.driver}",
            app=plan.name,
            cores=plan.executor_cores,
            memory_mib=plan.executor_memory_mib,
            options=(*logging_options(Path(folder)), *settings.java_options),
        )
        environment = os.environ | worker_environment(place, secret, str(settings.token), folder)
        status = _execute(command, environment)
    return verdict(status, ask())


def place_of(plan: JobPlan, node: str) -> Place:
    """Returns the source of a node. PlanError: the plan does not contain the node, or the node has no worker."""
    for place in plan.workers:
        if place.node == node:
            return place
    raise PlanError("sources", f"has no node {node!r} with a host")


def executor_number(plan: JobPlan, node: str, time_s: int) -> int:
    """Returns a number for the executor that no executor of the run had before. Spark's numbers have 31 bits."""
    return time_s % 1_000_000 * 2000 + [place.node for place in plan.sources].index(node)


def worker_environment(place: Place, secret: str, token: str, folder: str) -> dict[str, str]:
    """Returns the environment of the executor and its Python: the worker's, with additions."""
    return {
        SECRET_VARIABLE: secret,
        NODE_VARIABLE: place.node,
        HOST_VARIABLE: place.host or "",
        TOKEN_FILE_VARIABLE: token,
        "SPARK_LOCAL_DIRS": folder,
    }


Ask = Callable[[], dict[str, Any] | None]


def _asking(host: str, port: int) -> Ask:
    def ask() -> dict[str, Any] | None:
        """Returns the driver's progress; None: the driver does not answer."""
        connection = http.client.HTTPConnection(host, port, timeout=_ASK_S)
        try:
            connection.request("GET", "/progress")
            answer = json.loads(connection.getresponse().read())
            return answer if isinstance(answer, dict) else None
        except (OSError, http.client.HTTPException, ValueError):
            return None
        finally:
            connection.close()

    return ask


def wait_for_driver(ask: Ask, sleep: Callable[[float], None]) -> bool:
    """Waits until the driver accepts executors. False: the driver has finished, or answered before and is gone.

    There is no limit for a driver that never answers: the pod has a deadline.
    """
    seen = False
    while True:
        answer = ask()
        step = None if answer is None else answer.get("step")
        if step not in (None, STARTING):
            return bool(step != FINISHED)
        if answer is None and seen:
            return False
        seen = seen or answer is not None
        sleep(_LOOK_S)


def verdict(status: int, answer: dict[str, Any] | None) -> int:
    """Returns the worker's exit status, from that of its executor and the driver's progress afterwards."""
    over = answer is None or answer.get("step") == FINISHED
    return 0 if status == 0 or over else 1


def _execute(command: list[str], environment: dict[str, str]) -> int:
    process = subprocess.Popen(command, env=environment)
    try:
        return process.wait()
    finally:
        if process.poll() is None:  # SIGTERM
            process.terminate()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
