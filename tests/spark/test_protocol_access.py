"""The sink and the search for brokers with access control and TLS, against a real process."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tally_process import TallyProcess
from tls_lab import Authority

from tallystick.node.cli import main
from tallystick.spark.name_server import brokers_of
from tallystick.spark.outgoing import KeyMaker, messages_of
from tallystick.spark.producer import Producer, SendError, Sent
from tallystick.spark.protocol_access import ProtocolAccess
from tallystick.spark.sink import SinkOptions
from tallystick.spark.volume import VolumeError

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("access")
    (folder / "tools.yml").write_text("accessKey: administrator\nsecretKey: administrator-secret\n")
    (folder / "plain_acl.yml").write_text(
        "accounts: [{accessKey: administrator, secretKey: administrator-secret, admin: true}]\n"
    )
    return folder


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return Authority(folder)


@pytest.fixture(scope="module")
def process(folder: Path, authority: Authority) -> Iterator[TallyProcess]:
    certificate, key = authority.issue("server", "127.0.0.1")
    settings = [
        "aclEnable=true",
        f"aclFile={folder / 'plain_acl.yml'}",
        f"aclCredentialsFile={folder / 'tools.yml'}",
        "tls.server.mode=enforcing",
        f"tls.server.certPath={certificate}",
        f"tls.server.keyPath={key}",
        f"tls.client.trustCertPath={authority.path}",
    ]
    with TallyProcess(folder, *(part for setting in settings for part in ("--set", setting))) as running:
        options = ["--ca", str(authority.path), "--credentials", str(folder / "tools.yml")]
        assert main(["topic", "create", "Sink", "--nameserver", running.nameserver, *options]) == 0
        yield running


async def send(options: SinkOptions) -> Sent:
    batch = pa.record_batch({"body": pa.array([b"x"] * 10)})
    async with Producer(options.target) as producer:
        await producer.send(messages_of(batch, KeyMaker("w", "", 0), 0, "Sink"))
        await producer.flush()
        return producer.sent


async def test_the_sink_signs_and_uses_tls(process: TallyProcess, folder: Path, authority: Authority) -> None:
    given = {"nameserver": process.nameserver, "retrySeconds": "0"}
    with_both = given | {"credentials": str(folder / "tools.yml"), "ca": str(authority.path)}
    options = pickle.loads(pickle.dumps(SinkOptions.parse(with_both)))
    assert (await send(options)).messages == 10
    assert (await send(pickle.loads(pickle.dumps(options)))).messages == 10, "a task sends them again"
    assert "administrator-secret" not in repr(options)
    with pytest.raises(SendError, match="AclException"):
        await send(SinkOptions.parse(given | {"ca": str(authority.path)}))
    with pytest.raises(SendError, match="name server"):
        await send(SinkOptions.parse(given | {"credentials": str(folder / "tools.yml")}))


def test_brokers_are_found_with_the_files_of_the_environment(
    process: TallyProcess, folder: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(VolumeError, match="no name server answers"):
        brokers_of(process.nameserver, None)
    monkeypatch.setenv("TALLY_CA", str(authority.path))
    with pytest.raises(VolumeError, match="AclException"):
        brokers_of(process.nameserver, None)
    monkeypatch.setenv("TALLY_CREDENTIALS", str(folder / "tools.yml"))
    assert len(brokers_of(process.nameserver, None)) == 1
    monkeypatch.setenv("TALLY_CREDENTIALS", str(folder / "none.yml"))
    with pytest.raises(VolumeError, match="option credentials"):
        brokers_of(process.nameserver, None)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"tls": "yes"}, "tls must be true or false"),
        ({"ca": "/nowhere.pem"}, "option ca"),
        ({"credentials": "/nowhere.yml"}, "option credentials"),
    ],
)
def test_wrong_files_are_named(options: dict[str, str], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        SinkOptions.parse({"broker": "a:1", **options})


def test_without_files_nothing_is_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TALLY_CA", "TALLY_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)
    access = ProtocolAccess.of()
    assert access == ProtocolAccess() and access.context() is None
