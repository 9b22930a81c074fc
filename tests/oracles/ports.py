"""TCP ports of 127.0.0.1 for servers that must come back on the port they had.

A port that the system chose (port 0) is in the range that it also gives to outgoing connections. While its server is
down, any connection on the machine may take it, and the server cannot bind it again. The ports here lie below that
range (32768 on Linux), and no two test processes have the same one: each holds a lock of one byte in a common file.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import random
import socket
import tempfile
from pathlib import Path

_LOWEST, _HIGHEST = 20_000, 32_000
_EACH = 4
"""Every fourth port is drawn: a broker also listens at the port before the last one, and at the next one."""
_order = itertools.cycle(random.Random().sample(range(_LOWEST, _HIGHEST, _EACH), (_HIGHEST - _LOWEST) // _EACH))
"""A port is drawn again only after all others. Not the common dice: tests seed it, and two runs would draw the same."""
_locks: list[int] = []


def free_ports(count: int) -> list[int]:
    """This number of free ports, which no other test process draws while this one runs."""
    return [free_port() for _ in range(count)]


def free_port() -> int:
    """One of `free_ports`. RuntimeError: all are taken."""
    for port in itertools.islice(_order, (_HIGHEST - _LOWEST) // _EACH):
        if _nobody_listens(port) and _lock(port):
            return port
    raise RuntimeError(f"all ports from {_LOWEST} to {_HIGHEST} are taken")


def _nobody_listens(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _lock(port: int) -> bool:
    if not _locks:
        path = Path(tempfile.gettempdir(), f"tallystick-test-ports-{os.getuid()}")
        _locks.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    try:
        fcntl.lockf(_locks[0], fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True
