"""Hosts and processes of one simulated world, and which process runs at the moment.

Every callback of the event loop runs in a context. A process marks its context with itself; tasks, timers and callbacks
inherit the mark. So the loop knows to whom a callback belongs, and a killed process is one whose callbacks are dropped.

A host has an address, clocks and one disk. A process lives on a host and dies; the next one finds the same disk.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from random import Random
from typing import Any

WALL_BASE_NS = 1_700_000_000 * 10**9
"""Virtual time 0 on the wall clock. It lies before the real time of any run, so no file looks old."""
MONOTONIC_BASE_S = 1_000.0

current: ContextVar[Process | None] = ContextVar("simulated process", default=None)
"""The process whose code runs. None: the simulation itself."""


class Host:
    """One machine. `drift`: seconds its clocks count in one second. `wall_offset_ns`: how wrong its wall clock is."""

    def __init__(self, name: str, ip: str, folder: Path | None = None, drift: float = 1.0) -> None:
        self.name = name
        self.ip = ip
        self.folder = folder
        self.drift = drift
        self.wall_offset_ns = 0
        self.boots = 1
        self.powered = True
        self.disk_used: float | None = None
        """What the file system says about its fill; None: it is nearly empty."""
        self.disk_delay_s = 0.0
        """What each blocking call takes longer, on average."""
        self._ports = itertools.count(32_768)

    def local_s(self, now: float) -> float:
        """The monotonic clock at a virtual time."""
        return MONOTONIC_BASE_S + now * self.drift

    def virtual_s(self, local: float) -> float:
        """The inverse of `local_s`."""
        return (local - MONOTONIC_BASE_S) / self.drift

    def wall_ns(self, now: float) -> int:
        """The wall clock at a virtual time."""
        return WALL_BASE_NS + int(now * self.drift * 1e9) + self.wall_offset_ns

    @property
    def boot_id(self) -> bytes:
        """Changes with each loss of power."""
        return f"{self.name}-{self.boots}".encode().ljust(16, b".")[:16]

    def next_port(self) -> int:
        """For the near end of an outgoing connection."""
        return next(self._ports)


class Process:
    """One run of a program on a host. `door`: its way to the disk, None for programs that have none."""

    def __init__(self, name: str, host: Host, door: Any = None) -> None:
        self.name = name
        self.host = host
        self.door = door
        self.dead = False
        self.tasks: set[asyncio.Task[Any]] = set()
        """Tasks that are not done. Those of a dead process stay here, so that none of their `finally` blocks runs."""
        self.locks: list[Any] = []
        """Store locks it took; the system releases them when the process dies."""
        self.executors: list[Any] = []
        self.signal_handlers: dict[int, Callable[[], None]] = {}
        self.events_left: int | None = None
        """Killed after so many more callbacks; None: not planned."""
        self.budget: Any = None
        self.turns: Any = None
        """What its connections hold; made with the first use (`patches`)."""
        self.on_death: Callable[[Process], None] | None = None

    @property
    def gone(self) -> bool:
        """Nothing that it does has an effect from now on."""
        return self.dead or (self.door is not None and self.door.dead)

    def __repr__(self) -> str:
        return self.name


class Entropy:
    """What the system's random numbers are: a stream of the seed. One for all processes of a world."""

    def __init__(self, seed: int) -> None:
        self._dice = Random(seed)

    def bytes(self, count: int) -> bytes:
        return self._dice.randbytes(count)

    def bits(self, count: int) -> int:
        return self._dice.getrandbits(count)
