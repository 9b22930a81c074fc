"""TLS between members: contexts from three files that can change at any time, and the check of a peer's certificate.

Both sides present a certificate and verify the other's. Only TLS 1.3 is allowed, because both sides are tallystick.
Host names are not compared, because a member's identity does not depend on its address: `peer_name` compares the
member's own name instead.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Any

from tallystick.replication.transport.certificates import (
    Presented,
    ReloadedFiles,
    certificate_names,
    described,
    load_authorities,
    load_chain,
)
from tallystick.replication.transport.handshake import Identity
from tallystick.replication.transport.settings import TlsSettings
from tallystick.store.limited_log import LimitedLog


class TlsFiles:
    """The contexts for new handshakes. Raises TlsError if the files cannot be used (only on construction)."""

    def __init__(self, settings: TlsSettings, log: LimitedLog) -> None:
        self._settings = settings
        self._files = ReloadedFiles((settings.ca, settings.certificate, settings.key), self._load, log)

    @property
    def loads(self) -> int:
        """How often the files were loaded successfully."""
        return self._files.loads

    @property
    def last_error(self) -> str:
        """Why the present files are not in use; empty if they are."""
        return self._files.last_error

    @property
    def calls_plain(self) -> bool:
        """Whether connections to other members are made without TLS."""
        return self._settings.calls_plain

    @property
    def accepts_plain(self) -> bool:
        """Whether connections without TLS are accepted too."""
        return self._settings.accepts_plain

    def client(self) -> ssl.SSLContext | None:
        """For an outgoing connection; None: it does not use TLS."""
        self._files.refresh()
        if self.calls_plain:
            return None
        return self._files.loaded[0]

    def server(self) -> ssl.SSLContext:
        """For an incoming connection."""
        self._files.refresh()
        return self._files.loaded[1]

    async def watch(self) -> None:
        """Checks the files regularly, so that invalid ones are reported before they are needed."""
        while True:
            await asyncio.sleep(self._settings.check_interval_ms / 1000)
            self._files.refresh()

    def to_json(self) -> dict[str, Any]:
        """What is in use: see `described`."""
        _, server, presented = self._files.loaded
        return described(presented, server) | {"problem": self.last_error}

    def stranger(self, certificate: Mapping[str, Any] | None, peer: Identity) -> str | None:
        """Why this certificate (as `SSLObject.getpeercert` returns it) is not valid for `peer`; None if it is."""
        if self._settings.peer_name is None:
            return None
        wanted = self._settings.peer_name.format(cluster=peer.cluster, group=peer.group, member=peer.member)
        names = certificate_names(certificate or {})
        if wanted.casefold() in (name.casefold() for name in names):
            return None
        return f"its certificate is for {', '.join(map(repr, names)) or 'no name'}, not for {wanted!r}"

    def _load(self) -> tuple[ssl.SSLContext, ssl.SSLContext, Presented]:
        settings = self._settings
        presented = Presented.read(settings.certificate)
        contexts = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        for context in contexts:
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.check_hostname = False
            context.verify_mode = ssl.CERT_REQUIRED
            load_authorities(context, settings.ca)
            load_chain(context, settings.certificate, settings.key)
        return *contexts, presented
