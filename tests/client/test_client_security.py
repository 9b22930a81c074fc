"""Signatures and TLS of the client."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trustme

from tallystick.client import Acl, Client, ConnectionFailed
from tallystick.client.wire.codec import decode, encode
from tallystick.client.wire.command import Command
from tallystick.client.wire.frames import FrameSplitter
from tallystick.client.wire.signatures import is_signed


@asynccontextmanager
async def server(tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[str, list[Command]]]:
    """Answers each request with success, and notes it."""
    requests: list[Command] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameSplitter()
        while data := await reader.read(65536):
            for frame in frames.feed(data):
                requests.append(decode(*frame))
                writer.write(encode(requests[-1].reply()))
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    async with listening:
        yield f"127.0.0.1:{listening.sockets[0].getsockname()[1]}", requests


@pytest.mark.parametrize("token", [None, "token"])
async def test_requests_are_signed(token: str | None) -> None:
    async with server() as (address, requests):
        async with Client(address, acl=Acl("key", "secret", token)) as client:
            await client.ask(address, 28, {"b": "2", "a": "1"}, b"body")
            await client.ask_nameserver(106)
        for request in requests:
            ext = request.ext or {}
            assert ext["AccessKey"] == "key" and ext.get("SecurityToken") == token
            assert is_signed("secret", ext, request.body)
            assert not is_signed("another", ext, request.body)
    assert "secret" not in repr(Acl("key", "secret", "token")) and "token" not in repr(Acl("key", "s", "a-token"))


async def test_requests_without_an_account_have_no_signature() -> None:
    async with server() as (address, requests), Client(address) as client:
        await client.ask(address, 28)
        assert requests[0].ext is None


async def test_tls_verifies_the_server() -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    async with server(context) as (address, requests):
        async with Client(address, tls=trusting) as client:
            await client.ask(address, 28)
        for tls in (True, ssl.create_default_context()):
            async with Client(address, tls=tls) as client:
                with pytest.raises(ConnectionFailed, match="certificate is not accepted"):
                    await client.ask(address, 28)
        assert len(requests) == 1
