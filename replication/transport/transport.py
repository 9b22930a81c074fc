"""Carries messages between the members of a group: one object for all peers, on one event loop.

    send ─▶ codec ─▶ PeerLane (control) ─▶ CallerLink ══TCP══▶ CalledLink ─▶ Listener ─▶ codec ─▶ deliver
                  └▶ PeerLane (bulk)    ─▶ CallerLink ══TCP══▶ CalledLink ─┘

Each member connects to each other member twice, for its control lane and its bulk lane, and sends only on connections
that it made. Two members therefore have four connections, and a message never waits for one of another lane (L9). On
one lane messages arrive in the order in which they were sent, or not at all. The transport stores nothing and sends
nothing twice: that is the task of the core.

Source: rules S14 (introduction of members) and L9 (lanes).
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tallystick.replication.messages import Message
from tallystick.replication.transport import codec, shipping_messages
from tallystick.replication.transport.counters import LaneStatus, ReceivedCounters
from tallystick.replication.transport.frames import FrameError, FrameHeader, encode_frame
from tallystick.replication.transport.handshake import Identity, Lane
from tallystick.replication.transport.link import Payload
from tallystick.replication.transport.listener import Listener
from tallystick.replication.transport.peer_lane import Address, PeerLane
from tallystick.replication.transport.settings import TlsSettings, TransportSettings
from tallystick.replication.transport.shared import Shared
from tallystick.replication.transport.shipping_messages import ShippingMessage
from tallystick.replication.transport.tls import TlsFiles
from tallystick.store.limited_log import LimitedLog

_CLOSE_GRACE_S = 1.0  # to send the last bytes of a lane

_logger = logging.getLogger("tallystick.replication.transport")


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """The connections between this member and another one. Lanes to it exist only for peers that were set."""

    member: int
    address: Address | None
    lanes: Mapping[Lane, LaneStatus]
    received: Mapping[Lane, ReceivedCounters]
    calling: frozenset[Lane]
    """Lanes on which it has a connection to this member."""


class Transport:
    """`deliver(message, payload)` gets received messages, on the event loop. `payload` (or None) is also the message's
    field of that name. It is a view of received bytes that never change; to keep it costs memory.

    `on_connected(member, lane)`: a lane has a new connection. What was sent on the previous one may be lost, and what
    was refused meanwhile was not sent. `on_room(member, lane)`: a lane that refused messages because it was full
    accepts messages again; it is not called if the lane broke instead. Both are hints: the lane may be full again.

    All methods must be called on the event loop's thread. `clock`: seconds, monotonic.
    """

    def __init__(
        self,
        identity: Identity,
        settings: TransportSettings,
        deliver: Callable[[Message, memoryview | None], None],
        *,
        tls: TlsSettings | None = None,
        on_connected: Callable[[int, Lane], None] | None = None,
        on_room: Callable[[int, Lane], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        dice: random.Random | None = None,
    ) -> None:
        """Raises SettingsError, or TlsError if the files cannot be used."""
        settings.validate()
        log = LimitedLog(_logger, clock)
        self.identity = identity
        self.settings = settings
        self.deliver_shipping: Callable[[ShippingMessage], None] | None = None
        """Gets the messages of `shipping`; None: they are dropped, because nothing is shipped here."""
        self._shared = Shared(
            identity, settings, clock, dice or random.Random(), log, None if tls is None else TlsFiles(tls, log)
        )
        self._codec = codec.Codec((*codec.LAYOUTS, *shipping_messages.LAYOUTS))
        self._deliver = deliver
        self._on_connected = on_connected
        self._on_room = on_room
        self._room_waiters: dict[tuple[int, Lane], list[asyncio.Future[None]]] = {}
        self._lanes: dict[tuple[int, Lane], PeerLane] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._listener = Listener(self._shared, self._codec.check, self._deliver_frame, self._addresses)
        self._watch: asyncio.Task[None] | None = None
        self._closed = False

    # --- start and stop -----------------------------------------------------------------------------------------------

    def start(self, sockets: Sequence[socket.socket]) -> None:
        """Accepts connections at bound sockets, which it owns from now on. It calls peers as soon as they are set."""
        self._listener.start(sockets)
        if self._shared.tls is not None:
            self._watch = asyncio.get_running_loop().create_task(self._shared.tls.watch(), name="watch-tls-files")

    async def close(self) -> None:
        """Ends every connection. Passed messages get a short time to be sent; nothing is delivered afterwards."""
        self._closed = True
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        await self._listener.close()
        self.set_peers({})
        await asyncio.gather(*self._leaving)

    def set_peers(self, peers: Mapping[int, Address]) -> None:
        """Connects to these members, at (host, port), and to no others. The own id is ignored.

        A peer whose address did not change keeps its connections. Members that are not listed may not connect. Raises
        ValueError for a port out of range.
        """
        assert not (self._closed and peers), "a closed transport connects to no member"
        for host, port in peers.values():
            if not 0 < port < 1 << 16:
                raise ValueError(f"{host}:{port} is not an address")
        for member in {member for member, _ in self._lanes} - peers.keys():
            for lane in Lane:
                leaving = self._lanes.pop((member, lane)).close(_CLOSE_GRACE_S)
                task = asyncio.get_running_loop().create_task(leaving)
                self._leaving.add(task)
                task.add_done_callback(self._leaving.discard)
        for member, address in peers.items():
            if member == self.identity.member:
                continue
            for lane in Lane:
                known = self._lanes.get((member, lane))
                if known is None:
                    self._lanes[member, lane] = PeerLane(
                        self._shared, member, address, lane, on_connected=self._connected, on_room=self._room
                    )
                else:
                    known.move(address)

    # --- messages ---

    def send(self, message: Message, payload: Payload | None = None) -> bool:
        """Passes a message to the connection of its lane to its `target`; False if it was refused.

        True does not promise that it arrives. `payload` replaces the message's own field. A large one is not copied:
        its bytes must not change until they are sent. Raises ValueError if no frame can hold it.
        """
        return self._send(message, getattr(message, "payload", None) if payload is None else payload)

    def send_shipping(self, message: ShippingMessage, payload: Payload | None = None) -> bool:
        """The same for messages of `shipping`."""
        return self._send(message, payload)

    def _send(self, message: Any, payload: Payload | None) -> bool:
        layout = self._codec.layout(message)
        lane = self._lanes.get((message.target, layout.lane))
        if lane is None or not lane.connected:
            if lane is not None:
                lane.sent.dropped_unconnected += 1
            return False
        size = 0 if payload is None else len(payload)
        if size > self.settings.payload_max_bytes:
            raise ValueError(f"a payload of {size} bytes; {self.settings.payload_max_bytes} are allowed")
        head = encode_frame(layout.kind, layout.version, layout.encode(message), size)
        return lane.send(head, payload if size else None)

    async def room(self, member: int, lane: Lane) -> None:
        """Waits until the lane accepts messages again. Call it only after a refused `send`; otherwise it may wait
        long."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters = self._room_waiters.setdefault((member, lane), [])
        waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in waiters:
                waiters.remove(waiter)

    def _addresses(self, member: int) -> frozenset[str] | None:
        """The addresses of a caller with this name. Before any peer was set, every caller is accepted."""
        lanes = [lane for (other, _), lane in self._lanes.items() if other == member]
        if not lanes:
            return None if self._lanes else frozenset()
        return frozenset().union(*(lane.resolved for lane in lanes))

    def _connected(self, member: int, lane: Lane) -> None:
        self._wake(member, lane)
        if self._on_connected is not None:
            self._on_connected(member, lane)

    def _room(self, member: int, lane: Lane) -> None:
        self._wake(member, lane)
        if self._on_room is not None:
            self._on_room(member, lane)

    def _wake(self, member: int, lane: Lane) -> None:
        for waiter in self._room_waiters.pop((member, lane), ()):
            if not waiter.done():
                waiter.set_result(None)

    def _deliver_frame(self, member: int, header: FrameHeader, body: memoryview, payload: memoryview | None) -> None:
        message = self._codec.decode(header, body, payload)
        if (message.source, message.target) != (member, self.identity.member):
            raise FrameError(f"a message of n{message.source} to n{message.target}")
        if self._closed:
            return
        if header.kind < shipping_messages.FIRST_KIND:
            self._deliver(message, payload)
        elif self.deliver_shipping is not None:
            self.deliver_shipping(message)

    # --- for operators ------------------------------------------------------------------------------------------------

    @property
    def peers(self) -> dict[int, Address]:
        """The configured addresses."""
        return {member: lane.address for (member, which), lane in self._lanes.items() if which is Lane.CONTROL}

    def status(self) -> list[PeerStatus]:
        """The state of each peer that was set and each member that connected, sorted by id."""
        received, calling, peers = self._listener.received, self._listener.connected(), self.peers
        return [
            PeerStatus(
                member,
                peers.get(member),
                {lane: found.status() for lane in Lane if (found := self._lanes.get((member, lane)))},
                {lane: counters for lane in Lane if (counters := received.get((member, lane)))},
                frozenset(lane for lane in Lane if (member, lane) in calling),
            )
            for member in sorted(peers.keys() | {member for member, _ in received})
        ]

    @property
    def refused_connections(self) -> int:
        """Number of connections that were not accepted."""
        return self._listener.refused

    def tls_json(self) -> dict[str, Any] | None:
        """The certificates in use, as JSON (`certificates.described`); None: members use no TLS."""
        return None if self._shared.tls is None else self._shared.tls.to_json()

    @property
    def tls_error(self) -> str:
        """Why the present TLS files are not in use; empty if they are, or if there are none."""
        return "" if self._shared.tls is None else self._shared.tls.last_error
