"""The client on real sockets against our own server, and against servers that misbehave."""

import asyncio
import select
import socket
import struct
from collections.abc import AsyncIterator

import pytest

from tallystick.node.remoting.client import RemotingClient, RemotingConnectError, RemotingTimeout
from tallystick.node.remoting.command import Command
from tallystick.node.remoting.server import Connection, RemotingServer

ECHO, SLOW, CALL_BACK, NEVER = 1, 2, 3, 4


class World:
    """A server, and a client that answers request 307."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.seen: list[Command] = []
        self.arrived = asyncio.Event()
        self.client = RemotingClient({307: lambda connection, request: request.reply(body=b"running " + request.body)})
        self.server = self.new_server()
        self.address = ""

    def new_server(self) -> RemotingServer:
        async def slow(connection: Connection, request: Command) -> Command:
            await self.gate.wait()
            return request.reply(body=request.body)

        async def call_back(connection: Connection, request: Command) -> Command:
            answer = await connection.call(Command(307, body=request.body))
            return request.reply(body=answer.body)

        def echo(connection: Connection, request: Command) -> Command:
            self.seen.append(request)
            self.arrived.set()
            return request.reply(body=request.body)

        def never(connection: Connection, request: Command) -> None:
            self.seen.append(request)
            self.arrived.set()

        return RemotingServer({ECHO: echo, SLOW: slow, CALL_BACK: call_back, NEVER: never})

    async def start(self, port: int = 0) -> None:
        self.address = f"127.0.0.1:{await self.server.start('127.0.0.1', port)}"

    async def ask(self, code: int, body: bytes = b"", timeout_s: float = 3.0) -> bytes:
        return (await self.client.call(self.address, Command(code, body=body), timeout_s)).body


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    await world.start()
    yield world
    world.gate.set()
    await world.client.close()
    await world.server.stop(0.2)


async def test_calls_share_one_link_and_find_their_answers(world: World) -> None:
    waiting = [asyncio.ensure_future(world.ask(SLOW, b"slow %d" % n)) for n in range(20)]
    assert await asyncio.gather(*(world.ask(ECHO, b"%d" % n) for n in range(50))) == [b"%d" % n for n in range(50)]
    world.gate.set()
    assert await asyncio.gather(*waiting) == [b"slow %d" % n for n in range(20)]
    assert len(world.server.connections) == len(world.client.connections) == 1


async def test_the_number_of_a_call_that_waits_is_given_to_no_other(world: World) -> None:
    """Numbers begin again after 2^31 calls; one that was asked long ago may still wait then."""
    slow = asyncio.ensure_future(world.ask(SLOW, b"slow"))
    assert await world.ask(ECHO, b"1") == b"1"
    (link,) = world.client.connections
    (link._next_opaque,) = link._calls
    assert await world.ask(ECHO, b"2") == b"2"
    world.gate.set()
    assert await slow == b"slow"


async def test_a_one_way_request_arrives_and_waits_for_nothing(world: World) -> None:
    await world.client.oneway(world.address, Command(ECHO, body=b"told"))
    await world.arrived.wait()
    assert world.seen[0].body == b"told" and world.seen[0].is_oneway


async def test_the_server_s_requests_are_answered_by_routes(world: World) -> None:
    assert await world.ask(CALL_BACK, b"c1") == b"running c1"


async def test_no_answer_in_time(world: World) -> None:
    assert await world.ask(ECHO, b"connected") == b"connected"
    world.arrived.clear()
    with pytest.raises(RemotingTimeout) as caught:
        await world.ask(NEVER, timeout_s=0.02)
    assert (caught.value.code, caught.value.timeout_s < 0.021) == (NEVER, True)
    assert caught.value.address == world.address
    await world.arrived.wait()
    (connection,) = world.server.connections
    connection.send(world.seen[-1].reply(body=b"too late"))
    assert await world.ask(ECHO, b"in time") == b"in time"


async def test_a_lost_link_fails_its_calls_and_is_connected_again(world: World) -> None:
    waiting = asyncio.ensure_future(world.ask(NEVER))
    await world.arrived.wait()
    for connection in list(world.server.connections):
        connection.abort()
    with pytest.raises(RemotingConnectError, match="was lost"):
        await waiting
    assert await world.ask(ECHO, b"again") == b"again"


async def test_a_restarted_server_is_found_again(world: World) -> None:
    assert await world.ask(ECHO, b"1") == b"1"
    port = int(world.address.rpartition(":")[2])
    await world.server.stop()
    with pytest.raises(RemotingConnectError):
        await world.ask(ECHO, b"2")
    world.server = world.new_server()
    await world.start(port)
    assert await world.ask(ECHO, b"3") == b"3"


@pytest.mark.parametrize("address", ["", "host", ":1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:0", "127.0.0.1:65536"])
async def test_what_is_no_address_is_named(world: World, address: str) -> None:
    with pytest.raises(RemotingConnectError, match="is not an address of the form host:port"):
        await world.client.call(address, Command(ECHO))


async def test_no_server_listens(world: World) -> None:
    address = world.address
    await world.server.stop()
    calls = [world.client.call(address, Command(ECHO)) for _ in range(5)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(result) for result in results] == [RemotingConnectError] * 5
    with pytest.raises(RemotingConnectError):
        await world.client.oneway(address, Command(ECHO))


async def test_each_attempt_resolves_the_name_and_tries_all_addresses(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: dict[str, list[str]] = {}

    def getaddrinfo(host: str, port: object, **more: object) -> list[object]:
        if host not in names:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in names[host]]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    port = world.address.rpartition(":")[2]
    with pytest.raises(RemotingConnectError, match="Name or service not known"):
        await world.client.call(f"names.shop.svc:{port}", Command(ECHO))
    names["names.shop.svc"] = ["127.0.0.9", "127.0.0.1"]
    assert (await world.client.call(f"names.shop.svc:{port}", Command(ECHO, body=b"x"))).body == b"x"
    names["names.shop.svc"] = ["127.0.0.9"]
    with pytest.raises(RemotingConnectError, match="refused"):
        await RemotingClient().call(f"names.shop.svc:{port}", Command(ECHO))


async def test_what_cannot_be_a_name_is_a_failed_connection(world: World) -> None:
    with pytest.raises(RemotingConnectError, match="is not the name of a host"):
        await world.client.call("a..b:9876", Command(ECHO))


async def test_a_server_that_sends_garbage_is_left(world: World) -> None:
    async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with await asyncio.start_server(garbage, "127.0.0.1", 0) as server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(RemotingConnectError, match=r"it sent text that begins with .HTTP., which is not a frame"):
            await world.client.call(address, Command(ECHO))
        assert not world.client.connections


async def test_closing_fails_what_waits_and_lets_handlers_finish(world: World) -> None:
    waiting = asyncio.ensure_future(world.ask(NEVER))
    await world.arrived.wait()
    await world.client.close()
    with pytest.raises(RemotingConnectError, match="was lost"):
        await waiting
    with pytest.raises(RemotingConnectError, match="the client is closed"):
        await world.ask(ECHO)
    assert not world.client.connections


async def test_a_caller_that_gives_up_does_not_disturb_another(world: World) -> None:
    first = asyncio.ensure_future(world.ask(ECHO, b"first"))
    second = asyncio.ensure_future(world.ask(ECHO, b"second"))
    await asyncio.sleep(0)  # both wait for the same link
    first.cancel()
    assert await second == b"second"
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_sends_to_a_socket_that_just_failed_are_not_logged_one_by_one(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The loop tells a connection of its end in its next round. Until then asyncio logs each write above the fifth."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    first = asyncio.create_task(world.client.call(address, Command(NEVER), 60))
    accepted, _ = await asyncio.get_running_loop().sock_accept(listener)
    while not await asyncio.get_running_loop().sock_recv(accepted, 4096):
        pass
    connection = await world.client.connection(address)
    with accepted:
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closes with a reset
    listener.close()
    transport = connection._transport
    assert transport is not None
    reset = select.poll()
    reset.register(transport.get_extra_info("socket").fileno(), select.POLLERR)
    assert reset.poll(30_000), "the reset does not arrive"  # blocks the loop, which therefore does not learn of it
    for _ in range(20):
        connection.oneway(Command(NEVER))
    with pytest.raises(RemotingConnectError):
        await first
    assert [record for record in caplog.records if record.name == "asyncio"] == []
