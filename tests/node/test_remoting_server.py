"""The server on real sockets, on both event loops: what peers may do, and what they cannot do to us."""

import asyncio
import gc
import logging
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
import uvloop

from tallystick.node.remoting.codec import decode, encode
from tallystick.node.remoting.command import Command, HeaderType, ResponseError
from tallystick.node.remoting.errors import RemotingBusyError, RemotingConnectError, RemotingTimeout
from tallystick.node.remoting.frames import Frame, FrameSplitter
from tallystick.node.remoting.server import Connection, Handler, Limits, RemotingServer

# Newer versions of the plugin have a hook for this, older ones do not.
pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy.:pytest.PytestDeprecationWarning")
ECHO, SLOW, FAIL, REFUSE, LARGE, QUIET, LATE_FAIL, UNSENDABLE = range(1, 9)


@pytest.fixture(params=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    return uvloop.EventLoopPolicy() if request.param == "uvloop" else asyncio.DefaultEventLoopPolicy()


class Clock:
    """Time that a test moves."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


class World:
    """A server with a handler of each kind, and raw sockets to it."""

    def __init__(self, server: RemotingServer, clock: Clock) -> None:
        self.server = server
        self.clock = clock
        self.port = 0
        self.gate = asyncio.Event()
        self.seen: list[Command] = []
        self.served = asyncio.Event()
        self.writers: list[asyncio.StreamWriter] = []
        self.cancelled = 0

    def routes(self) -> dict[int, Handler]:
        async def slow(connection: Connection, request: Command) -> Command:
            self.seen.append(request)
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            return request.reply(body=request.body)

        async def late_fail(connection: Connection, request: Command) -> Command:
            await asyncio.sleep(0)
            raise ResponseError(17, "no topic")

        def echo(connection: Connection, request: Command) -> Command:
            self.seen.append(request)
            self.served.set()
            return request.reply(ext=request.ext, body=request.body)

        def fail(connection: Connection, request: Command) -> Command:
            raise KeyError("queue")

        def refuse(connection: Connection, request: Command) -> Command:
            raise ResponseError(16, "no permission")

        def large(connection: Connection, request: Command) -> Command:
            self.seen.append(request)
            return request.reply(body=bytes(1 << 20))

        def quiet(connection: Connection, request: Command) -> None:
            self.seen.append(request)
            connection.attributes["held"] = request

        def unsendable(connection: Connection, request: Command) -> Command:
            return request.reply(body=bytes(1 << 24))

        return dict(enumerate([echo, slow, fail, refuse, large, quiet, late_fail, unsendable], 1))

    async def connect(self, **options: int) -> "Peer":
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, **options)
        self.writers.append(writer)
        return Peer(reader, writer)


class Peer:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.splitter = FrameSplitter()
        self.frames: list[Frame] = []

    def send(self, *commands: Command) -> None:
        self.writer.write(b"".join(map(encode, commands)))

    async def receive(self) -> Command:
        while not self.frames:
            data = await self.reader.read(1 << 20)
            assert data, "the server closed the connection"
            self.frames = self.splitter.feed(data)
        return decode(*self.frames.pop(0))

    async def ask(self, command: Command) -> Command:
        self.send(command)
        return await self.receive()

    async def is_closed(self) -> bool:
        try:
            return await self.reader.read(1 << 20) == b""
        except ConnectionResetError:
            return True


@pytest.fixture
async def start() -> AsyncIterator[Callable[..., Awaitable[World]]]:
    worlds: list[World] = []

    async def start_one(limits: Limits | None = None, **options: Any) -> World:
        clock = Clock()
        server = RemotingServer({}, limits=limits, clock=clock, name="test", **options)
        world = World(server, clock)
        server.routes.update(world.routes())
        world.port = await server.start("127.0.0.1", 0)
        worlds.append(world)
        return world

    yield start_one
    for world in worlds:
        world.gate.set()
        await world.server.stop(0.2)
        for writer in world.writers:
            writer.close()
        assert not world.server.connections and not world.server.tasks


Start = Callable[..., Awaitable[World]]


async def until(condition: Callable[[], bool]) -> None:
    """Turns the loop until something becomes true; ten seconds at most."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  # the conditions are of the code under test, which sets no events
            await asyncio.sleep(0.001)


async def test_pipelined_requests_are_answered_each_by_its_number(start: Start) -> None:
    peer = await (await start()).connect()
    peer.send(*(Command(ECHO, opaque=n, body=b"%d" % n, ext={"n": str(n)}) for n in range(1000)))
    for n in range(1000):
        answer = await peer.receive()
        assert (answer.code, answer.opaque, answer.flag, answer.body, answer.ext) == (0, n, 1, b"%d" % n, {"n": str(n)})


async def test_a_handler_that_waits_does_not_hold_up_the_next_request(start: Start) -> None:
    world = await start()
    peer = await world.connect()
    peer.send(Command(SLOW, opaque=1), Command(ECHO, opaque=2))
    assert (await peer.receive()).opaque == 2
    world.gate.set()
    assert (await peer.receive()).opaque == 1


@pytest.mark.parametrize("kind", HeaderType)
async def test_an_answer_has_the_form_of_its_request(start: Start, kind: HeaderType) -> None:
    peer = await (await start()).connect()
    assert (await peer.ask(Command(ECHO, opaque=5, header_type=kind))).header_type is kind


async def test_a_one_way_request_is_never_answered_whatever_becomes_of_it(start: Start) -> None:
    world = await start()
    peer = await world.connect()
    world.gate.set()
    peer.send(*(Command(code, flag=2, opaque=code) for code in (ECHO, SLOW, FAIL, REFUSE, LATE_FAIL, 4711)))
    assert (await peer.ask(Command(ECHO, opaque=99))).opaque == 99
    await until(lambda: not world.server.tasks)
    assert (await peer.ask(Command(ECHO, opaque=100))).opaque == 100


async def test_every_refusal_and_failure_is_answered(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    peer = await (await start()).connect()
    answers = [await peer.ask(Command(code)) for code in (4711, REFUSE, LATE_FAIL, FAIL, UNSENDABLE)]
    assert [(answer.code, answer.remark) for answer in answers] == [
        (3, " request type 4711 not supported"),
        (16, "no permission"),
        (17, "no topic"),
        (1, "KeyError: 'queue'"),
        (1, "a frame of 16777319 bytes, 16777216 are allowed"),
    ]
    for _ in range(100):
        await peer.ask(Command(FAIL))
    assert sum("request 3" in record.getMessage() for record in caplog.records) == 1


async def test_no_answer_now_means_an_answer_later(start: Start) -> None:
    world = await start()
    peer = await world.connect()
    peer.send(Command(QUIET, opaque=8))
    await until(lambda: bool(world.seen))
    (connection,) = world.server.connections
    connection.send(connection.attributes["held"].reply(body=b"at last"))
    assert (await peer.receive()).body == b"at last"


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff\xff\xff\xff" * 4,
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\x00\x00\x00\x08\x00\x00\x00\x04nope",
        b"\x00\x00\x00\x08\x01\x00\x00\x04\x00\x00\x00\x00",
        b"\x00\x00\x00\x02\x00\x00\x00\x00",
    ],
)
async def test_garbage_closes_the_connection_after_the_good_frames_before_it(start: Start, garbage: bytes) -> None:
    peer = await (await start()).connect()
    peer.writer.write(encode(Command(ECHO, opaque=3)) + garbage)
    assert (await peer.receive()).opaque == 3
    assert await peer.is_closed()


