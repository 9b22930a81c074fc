"""The driver of one run: it starts Spark, waits for executors, runs the job, and writes the result.

    starting ─▶ waiting for executors ─▶ planning ─▶ reading ─▶ ... ─▶ writing ─▶ finished

It writes `result.json` (`result.py`) before it stops Spark, so that the result is not lost if that hangs. Exit status:
0 the job ran, whatever the verdict; 2 it could not run, with a reason; 1 a bug, with a traceback.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tallystick.spark.access import TOKEN_FILE_VARIABLE
from tallystick.spark.cluster import progress as steps
from tallystick.spark.cluster.configuration import spark_settings
from tallystick.spark.cluster.java import Java, Ports, logging_options
from tallystick.spark.cluster.place import PlacedRunner, SourceError
from tallystick.spark.cluster.plan import JobPlan, PlanError
from tallystick.spark.cluster.progress import Progress, served
from tallystick.spark.cluster.reads import Reads, with_reads
from tallystick.spark.cluster.result import failure_of, fitting, output_name, result_of
from tallystick.spark.cluster.work import output_of, places_of, resolved, run_job, save_summary
from tallystick.spark.job_stores import STORES_VARIABLE
from tallystick.spark.jobs.program import OUTPUT_VARIABLE, ProgramFailedError
from tallystick.spark.jobs.registry import text_of
from tallystick.spark.outputs import OutputError
from tallystick.spark.runner import completed_tasks, executor_hosts, is_stopped, on_spark
from tallystick.spark.store_client import StoreClientError
from tallystick.spark.volume import VolumeError
from tallystick.store._kernel import DamageError

if TYPE_CHECKING:
    from pyspark import SparkContext

_LOOK_S = 0.1
_GATEWAY_S = 120.0
_END_S = 5.0
_EXPECTED = (SourceError, VolumeError, OutputError, StoreClientError, DamageError, OSError, ValueError)
"""Exceptions of any job whose cause is outside the job; a job can have more (`Job.failures`)."""


class NotDoneError(Exception):
    """The job cannot run now. The text gives the reason."""


class FaultError(Exception):
    """An exception of Spark or of a task, as text."""


class StoppedError(BaseException):  # like KeyboardInterrupt: libraries catch every Exception
    """The process received SIGTERM."""


@dataclass(frozen=True, slots=True)
class DriverSettings:
    """Settings that are not in the plan. `result`: file for the result; `secret`: file with Spark's shared secret;
    `token`: file with the token for reading stores over HTTP, which a user's program needs; it may not exist."""

    result: Path = Path("/dev/termination-log")
    secret: Path = Path("/etc/tallystick-job-secret/secret")
    token: Path = Path("/etc/tallystick-reader/token")
    ports: Ports = Ports()  # noqa: RUF009 -- frozen


def run_driver(plan_file: Path, settings: DriverSettings) -> int:
    """Runs the driver. Returns the exit status: see the module's docstring."""
    begin_s = time.monotonic()
    plan: JobPlan | None = None
    try:
        plan = JobPlan.parse(plan_file.read_text())
        with stopped_by(signal.SIGTERM):
            return _drive(plan, settings)
    except ProgramFailedError as error:
        return _not_done(plan, settings, str(error), begin_s, 2, {"exitCode": error.status, "log": list(error.log)})
    except (NotDoneError, StoppedError, PlanError, *_EXPECTED) as error:
        return _not_done(plan, settings, str(error) or repr(error), begin_s, 2)
    except Exception as error:
        traceback.print_exc()
        return _not_done(plan, settings, f"internal error: {str(error) or repr(error)}", begin_s, 1)


