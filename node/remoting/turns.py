"""Who is served next when a turn of the event loop has more requests than it should serve.

A chunk that a peer sends can have hundreds of requests, and hundreds of connections can be readable at the same time.
A client of another address would wait for all of these requests. Therefore requests get `TURN_S` in each turn of the
event loop, over all connections, and what is left waits:

    requests were read ── the turn is not over ──▶ served
                       └─ it is over ────────────▶ the connection waits. From the next turn on, one request of it is
                                                   served at a time: addresses take turns, and connections of an address

Large frames take turns as well, because copying what many connections send takes long: a connection with an unfinished
frame that reads in a turn that is over is read again when it is its turn, `_READERS` connections in each turn.

A request itself is not interrupted. The kernel's fast path of sends is not counted: it serves a chunk in the time of a
few requests.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol
from weakref import WeakKeyDictionary

TURN_S = 0.001
_READERS = 2
"""Each can be a chunk of 256 KiB."""


class Waiting(Protocol):
    """A connection with requests that were read. `peer` is its peer's IP address."""

    @property
    def peer(self) -> str: ...

    def serve_next(self) -> bool:
        """Serves one request. Returns whether more can be served."""
        ...

    def read_on(self) -> None:
        """Reads again, if nothing else is in the way."""
        ...


class Turns:
    """The turns of one event loop."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._end_s: float | None = None
        """When the present turn is over; None: it has served no request yet."""
        self._readers: deque[Waiting] = deque()
        self._waiting: dict[str, deque[Waiting]] = {}  # by address; the first one is the next one

    @property
    def is_over(self) -> bool:
        """Whether no further request should be served in this turn of the loop."""
        if self._end_s is None:
            self._begin()
            return False
        return self._clock() >= self._end_s

    def wait_to_read(self, connection: Waiting) -> None:
        """The connection has paused, and reads again in a later turn (`read_on`). It must not wait twice."""
        self._readers.append(connection)
        if self._end_s is None:
            self._begin()

    def wait(self, connection: Waiting) -> None:
        """The connection has requests for later turns. It must not wait twice."""
        self._waiting.setdefault(connection.peer, deque()).append(connection)
        if self._end_s is None:
            self._begin()

    def _begin(self) -> None:
        self._end_s = self._clock() + TURN_S
        asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        """The loop has begun another turn."""
        self._end_s = None
        if not (self._waiting or self._readers):
            return
        self._begin()
        for _ in range(min(_READERS, len(self._readers))):
            self._readers.popleft().read_on()
        while self._waiting and not self.is_over:
            peer = next(iter(self._waiting))
            connections = self._waiting.pop(peer)
            connection = connections.popleft()
            if connection.serve_next():
                connections.append(connection)
            if connections:
                self._waiting[peer] = connections  # behind the other addresses


_OF_LOOPS: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()


def turns_of_loop(clock: Callable[[], float]) -> Turns:
    """The turns of the running event loop, for all servers of the process."""
    loop = asyncio.get_running_loop()
    found = _OF_LOOPS.get(loop)
    if found is None:
        found = _OF_LOOPS[loop] = Turns(clock)
    return found
