"""Decides by the first byte of an accepted connection whether its peer speaks TLS, and what becomes of it.

A TLS connection begins with a record of the handshake, type 22. No frame of RocketMQ and no HTTP request begins so.
After the first byte this protocol is out of the way: the one that serves gets its data from the socket's transport, or
from a `TlsLayer`.
"""

from __future__ import annotations

import asyncio
from typing import cast

from tallystick.node.tls.certificate import ServerCertificate
from tallystick.node.tls.handshakes import Handshakes
from tallystick.node.tls.layer import Encryptable, TlsLayer
from tallystick.node.tls.settings import TlsMode
from tallystick.replication.transport.certificates import TlsError
from tallystick.store.limited_log import LimitedLog

_HANDSHAKE_RECORD = 0x16


class PortTls:
    """TLS of one port: what it accepts, and what it needs for that."""

    def __init__(self, mode: TlsMode, certificate: ServerCertificate, handshakes: Handshakes, log: LimitedLog) -> None:
        self.mode = mode
        self.log = log
        self._certificate = certificate
        self._handshakes = handshakes

    def guard(self, inner: Encryptable) -> asyncio.Protocol:
        """The protocol of a new connection that `inner` serves."""
        return FirstByte(self, inner)

    def layer(self, raw: asyncio.Transport, inner: Encryptable) -> TlsLayer:
        """TLS for a connection. TlsError: there is no certificate."""
        return TlsLayer(raw, inner, self._certificate.context(), self._handshakes, self.log)


class FirstByte(asyncio.Protocol):
    """One connection until its first byte."""

    def __init__(self, port: PortTls, inner: Encryptable) -> None:
        self._port = port
        self._inner = inner
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called when the connection is open."""
        self._transport = cast(asyncio.Transport, transport)
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Called with the first bytes."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if data[0] == _HANDSHAKE_RECORD:
            self._begin_tls(transport, data)
        elif self._port.mode is TlsMode.enforcing:
            self._refuse(transport, "plain", "does not use TLS, which is required")
        else:
            transport.set_protocol(cast(asyncio.Protocol, self._inner))
            self._inner.data_received(data)

    def _begin_tls(self, transport: asyncio.Transport, data: bytes) -> None:
        if self._port.mode is TlsMode.disabled:
            self._refuse(transport, "tls", "uses TLS, which is disabled (tls.server.mode)")
            return
        try:
            layer = self._port.layer(transport, self._inner)
        except TlsError as error:
            self._refuse(transport, "tls", f"uses TLS, which cannot be served: {error}")
            return
        transport.set_protocol(layer)
        self._inner.encrypted(layer)
        layer.data_received(data)

    def _refuse(self, transport: asyncio.Transport, kind: str, reason: str) -> None:
        peer = transport.get_extra_info("peername")
        name = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "a peer"
        self._port.log.warning(kind, "%s %s: connection closed", name, reason)
        transport.abort()

    def eof_received(self) -> bool | None:
        """Called when the peer sends no more."""
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        """Called when the peer reads too slowly."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Called when the peer has read."""
        self._inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        """Called when the connection is closed."""
        self._inner.connection_lost(error)
