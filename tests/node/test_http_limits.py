"""The HTTP port and peers that never finish: connections, heads and bodies of requests that take forever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tallystick.node.core.settings import HttpSettings
from tallystick.node.http import limits as http_limits
from tallystick.node.http import server as http
from tallystick.node.http.limits import IDLE_S, Guards
from tallystick.node.http.server import HttpServer, Probes
from tallystick.store.memory_budget import MemoryBudget

HEAD = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
Link = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Port:
    """A served port, a clock that a test sets, and raw connections to it."""

    def __init__(self) -> None:
        self.now_s = 0.0
        probes = Probes(lambda: None, lambda: None, lambda form: iter(["metrics"]))
        self.server = HttpServer(HttpSettings(host="127.0.0.1", port=0), probes)
        self.port = 0
        self.links: list[Link] = []

    @property
    def guards(self) -> Guards:
        assert self.server.guards is not None
        return self.server.guards

    async def start(self) -> None:
        self.port = await self.server.start()
        self.guards.clock = lambda: self.now_s
        self.guards.budget = MemoryBudget(1 << 30)

    async def connect(self, data: bytes = b"") -> Link:
        """A connection that was taken in, or refused, when this returns; it has sent `data`."""
        before = set(self.guards.guards)
        refusals = self.guards.cut_count
        link = await asyncio.open_connection("127.0.0.1", self.port)
        self.links.append(link)
        link[1].write(data)
        async with asyncio.timeout(10):
            while set(self.guards.guards) <= before and self.guards.cut_count == refusals:  # noqa: ASYNC110
                await asyncio.sleep(0.001)  # the port sets no events
        return link

    async def held(self, count: int) -> None:
        """Returns when so many bytes of unfinished heads are charged."""
        async with asyncio.timeout(10):
            while self.guards.budget.used != count:  # noqa: ASYNC110
                await asyncio.sleep(0.001)


@pytest.fixture
async def port() -> AsyncIterator[Port]:
    port = Port()
    await port.start()
    yield port
    for _, writer in port.links:
        writer.close()
    await port.server.stop()


async def ask(link: Link, head: bytes = HEAD) -> bytes:
    """The status line of the answer to a request on this connection; empty: the connection ended."""
    link[1].write(head + b"\r\n")
    try:
        async with asyncio.timeout(10):
            answer = await link[0].readuntil(b"\r\n\r\n")
            length = next(line for line in answer.split(b"\r\n") if line.lower().startswith(b"content-length"))
            await link[0].readexactly(int(length.split(b":")[1]))
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""
    return answer.split(b"\r\n")[0]


async def ended(link: Link) -> bool:
    async with asyncio.timeout(10):
        try:
            return await link[0].read() == b""
        except ConnectionError:
            return True


async def test_a_head_that_never_ends_is_cut_and_a_used_connection_is_not(port: Port) -> None:
    stalled, silent, used = await port.connect(HEAD), await port.connect(), await port.connect()
    port.now_s = IDLE_S - 1
    assert b"200" in await ask(used)
    port.guards.sweep()
    assert len(port.guards.guards) == 3, "nothing is idle for long enough yet"
    port.now_s = IDLE_S + 1
    port.guards.sweep()
    assert await ended(stalled) and await ended(silent)
    assert b"200" in await ask(used), "its last request is two seconds old"
    assert port.guards.cut_count == 2


async def test_a_new_connection_takes_the_place_of_the_one_that_is_idle_longest(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_limits, "MAX_CONNECTIONS", 3)
    links = []
    for number in range(3):
        port.now_s = number
        links.append(await port.connect())
    port.now_s = 5
    assert b"200" in await ask(links[0]), "now the second one is idle longest"
    newest = await port.connect()
    assert b"200" in await ask(newest)
    assert await ended(links[1])
    assert b"200" in await ask(links[0]) and b"200" in await ask(links[2])


async def test_no_connection_that_is_served_is_cut_for_a_new_one(monkeypatch: pytest.MonkeyPatch, port: Port) -> None:
    monkeypatch.setattr(http_limits, "MAX_CONNECTIONS", 1)
    link = await port.connect()
    guard = next(iter(port.guards.guards))
    guard.begin()
    assert await ended(await port.connect())
    guard.end()
    assert b"200" in await ask(link)


async def test_unfinished_heads_are_charged_to_the_budget_which_cuts_the_largest(port: Port) -> None:
    port.guards.budget = MemoryBudget(4000)
    large = await port.connect(HEAD + b"X: " + b"a" * 2100)
    small = await port.connect(HEAD + b"X: " + b"a" * 100)
    await port.held(2100 + 100 + 2 * len(HEAD + b"X: "))
    small[1].write(b"a" * 1800)
    assert await ended(large)
    assert b"200" in await ask(small, b"\r\n")
    assert port.guards.budget.used == 0, "its head is complete"
    assert port.guards.budget.cut_count == 1


async def test_a_connection_that_ends_gives_its_charge_back(port: Port) -> None:
    _, writer = await port.connect(HEAD)
    await port.held(len(HEAD))
    writer.close()
    await port.held(0)
    assert not port.guards.guards


async def test_a_body_that_never_comes_is_answered_and_frees_its_place(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "BODY_S", 0.01)
    monkeypatch.setattr(http, "MAX_BODIES", 1)
    head = b"POST /group/transfer HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 10\r\n"
    for _ in range(2):
        assert b" 408 " in await ask(await port.connect(), head)


async def test_a_stop_does_not_wait_for_a_body(port: Port) -> None:
    links = [await port.connect() for _ in range(2)]
    head = b"POST /group/transfer HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\nab"
    for _, writer in links:
        writer.write(head)
    async with asyncio.timeout(10):
        while sum(guard.requests for guard in port.guards.guards) != 2:  # noqa: ASYNC110  # the port sets no events
            await asyncio.sleep(0.001)
    stopping = asyncio.create_task(port.server.stop())
    for reader, _ in links:
        assert b" 503 " in (await reader.readuntil(b"\r\n"))
    await stopping


async def test_a_refused_connection_reaches_nothing(monkeypatch: pytest.MonkeyPatch, port: Port) -> None:
    monkeypatch.setattr(http_limits, "MAX_CONNECTIONS", 0)
    assert await ended(await port.connect(HEAD + b"\r\n"))
    assert not port.guards.guards and port.guards.budget.used == 0
