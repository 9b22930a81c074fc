"""Certificates and servers with TLS for tests."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trustme

from tallystick.node.remoting.command import Command
from tallystick.node.remoting.endpoint import Handler, Limits
from tallystick.node.remoting.server import Connection, RemotingServer
from tallystick.node.tls.process import ProcessTls
from tallystick.node.tls.settings import TlsSettings

ECHO, LARGE = 1, 2


@dataclass
class Authority:
    """Makes certificates into a folder."""

    folder: Path
    ca: trustme.CA = field(default_factory=trustme.CA)

    def __post_init__(self) -> None:
        self.ca.cert_pem.write_to_path(self.path)

    @property
    def path(self) -> Path:
        """The certificate of the authority."""
        return self.folder / "ca.pem"

    def issue(self, name: str, *names: str, common_name: str | None = None) -> tuple[Path, Path]:
        """A certificate for these host names or addresses, and its key, as `name.pem` and `name.key`."""
        made = self.ca.issue_cert(*names, common_name=common_name)
        certificate, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        made.private_key_pem.write_to_path(key)
        certificate.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
        return certificate, key

    def server(self, **more: Any) -> TlsSettings:
        """Settings of a process with a certificate for 127.0.0.1."""
        certificate, key = self.issue("server", "127.0.0.1")
        return TlsSettings(server_certPath=str(certificate), server_keyPath=str(key), **more)

    def client(self, name: str | None = None) -> ssl.SSLContext:
        """The context of a client that verifies; `name`: with the certificate that `issue` made."""
        context = ssl.create_default_context(cafile=str(self.path))
        if name is not None:
            context.load_cert_chain(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        return context


def trusting() -> ssl.SSLContext:
    """The context of a client that accepts each certificate, as RocketMQ's clients do in their test mode."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class EchoServer:
    """A remoting server with TLS. `ECHO` answers with the body, `LARGE` with as many bytes as the body says."""

    def __init__(self, settings: TlsSettings, limits: Limits | None = None) -> None:
        settings.validate()
        self.tls = ProcessTls(settings)
        self.connections: list[Connection] = []

        def echo(connection: Connection, request: Command) -> Command:
            self.connections.append(connection)
            return request.reply(body=request.body)

        routes: Mapping[int, Handler] = {
            ECHO: echo,
            LARGE: lambda _, request: request.reply(body=bytes(int(request.body))),
        }
        self.server = RemotingServer(routes, name="test", limits=limits)
        self.port = 0

    @property
    def address(self) -> str:
        """For a client."""
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> EchoServer:
        self.port = await self.server.start("127.0.0.1", 0, self.tls)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.stop(0.2)
        assert not self.server.connections
        assert not len(self.tls.handshakes)


class Peer:
    """The TLS of a client in memory, so that a test decides which bytes are sent when."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = (context or trusting()).wrap_bio(self._incoming, self._outgoing, server_hostname="127.0.0.1")

    def take(self, data: bytes = b"") -> bytes:
        """The bytes to send after these were received, during the handshake."""
        self._incoming.write(data)
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            pass
        return self._outgoing.read()

    def encrypt(self, data: bytes) -> bytes:
        """A record, or several."""
        self.tls.write(data)
        return self._outgoing.read()

    def decrypt(self, data: bytes) -> bytes:
        """The plain bytes of these records."""
        self._incoming.write(data)
        found = b""
        try:
            while chunk := self.tls.read(1 << 20):
                found += chunk
        except ssl.SSLWantReadError:
            pass
        return found

    def end(self) -> bytes:
        """The record that ends the connection."""
        try:
            self.tls.unwrap()
        except ssl.SSLWantReadError:
            pass
        return self._outgoing.read()
