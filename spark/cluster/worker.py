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
from tallystick.spark.cluster.java import Java, Ports, logging_options
from tallystick.spark.cluster.place import HOST_VARIABLE, NODE_VARIABLE
from tallystick.spark.cluster.plan import JobPlan, Place, PlanError
from tallystick.spark.cluster.progress import FINISHED, READS_PATH, STARTING
from tallystick.spark.job_stores import READS_VARIABLE, SECRET_VARIABLE, VOLUME_VARIABLE, MountedVolume

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


def run_worker(plan_file: Path, node: str, settings: WorkerSettings, number: int = 1) -> int:
    """Runs the worker. Returns the exit status: see the module's docstring. `number`: which of the workers beside the
    volume it is, from 1."""
    try:
        plan = JobPlan.parse(plan_file.read_text())
        place, host = place_of(plan, node, number)
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
            number=executor_number(plan, host, int(time.time())),
            host=host,
            driver=f"{plan.driver_host}:{settings.ports.driver}",
            app=plan.name,
            cores=plan.executor_cores,
            memory_mib=plan.executor_memory_mib,
            options=logging_options(Path(folder)),
        )
        environment = os.environ | worker_environment(place, host, secret, str(settings.token), folder)
        environment |= program_environment(plan, place, settings.ports)
        status = _execute(command, environment)
    return verdict(status, ask())


def place_of(plan: JobPlan, node: str, number: int = 1) -> tuple[Place, str]:
    """Returns the source of a node, and the host of its worker with this number. PlanError: the plan does not contain
    the node, or the node has no such worker."""
    for place in plan.workers:
        if place.node == node and number <= len(place.hosts):
            return place, place.hosts[number - 1]
    raise PlanError("sources", f"has no node {node!r} with a host" + (f" {number}" if number > 1 else ""))


def executor_number(plan: JobPlan, host: str, time_s: int) -> int:
    """Returns a number for the executor that no executor of the run had before. Spark's numbers have 31 bits."""
    return time_s % 1_000_000 * 2000 + plan.hosts.index(host)


def program_environment(plan: JobPlan, place: Place, ports: Ports) -> dict[str, str]:
    """Returns what the tasks of a user's program need in addition; empty: the job is another one."""
    if plan.program is None:
        return {}
    environment = {
        "PYTHONPATH": plan.program.folder,
        READS_VARIABLE: f"http://{plan.driver_host}:{ports.progress}{READS_PATH}",
    }
    if place.http is not None and Path(place.root).is_dir():
        members = tuple(each.elsewhere for each in plan.sources if each.group == place.group)
        environment[VOLUME_VARIABLE] = MountedVolume(place.node, place.root, place.http, members).to_json()
    return environment


def worker_environment(place: Place, host: str, secret: str, token: str, folder: str) -> dict[str, str]:
    """Returns the environment of the executor and its Python: the worker's, with additions."""
    return {
        SECRET_VARIABLE: secret,
        NODE_VARIABLE: place.node,
        HOST_VARIABLE: host,
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
