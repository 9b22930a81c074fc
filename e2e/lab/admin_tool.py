"""RocketMQ's admin tool in one process for many commands: a Java machine for each would take most of the time."""

import os
import selectors
import signal
import subprocess
import time
from pathlib import Path

from lab.peer import Peer
from lab.places import PEER

_SOURCE = Path(__file__).with_name("AdminTool.java")
_END = b"\n\x04\n"


class AdminTool:
    """The tool of the lab's version. A process that ends, or that takes too long, is replaced by the next command."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self, *arguments: str, timeout_s: float = 240) -> str:
        """Everything that the command prints. A command that does not end in time is killed."""
        process = self._process or self._started()
        assert process.stdin is not None
        process.stdin.write("\t".join(arguments).encode() + b"\n")
        process.stdin.flush()
        printed, ended = self._read(process, time.monotonic() + timeout_s)
        if not ended:
            self.close()
        return printed.decode(errors="replace")

    def close(self) -> None:
        """Ends the process, if there is one."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)  # the group that start_new_session made
            self._process.wait()
            self._process = None

    def _started(self) -> subprocess.Popen[bytes]:
        if not (self._peer.work / "home").is_dir():
            self._peer.call("mqadmin")  # makes the configuration of the tool's log
        self._process = subprocess.Popen(
            [str(PEER / "peer.sh"), "java", str(_SOURCE)],
            env=self._peer.environment,
            cwd=self._peer.work,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return self._process

    @staticmethod
    def _read(process: subprocess.Popen[bytes], deadline_s: float) -> tuple[bytes, bool]:
        """What is printed up to the mark, and whether the process can take another command."""
        assert process.stdout is not None
        printed = b""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not printed.endswith(_END):
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or not selector.select(left_s):
                    return printed, False
                chunk = os.read(process.stdout.fileno(), 1 << 16)
                if not chunk:
                    return printed, False
                printed += chunk
        return printed.removesuffix(_END), True
