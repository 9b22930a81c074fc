"""The processes that the benchmark starts. All of them end with the benchmark.

Each one leads a separate session, so that Ctrl-C reaches only the benchmark. The benchmark ends them by their process
group, never by a name. RocketMQ's servers leave that group, because the lab starts them with setsid; the lab's command
`down` ends them by their pid files.
"""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from harness import interrupts


class ChildError(Exception):
    """A process failed, or did not end in time. The text has its last lines of output."""


def _tail(text: str, lines: int = 12) -> str:
    return "\n".join(text.strip().splitlines()[-lines:])


def end_group(process: subprocess.Popen[str], *, grace_s: float = 30.0, force: bool = False) -> None:
    """Terminates the process group of `process`, kills it if it does not end, and waits for the process."""
    group = process.pid  # start_new_session: the leader's id is the group's
    if process.poll() is None and not force:
        _signal_group(group, signal.SIGTERM)
        try:
            process.wait(grace_s)
        except subprocess.TimeoutExpired:
            pass  # it had its time: killed below
    _signal_group(group, signal.SIGKILL)
    process.wait()


def _signal_group(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        pass  # the group is empty


@contextlib.contextmanager
def running(command: Sequence[str], *, env: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """Runs a process inside the `with`, with its output in pipes. At the end the rest of its group is killed."""
    process = None
    try:
        with interrupts.held():
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=env,
                start_new_session=True,
            )
        yield process
    finally:
        if process is not None:
            with interrupts.held():
                end_group(process, force=True)
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()


def run(command: Sequence[str], *, timeout_s: float, env: Mapping[str, str] | None = None) -> str:
    """Runs a command to its end and returns its standard output. ChildError: not in time, or a status other than 0."""
    with running(command, env=env) as process:
        try:
            output, errors = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise ChildError(f"{command[0]} did not end within {timeout_s:g} s") from error
        if process.returncode != 0:
            raise ChildError(f"{' '.join(command)}: status {process.returncode}\n{_tail(errors or output)}")
        return output


class Server:
    """A server that writes to standard output when it is ready. All its output also goes to `log`."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._log = log
        self.started_at = time.monotonic()
        with log.open("a") as errors:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self.ready_after_s: float | None = None
        self._spoken = threading.Event()
        assert self.process.stdout is not None
        # Read to the end: a server whose pipe is full would stop at its next word.
        threading.Thread(target=self._listen, args=(self.process.stdout,), daemon=True).start()

    def _listen(self, output: IO[str]) -> None:
        with self._log.open("a") as log:
            for line in output:
                if self.ready_after_s is None:
                    self.ready_after_s = time.monotonic() - self.started_at
                    self._spoken.set()
                log.write(line)
                log.flush()
        self._spoken.set()

    def wait_ready(self, timeout_s: float) -> float:
        """Seconds from the start to its first line. ChildError: it ended, or was silent for too long."""
        self._spoken.wait(timeout_s)
        if self.ready_after_s is None:
            status = self.process.poll()
            state = f"ended with status {status}" if status is not None else f"was silent for {timeout_s:g} s"
            raise ChildError(f"the broker {state}\n{_tail(self._log.read_text())}")
        return self.ready_after_s

    def stop(self) -> None:
        """In order, and by force when that takes longer than a minute."""
        end_group(self.process, grace_s=60)

    def kill(self) -> None:
        """kill -9."""
        end_group(self.process, force=True)
