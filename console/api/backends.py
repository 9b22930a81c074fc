"""The connections to the cluster: an admin core for each credentials that callers have.

All callers with the same credentials share one, with its producer, its consumers and its live figures. It is made with
the first request, and closed when it has had none for a while.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tallystick.admin.admin import Admin
from tallystick.client import Producer
from tallystick.console.api.live import Live
from tallystick.console.api.problems import ProblemError
from tallystick.console.api.receiving import Consumers, Receivers

Identity = tuple[str, str] | None
"""A user and the secret; None: the credentials of the process."""
Connect = Callable[[Identity], Admin]
"""Makes an admin core, which is not connected yet. ProblemError: the name servers are not known yet."""
IDLE_S = 600.0
MOST = 64
_SWEEP_S = 1.0
_PRODUCER_GROUP = "tally-console"


class Backend:
    """The admin core of one identity, and what is built on it."""

    def __init__(self, identity: Identity, admin: Admin, consumers: Consumers) -> None:
        self.identity = identity
        self.admin = admin
        self.live = Live(admin.clusters.figures)
        self.receivers = Receivers(admin.client, consumers)
        self.used_s = time.monotonic()
        self._requests = 0
        self._producer: Producer | None = None

    @property
    def producer(self) -> Producer:
        """The producer of this identity."""
        if self._producer is None:
            self._producer = self.admin.client.producer(_PRODUCER_GROUP)
        return self._producer

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Within this context it is not closed."""
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1
            self.used_s = time.monotonic()

    @property
    def is_idle(self) -> bool:
        """Whether no request uses it and nothing that it does is still needed."""
        return not self._requests and not len(self.receivers)

    async def close(self) -> None:
        """Ends consumers and connections."""
        await self.live.close()
        await self.receivers.close()
        await self.admin.__aexit__(None, None, None)


class Backends:
    """All of them."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._found: dict[Identity, Backend] = {}
        self._consumers = Consumers()
        self._sweeping: asyncio.Task[None] | None = None
        self._closed = False

    async def get(self, identity: Identity) -> Backend:
        """Returns the one of an identity. ProblemError: there are too many, or the cluster is not known yet."""
        found = self._found.get(identity)
        if found is not None:
            found.used_s = time.monotonic()
            return found
        if self._closed:
            raise ProblemError("busy", "the process is stopping")
        if len(self._found) >= MOST and not await self._close_oldest():
            raise ProblemError("busy", f"requests of {MOST} users are in progress", headers={"Retry-After": "1"})
        admin = self._connect(identity)
        await admin.__aenter__()
        if (other := self._found.get(identity)) is not None:
            await admin.__aexit__(None, None, None)
            return other
        backend = self._found[identity] = Backend(identity, admin, self._consumers)
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().create_task(self._sweep(), name="sweep-console")
        return backend

    async def close(self) -> None:
        """Closes all."""
        self._closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
        found, self._found = self._found, {}
        await asyncio.gather(*(each.close() for each in found.values()), return_exceptions=True)

    async def _close_oldest(self) -> bool:
        idle = [each for each in self._found.values() if each.is_idle]
        if not idle:
            return False
        await self._close(min(idle, key=lambda each: each.used_s))
        return True

    async def _close(self, backend: Backend) -> None:
        self._found.pop(backend.identity, None)
        await backend.close()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            for backend in list(self._found.values()):
                await backend.receivers.sweep()
                if backend.is_idle and time.monotonic() - backend.used_s >= IDLE_S:
                    await self._close(backend)
