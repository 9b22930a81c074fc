"""Serves the slaves of this broker: real ones of RocketMQ 4.8, which copy the log byte for byte.

    log written or synced ──▶ Copies.on_sendable ──▶ SlaveServer ── push ──▶ one SlaveLink for each connection
                                                                              │ 8 bytes: "stored up to here"
    a SYNC_MASTER answers ◀── Copies.on_change ◀──────────────────────────────┘

The port has no authentication, as in RocketMQ: each connection can read the log. `haAllowedAddresses` names who may
connect, and with access control there is no port without it. Connections are counted as slaves only
after they named a position that this log can continue, so a connection of anything else delays no SYNC_MASTER.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tallystick.node.access.addresses import AddressPattern
from tallystick.node.broker.slaves.link import SlaveLink
from tallystick.node.broker.slaves.transfer import Refusal, SlaveRefusedError
from tallystick.store.clock import steady_ms
from tallystick.store.limited_log import LimitedLog

if TYPE_CHECKING:
    from tallystick.store.engine.message_store import MessageStore

_logger = logging.getLogger("tallystick.broker")

MOST_CONNECTIONS = 64
_MOST_REFUSED = 32
_BACKLOG = 128


@dataclass(frozen=True, slots=True)
class SlaveState:
    """A connected slave. Positions are of the log."""

    address: str
    asked_pos: int
    """Where its log ended when it connected."""
    sent_pos: int
    stored_pos: int
    behind_bytes: int
    """Bytes that it has not stored yet."""
    bytes_a_second: int
    """Bytes that were sent to it in the last second."""


class SlaveServer:
    """The port for slaves. Owns the connections, and the last refusals for GET /node."""

    def __init__(
        self, store: MessageStore, listeners: Sequence[socket.socket], allowed: Sequence[AddressPattern] = ()
    ) -> None:
        """`allowed`: addresses of slaves; empty: each address."""
        copies = store.copies
        assert copies is not None, "members of a group replicate in another way"
        self.settings = store.settings
        self.copies = copies
        self._store = store
        self._listeners = listeners
        self._allowed = allowed
        self.port = int(listeners[0].getsockname()[1])
        """The port at which slaves connect."""
        self.refusals: Counter[Refusal] = Counter()
        """Connections that were closed, by reason."""
        self._past_bytes = 0
        self._log = LimitedLog(_logger, time.monotonic, burst=20)
        self._links: dict[SlaveLink, None] = {}  # in the order of their connections
        self._refused: OrderedDict[tuple[str, Refusal], dict[str, Any]] = OrderedDict()
        self._servers: list[asyncio.Server] = []
        self._stored = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Accepts connections from now on."""
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            self._servers.append(await loop.create_server(lambda: SlaveLink(self), sock=listener, backlog=_BACKLOG))
        self._task = loop.create_task(self._look(), name="look-at-slaves")

    async def stop(self, grace_s: float = 2.0) -> None:
        """Accepts no connection, waits until the slaves have the whole log or the time is over, and closes all."""
        for server in self._servers:
            server.close()
        if self._task is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while any(link.transfer.behind > 0 for link in self.slaves):
                    self._stored.clear()
                    await self._stored.wait()
        self._task.cancel()
        await asyncio.gather(*(link.close() for link in list(self._links)))
        self.copies.on_sendable = None

    def min_pos(self) -> int:
        """Position of the first byte of the log that is not deleted."""
        return self._store.min_pos

    @property
    def slaves(self) -> list[SlaveLink]:
        """The connections that named their position."""
        return sorted((link for link in self._links if link.number is not None), key=lambda link: link.remote)

    @property
    def sent_bytes(self) -> int:
        """Bytes of the log that were sent to all slaves since the start."""
        return self._past_bytes + sum(link.sent_bytes for link in self._links)

    def states(self) -> list[SlaveState]:
        """The connected slaves, by address."""
        return [
            SlaveState(
                link.remote,
                link.transfer.asked or 0,
                link.transfer.next_pos,
                link.transfer.stored,
                link.transfer.behind,
                link.bytes_a_second,
            )
            for link in self.slaves
        ]

    def to_json(self) -> dict[str, Any]:
        """For GET /node."""
        connected = [
            {
                "address": each.address,
                "askedPos": each.asked_pos,
                "sentPos": each.sent_pos,
                "storedPos": each.stored_pos,
                "behindBytes": each.behind_bytes,
            }
            for each in self.states()
        ]
        return {"port": self.port, "connected": connected, "refused": list(self._refused.values())}

    # -- for the connections -------------------------------------------------------------------------------------------

    def joined(self, link: SlaveLink) -> None:
        """A connection was accepted. SlaveRefusedError: it may not connect, or there are too many."""
        host = link.remote.rpartition(":")[0].removeprefix("::ffff:")
        if self._allowed and not any(pattern.matches(host) for pattern in self._allowed):
            raise SlaveRefusedError(Refusal.FOREIGN, "haAllowedAddresses does not have its address")
        if len(self._links) >= MOST_CONNECTIONS:
            full = SlaveRefusedError(Refusal.TOO_MANY, f"{MOST_CONNECTIONS} connections are open")
            idle = next((each for each in self._links if each.number is None), None)
            if idle is None:
                raise full
            idle.refuse(full)  # the newcomer may be a slave; this one has not said that it is one
        self._links[link] = None

    def began(self, link: SlaveLink) -> None:
        """A slave named its position."""
        transfer = link.transfer
        self._log.info(
            "began",
            "slave %s is connected: its log ends at %d, it gets the log from %d on",
            link.remote,
            transfer.asked,
            transfer.next_pos,
        )
        self.copies.on_sendable = self._push

    def reported(self) -> None:
        """A slave has stored more of the log."""
        self._stored.set()

    def left(self, link: SlaveLink) -> None:
        """A connection has ended."""
        if link in self._links:
            del self._links[link]
            self._past_bytes += link.sent_bytes
            if link.number is not None:
                self._log.info(
                    "left", "slave %s is disconnected; it stored up to %d", link.remote, link.transfer.stored
                )
        self._stored.set()
        if not self.slaves:
            self.copies.on_sendable = None

    def refused(self, link: SlaveLink, error: SlaveRefusedError) -> None:
        """A connection is closed for a reason. One line for each host and reason, not one for each attempt."""
        host = link.remote.rpartition(":")[0]
        key = (host, error.refusal)
        self.refusals[error.refusal] += 1
        known = self._refused.pop(key, None)
        times = 1 if known is None else known["times"] + 1
        self._refused[key] = {"host": host, "state": error.refusal.value, "reason": str(error), "times": times}
        while len(self._refused) > _MOST_REFUSED:
            self._refused.popitem(last=False)
        if known is None:
            _logger.warning("refused slave %s (%s): %s", link.remote, error.refusal.value, error)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _push(self) -> None:
        for link in list(self._links):
            link.push()

    async def _look(self) -> None:
        shortest_ms = min(self.settings.haSendHeartbeatInterval, self.settings.haHousekeepingInterval)
        pause_s = min(1.0, max(0.02, shortest_ms / 4000))
        while True:
            await asyncio.sleep(pause_s)
            now_ms = steady_ms()
            for link in list(self._links):
                link.look(now_ms)
