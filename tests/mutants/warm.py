"""Runs pytest in processes that are forked from one that has imported pytest and the libraries already.

Most detectors take less time than it takes to start Python and import pytest, Hypothesis, asyncio and aiohttp. So each
private copy has one server, and each run of pytest is a fork of it:

    runner ──{"arguments", "output", "limit_s", ...}──▶ server ── fork ──▶ pytest.main(arguments)
           ◀──────────── {"code": 1} ────────────────────┘  waits, and ends the child's session when the time is up

The server imports nothing of the product and of the tests: a child imports them as they are planted. It has no threads.
What a test starts uses `sys.executable` as ever. `code` is null if the time was up.

    python -m mutants.warm      is the server, in the copy; a line of JSON for each run, and for each answer
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

_LIBRARIES = (
    *("pytest", "pytest_asyncio", "_pytest.assertion.rewrite", "hypothesis", "hypothesis.strategies"),
    *("asyncio", "aiohttp", "aiohttp.web", "uvloop", "cryptography.x509", "yaml", "kopf", "lz4.block"),
    *("logging", "multiprocessing", "sqlite3", "ssl", "subprocess", "tempfile", "tomllib", "unittest.mock"),
)
_LOOK_S = 0.02


_running: set[subprocess.Popen[str]] = set()


def end_all() -> None:
    """Ends every server, with what it runs. For a run that is called off."""
    for process in list(_running):
        process.terminate()


class WarmPytest:
    """The runner's side. One run at a time; `start` when the copy is complete, `close` at its end."""

    def __init__(self, python: Path, folder: Path, environment: Mapping[str, str]) -> None:
        self._command = [str(python), "-m", "mutants.warm"]
        self._folder, self._environment = folder, environment
        self._process: subprocess.Popen[str] | None = None

    def run(self, arguments: Sequence[str], output: Path, limit_s: float, environment: Mapping[str, str]) -> int | None:
        """The exit code of pytest, negative for a signal; None: the time was up. RuntimeError: the server ended."""
        if self._process is None:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            _running.add(self._process)
        asked = {"arguments": list(arguments), "output": str(output), "limit_s": limit_s, "environment": environment}
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            print(json.dumps(asked), file=self._process.stdin, flush=True)
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            self.close()
            raise RuntimeError("the server that runs pytest ended")
        code: int | None = json.loads(answer)["code"]
        return code

    def close(self) -> None:
        """Ends the server and what it runs."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            # A signal that comes just before the server begins to read does not interrupt the read: its end does.
            assert process.stdin is not None
            with suppress(BrokenPipeError):
                process.stdin.close()
            process.wait()
            _running.discard(process)


# -- the server --------------------------------------------------------------------------------------------------------


def _serve() -> None:
    for name in _LIBRARIES:
        try:
            importlib.import_module(name)
        except ImportError:
            continue  # a test that needs it says so
    child = 0

    def ended(number: int, frame: object) -> None:
        if child:
            _end_session(child)
        os._exit(128 + number)

    signal.signal(signal.SIGTERM, ended)
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if child == 0:
            _run_pytest(asked)
        code = _waited_for(child, asked["limit_s"])
        _end_session(child)  # also what a test left behind
        child = 0
        print(json.dumps({"code": code}), flush=True)


def _run_pytest(asked: dict[str, Any]) -> None:
    """In the child; does not return."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(asked["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for target, source in ((0, nothing), (1, output), (2, output)):
        os.dup2(source, target)
    os.environ.update(asked["environment"])
    code = 3
    try:
        import pytest

        code = int(pytest.main(asked["arguments"]))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _waited_for(child: int, limit_s: float) -> int | None:
    end_s = time.monotonic() + limit_s
    while time.monotonic() < end_s:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(_LOOK_S)
    _end_session(child)
    os.waitpid(child, 0)
    return None


def _end_session(child: int) -> None:
    try:
        os.killpg(child, signal.SIGKILL)  # its id is its session's: it began one
    except ProcessLookupError:
        pass


if __name__ == "__main__":
    _serve()
