"""TLS of a whole process: one certificate and one set of limits for all its ports, and one for its own connections."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tallystick.node.tls.certificate import ClientCertificate, ServerCertificate
from tallystick.node.tls.first_byte import PortTls
from tallystick.node.tls.handshakes import Handshakes
from tallystick.node.tls.settings import TlsMode, TlsSettings
from tallystick.store.limited_log import LimitedLog

_LOOK_S = 1.0


class ProcessTls:
    """What the ports and the clients of a process share."""

    def __init__(self, settings: TlsSettings) -> None:
        """SettingsError: the files cannot be used."""
        self.settings = settings
        self.certificate = ServerCertificate(settings)
        self.handshakes = Handshakes(
            most=settings.server_maxHandshakes,
            most_of_address=settings.server_maxHandshakesPerAddress,
            timeout_s=settings.server_handshakeTimeoutMillis / 1000,
        )
        self._client = ClientCertificate(settings) if settings.is_client_enabled else None

    def port(self, log: LimitedLog, mode: TlsMode | None = None) -> PortTls:
        """TLS of one port. `mode`: `tls.server.mode`, if None."""
        return PortTls(mode or self.settings.server_mode, self.certificate, self.handshakes, log)

    @property
    def is_client_enabled(self) -> bool:
        """Whether own connections use TLS."""
        return self._client is not None

    def client_context(self) -> ssl.SSLContext | None:
        """For a new connection to another server; None: it does not use TLS."""
        return None if self._client is None else self._client.context()

    def to_json(self) -> dict[str, Any]:
        """For `GET /node`: the certificates in use. An operator compares their fingerprints with those of the files."""
        return {
            "mode": self.settings.server_mode.name,
            "server": self.certificate.to_json(),
            "client": None if self._client is None else self._client.to_json(),
        }

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Within this context, changed files are used."""
        task = asyncio.get_running_loop().create_task(self._watch(), name="watch-tls")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            self.certificate.refresh()
            if self._client is not None:
                self._client.refresh()
