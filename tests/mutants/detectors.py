"""Running a layer in a private copy, and what its result means.

Only a test that fails finds a bug. pytest says so with exit code 1; other codes (a module that cannot be imported, a
test that does not exist) and errors of names and imports mean that the bug was never tried. Kernel bugs are built
first, and have to build.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from .catalogue import Detector, Mutant
from .first_example import HANGS, TEST_LIMIT, TEST_LIMIT_S
from .private_copy import KERNEL, PrivateCopy

_BUILD_TIMEOUT_S = 900.0
_NOT_TRIED = re.compile(
    r"\b(ImportError|ModuleNotFoundError|SyntaxError|IndentationError|NameError|UnboundLocalError)\b"
)


class Verdict(Enum):
    FOUND = "found"
    TIMEOUT = "timeout"
    SURVIVED = "survived"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class Result:
    """`told`: the line by which the layer says what it found, or why nothing was learnt."""

    verdict: Verdict
    told: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Ended:
    """A process that ended with `code` and wrote `output`; code None: its time was up and it was ended."""

    code: int | None
    output: str


def try_mutant(copy: PrivateCopy, mutant: Mutant) -> Result:
    """Plants a bug, runs its detector, and restores the copy."""
    begin = time.monotonic()
    try:
        copy.plant(mutant.edits)
    except (OSError, ValueError) as error:
        return Result(Verdict.INVALID, str(error))
    try:
        verdict, told = _tried(copy, mutant)
    finally:
        copy.restore()
        if mutant.in_kernel:
            copy.restore_extension()
    return Result(verdict, told, time.monotonic() - begin)


def _tried(copy: PrivateCopy, mutant: Mutant) -> tuple[Verdict, str]:
    if mutant.in_kernel:
        failed = build(copy, mutant.detector)
        if failed:
            return Verdict.INVALID, failed
    return judged(mutant.detector, run(copy, mutant.detector, mutant.timeout_s))


def build(copy: PrivateCopy, detector: Detector) -> str:
    """Builds the copy's kernel for a detector; returns what failed, or nothing."""
    if detector.cargo:
        command, target = ["cargo", "test", "--lib", "--no-run", "--quiet"], "tests"
    else:
        command, target = ["cargo", "build", "--lib", "--quiet"], "extension"
    ended = _run(command, copy.tree / KERNEL, copy.build_environment(target), _BUILD_TIMEOUT_S)
    if ended.code != 0:
        # An earlier build that was killed may have left files that do not fit together: once more without them.
        shutil.rmtree(copy.folder / f"target-{target}" / "debug" / "incremental", ignore_errors=True)
        ended = _run(command, copy.tree / KERNEL, copy.build_environment(target), _BUILD_TIMEOUT_S)
    if ended.code != 0:
        return f"the kernel does not build: {ended.output[-2000:]}"
    if not detector.cargo:
        copy.install_extension()
    return ""


def patience() -> float:
    """How many times longer than on an idle machine all may take: other work must not look like a test that hangs."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def run(copy: PrivateCopy, detector: Detector, timeout_s: float, first_failure_only: bool = True) -> Ended:
    """One run of a detector on the copy as it is. `timeout_s`: on an idle machine."""
    timeout_s *= patience()
    if detector.cargo:
        command = ["cargo", "test", "--lib", "--quiet", "--", *detector.cargo.split()]
        return _run(command, copy.tree / KERNEL, copy.build_environment("tests"), timeout_s)
    if detector.simulate:
        command = [str(copy.python), "-m", "mutants.simulate", detector.simulate, str(detector.seeds)]
        return _run(command, copy.tree, copy.environment(), timeout_s)
    # A separate folder: files that a killed run left must not fail the next one.
    files = copy.temporary / f"pytest-{time.monotonic_ns()}"
    options = [
        "-q",
        "-rfE",
        "-p",
        "no:cacheprovider",
        "-p",
        "mutants.first_example",
        f"--basetemp={files}",
    ]
    if first_failure_only:
        options.append("-x")
    output = copy.temporary / "output"
    limit = {TEST_LIMIT: str(TEST_LIMIT_S * patience())}
    code = copy.pytest.run([*options, *detector.pytest], output, timeout_s, limit)
    shutil.rmtree(files, ignore_errors=True)
    return Ended(code, output.read_text(errors="replace"))


def judged(detector: Detector, ended: Ended) -> tuple[Verdict, str]:
    """What the end of a detector says of the bug that was planted."""
    if ended.code is None:
        return Verdict.TIMEOUT, _last_line(ended.output)
    if detector.cargo:
        ran = [int(count) for count in re.findall(r"^running (\d+) tests?$", ended.output, re.MULTILINE)]
        if not any(ran):
            return Verdict.INVALID, f"no test was run: {ended.output[-500:]}"
        failed = re.search(r"^---- (\S+) stdout ----$", ended.output, re.MULTILINE)
        if ended.code == 0:
            return Verdict.SURVIVED, ""
        return Verdict.FOUND, failed[1] if failed else _last_line(ended.output)
    if detector.simulate and ended.code == 2:
        return Verdict.INVALID, _last_line(ended.output)
    if ended.code == 0:
        return Verdict.SURVIVED, ""
    if ended.code == HANGS:
        return Verdict.TIMEOUT, next((line for line in ended.output.splitlines() if line.startswith("HANGS ")), "")
    if ended.code < 0:  # a signal: the kernel's own, which takes the process with it
        return Verdict.FOUND, f"ended by {signal.Signals(-ended.code).name}"
    told = next(
        (
            line
            for line in ended.output.splitlines()
            if line.startswith(("FAILED tests/", "ERROR tests/", "FAILED seed "))
        ),
        "",
    )
    if ended.code != 1 or not told:
        return Verdict.INVALID, f"exit code {ended.code}: {ended.output[-1500:]}"
    if _NOT_TRIED.search(told):
        return Verdict.INVALID, told
    return Verdict.FOUND, told


_running: set[subprocess.Popen[str]] = set()


def end_all() -> None:
    """Ends every detector that runs, with what it started. For a run that is called off."""
    for process in list(_running):
        _end_group(process)


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


def _run(command: list[str], folder: Path, environment: dict[str, str], timeout_s: float) -> Ended:
    """Runs a command in a separate process group, and ends the whole group when the time is over."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    _running.add(process)
    try:
        output, _ = process.communicate(timeout=timeout_s)
        return Ended(process.returncode, output)
    except subprocess.TimeoutExpired:
        _end_group(process)
        output, _ = process.communicate()
        return Ended(None, output or "")
    finally:
        _end_group(process)  # also what a test left behind
        _running.discard(process)


def _end_group(process: subprocess.Popen[str]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)  # its id is its group's: it began a session
    except ProcessLookupError:
        pass
