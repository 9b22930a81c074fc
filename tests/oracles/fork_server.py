"""Starts `tally` by a fork of a process that has imported it: the import takes most of the time of a start.

    tests ──arguments, environment, folder, output files──▶ server ──fork──▶ `tally`, a process as any other

Server and tests each have one end of a socket. The server ends when the other end is closed. It remains the parent of
what it started, so it says how a process ended. Until it has said so, the process id is not given to another process.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

_REQUEST_BYTES = 1 << 18


class Forked:
    """As `subprocess.Popen` of a process that the server started: what tests need of it."""

    def __init__(self, arguments: Sequence[str], error: IO[str], environment: Mapping[str, str], folder: Path) -> None:
        server = _server()
        reading, writing = os.pipe()
        request = {"arguments": list(arguments), "environment": dict(environment), "folder": str(folder)}
        try:
            self.pid: int = server.ask(request, [writing, error.fileno()])
        finally:
            os.close(writing)
        self._server = server
        self.stdout: IO[str] = os.fdopen(reading)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._server.ask({"ended": self.pid}, [])
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        while self.poll() is None:
            handle = os.pidfd_open(self.pid)
            try:
                if not select.select([handle], [], [], timeout)[0]:
                    assert timeout is not None
                    raise subprocess.TimeoutExpired(f"tally, process {self.pid}", timeout)
            finally:
                os.close(handle)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.stdout.close()
        self.wait()


class _Server:
    """The tests' end: one question at a time."""

    def __init__(self) -> None:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._socket, other):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST_BYTES)
        command = [sys.executable, __file__, str(other.fileno())]
        self._process = subprocess.Popen(command, pass_fds=[other.fileno()], stdout=subprocess.DEVNULL)
        other.close()
        self._lock = threading.Lock()
        atexit.register(self._end)

    def ask(self, request: Mapping[str, Any], files: Sequence[int]) -> Any:
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], files)
            answer = self._socket.recv(100)
        assert answer, "the server of forks ended"
        return json.loads(answer)

    def _end(self) -> None:
        self._socket.close()
        self._process.wait()


@functools.cache
def _server() -> _Server:
    return _Server()


# -- the server --------------------------------------------------------------------------------------------------------


def _serve(requests: socket.socket) -> list[str] | None:
    """Returns in each process that it forks, with the arguments for it; in the server itself at the end, with None."""
    while True:
        data, files, _, _ = socket.recv_fds(requests, _REQUEST_BYTES, 2)
        if not data:
            return None
        request = json.loads(data)
        if "ended" in request:
            found, status = os.waitpid(request["ended"], os.WNOHANG)
            requests.send(json.dumps(os.waitstatus_to_exitcode(status) if found else None).encode())
            continue
        child = os.fork()
        if child == 0:
            requests.close()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for target, file in zip((1, 2), files, strict=True):
                os.dup2(file, target)
                os.close(file)
            os.chdir(request["folder"])
            os.environ.clear()
            os.environ.update(request["environment"])
            return list(request["arguments"])
        for file in files:
            os.close(file)
        requests.send(json.dumps(child).encode())


def _main() -> int:
    import tallystick.node.run  # noqa: F401  # the rest of what a process imports
    from tallystick.node.cli import main

    assert len(os.listdir("/proc/self/task")) == 1, "a fork has only the thread that forks"  # noqa: PTH208
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the tests, and they end this process
    del sys.path[0]  # the folder of this file
    arguments = _serve(socket.socket(fileno=int(sys.argv[1])))
    if arguments is None:
        return 0
    sys.argv[:] = ["tally", *arguments]
    return main()


if __name__ == "__main__":
    sys.exit(_main())