def _drive(plan: JobPlan, settings: DriverSettings) -> int:
    progress = Progress(len(plan.hosts))
    secret, plan = settings.secret.read_text().strip(), resolved(plan)
    reads = Reads(plan.sources, secret)
    # Also for Java, and the Python that it starts. Executors run tasks with the same one: all hosts have one image.
    os.environ.update({"PYSPARK_PYTHON": sys.executable} | program_environment(plan, settings.token))
    with ExitStack() as stack:
        stack.enter_context(served(progress, settings.ports.progress, reads.add))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spark-")))
        gateway = stack.enter_context(_gateway(plan, folder, logging_options(folder)))
        output = output_of(plan)
        context = _context(spark_settings(plan, secret, settings.ports, str(folder)), gateway)
        stack.push(partial(_stop, context))
        progress.completed = lambda: completed_tasks(context)
        progress.step(steps.WAITING)
        driver = f"{plan.driver_host}:{settings.ports.blocks}"
        _wait_for_executors(plan, context, progress, driver)
        runner = PlacedRunner(
            places_of(plan),
            lambda host_of: on_spark(context, host_of),
            progress,
            lambda: executor_hosts(context, driver),
        )
        with _watched(plan, context, progress, driver) as lost:
            try:
                if plan.program is not None:
                    progress.step(steps.RUNNING)
                summary = run_job(plan, runner, output)
            except ProgramFailedError as error:
                if lost.is_set():
                    raise NotDoneError("all executors were lost") from error
                raise
            except plan.job.failures as error:
                raise NotDoneError(str(error) or repr(error)) from error
            except _EXPECTED:
                raise
            except Exception as error:  # its text is in Java, which ends at the end of this block
                if lost.is_set():
                    raise NotDoneError("all executors were lost") from error
                reason = worker_reason(str(error))
                if reason is None:
                    raise FaultError(str(error)) from None
                raise NotDoneError(reason) from None
        if plan.program is not None:
            summary = with_reads(summary, reads)
        result = result_of(plan, summary, runner.book.via if plan.program is None else reads.via, progress.seconds)
        whole = {"name": plan.name, "attempt": plan.attempt} | result | summary
        whole |= {"read": runner.book.to_json(), "steps": progress.steps}
        if output is not None:
            progress.step(steps.WRITING)
            save_summary(plan, output, whole)
        progress.step(steps.FINISHED)
        settings.result.write_bytes(fitting(result | {"seconds": progress.seconds}))
        print(text_of(summary))
        for each in runner.book.to_json():
            print(f"read: {each['node']} {each['via']} on {each['host']}: {each['items']} items")
        print("; ".join(f"{name} from {seconds:.1f} s" for name, seconds in progress.steps))
        print(json.dumps(whole), flush=True)
    return 0


def _stop(context: SparkContext, kind: type[BaseException] | None, *_: object) -> None:
    """Stops Spark, so that executors and their workers end. It does nothing after a signal, which may have interrupted
    a call to Java: another call would wait forever. Executors also end when Java ends."""
    if kind is not StoppedError:
        context.stop()


def program_environment(plan: JobPlan, token: Path) -> dict[str, str]:
    """Returns what a user's program, and the planner of its reads, need; empty: the job is another one."""
    if plan.program is None:
        return {}
    stores: dict[str, list[str]] = {}
    for place in plan.sources:
        stores.setdefault(place.group, []).append(place.elsewhere)
    return {
        "PYTHONPATH": plan.program.folder,
        STORES_VARIABLE: json.dumps(stores),
        TOKEN_FILE_VARIABLE: str(token),
        **({OUTPUT_VARIABLE: output} if (output := output_name(plan)) else {}),
    }


def _not_done(
    plan: JobPlan | None,
    settings: DriverSettings,
    reason: str,
    begin_s: float,
    status: int,
    program: Mapping[str, Any] | None = None,
) -> int:
    print(f"tally-spark: {reason}", file=sys.stderr, flush=True)
    result = failure_of(plan, reason, round(time.monotonic() - begin_s, 1))
    result |= {} if program is None else {"program": program}
    settings.result.write_bytes(fitting(result))
    print(json.dumps(result), flush=True)
    return status


