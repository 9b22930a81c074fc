"""Paths, and unused ports.

Ports stay below 32768: the kernel gives higher ones to clients, and a server that starts again might find its own
taken.
"""

import os
import random
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HOST = "127.0.0.1"
ROOT = Path(__file__).resolve().parent.parent.parent
SHARED = Path(os.environ.get("TALLYSTICK_SHARED", ROOT.parent / "shared")).resolve()
PEER = SHARED / "peer"
TALLY = ROOT / ".venv" / "bin" / "tally"
WORK = ROOT / "build" / "e2e"

_LOWEST, _HIGHEST, _STEP = 23000, 32000, 20


@dataclass(slots=True)
class Work:
    """A run's own folder; `status` is the exit code it ends with, 2 until it has one."""

    path: Path
    status: int = 2


@contextmanager
def work_folder(prefix: str, what: str = "logs") -> Iterator[Work]:
    """A folder for one run: gone afterwards if its status is 0, else kept and named."""
    WORK.mkdir(parents=True, exist_ok=True)
    work = Work(Path(tempfile.mkdtemp(prefix=prefix, dir=WORK)))
    try:
        yield work
    finally:
        if work.status == 0:
            shutil.rmtree(work.path)
        else:
            print(f"{what}: {work.path}", file=sys.stderr)


def free_block(ports: int = _STEP) -> int:
    """The first of so many neighbouring ports, all of them free now. RuntimeError: there is no such block."""
    starts = list(range(_LOWEST, _HIGHEST - ports, _STEP))
    random.shuffle(starts)  # several suites may run at the same time: not all from the same end
    for start in starts:
        if all(_free(port) for port in range(start, start + ports)):
            return start
    raise RuntimeError(f"no {ports} free ports in a row between {_LOWEST} and {_HIGHEST}")


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