async def test_an_idle_connection_is_closed_and_a_busy_one_is_not(start: Start) -> None:
    world = await start(idle_seconds=120)
    idle, reading, written = [await world.connect() for _ in range(3)]
    for peer in (idle, reading, written):
        await peer.ask(Command(ECHO))
    world.server.sweep()  # which notes who was active since the one before
    by_port = {connection.remote.port: connection for connection in world.server.connections}
    world.clock.now += 100
    await reading.ask(Command(ECHO))
    by_port[written.writer.get_extra_info("sockname")[1]].oneway(Command(40))
    world.clock.now += 19.9
    world.server.sweep()
    assert not any(connection.closed for connection in by_port.values())
    world.clock.now += 0.1
    world.server.sweep()
    assert await idle.is_closed()
    assert (await reading.ask(Command(ECHO, opaque=4))).opaque == 4
    assert (await written.receive()).code == 40


async def test_a_reader_that_stops_is_not_served_further_and_gets_everything_later(start: Start) -> None:
    world = await start(Limits(write_high_bytes=1 << 20))
    peer = await world.connect(limit=1 << 16)
    peer.send(*(Command(LARGE, opaque=n) for n in range(200)))
    await until(lambda: any(connection._write_paused for connection in world.server.connections))
    (connection,) = world.server.connections
    # What the two sockets and the reader hold is not ours to count; what we hold is the limit and one answer.
    assert connection._transport is not None
    assert connection._transport.get_write_buffer_size() < (3 << 20)
    assert len(world.seen) < 50
    assert [(await peer.receive()).opaque for _ in range(200)] == list(range(200))


