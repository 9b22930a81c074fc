"""The certificates of a process for its clients, and for its own connections; loaded again when their files change.

TLS 1.2 and newer, suites with forward secrecy and authenticated encryption, the server's preference, no renegotiation,
no compression.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tallystick.node.tls.self_signed import load_self_signed
from tallystick.node.tls.settings import ClientAuth, TlsMode, TlsSettings
from tallystick.replication.transport.certificates import (
    Loaded,
    Presented,
    ReloadedFiles,
    TlsError,
    described,
    load_authorities,
    load_chain,
)
from tallystick.store.clock import wall_ms
from tallystick.store.limited_log import LimitedLog
from tallystick.store.setting import SettingsError

_logger = logging.getLogger("tallystick.tls")

_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2. Those of TLS 1.3 are all good."""


class ServerCertificate:
    """What clients are shown, and how their own certificates are verified."""

    def __init__(self, settings: TlsSettings) -> None:
        """SettingsError: the files cannot be used."""
        self._settings = settings
        self._files: ReloadedFiles[tuple[ssl.SSLContext, Presented]] | None = None
        self._made: ssl.SSLContext | None = None
        self._problem = ""
        if settings.server_certPath and not settings.is_test_mode:
            self._files = _open("tls.server.certPath", self._paths(), self._load)
        if settings.server_mode is TlsMode.enforcing:
            self.require()

    def context(self) -> ssl.SSLContext:
        """For a new connection. TlsError: there is no certificate."""
        if self._files is not None:
            return self._files.loaded[0]
        if self._made is None:
            if not self._settings.is_test_mode:
                raise TlsError("no certificate is configured (tls.server.certPath)")
            self._make()
        assert self._made is not None
        return self._made

    def require(self) -> None:
        """A port accepts only TLS. SettingsError: there is no certificate."""
        try:
            self.context()
        except TlsError as error:
            raise SettingsError("tls.server.certPath", str(error)) from error

    def refresh(self) -> None:
        """Uses changed files. Call it regularly."""
        if self._files is not None and self._files.refresh():
            days = (self._files.loaded[1].expires_s * 1000 - wall_ms()) / 86_400_000
            _logger.warning(
                "the changed certificate %s is in use: %.0f days left", self._settings.server_certPath, days
            )

    @property
    def expires_s(self) -> float | None:
        """When the certificate ends, in seconds since 1970; None: it was not read from a file."""
        return None if self._files is None else self._files.loaded[1].expires_s

    @property
    def problem(self) -> str:
        """Why the present files are not in use; empty if they are."""
        return "" if self._files is None else self._files.last_error

    def to_json(self) -> dict[str, Any] | None:
        """What is in use: see `described`. None: no certificate was read from a file."""
        if self._files is None:
            return None
        context, presented = self._files.loaded
        return described(presented, context) | {"problem": self.problem}

    def _make(self) -> None:
        """The certificate of the test mode. Once: where it is not possible, each stranger could have it tried again."""
        if self._problem:
            raise TlsError(self._problem)
        context = _server_context()
        try:
            load_self_signed(context)
        except TlsError as error:
            self._problem = str(error)
            raise
        self._made = context

    def _paths(self) -> list[Path]:
        settings = self._settings
        files = [settings.server_certPath, settings.server_keyPath]
        if settings.verifies_clients:
            files.append(settings.server_trustCertPath)
        return [Path(file).expanduser() for file in files]

    def _load(self) -> tuple[ssl.SSLContext, Presented]:
        settings = self._settings
        certificate, key, *authorities = self._paths()
        presented = Presented.read(certificate)
        context = _server_context()
        load_chain(context, certificate, key, settings.server_keyPassword)
        for path in authorities:
            load_authorities(context, path)
            is_required = settings.server_need_client_auth is ClientAuth.require
            context.verify_mode = ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL
        return context, presented


class ClientCertificate:
    """What other servers are shown, and how theirs are verified: for the process's own connections."""

    def __init__(self, settings: TlsSettings) -> None:
        """SettingsError: the files cannot be used."""
        self._settings = settings
        self._files = _open("tls.client.certPath", self._paths(), self._load)

    def context(self) -> ssl.SSLContext:
        """For a new connection."""
        return self._files.loaded

    def refresh(self) -> None:
        """Uses changed files. Call it regularly."""
        if self._files.refresh():
            _logger.warning("the changed certificate for own connections is in use")

    def to_json(self) -> dict[str, Any]:
        """What is in use: see `described`."""
        return described(None, self._files.loaded) | {"problem": self._files.last_error}

    def _paths(self) -> list[Path]:
        settings = self._settings
        if settings.is_test_mode:
            return []
        trusted = [settings.client_trustCertPath] if settings.verifies_servers else []
        files = (*trusted, settings.client_certPath, settings.client_keyPath)
        return [Path(file).expanduser() for file in files if file]

    def _load(self) -> ssl.SSLContext:
        settings = self._settings
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = settings.verifies_servers and settings.client_checkHostname
        context.verify_mode = ssl.CERT_REQUIRED if settings.verifies_servers else ssl.CERT_NONE
        if settings.verifies_servers and settings.client_trustCertPath:
            load_authorities(context, Path(settings.client_trustCertPath).expanduser())
        elif settings.verifies_servers:
            context.load_default_certs()
        if settings.client_certPath and not settings.is_test_mode:
            certificate, key = Path(settings.client_certPath), Path(settings.client_keyPath)
            load_chain(context, certificate.expanduser(), key.expanduser(), settings.client_keyPassword)
        return context


def _server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_ciphers(_CIPHERS)
    context.num_tickets = 1  # a client opens one connection again, not several
    return context


def _open(name: str, paths: Iterable[Path], load: Callable[[], Loaded]) -> ReloadedFiles[Loaded]:
    log = LimitedLog(_logger, time.monotonic)
    try:
        return ReloadedFiles(paths, load, log)
    except TlsError as error:
        raise SettingsError(name, str(error)) from error
