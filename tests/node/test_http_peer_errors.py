"""Requests that are not HTTP, and peers that leave, are lines without tracebacks; few of them."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tallystick.node.core.settings import HttpSettings
from tallystick.node.http.peer_errors import peer_errors
from tallystick.node.http.server import HttpServer, Probes


@pytest.fixture(autouse=True)
def without_earlier_lines() -> None:
    peer_errors().filters.clear()
    peer_errors()


async def _send(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    writer.write_eof()
    async with asyncio.timeout(20):
        answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n" + b"".join(b"X%d: y\r\n" % number for number in range(1000)) + b"\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
        b"\x00\xff nothing\r\n\r\n",
        b"POST /topics HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{",
    ],
    ids=["many headers", "a long header", "garbage", "a body that does not come"],
)
async def test_a_flood_is_one_line_without_a_traceback(caplog: pytest.LogCaptureFixture, data: bytes) -> None:
    caplog.set_level(logging.INFO)
    probes = Probes(healthy=lambda: None, ready=lambda: None, metrics=lambda form: iter(()))
    server = HttpServer(HttpSettings(host="127.0.0.1", port=0), probes)
    port = await server.start()
    try:
        for _ in range(20):
            await _send(port, data)
    finally:
        await server.stop()
    lines = [
        record for record in caplog.records if record.levelno >= logging.INFO and "127.0.0.1" in record.getMessage()
    ]
    assert len(lines) <= 1, [record.getMessage() for record in lines]
    assert not any(record.exc_info for record in caplog.records)


def test_a_bug_keeps_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise KeyError("a bug")
    except KeyError:
        peer_errors().exception("Error handling request from %s", "127.0.0.1")
    assert caplog.records[-1].exc_info
