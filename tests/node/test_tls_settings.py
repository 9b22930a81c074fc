"""The settings of TLS: RocketMQ's names in every source, its properties file, and combinations that mean nothing."""

from pathlib import Path
from typing import Any

import pytest
from tls_lab import Authority

from tallystick.node.core.config_check import check_file
from tallystick.node.core.configuration import ConfigurationError, load
from tallystick.node.tls.certificate import ClientCertificate, ServerCertificate
from tallystick.node.tls.settings import ClientAuth, TlsMode, TlsSettings
from tallystick.replication.transport.certificates import TlsError
from tallystick.store.setting import SettingsError

NAMES = {
    "tls.server.mode": "enforcing",
    "tls.test.mode.enable": "false",
    "tls.server.need.client.auth": "require",
    "tls.server.keyPath": "/etc/server.key",
    "tls.server.keyPassword": "123456",
    "tls.server.certPath": "/etc/server.pem",
    "tls.server.authClient": "true",
    "tls.server.trustCertPath": "/etc/ca.pem",
    "tls.client.keyPath": "/etc/client.key",
    "tls.client.certPath": "/etc/client.pem",
    "tls.client.authServer": "true",
    "tls.client.trustCertPath": "/etc/ca.pem",
}
"""As in RocketMQ's own description of TLS."""


def properties(path: Path, settings: dict[str, str]) -> Path:
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return path


def check_all(found: TlsSettings) -> None:
    assert found.server_mode is TlsMode.enforcing and found.server_need_client_auth is ClientAuth.require
    assert found.server_keyPassword == "123456" and found.client_certPath == "/etc/client.pem"
    assert not found.is_test_mode and found.is_client_enabled
    assert found.verifies_clients and found.verifies_servers


def test_every_source_has_the_names_of_rocketmq(tmp_path: Path) -> None:
    conf = properties(tmp_path / "broker.conf", NAMES | {"brokerName": "b"})
    assert load(file=conf).broker.brokerName == "b"
    check_all(load(file=conf).tls)
    check_all(load(file=properties(tmp_path / "namesrv.conf", NAMES), nameserver_alone=True).tls)
    check_all(load(assignments=[f"{name}={value}" for name, value in NAMES.items()]).tls)
    check_all(load(environment={f"TALLY_{name.replace('.', '_').upper()}": value for name, value in NAMES.items()}).tls)
    file = properties(tmp_path / "tls.properties", NAMES)
    check_all(load(assignments=[f"tls.config.file={file}"]).tls)


