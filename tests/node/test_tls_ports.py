"""The remoting ports with TLS, on real sockets and both event loops: what the first byte decides, and what a peer can
and cannot do then."""

import asyncio
import logging
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop
from tls_lab import ECHO, LARGE, Authority, EchoServer, Peer, trusting

from tallystick.node.remoting.client import RemotingClient, RemotingConnectError
from tallystick.node.remoting.codec import decode, encode
from tallystick.node.remoting.command import Command
from tallystick.node.remoting.frames import FrameSplitter
from tallystick.node.tls.layer import TlsLayer
from tallystick.node.tls.settings import ClientAuth, TlsMode, TlsSettings

# Newer versions of the plugin have a hook for this, older ones do not.
pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy.:pytest.PytestDeprecationWarning")


@pytest.fixture(params=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    return uvloop.EventLoopPolicy() if request.param == "uvloop" else asyncio.DefaultEventLoopPolicy()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


async def ask(server: EchoServer, context: ssl.SSLContext | None, body: bytes = b"hello") -> bytes:
    client = RemotingClient(tls=lambda: context)
    try:
        return (await client.call(server.address, Command(ECHO, body=body), 10.0)).body
    finally:
        await client.close()


async def closed(reader: asyncio.StreamReader) -> bool:
    """Whether the server closes the connection: within ten seconds, whatever it still sends."""
    try:
        async with asyncio.timeout(10):
            while await reader.read(1 << 16):
                pass
    except ConnectionResetError:
        pass
    return True


@pytest.mark.parametrize("mode", list(TlsMode))
async def test_the_mode_decides_who_is_served(
    authority: Authority, mode: TlsMode, caplog: pytest.LogCaptureFixture
) -> None:
    async with EchoServer(authority.server(server_mode=mode)) as server:
        for context, is_refused in ((None, mode is TlsMode.enforcing), (authority.client(), mode is TlsMode.disabled)):
            if is_refused:
                for _ in range(5):
                    with pytest.raises(RemotingConnectError):
                        await ask(server, context)
            else:
                assert await ask(server, context) == b"hello"
    lines = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    expected = {TlsMode.disabled: "uses TLS, which is disabled", TlsMode.enforcing: "does not use TLS"}
    assert len(lines) == (mode in expected), "one line for all of them"
    assert mode not in expected or expected[mode] in lines[0]


async def test_a_process_without_files_makes_a_certificate(authority: Authority) -> None:
    async with EchoServer(TlsSettings()) as server:
        assert await ask(server, trusting()) == b"hello"
        with pytest.raises(RemotingConnectError, match="certificate is not accepted"):
            await ask(server, authority.client())


async def test_a_certificate_for_another_host_is_not_accepted(authority: Authority) -> None:
    certificate, key = authority.issue("elsewhere", "10.9.9.9")
    async with EchoServer(TlsSettings(server_certPath=str(certificate), server_keyPath=str(key))) as server:
        with pytest.raises(RemotingConnectError, match=r"127\.0\.0\.1"):
            await ask(server, authority.client())


@pytest.mark.parametrize("version", ["TLSv1", "TLSv1_1", "TLSv1_2", "TLSv1_3"])
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
async def test_versions_from_1_2_on_are_served(authority: Authority, version: str) -> None:
    context = authority.client()
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    context.maximum_version = ssl.TLSVersion[version]
    async with EchoServer(authority.server()) as server:
        if version in ("TLSv1_2", "TLSv1_3"):
            assert await ask(server, context) == b"hello"
            _, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
            name, _, bits = writer.get_extra_info("cipher")
            assert ("GCM" in name or "CHACHA20" in name) and bits >= 128
            writer.close()
        else:
            with pytest.raises(RemotingConnectError):
                await ask(server, context)


async def test_large_bodies_pass_in_both_directions(authority: Authority) -> None:
    body = random.Random(7).randbytes(5 << 20)
    async with EchoServer(authority.server()) as server:
        assert await ask(server, authority.client(), body) == body


async def test_pipelined_requests_are_answered_in_order(authority: Authority) -> None:
    async with EchoServer(authority.server()) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=authority.client())
        frames = [encode(Command(ECHO, opaque=number, body=b"%d" % number)) for number in range(2000)]
        writer.write(b"".join(frames))
        splitter, answers = FrameSplitter(), list[Command]()
        async with asyncio.timeout(20):
            while len(answers) < 2000:
                answers += [decode(*frame) for frame in splitter.feed(await reader.read(1 << 16))]
        assert [answer.opaque for answer in answers] == list(range(2000))
        writer.close()


