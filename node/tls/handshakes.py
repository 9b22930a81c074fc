"""The handshakes that are in progress, of all ports of a process: how many, how long, and which of them continues next.

A handshake costs the process a signature, which takes a hundred times as long as a request, and the memory of a
connection with TLS, before its peer has shown who it is. Therefore:

    a handshake begins ── too many of its address, or too many at all ──▶ the oldest of these is ended
                       ── not complete after the time limit ────────────▶ it is ended
    bytes arrive ──▶ it waits for its turn; the addresses take turns. One handshake at a time is continued, in a thread:
                     OpenSSL computes without Python's lock, and the event loop serves other connections meanwhile

The oldest is ended and not the new one refused: a client that works completes its handshake in milliseconds, and the
oldest are those of peers that do not.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Protocol


class Handshake(Protocol):
    """One handshake of the server's side. `address` is the peer's IP address."""

    address: str

    def before_step(self) -> None:
        """It is its turn: prepares what `step` uses, which nothing else may use until `stepped`."""

    def step(self) -> None:
        """Continues with the bytes that arrived. Runs in a thread, and raises nothing."""

    def stepped(self) -> None:
        """The step is done. Called on the event loop, also if the handshake has ended in the meantime."""

    def fail(self, reason: str) -> None:
        """Ends the connection."""


class Handshakes:
    """All handshakes of a process."""

    def __init__(
        self,
        *,
        most: int,
        most_of_address: int,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        executor: Executor | None = None,
    ) -> None:
        """`executor`: runs the steps; None: a thread that is started for the first one."""
        self.completed = 0
        self.failed = 0
        """Handshakes that did not complete: the peer left or sent something wrong, or it was ended here."""
        self._most = most
        self._most_of_address = most_of_address
        self._timeout_s = timeout_s
        self._clock = clock
        self._deadlines: dict[Handshake, float] = {}  # oldest first
        self._by_address: dict[str, dict[Handshake, None]] = {}
        self._ready: dict[str, deque[Handshake]] = {}  # the first address is the next one
        self._executor = executor
        self._stepping: Handshake | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._deadlines)

    @property
    def waiting(self) -> int:
        """Handshakes that wait for their turn, or have it."""
        return sum(map(len, self._ready.values())) + (self._stepping is not None)

    def begin(self, handshake: Handshake) -> None:
        """A handshake begins. Older ones may end for it."""
        key = network_of(handshake.address)
        of_address = self._by_address.get(key, {})
        if len(of_address) >= self._most_of_address:
            next(iter(of_address)).fail(f"more than {self._most_of_address} handshakes of its address are in progress")
        elif len(self._deadlines) >= self._most:
            next(iter(self._deadlines)).fail(f"more than {self._most} handshakes are in progress")
        self._deadlines[handshake] = self._clock() + self._timeout_s
        self._by_address.setdefault(key, {})[handshake] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._timeout_s, self._expire)

    def ready(self, handshake: Handshake) -> None:
        """Bytes of this handshake arrived: `step` is called when it is its turn, and `stepped` after it."""
        self._ready.setdefault(network_of(handshake.address), deque()).append(handshake)
        if self._stepping is None:
            self._continue_next()

    def end(self, handshake: Handshake, *, completed: bool) -> None:
        """It is over. Further calls do nothing."""
        if self._deadlines.pop(handshake, None) is None:
            return
        key = network_of(handshake.address)
        of_address = self._by_address[key]
        del of_address[handshake]
        if not of_address:
            del self._by_address[key]
        if completed:
            self.completed += 1
        else:
            self.failed += 1
        if not self._deadlines and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _continue_next(self) -> None:
        while self._ready:
            key = next(iter(self._ready))
            waiting = self._ready.pop(key)
            handshake = waiting.popleft()
            if waiting:
                self._ready[key] = waiting  # behind the other addresses
            if handshake in self._deadlines:
                if self._executor is None:
                    self._executor = ThreadPoolExecutor(1, "tls-handshakes")
                self._stepping = handshake
                handshake.before_step()
                done = asyncio.get_running_loop().run_in_executor(self._executor, handshake.step)
                done.add_done_callback(self._stepped)
                return

    def _stepped(self, done: asyncio.Future[None]) -> None:
        handshake, self._stepping = self._stepping, None
        assert handshake is not None
        handshake.stepped()
        if self._stepping is None:
            self._continue_next()
        done.result()

    def _expire(self) -> None:
        self._timer = None
        now = self._clock()
        while self._deadlines:
            oldest, deadline_s = next(iter(self._deadlines.items()))
            if deadline_s > now:
                self._timer = asyncio.get_running_loop().call_later(deadline_s - now, self._expire)
                return
            oldest.fail(f"the handshake was not complete after {self._timeout_s:g} s")


def network_of(address: str) -> str:
    """What counts as one address: of IPv6 a network of 64 bits, because a host can use all of its addresses.

    A text that is not an IP address counts as itself."""
    if ":" not in address:
        return address
    try:
        return str(ipaddress.ip_network((address.partition("%")[0], 64), strict=False))
    except ValueError:
        return address
