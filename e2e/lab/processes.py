"""Processes that a suite starts, and that none of them outlives it.

Each leads a separate session and is ended by the pid that we got when we started it, never by a name. SIGTERM and
SIGINT end the suite through its `finally` blocks, which stop what runs.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn


class ProcessError(Exception):
    """A process ended badly or not in time; the text has the last lines that it wrote."""


def clean_environment() -> dict[str, str]:
    """This process's, without settings of tallystick that a developer may have in it."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TALLY_")}


def end_on_signals() -> None:
    """From now on SIGTERM and SIGINT leave the program through its `finally` blocks, and a second one is ignored."""

    def leave(number: int, _frame: FrameType | None) -> NoReturn:
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_IGN)
        sys.exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)


def tail(path: Path, lines: int = 15) -> str:
    """The last lines of a log."""
    try:
        return "\n".join(path.read_text(errors="replace").strip().splitlines()[-lines:])
    except FileNotFoundError:
        return ""


class Server:
    """A process that runs until it is stopped; what it says goes to the end of `log`."""

    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        self._from = log.stat().st_size if log.exists() else 0
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env, start_new_session=True
            )

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def said(self) -> str:
        """What it has written since it was started."""
        with self.log.open("rb") as log:
            log.seek(self._from)
            return log.read().decode(errors="replace")

    def wait_for(self, text: str, timeout_s: float) -> str:
        """The first line that begins with `text`. ProcessError: it ended, or did not say so in time."""
        end = time.monotonic() + timeout_s
        while True:
            alive = self.alive  # asked before reading: its last words are not missed
            for line in self.said().splitlines():
                if line.startswith(text):
                    return line
            if not alive:
                raise ProcessError(f"ended with status {self.process.returncode}\n{tail(self.log)}")
            if time.monotonic() > end:
                raise ProcessError(f"did not print {text!r} within {timeout_s:g} s\n{tail(self.log)}")
            time.sleep(0.01)

    def stop(self, timeout_s: float = 60) -> int:
        """SIGTERM, and SIGKILL after the time; its exit status."""
        if self.alive:
            self.process.terminate()
            try:
                self.process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
        return self.process.wait()

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()


def run(
    command: Sequence[str],
    *,
    timeout_s: float,
    log: Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    on_line: Callable[[str], None] | None = None,
) -> tuple[int, str]:
    """Runs a command to its end: status and standard output. Standard error goes to `log`, and by line to `on_line`.

    ProcessError: it took longer than `timeout_s`; it and what it started are killed then.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        cwd=cwd,
        env=None if env is None else dict(env),
        start_new_session=True,
    )
    spoken: list[str] = []

    def read() -> None:
        assert process.stdout is not None
        spoken.append(process.stdout.read())

    def listen() -> None:
        assert process.stderr is not None
        with log.open("a") as errors:
            for line in process.stderr:
                errors.write(line)
                errors.flush()
                if on_line is not None:
                    on_line(line)

    threads = [threading.Thread(target=each, daemon=True) for each in (read, listen)]
    for thread in threads:
        thread.start()
    try:
        status = process.wait(timeout_s)
        for thread in threads:
            thread.join(10)
    except subprocess.TimeoutExpired:
        raise ProcessError(f"{' '.join(command)} did not end within {timeout_s:g} s\n{tail(log)}") from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # the group that start_new_session made: it and its children
            process.wait()
    return status, spoken[0] if spoken else ""