def worker_reason(report: str) -> str | None:
    """Returns the message of an exception in an executor's Python, from Spark's report. None: it is not such an error,
    or it is a bug."""
    for line in reversed(report.splitlines()):
        kind, separator, reason = line.strip().partition(": ")
        if separator and kind.rpartition(".")[2] == StoreClientError.__name__:
            return reason
    return None


@contextmanager
def stopped_by(number: signal.Signals) -> Iterator[None]:
    """Raises StoppedError in the main thread at the first SIGTERM. Later signals have no effect."""

    def stop(*_: object) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise StoppedError("it received SIGTERM")

    before = signal.signal(number, stop)
    try:
        yield
    finally:
        signal.signal(number, before)


@contextmanager
def _gateway(plan: JobPlan, folder: Path, options: Sequence[str]) -> Iterator[Path]:
    """Starts Java. Yields the file to which Java will write its address. Java ends when its standard input is
    closed."""
    told = folder / "gateway"
    environment = os.environ | {"_PYSPARK_DRIVER_CONN_INFO_PATH": str(told)}
    command = Java.found().gateway(plan.driver_memory_mib, options)
    process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, start_new_session=True)
    try:
        yield told
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _context(settings: Mapping[str, str], told: Path) -> SparkContext:
    """Returns Spark's context in the Java that `_gateway` started. NotDoneError: it did not start."""
    from pyspark import SparkConf, SparkContext, serializers  # while Java starts

    forms: Any = serializers

    until = time.monotonic() + _GATEWAY_S
    while not told.exists():
        if time.monotonic() > until:
            raise NotDoneError("Java did not start")
        time.sleep(_LOOK_S / 2)
    with told.open("rb") as file:
        os.environ["PYSPARK_GATEWAY_PORT"] = str(forms.read_int(file))
        os.environ["PYSPARK_GATEWAY_SECRET"] = forms.UTF8Deserializer().loads(file)
    conf = SparkConf(loadDefaults=False)
    conf.setAll(list(settings.items()))
    return SparkContext(conf=conf)


def _wait_for_executors(plan: JobPlan, context: SparkContext, progress: Progress, driver: str) -> None:
    """Waits until all executors are there, at most for the time in the plan. NotDoneError: no executor came."""
    until = time.monotonic() + plan.executors_wait_s
    while True:
        progress.executors = len(executor_hosts(context, driver))
        if progress.executors >= len(plan.hosts):
            return
        if time.monotonic() >= until:
            break
        time.sleep(_LOOK_S)
    if not progress.executors:
        raise NotDoneError(f"none of {len(plan.hosts)} executors connected within {plan.executors_wait_s} seconds")
    there = set(executor_hosts(context, driver))
    for place in plan.workers:
        if not there.intersection(place.hosts):
            print(f"tally-spark: no executor on {place.host}: {place.node} is read over HTTP", file=sys.stderr)


@contextmanager
def _watched(plan: JobPlan, context: SparkContext, progress: Progress, driver: str) -> Iterator[threading.Event]:
    """Cancels Spark's jobs if there was no executor for as long as the driver waits for the first ones. Spark itself
    would wait forever. It sets the event."""
    done, lost = threading.Event(), threading.Event()

    def watch() -> None:
        since = time.monotonic()
        while not done.wait(1.0):
            try:
                progress.executors = len(executor_hosts(context, driver))
            except Exception as error:
                if done.is_set() or is_stopped(context):  # a user's program may stop Spark
                    return
                raise error
            if progress.executors:
                since = time.monotonic()
            elif time.monotonic() - since > max(plan.executors_wait_s, 10):
                lost.set()
                context.cancelAllJobs()
                return

    thread = threading.Thread(target=watch, name="executors", daemon=True)
    thread.start()
    try:
        yield lost
    finally:
        done.set()
        thread.join(5)
