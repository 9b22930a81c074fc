"""What the connections of one server or one client have in common: routes, limits, the idle scan, and the way out."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tallystick.node.remoting.command import Command
from tallystick.node.remoting.frames import FrameSource, FrameSplitter
from tallystick.node.remoting.request_times import RequestTimes
from tallystick.node.remoting.turns import Turns
from tallystick.node.tls.handshakes import network_of
from tallystick.store import memory_budget
from tallystick.store.limited_log import LimitedLog
from tallystick.store.memory_budget import MemoryBudget

if TYPE_CHECKING:
    from tallystick.node.remoting.connection import Connection

Handler = Callable[["Connection", Command], Command | Awaitable[Command | None] | None]
"""Serves one request. A command is sent as the answer at once; an awaitable becomes a task; None: no answer now."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of what peers can make us hold. At a bound we stop reading from that peer, or end the link."""

    write_high_bytes: int = 1 << 20
    """Unsent bytes of one connection above which nothing more is read from it."""
    write_max_bytes: int = 64 << 20
    """Unsent bytes of one connection above which it is cut: answers to requests that were held, and our own calls."""
    requests_in_flight: int = 1024
    """Requests of one connection that wait in handlers; above, nothing more is read from it."""
    calls_in_flight: int = 4096
    """Our own calls over one connection without an answer; above, a call fails with RemotingBusyError."""
    connections: int = 20_000
    """Open connections; above, new ones are closed at once."""
    connections_of_address: int = 0
    """Open connections of one address, of IPv6 of one network of 64 bits; above, new ones are closed at once. 0: no
    limit."""
    frame_stall_s: float = 60.0
    """A frame that is unfinished and grew by less than `FRAME_PROGRESS_BYTES` within so many seconds ends the link."""


FRAME_PROGRESS_BYTES = 4096


class Endpoint:
    """Base of `RemotingServer` and `RemotingClient`. All methods run on the event loop's thread."""

    def __init__(
        self,
        routes: Mapping[int, Handler],
        *,
        frame_source_factory: Callable[[Connection], FrameSource] | None = None,
        idle_seconds: float = 120.0,
        name: str = "remoting",
        limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic,
        budget: MemoryBudget | None = None,
        times: RequestTimes | None = None,
    ) -> None:
        """`budget`: what its connections hold is charged to it; the process's, if None. `times`: counts the answers to
        requests, without those that handlers write to the connection themselves."""
        self.routes = {int(code): handler for code, handler in routes.items()}
        self.frame_source_factory: Callable[[Connection], FrameSource] = frame_source_factory or _plain_source
        self.idle_seconds = idle_seconds
        self.name = name
        self.limits = limits or Limits()
        self.clock = clock
        self.budget = budget or memory_budget.PROCESS
        self.times = times
        self.cut_last = False
        """Its connections are cut for memory only when there are no others: we made them, peers did not."""
        self.logger = logging.getLogger(f"tallystick.{name}")
        self.log = LimitedLog(self.logger, clock)
        self.connections: set[Connection] = set()
        self.refused = {"all": 0, "address": 0}
        """Connections that were refused because too many are open: in all, or of their address."""
        self._of_address: Counter[str] = Counter()
        self.tasks: set[asyncio.Task[Any]] = set()
        self.on_close: list[Callable[[Connection], None]] = []
        """Called once for each connection that is lost, for any reason."""
        self.stopping = False
        self._sweeper: asyncio.TimerHandle | None = None
        self._all_lost = asyncio.Event()

    def turns(self) -> Turns | None:
        """What divides the time of the event loop among connections; None: requests are served when they are read."""
        return None

    def sweep(self) -> None:
        """Close connections without a byte in or out for `idle_seconds`; cut those that do not end after `close`."""
        now = self.clock()
        for connection in list(self.connections):
            connection.sweep(now, self.idle_seconds)

    def start_sweeping(self) -> None:
        """One timer for all connections; the idle time is exact to a quarter of it, at most 5 s."""
        if self._sweeper is None:
            self._sweep_and_again(first=True)

    def _sweep_and_again(self, first: bool = False) -> None:
        if not first:
            self.sweep()
        interval_s = min(5.0, self.idle_seconds / 4)
        self._sweeper = asyncio.get_running_loop().call_later(interval_s, self._sweep_and_again)

    def admits(self, connection: Connection) -> bool:
        """Whether there is room for one more link. If not, it is counted and logged."""
        limits, address = self.limits, network_of(connection.remote.ip)
        if len(self.connections) >= limits.connections:
            self.refused["all"] += 1
            self.log.warning("too many", "%s refused: %d connections are open", connection.id, len(self.connections))
        elif 0 < limits.connections_of_address <= self._of_address[address]:
            self.refused["address"] += 1
            most = limits.connections_of_address
            self.log.warning("too many of an address", "%s refused: %d of %s are open", connection.id, most, address)
        else:
            return True
        return False

    def connected(self, connection: Connection) -> None:
        """A link is up."""
        self.connections.add(connection)
        self._of_address[network_of(connection.remote.ip)] += 1
        self._all_lost.clear()

    def lost(self, connection: Connection) -> None:
        """A link is gone."""
        self.connections.discard(connection)
        address = network_of(connection.remote.ip)
        self._of_address[address] -= 1
        if self._of_address[address] <= 0:
            del self._of_address[address]
        for hook in self.on_close:
            try:
                hook(connection)
            except Exception:  # one owner's mistake must not keep the others from cleaning up
                self.log.warning("close hook", "a hook for closed connections failed", exc_info=True)
        if not self.connections:
            self._all_lost.set()

    async def finish(self, grace_s: float) -> None:
        """The way out: no new request is begun, running handlers get `grace_s` seconds, then every link is closed."""
        self.stopping = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=grace_s)
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for connection in list(self.connections):
            connection.close()
        if self.connections:
            try:
                await asyncio.wait_for(self._all_lost.wait(), min(grace_s, 1.0))  # for the last answers to go out
            except TimeoutError:
                for connection in list(self.connections):
                    connection.abort()
                await asyncio.sleep(0)


def _plain_source(connection: Connection) -> FrameSource:
    return FrameSplitter()
