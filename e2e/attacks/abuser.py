"""A process that abuses a server, in a separate process so that it does not delay the clients that are measured.

    python e2e/attacks/abuser.py NAME TARGET

TARGET is a `Target` as JSON. The process prints "ready" when the abuse has begun. It continues until SIGTERM, and then
prints what it got, as JSON: how often each answer, refusal or end of a connection. It connects from another address of
the loopback network than the clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import ssl
import struct
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lab.load import pull_fields
from lab.places import HOST

from tallystick.node.access.signatures import sign
from tallystick.node.remoting.codec import decode, encode
from tallystick.node.remoting.codes import RequestCode
from tallystick.node.remoting.command import Command, HeaderType

SOURCE = "127.0.0.2"
_HEAD = struct.Struct(">II")
_LIMIT = 1 << 22
_LOWEST_PRIORITY = 19


@dataclass(frozen=True, slots=True)
class Target:
    """Ports of the abused server at 127.0.0.1; 0: it has no such port.

    `tls`: the ports of clients require TLS. `account`: access key and secret of a client that may use `topic` only;
    empty: there is no access control. `leader`, `follower`: numbers of members in a group, `group` its name.
    """

    broker: int
    nameserver: int
    http: int
    topic: str
    tls: bool = False
    account: tuple[str, ...] = ()
    slaves: int = 0
    member: int = 0
    leader: int = 0
    follower: int = 0
    group: str = ""

    @classmethod
    def parse(cls, text: str) -> Target:
        found = json.loads(text)
        return cls(**{**found, "account": tuple(found["account"])})


Got = Counter[str]
Abuse = Callable[[Target, Got], Coroutine[Any, Any, None]]


def trusting() -> ssl.SSLContext:
    """A client that accepts each certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


@contextlib.asynccontextmanager
async def link(
    target: Target, port: int, *, tls: bool | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """One connection. `tls`: whether it uses TLS; None: as the server requires. OSError."""
    context = trusting() if (target.tls if tls is None else tls) else None
    reader, writer = await asyncio.open_connection(HOST, port, local_addr=(SOURCE, 0), ssl=context, limit=_LIMIT)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def at_once(count: int, one: Callable[[int], Coroutine[Any, Any, None]]) -> None:
    """`one` with each number, all at the same time. The first error ends all."""
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(one(number))


async def hold(target: Target, port: int, data: bytes, count: int, got: Got, *, tls: bool | None = False) -> None:
    """Opens connections, sends `data` on each, and keeps them. One that the server ends is opened again."""

    async def one(_: int) -> None:
        while True:
            try:
                async with link(target, port, tls=tls) as (reader, writer):
                    writer.write(data)
                    got["connections held"] += 1
                    while await reader.read(1 << 16):
                        got["answers in bytes"] += 1
                got["connections closed by the server"] += 1
            except OSError:
                got["connections closed by the server"] += 1
            await asyncio.sleep(0.2)

    await at_once(count, one)


async def drip(
    target: Target, port: int, head: bytes, rest: bytes, pause_s: float, got: Got, *, tls: bool | None = None
) -> None:
    """400 connections send `head`, and then `rest` byte by byte with pauses. One that ends is opened again."""

    async def one(_: int) -> None:
        while True:
            with contextlib.suppress(OSError):
                async with link(target, port, tls=tls) as (_reader, writer):
                    writer.write(head)
                    for byte in rest:
                        writer.write(bytes([byte]))
                        await writer.drain()
                        got["bytes"] += 1
                        await asyncio.sleep(pause_s)
            got["connections ended"] += 1

    await at_once(400, one)


async def churn(target: Target, port: int, data: Callable[[], bytes], parallel: int, got: Got) -> None:
    """Opens connections one after the other, `parallel` at a time; each sends `data` and is closed after an answer, or
    after the server closed it, or at once if `data` is empty."""

    async def one(_: int) -> None:
        while True:
            try:
                async with link(target, port, tls=False) as (reader, writer):
                    if sent := data():
                        writer.write(sent)
                        async with asyncio.timeout(1):
                            answer = await reader.read(1 << 16)
                        got["answered" if answer else "connections closed by the server"] += 1
                    else:
                        got["connections"] += 1
            except TimeoutError:
                got["no answer"] += 1
            except OSError:
                got["connections closed by the server"] += 1

    await at_once(parallel, one)


async def flood(
    target: Target,
    port: int,
    requests: Sequence[Command],
    got: Got,
    *,
    connections: int = 4,
    window: int = 32,
    waits: bool = True,
) -> None:
    """Sends requests in a circle, as fast as they are answered: `window` of them at a time on each connection. `waits`
    False: without waiting for the answers, until the server stops reading."""
    frames = [encode(command) for command in requests]

    async def one(number: int) -> None:
        while True:
            with contextlib.suppress(OSError, EOFError):
                async with link(target, port) as (reader, writer):
                    await _pump(frames, number, reader, writer, window, got, waits=waits)
            got["connections closed by the server"] += 1
            await asyncio.sleep(0.05)

    await at_once(connections, one)


async def _pump(
    frames: Sequence[bytes],
    first: int,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    window: int,
    got: Got,
    *,
    waits: bool,
) -> None:
    at = first * (len(frames) // 7 + 1)
    for _ in range(window):
        writer.write(frames[at % len(frames)])
        at += 1
    while True:
        if waits:
            size, mark = _HEAD.unpack(await reader.readexactly(8))
            rest = await reader.readexactly(size - 4)
            header_bytes = mark & 0xFFFFFF
            got[f"code {decode(mark >> 24, rest[:header_bytes], b'').code}"] += 1
        else:
            await writer.drain()
            got["requests"] += 1
        writer.write(frames[at % len(frames)])
        at += 1


def request(
    code: int, ext: dict[str, str], body: bytes = b"", *, target: Target | None = None, opaque: int = 1
) -> Command:
    """A request, signed with the account of `target` if that is given."""
    command = Command(code, opaque, ext=ext, body=body, header_type=HeaderType.JSON)
    if target is not None and target.account:
        sign(command, *target.account)
    return command


def pull(topic: str, offset: int, **changed: str) -> Command:
    """A pull of queue 0."""
    return request(RequestCode.PULL_MESSAGE, pull_fields("abuser", topic, offset) | changed)


async def _main(abuse: Abuse, target: Target) -> Got:
    got = Got()
    running = asyncio.get_running_loop().create_task(abuse(target, got))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    await asyncio.sleep(0.3)
    print("ready", flush=True)
    with contextlib.suppress(asyncio.CancelledError):
        await running
    return got


def main(arguments: Sequence[str]) -> int:
    from attacks.abuse_list import ABUSES

    name, text = arguments
    os.nice(_LOWEST_PRIORITY)  # as if it ran on another machine: it takes what the server and its clients leave
    print(json.dumps(asyncio.run(_main(ABUSES[name].run, Target.parse(text)))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
