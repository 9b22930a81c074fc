"""The network between hosts: connections as TCP gives them, over links that may be slow, cut, or cut in one direction.

What is sent arrives once, in order, in chunks of any size, or not at all: a cut link holds bytes back until it is
healed (TCP sends them again) or until an end gives up. A process that dies has its connections reset or closed by its
host; a host without power answers nothing, and resets what it does not know when it is back.

Backpressure is TCP's too: a receiver that does not read lets the sender's window fill, then its transport's buffer.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, cast

from simulation.sockets import AcceptedSocket, ListenSocket
from simulation.world import Host, Process, current

if TYPE_CHECKING:
    from simulation.loop import SimLoop

_WINDOW_BYTES = 256 << 10
_GIVE_UP_S = 900.0  # Linux's default for unacknowledged bytes
_SYN_WAITS_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)


@dataclass
class Link:
    """One direction between two hosts."""

    latency_s: float = 0.0002
    jitter_s: float = 0.0003
    cut_since: float | None = None


@dataclass
class Habits:
    """How the network behaves in one run. `split`: how often bytes arrive in more and smaller chunks."""

    split: float = 0.05
    latency_s: float = 0.0002
    jitter_s: float = 0.0003


class Network:
    """All links, listeners and connections of a world."""

    def __init__(self, loop: SimLoop, dice: Random, habits: Habits) -> None:
        self.loop = loop
        self.dice = dice
        self.habits = habits
        self.hosts: dict[str, Host] = {}
        self.connections: dict[Process | None, dict[Transport, None]] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._bound: dict[tuple[str, int], ListenSocket] = {}

    def add(self, host: Host) -> None:
        """Its address leads to it from now on."""
        self.hosts[host.ip] = host

    # --- links ---

    def link(self, near: str, far: str) -> Link:
        """From one address to another."""
        found = self._links.get((near, far))
        if found is None:
            found = self._links[near, far] = Link(self.habits.latency_s, self.habits.jitter_s)
        return found

    def cut(self, near: str, far: str) -> None:
        """Nothing passes from one address to the other from now on."""
        link = self.link(near, far)
        if link.cut_since is None and near != far:
            link.cut_since = self.loop.now
            self._watch_keepalive({near, far})

    def heal(self) -> None:
        """Every link carries again, at its usual pace."""
        for link in self._links.values():
            link.cut_since = None
            link.latency_s, link.jitter_s = self.habits.latency_s, self.habits.jitter_s

    def passes(self, near: Host, far: Host) -> bool:
        """Whether bytes get from one host to the other now."""
        return far.powered and self.link(near.ip, far.ip).cut_since is None

    def delay_s(self, near: Host, far: Host) -> float:
        """How long the next bytes take."""
        link = self.link(near.ip, far.ip)
        return link.latency_s + self.dice.random() * link.jitter_s

    def _watch_keepalive(self, ips: set[str]) -> None:
        for transports in self.connections.values():
            for transport in transports:
                if transport.silence_s is not None and {transport.host.ip, transport.far.ip} & ips:
                    self.loop.at(
                        self.loop.now + transport.silence_s, transport.look_for_silence, context=transport.context
                    )

    # --- listening ---

    def bind(self, bound: ListenSocket) -> bool:
        """Whether the port was free."""
        key = bound.getsockname()
        holder = self._bound.get(key)
        if holder is not None and not holder.closed and not holder.owner.dead:
            return False
        self._bound[key] = bound
        return True

    def unbind(self, bound: ListenSocket) -> None:
        """The port is free."""
        if self._bound.get(bound.getsockname()) is bound:
            del self._bound[bound.getsockname()]

    def serve(self, factory: Callable[[], Any], bound: ListenSocket) -> Server:
        """Connections get protocols of `factory`."""
        bound.listening, bound.factory, bound.context = True, factory, copy_context()
        return Server(bound)

    async def accept(self, bound: ListenSocket) -> tuple[AcceptedSocket, tuple[str, int]]:
        """The next connection of a socket that is accepted from by hand."""
        while not bound.backlog:
            bound.waiter = self.loop.create_future()
            await bound.waiter
        transport = bound.backlog.pop(0)
        return AcceptedSocket(transport), transport.remote

    def adopt(self, factory: Callable[[], Any], accepted: AcceptedSocket) -> tuple[Transport, Any]:
        """Gives an accepted connection its protocol."""
        transport = accepted.transport
        transport.context = copy_context()
        transport.begin(factory())
        return transport, transport.protocol

    # --- connecting ---

    async def connect(self, factory: Callable[[], Any], host: str, port: int) -> tuple[Transport, Any]:
        """OSError: refused, or nothing answers for very long."""
        process = current.get()
        assert process is not None, "only processes connect"
        near, far = process.host, self.hosts.get(host)
        for wait_s in _SYN_WAITS_S:
            if far is not None:
                await asyncio.sleep(self.delay_s(near, far) + self.delay_s(far, near))
                if self.passes(near, far) and self.passes(far, near):
                    return self._connected(process, far, port, factory)
            await asyncio.sleep(wait_s)
        raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))

    def _connected(self, process: Process, far: Host, port: int, factory: Callable[[], Any]) -> tuple[Transport, Any]:
        bound = self._bound.get((far.ip, port))
        if bound is None or not bound.listening or bound.owner.gone:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        local = process.host.ip, process.host.next_port()
        remote = far.ip, port
        ours = Transport(self, process, process.host, far, local, remote, copy_context())
        theirs = Transport(self, bound.owner, far, process.host, remote, local, bound.context or copy_context())
        ours.peer, theirs.peer = theirs, ours
        for transport in (ours, theirs):
            self.connections.setdefault(transport.owner, {})[transport] = None
        if bound.factory is not None:
            self.loop.call_soon(lambda: theirs.begin(bound.factory()), context=bound.context)
        else:
            bound.backlog.append(theirs)
            if bound.waiter is not None and not bound.waiter.done():
                bound.waiter.set_result(None)
        ours.begin(factory())
        return ours, ours.protocol

    # --- the end of processes ---

    def process_died(self, process: Process, *, silently: bool) -> None:
        """Its host closes its connections; `silently`: its host is gone as well."""
        for key, bound in list(self._bound.items()):
            if bound.owner is process:
                del self._bound[key]
        for transport in list(self.connections.pop(process, ())):
            transport.owner_died(silently=silently)
        if silently:
            self._watch_keepalive({process.host.ip})


class Server:
    """What `create_server` returns."""

    def __init__(self, bound: ListenSocket) -> None:
        self._bound = bound
        self.sockets = [bound]

    def close(self) -> None:
        self._bound.close()

    async def wait_closed(self) -> None:
        pass

    def is_serving(self) -> bool:
        return not self._bound.closed


@dataclass
class _SocketInfo:
    """The raw socket of a transport, as far as the product sets its options."""

    transport: Transport
    family: int = socket.AF_INET
    options: dict[tuple[int, int], int] = field(default_factory=dict)

    def getsockopt(self, level: int, name: int, size: int = 0) -> Any:
        if size:
            raise OSError(errno.ENOPROTOOPT, os.strerror(errno.ENOPROTOOPT))
        return self.options.get((level, name), 0)

    def setsockopt(self, level: int, name: int, value: int) -> None:
        self.options[level, name] = value
        if level == socket.IPPROTO_TCP and name == socket.TCP_USER_TIMEOUT:
            self.transport.silence_s = value / 1000


class Transport(asyncio.Transport):
    """One end of a connection. `peer` is the other one."""

    peer: Transport

    def __init__(
        self,
        network: Network,
        owner: Process,
        host: Host,
        far: Host,
        local: tuple[str, int],
        remote: tuple[str, int],
        context: Context,
    ) -> None:
        super().__init__()
        self.network = network
        self.owner = owner
        self.host = host
        self.far = far
        self.local = local
        self.remote = remote
        self.context = context
        self.protocol: Any = None
        self.silence_s: float | None = None
        """After so long without an acknowledgement the connection counts as lost."""
        self.lost = False
        """No callback of the protocol follows."""
        self.dead = False
        """Its process is gone; it only lies between the peer and nothing."""
        self._loop = network.loop
        self._out: deque[bytes] = deque()
        self._out_bytes = 0
        self._flying = 0
        self._last_arrival = 0.0
        self._arrived: deque[bytes | None] = deque()
        self._paused = False
        self._closing = False
        self._blocked = False
        self._high, self._low = 64 << 10, 16 << 10
        self._retrying = False
        self._stuck_since = 0.0
        self._info = _SocketInfo(self)

    # --- what protocols call ---

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        known = {"peername": self.remote, "sockname": self.local, "socket": self._info}
        return known.get(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 << 10 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return self._out_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def get_protocol(self) -> Any:
        return self.protocol

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return not self._paused

    def write(self, data: Any) -> None:
        if self._closing or self.lost or self.owner.gone or not data:
            return
        self._loop.trace.mix(self._loop.now, bytes(data))  # not in pieces: what is left out of the digest may be cut
        self._out.append(bytes(data))
        self._out_bytes += len(data)
        self._pump()
        if self._out_bytes > self._high and not self._blocked:
            self._blocked = True
            self.protocol.pause_writing()

    def writelines(self, pieces: Any) -> None:
        self.write(b"".join(pieces))

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self._loop.call_soon(self._deliver, context=self.context)

    def close(self) -> None:
        if not self._closing and not self.owner.gone:
            self._closing = True
            self._arrived.clear()
            if not self._out:
                self._finish()

    def abort(self) -> None:
        if self.lost or self.owner.gone:
            return
        already, self._closing = self._closing, True
        self._out.clear()
        self._out_bytes = 0
        self.lost = True
        self._forget()
        self._tell_peer(self.peer.reset)
        if self.protocol is not None and not (already and self._finished):
            self._loop.call_soon(self.protocol.connection_lost, None, context=self.context)

    _finished = False

    # --- sending ---

    def _pump(self) -> None:
        network, dice = self.network, self.network.dice
        while self._out and self._flying < _WINDOW_BYTES:
            if not self._carries():
                return
            piece = self._out.popleft()
            if len(piece) > 1 and dice.random() < network.habits.split:
                size = dice.randrange(1, min(len(piece), 1 << dice.randrange(1, 16)) + 1)
                if size < len(piece):
                    self._out.appendleft(piece[size:])
                    piece = piece[:size]
            self._out_bytes -= len(piece)
            self._flying += len(piece)
            self._send(self.peer.arrive, piece)
        if not self._out and self._closing and not self.lost:
            self._finish()

    def _carries(self) -> bool:
        """Whether bytes leave now; if they do not, it is tried again."""
        if self.network.passes(self.host, self.far) and not self.peer.dead:
            return True
        if not self._retrying:
            self._retrying = True
            self._stuck_since = self._loop.now
            self._retry_later()
        return False

    def _retry_later(self) -> None:
        self._loop.at(self._loop.now + 0.2 + self.network.dice.random(), self._retry, context=self.context)

    def _retry(self) -> None:
        if self.lost:
            return
        passes = self.network.passes(self.host, self.far)
        if passes and self.peer.dead:
            self.reset(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))
        elif passes:
            self._retrying = False
            self._pump()
        elif self._loop.now - self._stuck_since >= (self.silence_s or _GIVE_UP_S):
            self.reset(TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)))
        else:
            self._retry_later()

    def _send(self, receive: Callable[..., None], *args: Any) -> None:
        arrival = max(self._last_arrival, self._loop.now + self.network.delay_s(self.host, self.far))
        self._last_arrival = arrival
        self._loop.at(arrival, receive, *args, context=self.peer.context)

    def _tell_peer(self, receive: Callable[..., None]) -> None:
        """Of an end: lost where the link is cut; the peer then learns of it by its own bytes or its patience."""
        if self.network.passes(self.host, self.far):
            self._send(receive)
        else:
            self.dead = True

    def acknowledged(self, size: int) -> None:
        """The peer has read so many bytes."""
        self._flying -= size
        if self.lost:
            return
        self._pump()
        if self._blocked and self._out_bytes <= self._low and not self.lost:
            self._blocked = False
            self.protocol.resume_writing()

    def _finish(self) -> None:
        self.lost = self._finished = True
        self._forget()
        self._tell_peer(self.peer.end_arrives)
        self.dead = True  # whatever comes from now on is answered with a reset
        if self.protocol is not None:
            self._loop.call_soon(self.protocol.connection_lost, None, context=self.context)

    # --- receiving ---

    def begin(self, protocol: Any) -> None:
        """The connection is up."""
        if self.owner.gone:
            return
        self.protocol = protocol
        protocol.connection_made(self)
        if self._arrived:
            self._loop.call_soon(self._deliver, context=self.context)

    def arrive(self, piece: bytes) -> None:
        """Bytes came."""
        if not self.lost:
            self._arrived.append(piece)
            self._deliver()
        elif not self.peer.lost:
            self._tell_peer(self.peer.reset)

    def end_arrives(self) -> None:
        """The peer sends no more."""
        if not self.lost:
            self._arrived.append(None)
            self._deliver()

    def _deliver(self) -> None:
        while self._arrived and not self._paused and not self._closing and self.protocol is not None:
            if self.owner.gone:
                return
            piece = self._arrived.popleft()
            try:
                if piece is None:
                    if not self.protocol.eof_received():
                        self.close()
                    return
                self._loop.trace.mix(self._loop.now, len(piece).to_bytes(8, "big"))
                self._hand_over(piece)
            except Exception as error:
                self._loop.call_exception_handler({"message": "a protocol failed", "exception": error})
                self.abort()
                return
            peer = self.peer
            if not peer.lost:
                delay = self.network.delay_s(self.host, self.far)
                self._loop.at(self._loop.now + delay, peer.acknowledged, len(piece), context=peer.context)

    def _hand_over(self, piece: bytes) -> None:
        if not isinstance(self.protocol, asyncio.BufferedProtocol):
            self.protocol.data_received(piece)
            return
        view = memoryview(piece)
        while view and not self._closing:
            room = cast(memoryview, self.protocol.get_buffer(len(view)))
            count = min(len(room), len(view))
            room[:count] = view[:count]
            view = view[count:]
            self.protocol.buffer_updated(count)

    def reset(self, error: Exception | None = None) -> None:
        """The connection is gone, and the peer or the network is the cause."""
        if self.lost:
            return
        self.lost = self._closing = True
        self.dead = True
        self._out.clear()
        self._out_bytes = 0
        self._forget()
        if self.protocol is not None:
            error = error or ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
            self.protocol.connection_lost(error)

    def break_off(self) -> None:
        """Both ends learn that the connection is gone."""
        for end in (self, self.peer):
            self._loop.call_soon(end.reset, context=end.context)

    def look_for_silence(self) -> None:
        """Keepalive: nothing was heard of the peer for `silence_s`."""
        if self.lost or self.silence_s is None:
            return
        network = self.network
        both = network.passes(self.host, self.far) and network.passes(self.far, self.host)
        if both and self.peer.dead:
            self.reset()
        elif not both:
            since = max(
                network.link(self.host.ip, self.far.ip).cut_since or 0.0,
                network.link(self.far.ip, self.host.ip).cut_since or 0.0,
            )
            if self._loop.now - since >= self.silence_s * 0.999:
                self.reset(TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)))
            else:
                self._loop.at(since + self.silence_s, self.look_for_silence, context=self.context)

    def owner_died(self, *, silently: bool) -> None:
        """Its process is gone. What its host has taken over is still sent, or is lost with a reset."""
        if self.lost:
            return
        self.lost = self.dead = True
        if not silently:
            self._tell_peer(self.peer.reset if self.network.dice.random() < 0.5 else self.peer.end_arrives)

    def _forget(self) -> None:
        of_owner = self.network.connections.get(self.owner)
        if of_owner is not None:
            of_owner.pop(self, None)
