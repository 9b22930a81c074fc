"""Limits for strangers at the HTTP port: connections, unfinished heads of requests, and time.

aiohttp serves every connection and waits for the end of a request's head without a limit. A thousand peers that send
one byte each would use all file descriptors of the process, including those for the broker's clients. Each connection
of the port therefore has a guard:

    connection ── no request in progress for `IDLE_S` ─▶ closed
               ── bytes of an unfinished head ─────────▶ charged to the process's memory budget, which can close it
               ── one more than `MAX_CONNECTIONS` ─────▶ the connection that has waited longest without a request is
                                                         closed; if all have a request, the new one is refused

A guard is between the transport and aiohttp's protocol. It passes everything on, and notes when requests begin and end
(`under_way`, called by a middleware). The time is a monotonic clock's, given as an argument.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

from tallystick.store import memory_budget
from tallystick.store.memory_budget import MemoryBudget

MAX_CONNECTIONS = 512
"""Probes, scrapers, administrators and jobs that read files need a few dozen."""
IDLE_S = 75.0
"""Longer than a scraper with an interval of a minute keeps its connection idle."""
BODY_S = 30.0
"""Time limit for the body of a request."""
SWEEP_S = 5.0


class Guard(asyncio.Protocol):
    """One connection. It is registered with the memory budget."""

    def __init__(self, owner: Guards, inner: asyncio.Protocol) -> None:
        self.inner = inner
        self.is_begun = False
        """Whether aiohttp knows the connection: from its first byte on, because before it may turn out to use TLS."""
        self.since_s = owner.clock()
        """Time since which it has had no request; only valid while `requests` is 0."""
        self.requests = 0
        self.transport: asyncio.Transport | None = None
        self._owner = owner
        self._head_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if not self._owner.admit(self):
            self.transport.abort()

    def encrypted(self, transport: asyncio.Transport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self not in self._owner.guards:
            return  # it was refused or closed
        if not self.is_begun and self.transport is not None:
            self.is_begun = True
            self.inner.connection_made(self.transport)
        if not self.requests:
            self._head_bytes += len(data)
            self._owner.budget.charge(self, self._head_bytes)
        if self in self._owner.guards:  # the charge may have closed it
            self.inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self.inner.eof_received() if self.is_begun and self in self._owner.guards else None

    def pause_writing(self) -> None:
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        self.inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        if self._owner.forget(self) and self.is_begun:
            self.inner.connection_lost(error)

    def begin(self) -> None:
        """A request's head is complete."""
        self.requests += 1
        self._head_bytes = 0
        self._owner.budget.charge(self, 0)

    def end(self) -> None:
        """The answer is complete."""
        self.requests -= 1
        self.since_s = self._owner.clock()

    def cut(self) -> None:
        """Closes the connection at once, without an answer."""
        if self.transport is not None:
            self.transport.abort()


class Guards:
    """All guarded connections of one port. `make`: aiohttp's protocol for a new connection."""

    def __init__(
        self,
        make: Callable[[], asyncio.Protocol],
        *,
        budget: MemoryBudget | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self.budget = budget or memory_budget.PROCESS
        self.guards: dict[Guard, None] = {}
        self.cut_count = 0
        """Connections that were closed or refused: idle, or too many."""
        self._make = make
        self._of: dict[object, Guard] = {}

    def __call__(self) -> Guard:
        """A protocol for an accepted connection."""
        return Guard(self, self._make())

    @contextmanager
    def under_way(self, inner: object) -> Iterator[None]:
        """Active while a request of this aiohttp protocol is served."""
        guard = self._of.get(inner)
        if guard is None:
            yield
            return
        guard.begin()
        try:
            yield
        finally:
            guard.end()

    def admit(self, guard: Guard) -> bool:
        """Accepts a new connection; False if there is no space."""
        if len(self.guards) >= MAX_CONNECTIONS:
            self.cut_count += 1
            idle = [each for each in self.guards if not each.requests]
            if not idle:
                return False
            self._cut(min(idle, key=lambda each: each.since_s))
        self.guards[guard] = None
        self._of[guard.inner] = guard
        return True

    def forget(self, guard: Guard) -> bool:
        """The connection is closed; False if it was never accepted."""
        self.budget.charge(guard, 0)
        self.guards.pop(guard, None)
        return self._of.pop(guard.inner, None) is not None

    def sweep(self) -> None:
        """Closes connections that have had no request for `IDLE_S`."""
        oldest_s = self.clock() - IDLE_S
        for guard in [each for each in self.guards if not each.requests and each.since_s < oldest_s]:
            self.cut_count += 1
            self._cut(guard)

    def close_silent(self) -> None:
        """The port closes: ends the connections without a byte. aiohttp ends the others."""
        for guard in [each for each in self.guards if not each.is_begun]:
            self._cut(guard)

    async def keep_sweeping(self) -> None:
        """Sweeps until it is cancelled."""
        while True:
            await asyncio.sleep(SWEEP_S)
            self.sweep()

    def _cut(self, guard: Guard) -> None:
        self.guards.pop(guard, None)  # now: its `connection_lost` comes in a later turn
        guard.cut()