@pytest.fixture
async def raw(authority: Authority) -> AsyncIterator[tuple[EchoServer, Callable[[], Awaitable["Raw"]]]]:
    made: list[Raw] = []
    async with EchoServer(authority.server()) as server:

        async def connect() -> Raw:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            made.append(Raw(reader, writer))
            return made[-1]

        yield server, connect
        for each in made:
            each.writer.close()


class Raw:
    """A connection whose bytes the test makes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.peer = Peer()

    async def shake_hands(self, step: int | None = None) -> None:
        """The whole handshake; `step`: sends so many bytes at a time."""
        data = self.peer.take()
        async with asyncio.timeout(10):
            while self.peer.tls.version() is None or data:
                for at in range(0, len(data), step or len(data)):
                    self.writer.write(data[at : at + (step or len(data))])
                    await self.writer.drain()
                    await asyncio.sleep(0)
                if self.peer.tls.version() is not None and self._is_done():
                    return
                data = self.peer.take(await self.reader.read(1 << 16))

    def _is_done(self) -> bool:
        try:
            self.peer.tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def end(self) -> None:
        """Sends no more, if the server has not closed the connection."""
        with suppress(OSError, RuntimeError):
            self.writer.write_eof()

    async def ask(self, body: bytes, step: int | None = None) -> bytes:
        data = self.peer.encrypt(encode(Command(ECHO, body=body)))
        for at in range(0, len(data), step or len(data)):
            self.writer.write(data[at : at + (step or len(data))])
            await self.writer.drain()
            await asyncio.sleep(0)
        splitter = FrameSplitter()
        async with asyncio.timeout(10):
            while not (frames := splitter.feed(self.peer.decrypt(await self.reader.read(1 << 16)))):
                pass
        return decode(*frames[0]).body


Raws = tuple[EchoServer, Callable[[], Awaitable[Raw]]]


async def test_a_handshake_and_a_request_byte_by_byte(raw: Raws) -> None:
    _, connect = raw
    peer = await connect()
    await peer.shake_hands(step=1)
    assert await peer.ask(b"slowly", step=1) == b"slowly"


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16",
        b"\x16\x03\x01\xff\xff",
        b"\x16\x03\x01\x40\x00\x01\xff\xff\xff" + bytes(20_000),
        b"\x16\x03\x01\x00\x04\x01\xff\xff\xff" + bytes(200_000),
        b"\x16\x03\x00\x00\x02\x01\x00" * 10_000,
        b"\x16GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["one byte", "a record too long", "a message too long", "a long message", "short records", "HTTP"],
)
async def test_no_handshake(raw: Raws, garbage: bytes) -> None:
    server, connect = raw
    peer = await connect()
    peer.writer.write(garbage)
    peer.end()
    assert await closed(peer.reader)
    assert await ask(server, trusting()) == b"hello"


async def test_a_handshake_that_does_not_end_is_bounded(raw: Raws, caplog: pytest.LogCaptureFixture) -> None:
    """It announces the longest message that OpenSSL accepts, and waits behind the last byte but one."""
    _, connect = raw
    peer = await connect()
    message = b"\x01" + (131_396).to_bytes(3, "big") + bytes(131_395)
    pieces = [message[at : at + 16_000] for at in range(0, len(message), 16_000)]
    peer.writer.write(b"".join(b"\x16\x03\x01" + len(piece).to_bytes(2, "big") + piece for piece in pieces))
    assert await closed(peer.reader)
    assert "a handshake of more than 131072 bytes" in caplog.text


async def test_a_record_that_was_changed_ends_the_connection(raw: Raws, caplog: pytest.LogCaptureFixture) -> None:
    server, connect = raw
    peer = await connect()
    await peer.shake_hands()
    assert await peer.ask(b"sound") == b"sound"
    data = bytearray(peer.peer.encrypt(encode(Command(ECHO, body=b"changed"))))
    data[-1] ^= 1
    peer.writer.write(bytes(data))
    assert await closed(peer.reader)
    assert "decryption failed or bad record mac" in caplog.text
    assert len(server.connections) == 1, "the changed request was not served"


async def test_what_follows_the_end_is_ignored(raw: Raws) -> None:
    server, connect = raw
    peer = await connect()
    await peer.shake_hands()
    late = peer.peer.encrypt(encode(Command(ECHO, body=b"before")))
    peer.writer.write(late + peer.peer.end() + bytes(100_000))
    assert await closed(peer.reader)
    assert len(server.connections) == 1


async def test_neither_renegotiation_nor_compression(authority: Authority) -> None:
    async with EchoServer(authority.server()) as server:
        options = server.tls.certificate.context().options
        assert options & ssl.OP_NO_RENEGOTIATION and options & ssl.OP_NO_COMPRESSION
        assert server.tls.certificate.context().minimum_version is ssl.TLSVersion.TLSv1_2


async def test_a_peer_that_does_not_read_stops_being_read(authority: Authority) -> None:
    async with EchoServer(authority.server()) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=authority.client(), limit=1 << 16)
        request = encode(Command(LARGE, body=b"1000000"))
        for _ in range(60):
            writer.write(request)
        await asyncio.sleep(0)
        async with asyncio.timeout(10):
            while not any(each._write_paused for each in server.server.connections):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        (connection,) = server.server.connections
        assert connection._transport is not None
        assert connection._transport.get_write_buffer_size() < 4 << 20
        assert isinstance(connection._transport, TlsLayer)
        writer.write(encode(Command(ECHO, body=bytes(8 << 20))))
        for _ in range(100):
            await asyncio.sleep(0.001)
            assert connection._transport._incoming.pending < 1 << 20
        splitter, count = FrameSplitter(), 0
        async with asyncio.timeout(30):
            while count < 61:
                count += len(splitter.feed(await reader.read(1 << 20)))
        writer.close()


async def test_a_peer_that_does_not_read_own_answers_of_tls_is_cut(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers to updates of keys, and alerts. OpenSSL's client does not send so many updates: the test writes answers
    in place of OpenSSL's server."""
    async with EchoServer(authority.server()) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=authority.client())
        writer.write(encode(Command(ECHO, body=b"hello")))
        await reader.read(1)
        (connection,) = server.server.connections
        layer = connection._transport
        assert isinstance(layer, TlsLayer)
        monkeypatch.setattr(layer, "_raw", NeverRead(layer._raw))
        for _ in range(25):
            layer._outgoing.write(bytes(10_000))
            layer._send_own()
        assert not connection.closed and not layer.is_closing()
        for _ in range(3):
            layer._outgoing.write(bytes(10_000))
            layer._send_own()
        assert layer.is_closing()
        writer.transport.abort()


