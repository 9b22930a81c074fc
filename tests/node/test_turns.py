"""Which requests are served in a turn of the event loop, and in which order the others follow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tallystick.node.remoting.codec import decode, encode
from tallystick.node.remoting.command import Command
from tallystick.node.remoting.connection import Connection
from tallystick.node.remoting.endpoint import Limits
from tallystick.node.remoting.frames import FrameSplitter
from tallystick.node.remoting.server import RemotingServer
from tallystick.node.remoting.turns import TURN_S, Turns

SLOW, HOLD = 1, 2


class Lab:
    """A server whose requests take half of a turn each, by a clock that only they move."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.served: list[tuple[str, int]] = []
        """Source address and number of each request, in the order in which they were served."""
        self.in_turns: list[int] = []
        """How many of them each turn of the loop served."""
        self.release = asyncio.Event()
        self.server = RemotingServer(
            {SLOW: self._slow, HOLD: self._hold}, clock=lambda: self.now_s, limits=Limits(requests_in_flight=2)
        )
        self.port = 0

    def _slow(self, connection: Connection, command: Command) -> Command:
        self.now_s += TURN_S / 2
        self.served.append((connection.remote.ip, command.opaque))
        return command.reply(body=command.body)

    async def _hold(self, _: Connection, command: Command) -> Command:
        await self.release.wait()
        return command.reply()

    async def connect(self, source: str) -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(source, 0))
        return Client(reader, writer)

    async def count_turns(self) -> None:
        """Runs beside the server, in each turn of the loop."""
        seen = 0
        while True:
            await asyncio.sleep(0)
            if len(self.served) > seen:
                self.in_turns.append(len(self.served) - seen)
                seen = len(self.served)


class Client:
    """Its answers have to come in the order of the requests."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer

    def send(self, *codes: int, body: bytes = b"") -> None:
        frames = [encode(Command(code, number, body=body)) for number, code in enumerate(codes)]
        self.writer.write(b"".join(frames))

    async def answers(self, count: int) -> list[int]:
        splitter, found = FrameSplitter(), list[int]()
        async with asyncio.timeout(20):
            while len(found) < count:
                data = await self._reader.read(1 << 16)
                assert data, f"the connection was closed after {len(found)} of {count} answers"
                found += [decode(*frame).opaque for frame in splitter.feed(data)]
        return found


@pytest.fixture
async def lab() -> AsyncIterator[Lab]:
    lab = Lab()
    lab.port = await lab.server.start("127.0.0.1", 0)
    counting = asyncio.create_task(lab.count_turns())
    try:
        yield lab
    finally:
        counting.cancel()
        lab.release.set()
        await lab.server.stop(0.1)


async def test_a_turn_serves_what_fits_into_it(lab: Lab) -> None:
    client = await lab.connect("127.0.0.1")
    client.send(*[SLOW] * 40)
    assert await client.answers(40) == list(range(40))
    assert max(lab.in_turns) <= 3, lab.in_turns


async def test_many_connections_share_the_turn(lab: Lab) -> None:
    clients = [await lab.connect("127.0.0.1") for _ in range(20)]
    for client in clients:
        client.send(SLOW)
    await asyncio.gather(*(client.answers(1) for client in clients))
    assert max(lab.in_turns) <= 3, lab.in_turns


async def test_a_client_of_another_address_does_not_wait_for_all_requests_of_the_first(lab: Lab) -> None:
    many = [await lab.connect("127.0.0.2") for _ in range(5)]
    one = await lab.connect("127.0.0.3")
    for client in many:
        client.send(*[SLOW] * 100)
    async with asyncio.timeout(20):
        while not lab.served:  # noqa: ASYNC110
            await asyncio.sleep(0)
    one.send(SLOW)
    await one.answers(1)
    position = next(at for at, (source, _) in enumerate(lab.served) if source == "127.0.0.3")
    assert position < 100, "before it only what was served while it was on its way"
    await asyncio.gather(*(client.answers(100) for client in many))


async def test_connections_of_an_address_take_turns(lab: Lab) -> None:
    first, second = await lab.connect("127.0.0.2"), await lab.connect("127.0.0.2")
    first.send(*[SLOW] * 200)
    second.send(SLOW)
    await second.answers(1)
    assert len(lab.served) < 150
    assert await first.answers(200) == list(range(200))


async def test_a_connection_that_waits_reads_no_more_than_two_chunks(lab: Lab) -> None:
    """4 MiB of requests, 20 of them in each chunk of the socket: the rest stays in the socket."""
    client = await lab.connect("127.0.0.1")
    client.send(*[SLOW] * 400, body=bytes(10_000))
    (connection,) = lab.server.connections
    held = 0
    async with asyncio.timeout(20):
        while len(lab.served) < 400:
            await asyncio.sleep(0)
            held = max(held, sum(len(frame.body) for frame in connection._backlog))
    assert 0 < held < 1 << 20
    await client.answers(400)


async def test_requests_wait_for_those_in_progress_and_for_their_turn(lab: Lab) -> None:
    client = await lab.connect("127.0.0.1")
    client.send(*[SLOW] * 8, HOLD, HOLD, *[SLOW] * 8)
    assert await client.answers(8) == list(range(8))
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(lab.served) == 8, "two requests are in progress, and more are not begun"
    lab.release.set()
    assert sorted(await client.answers(10)) == list(range(8, 18))


async def test_a_connection_that_is_closed_while_it_waits_is_not_served(lab: Lab) -> None:
    client, other = await lab.connect("127.0.0.1"), await lab.connect("127.0.0.1")
    client.send(*[SLOW] * 100)
    async with asyncio.timeout(20):
        while not lab.served:  # noqa: ASYNC110
            await asyncio.sleep(0)
    client.writer.transport.abort()
    other.send(*[SLOW] * 10)
    assert await other.answers(10) == list(range(10))
    assert len(lab.served) < 110


async def test_a_turn_without_requests_costs_nothing() -> None:
    calls = 0

    def clock() -> float:
        nonlocal calls
        calls += 1
        return 0.0

    turns = Turns(clock)
    assert not turns.is_over
    for _ in range(5):
        await asyncio.sleep(0)
    assert calls == 1
