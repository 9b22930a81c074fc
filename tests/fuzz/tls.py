"""The target `tls`: what a peer sends to a port that serves connections with TLS, from the first byte on.

The first byte of an input selects the kind of peer and the mode of the port:

    a stranger   the rest is what it sends, in pieces whose size is the second byte
    a client     makes a real handshake. Each pair of bytes says what happens next: it sends, its next bytes are changed
                 or cut, foreign bytes come in between, the server sends, pauses, or the client ends the connection

A stranger's bytes reach the protocol only if they are not TLS and the port allows that; nobody gets through a handshake
without the secrets of that handshake. Of a client's bytes, a prefix arrives, and all of them if nothing was changed.
When the connection is lost, nothing is kept for it.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import ssl
import time
from collections.abc import Iterator
from typing import Any

from tallystick.node.tls.certificate import ServerCertificate
from tallystick.node.tls.first_byte import PortTls
from tallystick.node.tls.handshakes import Handshakes
from tallystick.node.tls.settings import TlsMode, TlsSettings
from tallystick.store.limited_log import LimitedLog

_MODES = (TlsMode.permissive, TlsMode.enforcing, TlsMode.disabled)
_HANDSHAKE_RECORD = 0x16
_MOST_STEPS = 64
_LOG = LimitedLog(logging.getLogger("fuzz.tls"), time.monotonic)


class _Socket(asyncio.Transport):
    """The transport of an accepted connection: it keeps what the server sends."""

    def __init__(self) -> None:
        super().__init__({"peername": ("10.0.0.2", 50_000)})
        self.protocol: Any = None
        self.sent = bytearray()
        self.first: int | None = None
        """The first byte that the peer sent."""
        self.closing = False
        self.paused = False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def write(self, data: Any) -> None:
        if not self.closing:
            self.sent += data

    def get_write_buffer_size(self) -> int:
        return len(self.sent)

    def is_closing(self) -> bool:
        return self.closing

    def is_reading(self) -> bool:
        return not self.paused

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def close(self) -> None:
        self.closing = True

    abort = close

    def receive(self, data: bytes) -> None:
        """Bytes of the peer arrive."""
        if data and not self.closing:
            self.first = data[0] if self.first is None else self.first
            self.protocol.data_received(data)


class _Service(asyncio.Protocol):
    """The protocol that is served: it keeps what arrives."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.transport: Any = None
        self.lost = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def encrypted(self, transport: asyncio.Transport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        assert data, "an empty chunk"
        self.received += data

    def connection_lost(self, error: Exception | None) -> None:
        self.lost += 1


class _Accepted:
    """An accepted connection, as an event loop drives it."""

    def __init__(self, mode: TlsMode) -> None:
        self.handshakes = Handshakes(most=4, most_of_address=4, timeout_s=60.0)
        self.service, self.socket = _Service(), _Socket()
        port = PortTls(mode, _certificate(), self.handshakes, _LOG)
        self.socket.protocol = port.guard(self.service)
        self.socket.protocol.connection_made(self.socket)

    async def settle(self) -> None:
        """Lets handshakes have their turns, and gathered bytes be sent."""
        await asyncio.sleep(0)
        while self.handshakes.waiting:  # noqa: ASYNC110 -- a step in another thread sets no event
            await asyncio.sleep(0)
        await asyncio.sleep(0)

    def lose(self) -> None:
        """The socket is closed."""
        self.socket.closing = True
        self.socket.protocol.connection_lost(None)
        assert self.service.lost == 1, "connection_lost is called once"
        assert not len(self.handshakes), "a handshake of a lost connection is kept"


@functools.cache
def _certificate() -> ServerCertificate:
    """One for all inputs. TlsError: it cannot be made."""
    certificate = ServerCertificate(TlsSettings())
    certificate.context()
    return certificate


@functools.cache
def _client_context(is_1_2: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if is_1_2:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def tls(data: bytes) -> None:
    """See above."""
    if len(data) < 2:
        return
    mode = _MODES[(data[0] >> 2) % len(_MODES)]
    if data[0] & 1:
        _loop().run_until_complete(_client(mode, is_1_2=bool(data[0] & 2), steps=data[1:]))
    else:
        _loop().run_until_complete(_stranger(mode, 1 + data[1], data[2:]))


async def _stranger(mode: TlsMode, size: int, data: bytes) -> None:
    accepted = _Accepted(mode)
    for at in range(0, len(data), size):
        accepted.socket.receive(data[at : at + size])
        await accepted.settle()
    is_plain = bool(data) and data[0] != _HANDSHAKE_RECORD and mode is not TlsMode.enforcing
    assert accepted.service.received == (data if is_plain else b"")
    accepted.lose()


class _Client:
    """A client with real TLS, in memory."""

    def __init__(self, *, is_1_2: bool) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = _client_context(is_1_2).wrap_bio(self._incoming, self._outgoing)
        self.wrote = bytearray()
        self.is_open = self.is_over = False

    def go_on(self, received: bytes) -> None:
        """Reads what the server sent, and continues the handshake."""
        self._incoming.write(received)
        try:
            if not self.is_open:
                self._ssl.do_handshake()
                self.is_open = True
            while self._ssl.read(1 << 14):
                pass
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            self.is_over = True

    def write(self, count: int) -> None:
        if self.is_open and not self.is_over:
            plain = bytes((len(self.wrote) + number) & 0xFF for number in range(count))
            self._ssl.write(plain)
            self.wrote += plain

    def leave(self) -> None:
        """Says that it sends no more (close_notify)."""
        if self.is_open and not self.is_over:
            self.is_over = True
            try:
                self._ssl.unwrap()
            except ssl.SSLError:
                pass  # the server's own is not awaited

    def to_send(self) -> bytes:
        return self._outgoing.read()


async def _client(mode: TlsMode, *, is_1_2: bool, steps: bytes) -> None:
    accepted, client = _Accepted(mode), _Client(is_1_2=is_1_2)
    is_changed = False
    client.go_on(b"")
    for kind, value in _pairs(steps):
        data = client.to_send()
        match kind % 8:
            case 0 | 1:
                client.write(1 + value * (kind >> 3))
                data += client.to_send()
            case 2 if data:
                at = value * len(data) >> 8
                data, is_changed = data[:at] + bytes([data[at] ^ (1 << (kind >> 5))]) + data[at + 1 :], True
            case 3 if data:
                data, is_changed = data[: value * len(data) >> 8], True
            case 4:
                data, is_changed = bytes([0x14 + (kind >> 3) % 4, 3, 3, 0, value]) + bytes(value) + data, True
            case 5:
                accepted.service.transport.write(bytes(1 + value * 16))
            case 6:
                transport = accepted.service.transport
                (transport.pause_reading if value & 1 else transport.resume_reading)()
            case 7 if value < 16:
                client.leave()
                data += client.to_send()
        half = len(data) * value >> 8
        for piece in (data[:half], data[half:]):
            accepted.socket.receive(piece)
            await accepted.settle()
        received, accepted.socket.sent = bytes(accepted.socket.sent), bytearray()
        client.go_on(received)
    if not accepted.socket.closing:
        accepted.service.transport.resume_reading()
        await accepted.settle()
        accepted.socket.receive(client.to_send())
        await accepted.settle()
    if accepted.socket.first not in (None, _HANDSHAKE_RECORD):
        return accepted.lose()  # foreign bytes came first: it is a connection without TLS
    received_all = client.wrote == accepted.service.received
    assert client.wrote.startswith(accepted.service.received), "bytes that the client did not send"
    assert received_all or is_changed or accepted.socket.closing, "bytes of the client are missing"
    assert not accepted.socket.closing or is_changed or client.is_over or mode is TlsMode.disabled, (
        "closed for no reason"
    )
    accepted.lose()


def _pairs(data: bytes) -> Iterator[tuple[int, int]]:
    """What happens after the handshake's own bytes were exchanged, at most `_MOST_STEPS` times."""
    return zip(data[: 2 * _MOST_STEPS : 2], data[1 : 2 * _MOST_STEPS : 2], strict=False)
