"""Server-sent events: live figures with one set of requests, streams of topics, and listeners that do not read."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from console_lab import DOCUMENT, ConsoleLab, until

from tallystick.admin.models import Figures
from tallystick.client import ConnectionFailed
from tallystick.console.api import events as module
from tallystick.console.api import interface
from tallystick.console.api.live import Live
from tallystick.console.app import CONSOLE

FIGURES = Figures(1, 0.0, 0.0, {}, {}, {}, [])


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[ConsoleLab]:
    async with ConsoleLab(tmp_path) as lab:
        yield lab


def listeners(lab: ConsoleLab) -> Any:
    return lab.server._runner.app[CONSOLE].services.listeners


async def send(lab: ConsoleLab, *texts: str, **fields: Any) -> None:
    messages = [{"text": each, **fields} for each in texts]
    assert (await lab.call("POST", "/topics/Orders/messages", {"messages": messages})).status == 201


async def next_messages(events: Any, count: int) -> list[tuple[str, str]]:
    """Texts and ids of the next messages."""
    found = []
    async for name, data, id in events:
        if name == "message":
            assert not list(DOCUMENT.validator({"$ref": "#/components/schemas/Message"}).iter_errors(data))
            found.append((data["text"], id))
        if len(found) == count:
            break
    return found


async def test_live_figures_are_events(lab: ConsoleLab) -> None:
    await send(lab, "x")
    async with lab.events("/events") as events:
        assert events.answer.headers["Content-Type"] == "text/event-stream"
        assert events.answer.headers["Cache-Control"] == "no-store"
        seen = [await anext(events) for _ in range(2)]
    for name, data, _ in seen:
        assert name == "figures" and "Orders" in data["topics"]
        assert not list(DOCUMENT.validator({"$ref": "#/components/schemas/Figures"}).iter_errors(data))
    assert seen[0][1]["atMs"] < seen[1][1]["atMs"]


async def test_listeners_share_the_requests_and_the_last_one_ends_them() -> None:
    reads = 0
    going = asyncio.Event()

    async def read() -> Figures:
        nonlocal reads
        reads += 1
        await going.wait()
        return FIGURES

    live = Live(read, interval_s=3600)
    iterators = [live.events() for _ in range(20)]
    coming = [asyncio.create_task(anext(each)) for each in iterators]
    await asyncio.sleep(0)
    going.set()
    found = await asyncio.gather(*coming)
    assert {each.name for each in found} == {"figures"} and reads == 1
    late = live.events()
    assert (await anext(late)).name == "figures" and reads == 1, "a new listener gets the latest ones at once"
    for each in (*iterators, late):
        await each.aclose()
    assert live._task is None
    again = live.events()
    assert (await anext(again)).name == "figures" and reads == 2
    await again.aclose()


async def test_figures_that_cannot_be_read_are_a_problem() -> None:
    async def read() -> Figures:
        raise ConnectionFailed("10.0.0.1:9876", "refused")

    live = Live(read, interval_s=3600)
    events = live.events()
    event = await anext(events)
    assert event.name == "problem" and b"10.0.0.1:9876" in event.data
    await events.aclose()


async def test_listeners_are_bounded_and_leave(lab: ConsoleLab) -> None:
    listeners(lab)._most = 2
    async with lab.events("/events") as first, lab.events("/events") as second:
        await anext(first)
        await anext(second)
        found = await lab.call("GET", "/events")
        assert (found.status, found.kind) == (503, "busy")
    await until(lambda: not listeners(lab).count)  # until the next event finds that they left


async def test_a_half_open_listener_gives_its_place_back(lab: ConsoleLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """It opens a stream of a topic, does not read, and does not close either."""
    monkeypatch.setattr(module, "WRITE_S", 0.2)
    await send(lab, "begin")
    opened = socket.create_connection(("127.0.0.1", lab.port))
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    opened.sendall(b"GET /api/v1/topics/Orders/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    await until(lambda: listeners(lab).count)
    sent = 0
    while listeners(lab).count:
        await send(lab, *["x" * 100_000] * 10)
        sent += 1_000_000
        assert sent < 100_000_000, "the listener was not dropped"
    opened.close()


async def test_a_stream_has_the_messages_of_all_queues_from_now_on(lab: ConsoleLab) -> None:
    await send(lab, "old")
    async with lab.events("/topics/Orders/stream") as events:
        await until(lambda: listeners(lab).count)
        for queue in range(4):
            await send(lab, f"new {queue}", queue=queue)
        found = await next_messages(events, 4)
    assert sorted(text for text, _ in found) == [f"new {queue}" for queue in range(4)]


async def test_a_stream_continues_behind_the_last_event(lab: ConsoleLab) -> None:
    await send(lab, *(str(number) for number in range(20)))
    async with lab.events("/topics/Orders/stream?from=earliest") as events:
        first = await next_messages(events, 7)
    await send(lab, "later")
    async with lab.events("/topics/Orders/stream", headers={"Last-Event-ID": first[-1][1]}) as events:
        second = await next_messages(events, 14)
    assert sorted(text for text, _ in first + second) == sorted([*map(str, range(20)), "later"])


async def test_a_stream_with_a_tag(lab: ConsoleLab) -> None:
    await send(lab, "a", tag="one")
    await send(lab, "b", tag="two")
    await send(lab, "c", tag="one")
    async with lab.events("/topics/Orders/stream?from=earliest&tag=one") as events:
        assert sorted(text for text, _ in await next_messages(events, 2)) == ["a", "c"]


@pytest.mark.parametrize("id", ["x", "e30x", "W10=", "eyJhIjogMS41fQ==", "é"])
async def test_an_id_that_is_not_of_an_event(lab: ConsoleLab, id: str) -> None:
    await send(lab, "x")
    found = await lab.call("GET", "/topics/Orders/stream", headers={"Last-Event-ID": id})
    assert (found.status, found.kind) == (400, "invalid-request")


async def test_a_stream_of_a_topic_that_does_not_exist(lab: ConsoleLab) -> None:
    found = await lab.call("GET", "/topics/nothing/stream")
    assert (found.status, found.kind) == (404, "not-found")
    assert listeners(lab).count == 0


async def test_a_stop_ends_streams(tmp_path: Path) -> None:
    async with ConsoleLab(tmp_path) as lab:
        await send(lab, "x")
        async with lab.events("/events") as first, lab.events("/topics/Orders/stream") as second:
            await anext(first)
            stopping = asyncio.create_task(lab.server.stop())
            async for _ in first:
                pass
            async for _ in second:
                pass
            await asyncio.wait_for(stopping, 30)
    assert interface.MOST_LISTENERS < 512, "other connections of the port are possible"
