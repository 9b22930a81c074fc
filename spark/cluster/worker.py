"""The worker beside one volume: waits for the driver, then is an executor until the driver ends.

It asks the driver's `/progress`: an executor that comes before the driver takes executors gives up, and its Java has
been started for nothing. Exit: 0 the run is over, or it was told to end; 1 the executor ended and the run goes on, so
the worker should be started again; 2 the plan is none, or names no such node.
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

from tallystick.spark.cluster.java import SECRET_VARIABLE, Java, Ports, logging_options
from tallystick.spark.cluster.place import HOST_VARIABLE, NODE_VARIABLE
from tallystick.spark.cluster.plan import JobPlan, Place, PlanError
from tallystick.spark.cluster.progress import FINISHED, STARTING
from tallystick.spark.store_client import TOKEN_FILE_VARIABLE

_LOOK_S = 0.3
_ASK_S = 5.0
_END_S = 3.0


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What is not the plan's. `token`: file with the token that lets it read stores over HTTP; it may not be there."""

    secret: Path = Path("/etc/tallystick-job-secret/secret")
    token: Path = Path("/etc/tallystick-reader/token")
    ports: Ports = Ports()  # noqa: RUF009 -- frozen
    java_options: tuple[str, ...] = ()


def run_worker(plan_file: Path, node: str, settings: WorkerSettings) -> int:
    """0, 1 or 2: see the module's head."""
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
    """PlanError: there is none of this node, or it has no worker."""
    for place in plan.workers:
        if place.node == node:
            return place
    raise PlanError("sources", f"has no node {node!r} with a host")


def executor_number(plan: JobPlan, node: str, time_s: int) -> int:
    """Another one than any worker of the run has, or this one had before it was started again. Spark's are 31 bits."""
    return time_s % 1_000_000 * 2000 + [place.node for place in plan.sources].index(node)


def worker_environment(place: Place, secret: str, token: str, folder: str) -> dict[str, str]:
    """What the executor and its Python find in their environment, beside what the worker's has."""
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
        """The driver's progress; None: it does not answer."""
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
    """Until the driver takes executors; false: it was there and is gone, or has finished already.

    One that never comes is waited for: how long, the pod's deadline says.
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
    """The worker's exit status, from its executor's and what the driver says after that."""
    over = answer is None or answer.get("step") == FINISHED
    return 0 if status == 0 or over else 1


def _execute(command: list[str], environment: dict[str, str]) -> int:
    process = subprocess.Popen(command, env=environment)
    try:
        return process.wait()
    finally:
        if process.poll() is None:  # told to end
            process.terminate()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