class NeverRead:
    """The transport of a socket whose peer reads nothing."""

    def __init__(self, real: asyncio.Transport) -> None:
        self._real = real
        self._unsent = 0

    def write(self, data: bytes) -> None:
        self._unsent += len(data)

    def get_write_buffer_size(self) -> int:
        return self._unsent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


async def test_a_handshake_has_a_time_limit(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    async with EchoServer(authority.server(server_handshakeTimeoutMillis=100)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(Peer().take())
        assert await closed(reader)
        assert server.tls.handshakes.failed == 1
        writer.close()
    assert "the handshake was not complete after 0.1 s" in caplog.text


async def test_unfinished_handshakes_of_one_address_are_bounded(authority: Authority) -> None:
    settings = authority.server(server_maxHandshakesPerAddress=10)
    async with EchoServer(settings) as server:
        hello = Peer().take()
        writers = []
        for _ in range(60):
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(hello)
            writers.append(writer)
        async with asyncio.timeout(10):
            while server.tls.handshakes.failed < 50:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert len(server.tls.handshakes) == 10
        assert await ask(server, authority.client()) == b"hello"
        for writer in writers:
            writer.close()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("auth", [ClientAuth.optional, ClientAuth.require])
async def test_certificates_of_clients(
    authority: Authority, tmp_path: Path, auth: ClientAuth, version: ssl.TLSVersion
) -> None:
    authority.issue("client", "orders.shop")
    stranger = Authority(tmp_path)
    stranger.issue("client", "orders.shop")
    settings = authority.server(server_need_client_auth=auth, server_trustCertPath=str(authority.path))

    def client(folder: Authority | None) -> ssl.SSLContext:
        context = authority.client()
        context.maximum_version = version
        if folder is not None:
            context.load_cert_chain(folder.folder / "client.pem", folder.folder / "client.key")
        return context

    async with EchoServer(settings) as server:
        assert await ask(server, client(authority)) == b"hello"
        with pytest.raises(RemotingConnectError):
            await ask(server, client(stranger))
        if auth is ClientAuth.optional:
            assert await ask(server, client(None)) == b"hello"
        else:
            with pytest.raises(RemotingConnectError):
                await ask(server, client(None))


async def test_a_changed_certificate_is_used_and_a_broken_one_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "new").mkdir()
    old, new = Authority(tmp_path), Authority(tmp_path / "new")
    async with EchoServer(old.server()) as server:
        assert await ask(server, old.client()) == b"hello"
        (tmp_path / "server.pem").write_text("not a certificate")
        server.tls.certificate.refresh()
        assert server.tls.certificate.problem and "new TLS files are not used" in caplog.text
        assert await ask(server, old.client()) == b"hello"
        certificate, key = new.issue("server", "127.0.0.1")
        certificate.replace(tmp_path / "server.pem")
        key.replace(tmp_path / "server.key")
        server.tls.certificate.refresh()
        assert not server.tls.certificate.problem
        assert await ask(server, new.client()) == b"hello"
        with pytest.raises(RemotingConnectError, match="not accepted"):
            await ask(server, old.client())


@pytest.mark.parametrize("seed", range(20))
async def test_random_first_bytes(raw: Raws, seed: int) -> None:
    """Parts of a handshake, cut, repeated, changed, mixed with other bytes: the connection ends, others are served."""
    dice = random.Random(seed)
    server, connect = raw
    peer = await connect()
    hello = bytearray(peer.peer.take())
    for _ in range(dice.randrange(4)):
        at = dice.randrange(1, len(hello))
        match dice.randrange(4):
            case 0:
                hello[at] ^= 1 << dice.randrange(8)
            case 1:
                del hello[at : at + dice.randrange(64)]
            case 2:
                hello[at:at] = dice.randbytes(dice.randrange(64))
            case _:
                hello[at:at] = hello[: dice.randrange(len(hello))]
    data = bytes(hello) if dice.random() < 0.7 else dice.randbytes(dice.randrange(1, 400))
    at = 0
    while at < len(data):
        size = dice.randrange(1, 200)
        with suppress(OSError, RuntimeError):  # it is closed
            peer.writer.write(data[at : at + size])
        at += size
        await asyncio.sleep(0)
    peer.end()
    assert await closed(peer.reader)
    assert await ask(server, trusting()) == b"hello"
