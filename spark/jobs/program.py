"""`program`: a user's own PySpark program, beside the volumes of a StoreJob.

The program runs in the process of the driver, where Spark has already started: `SparkSession.builder.getOrCreate()`
returns a session with the executors of the job, and `spark.read.format("tallystick").load()` reads the stores of the
job. How it ends is its exit status, as that of any Python program. Its last lines of output are kept.
"""

from __future__ import annotations

import os
import re
import runpy
import sys
import threading
import traceback
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tallystick.spark.jobs.job import Call, Job, OutputUse, Summary
from tallystick.spark.program import result

PROGRAM = "program"
"""The argument of the call: a `Program`."""
OUTPUT_VARIABLE = "TALLYSTICK_OUTPUT"
"""Variable in the environment of the program: the output of the job, a folder or an `s3://` address."""
_JAVA_CALL = re.compile(r"\s+(at \S.*\(.*\)|\.\.\. \d+ more)$")
MOST_LINES = 10
MOST_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Program:
    """`file`: its path; `spark_conf`: settings of Spark by name."""

    file: str
    arguments: tuple[str, ...] = ()
    spark_conf: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        """The folder of its modules."""
        return str(Path(self.file).parent)


class ProgramFailedError(Exception):
    """The program ended with a status other than 0. `log`: its last lines of output."""

    def __init__(self, status: int, reason: str, log: Sequence[str]) -> None:
        super().__init__(reason)
        self.status = status
        self.log = tuple(log)


class LastLines:
    """The last lines of a stream of bytes, without the calls in Java's stack traces: these would be all of them."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=MOST_LINES)
        self._rest = b""

    def add(self, data: bytes) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._keep(line)
        self._rest = rest[-4 * MOST_CHARACTERS :]

    def end(self) -> None:
        self._keep(self._rest)
        self._rest = b""

    def _keep(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()
        if text and not _JAVA_CALL.match(text):
            self._lines.append(text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…")

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._lines))


def run(call: Call) -> dict[str, Any]:
    """Runs the program. ProgramFailedError; OSError: there is no such file."""
    program: Program = call.arguments[PROGRAM]
    if not Path(program.file).is_file():
        raise FileNotFoundError(f"the image has no file {program.file}")
    lines = LastLines()
    with copied_output(lines):
        status, reason = _run(program)
    if status:
        raise ProgramFailedError(status, reason, list(lines))
    told = result()
    return {"job": PROGRAM, "log": list(lines), "message": told.message, "figures": told.figures}


def _run(program: Program) -> tuple[int, str]:
    """Returns the exit status, and why it is not 0."""
    arguments, path = sys.argv, list(sys.path)
    sys.argv, sys.path[:0] = [program.file, *program.arguments], [program.folder]
    try:
        runpy.run_path(program.file, run_name="__main__")
    except SystemExit as end:
        return _exit_status(end)
    except Exception as error:
        _print_traceback(error, program.file)
        return 1, f"the program raised {type(error).__name__}: {_in_one_line(error)}".removesuffix(": ")
    finally:
        sys.argv, sys.path[:] = arguments, path
    return 0, ""


def _in_one_line(error: Exception) -> str:
    """Returns the first line of its text; of an exception of Java the one that says what it is."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    is_of_java = len(lines) > 1 and lines[0].startswith("An error occurred while calling")
    return lines[1].removeprefix(": ") if is_of_java else (lines or [""])[0]


def _exit_status(end: SystemExit) -> tuple[int, str]:
    if end.code is None or end.code == 0:
        return 0, ""
    if isinstance(end.code, int):
        status = end.code & 0xFF
        return status, f"the program ended with exit status {status}"
    print(end.code, file=sys.stderr)
    return 1, "the program ended with exit status 1"


def _print_traceback(error: Exception, file: str) -> None:
    """Prints the traceback as Python does for a program: from the program's own code on, if that has begun."""
    step = error.__traceback__
    while step is not None and step.tb_frame.f_code.co_filename != file:
        step = step.tb_next
    traceback.print_exception(type(error), error, step)


@contextmanager
def copied_output(lines: LastLines) -> Iterator[None]:
    """Within this context, `lines` gets what is written to standard output and standard error, which get it as well."""
    reading, writing = os.pipe()
    kept = {number: os.dup(number) for number in (1, 2)}
    copier = threading.Thread(target=_copy, args=(reading, os.dup(1), lines), name="output", daemon=True)
    sys.stdout.flush()
    for number in kept:
        os.dup2(writing, number)
    os.close(writing)
    copier.start()
    try:
        text = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8", errors="replace")
        with text, redirect_stdout(text), redirect_stderr(text):
            yield
    finally:
        for number, old in kept.items():
            os.dup2(old, number)
            os.close(old)
        copier.join(5)  # a process that the program left behind may still have the pipe


def _copy(reading: int, target: int, lines: LastLines) -> None:
    with os.fdopen(reading, "rb", buffering=0) as source, os.fdopen(target, "wb", buffering=0) as log:
        while data := source.read(1 << 16):
            lines.add(data)
            log.write(data)
    lines.end()


def _text(summary: Summary) -> str:
    return _message(summary, {})


def _message(summary: Summary, figures: Mapping[str, int]) -> str:
    return str(summary["message"] or "the program has ended with exit status 0")


JOB = Job(
    name=PROGRAM,
    help="run a PySpark program beside the volumes",
    run=run,
    text=_text,
    figures=lambda summary: summary["figures"],
    message=_message,
    followers=True,
    only_in_cluster=True,
    output=OutputUse.OPTIONAL,
    failures=(ProgramFailedError,),
)
