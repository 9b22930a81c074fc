# ruff: noqa: N815
"""The settings of TLS for clients. Names, values and defaults are those of RocketMQ's `TlsSystemConfig`.

They belong to the process, as RocketMQ's system properties do: one certificate for the broker, the name server and the
HTTP port. A field is the name without `tls.`, with underscores in place of the other dots: `server_keyPath` is
`tls.server.keyPath`.

Source: TlsSystemConfig and TlsHelper of RocketMQ 4.8.0.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tallystick.store.setting import SettingsError, check, setting

DEFAULT_FILE = "/etc/rocketmq/tls.properties"
_SECONDS_MAX = 600_000


class TlsMode(enum.Enum):
    """What a port accepts. The first byte of a connection says whether its client speaks TLS."""

    disabled = "only connections without TLS"
    permissive = "both"
    enforcing = "only TLS"


class ClientAuth(enum.Enum):
    """Whether clients must have a certificate."""

    none = "no certificate is asked for"
    optional = "a certificate is checked if the client has one"
    require = "a client without a certificate is refused"


_SWITCHES = ("", "true", "false")


@dataclass(frozen=True)
class TlsSettings:
    """TLS of one process."""

    # -- the whole process ---------------------------------------------------------------------------------------------
    config_file: str = setting(
        DEFAULT_FILE,
        "Properties file of RocketMQ with settings of TLS. Settings that are given elsewhere override it. The default "
        "file is used if it exists; another file must exist.",
    )
    test_mode_enable: str = setting(
        "",
        "`true`: the process makes a certificate for itself at the first TLS connection, which no client can verify, "
        "and verifies none itself. This needs the library cryptography. `false`: certificates come from the files.",
        default_text="`false` if a path of a certificate is set, otherwise `true`",
    )
    enable: str = setting(
        "",
        "Whether the process uses TLS for its own connections to name servers, brokers and masters: `true` or `false`.",
        default_text="`true` if `tls.server.mode` is `enforcing`, otherwise `false`",
    )

    # -- connections of clients ----------------------------------------------------------------------------------------
    server_mode: TlsMode = setting(
        TlsMode.permissive,
        "What the ports of brokers and name servers accept: only connections without TLS, both, or only TLS. The "
        "HTTP port has `http.tlsMode`.",
    )
    server_need_client_auth: ClientAuth = setting(
        ClientAuth.none,
        "Whether clients must have a certificate. It has an effect only with `tls.server.authClient`.",
    )
    server_keyPath: str = setting("", "PEM file of the private key.")
    server_keyPassword: str = setting("", "Password of the private key. Empty: the key is not encrypted.")
    server_certPath: str = setting(
        "",
        "PEM file of the certificate, followed by those of its authorities. Changed files are used when they change.",
    )
    server_authClient: str = setting(
        "",
        "Verify the certificates of clients: `true` or `false`.",
        default_text="`true` if `tls.server.trustCertPath` is set, otherwise `false`",
    )
    server_trustCertPath: str = setting("", "PEM file of the authorities whose certificates clients can have.")
    server_handshakeTimeoutMillis: int = setting(
        10_000,
        "Time for a TLS handshake. A connection whose handshake takes longer is closed.",
        unit="ms",
        range=(100, _SECONDS_MAX),
        own=True,
    )
    server_maxHandshakes: int = setting(
        1024,
        "Handshakes that can be in progress at a time, in the whole process. Above it, the oldest of them is ended.",
        range=(1, 100_000),
        own=True,
    )
    server_maxHandshakesPerAddress: int = setting(
        128,
        "The same for the handshakes of one address.",
        range=(1, 100_000),
        own=True,
    )

    # -- own connections -----------------------------------------------------------------------------------------------
    client_keyPath: str = setting("", "PEM file of the private key for own connections.")
    client_keyPassword: str = setting("", "Password of this key. Empty: the key is not encrypted.")
    client_certPath: str = setting("", "PEM file of the certificate that the process shows to other servers.")
    client_authServer: str = setting(
        "",
        "Verify the certificates of other servers: `true` or `false`.",
        default_text="`true` if `tls.client.trustCertPath` is set, otherwise `false`",
    )
    client_trustCertPath: str = setting(
        "",
        "PEM file of the authorities of other servers. Empty: those of the operating system.",
    )
    client_checkHostname: bool = setting(
        True,
        "Other servers' certificates must contain the name or the address that the process connects to. RocketMQ "
        "accepts each certificate of the authorities.",
        own=True,
    )

    @property
    def has_files(self) -> bool:
        """Whether a file of certificates is set."""
        return bool(
            self.server_certPath or self.server_trustCertPath or self.client_certPath or self.client_trustCertPath
        )

    @property
    def is_test_mode(self) -> bool:
        """Whether certificates are neither read nor verified."""
        return self.test_mode_enable == "true" if self.test_mode_enable else not self.has_files

    @property
    def is_client_enabled(self) -> bool:
        """Whether own connections use TLS."""
        return self.enable == "true" if self.enable else self.server_mode is TlsMode.enforcing

    @property
    def verifies_clients(self) -> bool:
        """Whether certificates of clients are verified."""
        if self.is_test_mode or self.server_need_client_auth is ClientAuth.none:
            return False
        return self.server_authClient == "true" if self.server_authClient else bool(self.server_trustCertPath)

    @property
    def verifies_servers(self) -> bool:
        """Whether certificates of other servers are verified."""
        if self.is_test_mode:
            return False
        return self.client_authServer == "true" if self.client_authServer else bool(self.client_trustCertPath)

    def validate(self) -> None:
        """Checks every field. SettingsError: names the first setting that cannot be used."""
        check(self)
        for name in ("test_mode_enable", "enable", "server_authClient", "client_authServer"):
            if getattr(self, name) not in _SWITCHES:
                raise SettingsError(name, f"must be true or false, not {getattr(self, name)!r}")
        if not self.is_test_mode and self.server_need_client_auth is ClientAuth.require and not self.verifies_clients:
            raise SettingsError(
                "server_need_client_auth",
                "require needs tls.server.authClient and tls.server.trustCertPath: "
                "a certificate that is not verified proves nothing",
            )
        if self.verifies_clients and not self.server_trustCertPath:
            raise SettingsError("server_trustCertPath", "must be set, because tls.server.authClient is true")
        for side in ("server", "client"):
            if bool(getattr(self, f"{side}_certPath")) != bool(getattr(self, f"{side}_keyPath")):
                missing = "keyPath" if getattr(self, f"{side}_certPath") else "certPath"
                raise SettingsError(f"{side}_{missing}", "must be set, because the other one of the pair is set")
