"""`tally run` as a real process on free ports, for tests of signals, standard streams, sockets and files."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

from fork_server import Forked

# Small files: a test's store is not worth gigabytes of preallocation.
SMALL = ("mappedFileSizeCommitLog=1048576", "maxHashSlotNum=1000", "maxIndexNum=4000")
_READY = re.compile(r"tally is ready in [0-9.]+ s: (.*)\n")
_END_S = 120.0


def environment(**more: str) -> dict[str, str]:
    """This process's environment without the settings that a developer may have in it."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TALLY_")} | more


def command(*arguments: str) -> list[str]:
    """`tally` with arguments, by the interpreter of the tests."""
    return [sys.executable, "-m", "tallystick.node.cli", *arguments]


def tally(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    settings: dict[str, object] = {"env": environment(), "capture_output": True, "text": True, "timeout": _END_S}
    return subprocess.run(command(*arguments), **(settings | options))  # type: ignore[call-overload]


class TallyProcess:
    """`tally run` in a folder; `places` are the addresses of its ready line. A context manager: leaving it ends it.

    `fresh`: by a new interpreter, as users start it; else by a fork, which takes half the time.
    """

    def __init__(self, folder: Path, *arguments: str, what: str = "run", fresh: bool = False, **more: str) -> None:
        self.folder = folder
        self.log = folder / "log.txt"
        every = [what, "--http-port", "0", *arguments]
        if what == "run":
            every += ["--dir", str(folder / "data"), "--port", "0", "--nameserver-port", "0"]
        given = {argument.partition("=")[0] for argument in arguments}
        for setting in SMALL:
            if setting.partition("=")[0] not in given:
                every += ["--set", setting]
        self.process: subprocess.Popen[str] | Forked
        with self.log.open("a") as log:
            if fresh:
                self.process = subprocess.Popen(
                    command(*every), stdout=subprocess.PIPE, stderr=log, text=True, env=environment(**more), cwd=folder
                )
            else:
                self.process = Forked(every, log, environment(**more), folder)
        self.places: dict[str, str] = {}

    def wait_ready(self) -> Self:
        """Reads the ready line, which ends a failed start as well: its end of file comes instead."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        match = _READY.fullmatch(line)
        assert match, f"{line!r} is no ready line; {self.log.read_text()}"
        for place in match[1].split(", "):
            name, _, address = place.rpartition(" ")
            self.places[name] = address
        return self

    @property
    def store(self) -> Path:
        return self.folder / "data" / "store"

    @property
    def nameserver(self) -> str:
        return self.places["name server"]

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of an HTTP request."""
        try:
            with urllib.request.urlopen(f"http://{self.places['http']}{path}", timeout=_END_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def end(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal and waits; the exit status."""
        self.process.send_signal(number)
        return self.process.wait(_END_S)

    def __enter__(self) -> Self:
        try:
            return self.wait_ready()
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(_END_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
