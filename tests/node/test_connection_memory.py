"""What connections hold is charged to the budget, and a large one goes when there is too much."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from tallystick.node.remoting.client import RemotingClient
from tallystick.node.remoting.codec import encode
from tallystick.node.remoting.command import Command
from tallystick.node.remoting.connection import Connection
from tallystick.node.remoting.endpoint import Limits
from tallystick.node.remoting.server import RemotingServer
from tallystick.store.memory_budget import MemoryBudget

MIB = 1 << 20
ECHO, HOLD, LARGE = 1, 2, 3


class World:
    """A server with a budget of 8 MiB."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.budget = MemoryBudget(8 * MIB)
        self.release = asyncio.Event()
        self.server = RemotingServer(
            {
                ECHO: lambda _, request: request.reply(body=request.body),
                HOLD: self._hold,
                LARGE: lambda _, request: request.reply(body=bytes(MIB)),
            },
            budget=self.budget,
            clock=lambda: self.now_s,
            limits=Limits(frame_stall_s=60),
            idle_seconds=1000,
        )
        self.port = 0

    async def _hold(self, _: Connection, request: Command) -> Command:
        await self.release.wait()
        return request.reply()

    async def begin_frame(self, sent: int, size: int = 15 * MIB) -> asyncio.StreamWriter:
        """A connection that sends `sent` bytes of a frame."""
        _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write((size.to_bytes(4, "big") + (10).to_bytes(4, "big")).ljust(sent, b"x")[:sent])
        return writer


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  # conditions of the code under test, which sets no events
            await asyncio.sleep(0.001)


async def received(world: World, size: int) -> None:
    """So many bytes came over all connections."""
    await until(lambda: sum(each._received for each in world.server.connections) == size)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    world.port = await world.server.start("127.0.0.1", 0)
    yield world
    world.release.set()
    await world.server.stop()
    assert world.budget.used == 0


async def test_unfinished_frames_are_charged_and_the_largest_is_cut_first(world: World) -> None:
    large = await world.begin_frame(4 * MIB)
    others = [await world.begin_frame(MIB) for _ in range(4)]
    await until(lambda: world.budget.used == 8 * MIB)
    assert world.budget.cut_count == 0  # nothing below the limit
    last = await world.begin_frame(MIB // 4)
    await until(lambda: world.budget.used == 4 * MIB + MIB // 4)  # the cut can come before its last bytes
    assert world.budget.cut_count == 1
    client = RemotingClient()
    answer = await client.call(f"127.0.0.1:{world.port}", Command(ECHO, body=b"as ever"))
    assert answer.body == b"as ever"
    await client.close()
    for writer in (large, *others, last):
        writer.close()
    await until(lambda: not world.server.connections)


async def test_a_finished_frame_is_charged_no_more(world: World) -> None:
    frame = encode(Command(ECHO, body=bytes(2 * MIB)))
    reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
    writer.write(frame[:-1])
    await until(lambda: world.budget.used >= 2 * MIB)
    writer.write(frame[-1:])
    await reader.readexactly(2 * MIB)
    await until(lambda: world.budget.used == 0)
    writer.close()


async def test_unread_answers_are_charged(world: World) -> None:
    readers = []
    for _ in range(24):
        _, writer = await asyncio.open_connection("127.0.0.1", world.port, limit=1)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"".join(encode(Command(LARGE, opaque=number)) for number in range(8)))
        readers.append(writer)
    await until(lambda: world.budget.cut_count > 0)
    assert world.budget.used <= world.budget.limit
    for writer in readers:
        writer.transport.abort()


async def test_bodies_of_requests_under_way_are_charged(world: World) -> None:
    client = RemotingClient()
    calls = [
        asyncio.create_task(client.call(f"127.0.0.1:{world.port}", Command(HOLD, body=bytes(MIB)), 20))
        for _ in range(3)
    ]
    await until(lambda: world.budget.used == 3 * MIB)
    world.release.set()
    await asyncio.gather(*calls)
    assert world.budget.used == 0
    await client.close()


async def test_little_is_charged_at_the_sweep(world: World) -> None:
    writer = await world.begin_frame(1000)
    await until(lambda: len(world.server.connections) == 1)
    (connection,) = world.server.connections
    await until(lambda: connection._received == 1000)
    assert world.budget.used == 0
    world.server.sweep()
    assert world.budget.used == 1000
    writer.close()
    await until(lambda: not world.server.connections)


async def test_a_frame_that_does_not_grow_is_cut_and_one_that_does_is_not(world: World) -> None:
    slow, steady = await world.begin_frame(1000), await world.begin_frame(1000)
    await until(lambda: sum(each._received for each in world.server.connections) == 2000)
    for number in range(1, 4):
        world.server.sweep()
        world.now_s += 29
        slow.write(b"x")
        steady.write(bytes(3000))
        await received(world, 2000 + 3001 * number)
    world.server.sweep()
    await until(lambda: len(world.server.connections) == 1)
    (connection,) = world.server.connections
    assert connection._received == 10_000
    steady.close()
    slow.close()
    await until(lambda: not world.server.connections)


async def test_whole_frames_are_progress_whatever_is_left_behind_them(world: World) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", world.port)
    frame = encode(Command(ECHO))
    writer.write(frame[:-1])
    for number in range(4):
        await received(world, len(frame) * (number + 1) - 1)
        world.server.sweep()
        world.now_s += 59
        writer.write(frame[-1:] + frame[:-1])
    assert len(world.server.connections) == 1
    writer.close()
    await until(lambda: not world.server.connections)
