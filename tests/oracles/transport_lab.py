"""Members that talk over real sockets in one process, and a network between them that a test can spoil."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import replace

from ports import free_port

from tallystick.replication.messages import AppendRequest, Heartbeat, Message, TermRun
from tallystick.replication.transport import Identity, Lane, TlsSettings, Transport, TransportSettings

PATIENCE_S = 120.0  # for what has to happen; nothing is measured by it
_LANE_AT = 28  # of a connection's bytes: header 20, magic 4, two versions


QUICK = TransportSettings(reconnect_first_ms=1, reconnect_max_ms=20)


def heartbeat(source: int, target: int, number: int = 0) -> Heartbeat:
    return Heartbeat(source, target, term=3, round=number, sent_at=1.5, commit_index=7)


def append(source: int, target: int, first: int = 0, last: int = 0) -> AppendRequest:
    return AppendRequest(source, target, 3, 1, first - 1, 3 if first else -1, (TermRun(3, last),), -1)


async def until(condition: Callable[[], object]) -> None:
    """Returns when it holds; a test whose condition never holds fails."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110  # conditions are about several members, and have no event
            await asyncio.sleep(0.001)


def listening_socket() -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", free_port()))
    return bound


class Member:
    """A transport that keeps what it is given; payloads as they are, to see whether they change."""

    def __init__(
        self,
        member: int,
        settings: TransportSettings = QUICK,
        *,
        cluster: str = "c",
        group: str = "g",
        tls: TlsSettings | None = None,
    ) -> None:
        self.id = member
        self.inbox: list[tuple[Message, memoryview | None]] = []
        self.rooms: list[tuple[int, Lane]] = []
        self.connects: list[tuple[int, Lane]] = []
        self.on_message: Callable[[Message, memoryview | None], None] = lambda message, payload: None
        self.socket = listening_socket()
        self.port: int = self.socket.getsockname()[1]
        self.transport = Transport(
            Identity(cluster, group, member),
            settings,
            self._deliver,
            tls=tls,
            on_connected=lambda peer, lane: self.connects.append((peer, lane)),
            on_room=lambda peer, lane: self.rooms.append((peer, lane)),
        )

    def _deliver(self, message: Message, payload: memoryview | None) -> None:
        self.inbox.append((message, payload))
        self.on_message(message, payload)

    @property
    def messages(self) -> list[Message]:
        return [replace(message, payload=b"") if payload else message for message, payload in self.inbox]  # type: ignore[arg-type]

    def start(self) -> None:
        self.transport.start([self.socket])

    async def room(self, peer: int) -> None:
        """Waits for the bulk lane, for a limited time."""
        async with asyncio.timeout(PATIENCE_S):
            await self.transport.room(peer, Lane.BULK)

    def connected(self, peer: int, *lanes: Lane) -> bool:
        found = {status.member: status for status in self.transport.status()}
        return peer in found and all(
            lane in found[peer].lanes and found[peer].lanes[lane].connected for lane in lanes or tuple(Lane)
        )

    def sent(self, peer: int, lane: Lane):
        return next(status for status in self.transport.status() if status.member == peer).lanes[lane].sent

    def received(self, peer: int, lane: Lane):
        return next(status for status in self.transport.status() if status.member == peer).received[lane]


async def group(*members: Member) -> None:
    """Starts them, tells each of all, and waits until all lanes are up."""
    for member in members:
        member.start()
    for member in members:
        member.transport.set_peers({each.id: ("127.0.0.1", each.port) for each in members})
    for member in members:
        for each in members:
            if each is not member:
                await until(lambda a=member, b=each: a.connected(b.id))  # type: ignore[misc]


class Proxy:
    """Stands before one member's port. What it does to connections may be changed at any time."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.port = 0
        self.refuse = False
        """New connections are accepted and closed at once."""
        self.paused: set[Lane] = set()
        """Lanes whose bytes are not read: to the caller this is a reader that stands still."""
        self.mute = False
        """Bytes from the member are read and lost."""
        self.spoil: Callable[[Lane, int, bytearray], None] | None = None
        """Told of each chunk towards the member: lane, position, bytes, which it may change or take away."""
        self.connections = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=1 << 16)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Every connection is reset."""
        for writer in list(self._writers):
            if not writer.is_closing():  # asyncio fails for one that is closed already
                writer.transport.abort()

    def resume(self) -> None:
        """All lanes are read again."""
        self.paused.clear()
        self._changed.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.refuse:
            writer.transport.abort()
            return
        try:
            onward_reader, onward_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, onward_writer}
        lane: list[Lane] = []
        for job in (self._towards(reader, onward_writer, lane), self._back(onward_reader, writer)):
            task = asyncio.get_running_loop().create_task(job)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _towards(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lane: list[Lane]) -> None:
        position = 0
        try:
            while data := await reader.read(1 << 16):
                if not lane:
                    lane.append(Lane(data[_LANE_AT]) if len(data) > _LANE_AT else Lane.CONTROL)
                while lane[0] in self.paused:
                    self._changed.clear()
                    await self._changed.wait()
                if self.spoil is not None:
                    changed = bytearray(data)
                    self.spoil(lane[0], position, changed)
                    data = bytes(changed)
                position += len(data)
                writer.write(data)
                await writer.drain()
        except OSError:
            pass  # cut: the other side hears of it below
        finally:
            writer.close()

    async def _back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                if not self.mute:
                    writer.write(data)
                    await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()
