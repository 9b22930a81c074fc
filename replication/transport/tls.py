"""TLS between members: contexts from three files that can change at any time, and the check of a peer's certificate.

Both sides present a certificate and verify the other's. Only TLS 1.3 is allowed, because both sides are tallystick.
Host names are not compared, because a member's identity does not depend on its address: `peer_name` compares the
member's own name instead.

`stat` of the files, with links followed, shows a change: Kubernetes puts a new version into a new folder and replaces a
link to it. If certificate and key are replaced one after the other, they do not match in between; the old pair then
stays in use, and the next check finds the second change. The content of a file is never logged.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tallystick.replication.transport.handshake import Identity
from tallystick.replication.transport.settings import TlsSettings
from tallystick.store.limited_log import LimitedLog


class TlsError(Exception):
    """The files cannot be used; the message names the file and the reason."""


class TlsFiles:
    """The contexts for new handshakes. Raises TlsError if the files cannot be used (only on construction)."""

    def __init__(self, settings: TlsSettings, log: LimitedLog) -> None:
        self._settings = settings
        self._log = log
        self.loads = 0
        """How often the files were loaded successfully."""
        self.last_error = ""
        """Why the present files are not in use; empty if they are."""
        self._stamp = self._look()
        self._client, self._server = self._load()
        self.loads = 1

    def client(self) -> ssl.SSLContext:
        """For an outgoing connection."""
        self.refresh()
        return self._client

    def server(self) -> ssl.SSLContext:
        """For an incoming connection."""
        self.refresh()
        return self._server

    def refresh(self) -> None:
        """Loads changed files; if they cannot be used, logs that and keeps the previous ones."""
        stamp = self._look()
        if stamp == self._stamp:
            return
        self._stamp = stamp  # taken before the read: a change during the read is detected later
        try:
            self._client, self._server = self._load()
        except TlsError as error:
            self.last_error = str(error)
            self._log.warning("tls files", "new TLS files are not used, the old ones stay in use: %s", str(error))
        else:
            self.loads += 1
            self.last_error = ""

    async def watch(self) -> None:
        """Checks the files regularly, so that invalid ones are reported before they are needed."""
        while True:
            await asyncio.sleep(self._settings.check_interval_ms / 1000)
            self.refresh()

    def stranger(self, certificate: Mapping[str, Any] | None, peer: Identity) -> str | None:
        """Why this certificate (as `SSLObject.getpeercert` returns it) is not valid for `peer`; None if it is."""
        if self._settings.peer_name is None:
            return None
        wanted = self._settings.peer_name.format(cluster=peer.cluster, group=peer.group, member=peer.member)
        names = certificate_names(certificate or {})
        if wanted.casefold() in (name.casefold() for name in names):
            return None
        return f"its certificate is for {', '.join(map(repr, names)) or 'no name'}, not for {wanted!r}"

    def _look(self) -> tuple[tuple[int, ...] | None, ...]:
        return tuple(_stat(path) for path in (self._settings.ca, self._settings.certificate, self._settings.key))

    def _load(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        settings = self._settings
        contexts = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        for context in contexts:
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.check_hostname = False
            context.verify_mode = ssl.CERT_REQUIRED
            try:
                context.load_verify_locations(settings.ca)
            except (OSError, ValueError) as error:
                raise TlsError(f"{settings.ca}: {_words(error)}") from None
            try:
                # Without a password, OpenSSL would ask for one at the terminal.
                context.load_cert_chain(settings.certificate, settings.key, password=lambda: "")
            except (OSError, ValueError) as error:
                raise TlsError(f"{settings.certificate} with {settings.key}: {_words(error)}") from None
        return contexts


def certificate_names(certificate: Mapping[str, Any]) -> list[str]:
    """DNS names and URIs of a certificate; its common name only if it has none of these (RFC 6125, section 6.4.4)."""
    names = [str(value) for kind, value in certificate.get("subjectAltName", ()) if kind in ("DNS", "URI")]
    if names:
        return names
    parts = (part for relative in certificate.get("subject", ()) for part in relative)
    return [str(value) for key, value in parts if key == "commonName"]


def _stat(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:  # between two versions there may be no file; loading reports it
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _words(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "not a PEM file of that kind"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error)