async def test_what_is_written_to_a_reader_that_stopped_ends_at_a_limit(start: Start) -> None:
    world = await start(Limits(write_max_bytes=8 << 20))
    peer = await world.connect(limit=1 << 16)
    await peer.ask(Command(ECHO))
    (connection,) = world.server.connections
    for _ in range(100):
        connection.oneway(Command(40, body=bytes(1 << 20)))
        await asyncio.sleep(0)
    assert connection.closed and world.server.log.counts == {"slow reader": 1}
    connection.write(b"more")  # no error


async def test_requests_that_wait_are_bounded(start: Start) -> None:
    world = await start(Limits(requests_in_flight=10))
    peer = await world.connect()
    peer.send(*(Command(SLOW, opaque=n) for n in range(25)), Command(ECHO, opaque=25))
    await until(lambda: len(world.seen) == 10)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(world.seen) == len(world.server.tasks) == 10
    world.gate.set()
    assert sorted([(await peer.receive()).opaque for _ in range(26)]) == list(range(26))


async def test_connections_are_bounded(start: Start) -> None:
    world = await start(Limits(connections=3))
    peers = [await world.connect() for _ in range(3)]
    for peer in peers:
        await peer.ask(Command(ECHO))
    for _ in range(5):
        assert await (await world.connect()).is_closed()
    assert len(world.server.connections) == 3 and world.server.log.counts == {"too many": 5}
    peers[0].writer.close()
    await until(lambda: len(world.server.connections) == 2)
    await (await world.connect()).ask(Command(ECHO))


async def test_the_server_calls_the_client_and_matches_the_answers(start: Start) -> None:
    world = await start(Limits(calls_in_flight=2))
    peer = await world.connect()
    await peer.ask(Command(ECHO))
    (connection,) = world.server.connections
    first, second = (asyncio.ensure_future(connection.call(Command(307, body=body))) for body in (b"1", b"2"))
    requests = [await peer.receive(), await peer.receive()]
    with pytest.raises(RemotingBusyError):
        await connection.call(Command(307))
    for request in reversed(requests):
        peer.send(request.reply(206, body=request.body + b"!"), request.reply(0))  # the second answer comes too late
    assert [(await answer).body for answer in (first, second)] == [b"1!", b"2!"]
    with pytest.raises(RemotingTimeout, match=r"no answer to request 307 within 0\.01 s"):
        await connection.call(Command(307), 0.01)
    waiting = asyncio.ensure_future(connection.call(Command(307)))
    await until(lambda: bool(connection._calls))
    peer.writer.close()
    with pytest.raises(RemotingConnectError, match="was lost"):
        await waiting
    with pytest.raises(RemotingConnectError, match="is closed"):
        await connection.call(Command(307))
    connection.oneway(Command(40))  # no error
    assert not connection._calls