def test_toml_has_a_table(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text(
        '[broker]\nbrokerName = "b"\n[tls]\ntest.mode.enable = false\n[tls.server]\nmode = "enforcing"\n'
        'need.client.auth = "require"\nkeyPath = "/k"\ncertPath = "/c"\ntrustCertPath = "/ca"\nmaxHandshakes = 7\n'
    )
    found = load(file=path).tls
    assert (found.server_mode, found.server_certPath, found.server_maxHandshakes) == (TlsMode.enforcing, "/c", 7)
    assert found.test_mode_enable == "false" and found.verifies_clients
    path.write_text('[tls.server]\nmod = "enforcing"\n')
    with pytest.raises(ConfigurationError, match=r"unknown key 'server.mod' in \[tls\]"):
        load(file=path)
    assert load(file=properties(tmp_path / "x.conf", {}), assignments=()).tls == TlsSettings()


def test_a_file_without_ending_can_have_only_that_table(tmp_path: Path) -> None:
    path = tmp_path / "settings"
    path.write_text('[tls.server]\nmode = "disabled"\n')
    assert load(file=path).tls.server_mode is TlsMode.disabled


def test_other_sources_override_the_properties_file(tmp_path: Path) -> None:
    file = properties(tmp_path / "tls.properties", NAMES | {"tls.ciphers": "TLS_AES_128_GCM_SHA256", "other": "1"})
    settings = load(assignments=[f"tls.config.file={file}", "tls.server.mode=permissive"])
    assert settings.tls.server_mode is TlsMode.permissive and settings.tls.server_keyPath == "/etc/server.key"
    assert len(settings.without_effect) == 2 and "tls.ciphers has no effect" in settings.without_effect[0]


def test_a_properties_file_that_is_named_must_exist(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"tls\.properties"):
        load(assignments=[f"tls.config.file={tmp_path / 'tls.properties'}"])


def test_the_check_of_a_file_knows_the_names(tmp_path: Path) -> None:
    rows = check_file(properties(tmp_path / "broker.conf", NAMES | {"tls.server.mod": "x"}))
    assert [row.effect.value for row in rows] == ["applies"] * len(NAMES) + ["unknown"]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"tls.server.mode": "on"}, "tls.server.mode: must be one of disabled, permissive, enforcing"),
        ({"tls.enable": "yes"}, "tls.enable: must be true or false"),
        ({"tls.server.certPath": "/c"}, "tls.server.keyPath: must be set"),
        ({"tls.client.keyPath": "/k"}, "tls.client.certPath: must be set"),
        (
            {"tls.server.certPath": "/c", "tls.server.keyPath": "/k", "tls.server.need.client.auth": "require"},
            "tls.server.need.client.auth: require needs tls.server.authClient",
        ),
        (
            {
                "tls.test.mode.enable": "false",
                "tls.server.need.client.auth": "optional",
                "tls.server.authClient": "true",
            },
            "tls.server.trustCertPath: must be set",
        ),
    ],
)
def test_settings_that_cannot_be_used(given: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(assignments=[f"{name}={value}" for name, value in given.items()])
    assert named in str(caught.value)


def test_what_follows_from_what_is_not_set() -> None:
    default = TlsSettings()
    assert default.is_test_mode and not default.is_client_enabled
    assert TlsSettings(server_mode=TlsMode.enforcing).is_client_enabled
    assert not TlsSettings(server_mode=TlsMode.enforcing, enable="false").is_client_enabled
    with_files = TlsSettings(server_certPath="/c", server_keyPath="/k")
    assert not with_files.is_test_mode and not with_files.verifies_clients and not with_files.verifies_servers
    assert TlsSettings(test_mode_enable="true", server_certPath="/c", server_keyPath="/k").is_test_mode, "as RocketMQ"
    trusting = TlsSettings(server_trustCertPath="/ca", server_need_client_auth=ClientAuth.optional)
    assert trusting.verifies_clients
    assert not TlsSettings(server_trustCertPath="/ca").verifies_clients, "no certificate is asked for"


@pytest.mark.parametrize(
    "settings",
    [
        {"server_mode": TlsMode.enforcing, "test_mode_enable": "false"},
        {"server_certPath": "/no/file", "server_keyPath": "/no/file"},
    ],
)
def test_a_certificate_that_cannot_be_used_stops_the_start(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=r"tls\.server\.certPath"):
        ServerCertificate(TlsSettings(**settings))


def test_a_permissive_port_does_not_need_a_certificate() -> None:
    with pytest.raises(TlsError, match="no certificate is configured"):
        ServerCertificate(TlsSettings(test_mode_enable="false")).context()


def test_an_encrypted_key(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    authority = Authority(tmp_path)
    certificate, key = authority.issue("server", "127.0.0.1")
    private = serialization.load_pem_private_key(key.read_bytes(), None)
    form = serialization.BestAvailableEncryption(b"secret")
    key.write_bytes(private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, form))
    paths: dict[str, Any] = {"server_certPath": str(certificate), "server_keyPath": str(key)}
    ServerCertificate(TlsSettings(**paths, server_keyPassword="secret"))
    with pytest.raises(SettingsError) as caught:
        ServerCertificate(TlsSettings(**paths, server_keyPassword="wrong-password"))
    assert "wrong-password" not in str(caught.value)


def test_the_certificate_for_own_connections(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("client", "n0.group")
    context = ClientCertificate(
        TlsSettings(
            enable="true",
            client_certPath=str(certificate),
            client_keyPath=str(key),
            client_trustCertPath=str(authority.path),
        )
    ).context()
    assert context.check_hostname and context.verify_mode.name == "CERT_REQUIRED"
    with pytest.raises(SettingsError, match="No such file"):
        ClientCertificate(TlsSettings(enable="true", client_trustCertPath=str(tmp_path / "none.pem")))
