"""TLS and access control of a system, and what its clients need for them."""

from __future__ import annotations

import shutil
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.peer import Peer
from lab.signing import Accounts
from lab.tls import Certificates


@dataclass(frozen=True, slots=True)
class Access:
    """None: connections are not encrypted, requests are not signed."""

    certificates: Certificates | None = None
    accounts: Accounts | None = None

    @classmethod
    def made(cls, folder: Path, *, tls: bool, acl: bool) -> Access:
        """Makes certificates and accounts in a folder."""
        return cls(
            Certificates(folder / "certificates") if tls else None, Accounts(folder / "accounts") if acl else None
        )

    def our_settings(self) -> list[str]:
        """Settings of our processes."""
        return [
            setting
            for each in (self.certificates, self.accounts)
            if each is not None
            for setting in each.server_settings()
        ]

    def prepare_rocketmq(self, peer: Peer) -> list[str]:
        """Makes RocketMQ's servers encrypt and check signatures. Returns settings of the broker."""
        if self.certificates is not None:
            folder = self.certificates.folder
            options = [
                *("-Dtls.server.mode=enforcing", f"-Dtls.server.certPath={folder / 'server.pem'}"),
                *(f"-Dtls.server.keyPath={folder / 'server.key'}", self.certificates.java_options()),
            ]
            peer.environment["PEER_JAVA_OPTS"] = " ".join(options)
        if self.accounts is None:
            return []
        home = peer.work / "home" / "conf"
        home.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.accounts.folder / "plain_acl.yml", home)
        shutil.copy(self.accounts.folder / "tools.yml", home)
        return ["aclEnable=true"]

    def prepare_java(self, peer: Peer) -> None:
        """Makes RocketMQ's clients encrypt and sign."""
        options = [] if self.certificates is None else [self.certificates.java_options()]
        if self.accounts is not None:
            options.append(self.accounts.java_options(peer))
        peer.environment["PEER_JAVA_OPTS"] = peer.java_options = " ".join(options)

    def client(self) -> dict[str, Any]:
        """Options of `tallystick.client.Client`."""
        options: dict[str, Any] = {}
        if self.certificates is not None:
            options["tls"] = ssl.create_default_context(cafile=str(self.certificates.authority))
        if self.accounts is not None:
            options["acl"] = self.accounts.account
        return options