async def test_owners_hear_of_each_lost_connection_once(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    world = await start()
    lost: list[str] = []
    world.server.on_close += [lambda connection: 1 / 0, lambda connection: lost.append(connection.id)]  # type: ignore[list-item]
    peer = await world.connect()
    await peer.ask(Command(ECHO))
    host, port = peer.writer.get_extra_info("sockname")
    peer.writer.close()
    await until(lambda: bool(lost))
    assert lost == [f"{host}:{port}"] and "a hook for closed connections failed" in caplog.text


async def test_stopping_lets_handlers_finish_but_not_for_ever(start: Start) -> None:
    world = await start()
    peer = await world.connect()
    peer.send(Command(SLOW, opaque=1))
    await until(lambda: bool(world.seen))
    stopping = asyncio.ensure_future(world.server.stop(5))
    await until(lambda: world.server.stopping)
    peer.send(Command(ECHO, opaque=2))  # too late: not begun
    await asyncio.sleep(0.01)
    world.gate.set()
    assert (await peer.receive()).opaque == 1
    assert await peer.is_closed()
    await stopping
    with pytest.raises(OSError):
        await world.connect()

    other = await start()
    peer = await other.connect()
    peer.send(Command(SLOW))
    await until(lambda: bool(other.seen))
    await other.server.stop(0.01)
    assert other.cancelled == 1 and await peer.is_closed()


async def test_stopping_does_not_wait_for_a_reader_that_stopped(start: Start) -> None:
    world = await start()
    peer = await world.connect(limit=1 << 16)
    peer.send(*(Command(LARGE) for _ in range(50)))
    await until(lambda: any(connection._write_paused for connection in world.server.connections))
    await world.server.stop(0.05)
    assert not world.server.connections


async def test_a_frame_source_of_ones_own(start: Start) -> None:
    """The broker's answers some frames itself: `write` takes its bytes, `feed` returns the others."""

    class Source:
        unfinished_bytes = 0

        def __init__(self, connection: Connection) -> None:
            self.connection = connection
            self.splitter = FrameSplitter()

        def feed(self, data: bytes) -> list[Frame]:
            others = []
            for frame in self.splitter.feed(data):
                command = decode(*frame)
                if command.code == 310:
                    self.connection.write(encode(command.reply(body=b"hot")))
                elif command.code == 311:
                    raise RuntimeError("a mistake")
                else:
                    others.append(frame)
            return others

    world = await start(frame_source_factory=Source)
    peer = await world.connect()
    peer.send(Command(ECHO, opaque=1), Command(310, opaque=2))
    assert sorted([(await peer.receive()).opaque for _ in range(2)]) == [1, 2]
    peer.send(Command(311))
    assert await peer.is_closed() and world.server.log.counts == {"source": 1}


async def test_ten_thousand_garbage_connections_leave_nothing_behind(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    world = await start()
    source = random.Random(7)
    good = encode(Command(ECHO, body=b"x" * 50))

    def vandals() -> None:
        for _ in range(10_000):
            with socket.create_connection(("127.0.0.1", world.port)) as link, suppress(ConnectionError):
                match source.randrange(4):
                    case 0:
                        link.sendall(b"\xff" + source.randbytes(source.randrange(200)))
                    case 1:
                        link.sendall(good[: source.randrange(len(good))])
                    case 2:
                        link.sendall(b"\x00\x00\x00\x08\x00\x00\x00\x04" + source.randbytes(4))
                if source.random() < 0.5:  # a reset instead of an end
                    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    await asyncio.to_thread(vandals)
    peer = await world.connect()
    assert (await peer.ask(Command(ECHO, opaque=1))).opaque == 1
    await until(lambda: len(world.server.connections) == 1)
    gc.collect()
    alive = sum(type(thing) is Connection and thing.endpoint is world.server for thing in gc.get_objects())
    assert alive == 1
    assert sum(world.server.log.counts.values()) > 4000
    assert len(caplog.records) <= 5


@pytest.mark.parametrize("kind", HeaderType)
async def test_an_answer_that_a_handler_makes_by_hand_has_the_form_of_its_request(
    start: Start, kind: HeaderType
) -> None:
    world = await start()
    world.server.routes[99] = lambda connection, request: Command(0, opaque=4711, body=b"by hand")
    peer = await world.connect()
    peer.send(Command(99, opaque=5, header_type=kind))
    answer = await peer.receive()
    assert (answer.opaque, answer.header_type, answer.is_response, answer.body) == (5, kind, True, b"by hand")


async def test_requests_that_waited_are_begun_one_for_each_that_ends(start: Start) -> None:
    world = await start(Limits(requests_in_flight=2))
    begun: list[asyncio.Event] = []

    async def one_by_one(connection: Connection, request: Command) -> Command:
        begun.append(asyncio.Event())
        await begun[-1].wait()
        return request.reply()

    world.server.routes[99] = one_by_one
    peer = await world.connect()
    peer.send(*(Command(99, opaque=n) for n in range(6)))
    for ended in range(5):
        expected = min(ended + 2, 6)
        await until(lambda least=expected: len(begun) >= least)  # type: ignore[misc]
        await asyncio.sleep(0)
        assert len(begun) == expected, "two are in flight"
        begun[ended].set()
        assert (await peer.receive()).opaque == ended
    begun[5].set()
    assert (await peer.receive()).opaque == 5
