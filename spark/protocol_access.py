"""Signatures and TLS of the requests that Spark's side sends to name servers and brokers.

The driver reads the files and sends the values to the tasks, so executors need no files. No text of a `ProtocolAccess`
shows the secret.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tallystick.node.access.opening import read_credentials
from tallystick.node.access.signatures import sign
from tallystick.node.remoting.command import Command
from tallystick.store.setting import SettingsError

CREDENTIALS_VARIABLE, CA_VARIABLE = "TALLY_CREDENTIALS", "TALLY_CA"


@dataclass(frozen=True)
class ProtocolAccess:
    """`access_key` empty: requests are not signed. `tls`: connections use TLS. `ca`: certificates as PEM text that
    verify servers; None: those of the operating system."""

    access_key: str = ""
    secret: str = field(default="", repr=False)
    tls: bool = False
    ca: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, credentials: str | None = None, tls: bool = False, ca: str | None = None) -> ProtocolAccess:
        """The access with these files; None: those that the environment names, if it does. A `ca` means TLS.
        ValueError: a file cannot be used; the text names the option."""
        credentials = credentials or os.environ.get(CREDENTIALS_VARIABLE)
        ca = ca or os.environ.get(CA_VARIABLE)
        key, secret, authorities = "", "", None
        if credentials:
            try:
                key, secret = read_credentials("credentials", credentials)
            except SettingsError as error:
                raise ValueError(f"option {error}") from error
        if ca:
            try:
                authorities = Path(ca).read_text()
                ssl.create_default_context(cadata=authorities)
            except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
                raise ValueError(f"option ca: {ca} has no certificates in PEM format: {error}") from error
        return cls(key, secret, tls or authorities is not None, authorities)

    def sign(self, command: Command) -> None:
        """Adds a signature, if there are credentials."""
        if self.access_key:
            sign(command, self.access_key, self.secret)

    def context(self) -> ssl.SSLContext | None:
        """For a new connection; None: it does not use TLS."""
        return self._context

    @cached_property
    def _context(self) -> ssl.SSLContext | None:
        return ssl.create_default_context(cadata=self.ca) if self.tls else None

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_context"}  # a context has no pickle
