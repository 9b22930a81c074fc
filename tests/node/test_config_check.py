"""Configuration files of RocketMQ: they are read as Java reads them, and each setting says what it does here."""

import json
import subprocess
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

import pytest

from tallystick.node.cli import main
from tallystick.node.core.config_check import Effect, check_file
from tallystick.node.core.configuration import TABLES, ConfigurationError, load
from tallystick.node.core.java_properties import parse_properties
from tallystick.node.core.rocketmq_5_settings import ROCKETMQ_5_SETTINGS
from tallystick.node.core.rocketmq_settings import ROCKETMQ_SETTINGS
from tallystick.store.settings import FlushDiskType

# The settings of the files in RocketMQ's folder `conf`: 2m-2s-async, 2m-2s-sync, 2m-noslave, dledger and broker.conf.
BROKER = {
    "brokerClusterName": "DefaultCluster",
    "brokerName": "broker-a",
    "brokerId": "0",
    "deleteWhen": "04",
    "fileReservedTime": "48",
    "brokerRole": "ASYNC_MASTER",
    "flushDiskType": "ASYNC_FLUSH",
}
MEMBER = {
    "brokerClusterName": "RaftCluster",
    "brokerName": "RaftNode00",
    "listenPort": "30911",
    "namesrvAddr": "127.0.0.1:9876",
    "storePathRootDir": "/tmp/rmqstore/node00",
    "storePathCommitLog": "/tmp/rmqstore/node00/commitlog",
    "enableDLegerCommitLog": "true",
    "dLegerGroup": "RaftNode00",
    "dLegerPeers": "n0-127.0.0.1:40911;n1-127.0.0.1:40912;n2-127.0.0.1:40913",
    "dLegerSelfId": "n0",
    "sendMessageThreadPoolNums": "16",
}


def conf(folder: Path, settings: dict[str, str], name: str = "broker.conf") -> Path:
    path = folder / name
    path.write_text("# a file of RocketMQ\n" + "".join(f"{key} = {value}\n" for key, value in settings.items()))
    return path


def effects(path: Path, *, nameserver: bool = False) -> dict[str, str]:
    return {row.key: row.effect.value for row in check_file(path, nameserver_alone=nameserver)}


@pytest.mark.parametrize("name", ["broker.conf", "broker-a.properties", "broker"])
def test_a_file_of_rocketmq_starts(tmp_path: Path, name: str) -> None:
    settings = load(file=conf(tmp_path, BROKER | {"filterServerNums": "0", "flushDiskType": "SYNC_FLUSH"}, name))
    assert settings.broker.brokerName == "broker-a"
    assert settings.store.flushDiskType is FlushDiskType.SYNC_FLUSH
    assert settings.store.delete_hours() == {4}
    (warning,) = settings.without_effect
    assert (
        warning == f"{tmp_path / name}: filterServerNums has no effect: there are no filter servers: use tags or SQL92"
    )


def test_a_file_of_a_dledger_member_starts(tmp_path: Path) -> None:
    settings = load(file=conf(tmp_path, MEMBER))
    assert settings.store.enableDLegerCommitLog and settings.store.dLegerSelfId == "n0"
    assert settings.broker.listenPort == 30911


def test_a_second_copy_is_refused_and_says_what_to_use(tmp_path: Path) -> None:
    path = conf(tmp_path, BROKER | {"duplicationEnable": "true", "brokerRole": "SLAVE"})
    rows = {row.key: row for row in check_file(path)}
    assert rows["brokerRole"].effect.value == "applies"
    assert rows["duplicationEnable"].effect.value == "refused"
    assert "enableDLegerCommitLog" in rows["duplicationEnable"].note
    with pytest.raises(ConfigurationError, match=f"^{path}: duplicationEnable: True is not supported"):
        load(file=path)


def test_each_setting_has_its_effect(tmp_path: Path) -> None:
    path = conf(
        tmp_path,
        {
            "listenPort": "10911",
            "waitTimeMillsInSendQueue": "300",
            "serverWorkerThreads": "9",
            "messageStorePlugIn": "org.example.PlugIn",
            "useTLS": "false",
            "flushIntervalCommitLog": "soon",
            "maxMessageSize": "-1",
            "timerRocksDBEnable": "true",
            "brokerNam": "x",
        },
    )
    assert list(effects(path).values()) == [
        "applies",
        "no effect",
        "no effect",
        "differs",
        "no effect",
        "refused",
        "refused",
        "unknown",
        "unknown",
    ], "every wrong setting is named, not only the first"
    notes = {row.key: row.note for row in check_file(path)}
    assert notes["flushIntervalCommitLog"] == "must be a whole number, not 'soon'"
    assert notes["brokerNam"] == "did you mean brokerName?"


def test_toml_is_checked_too(tmp_path: Path) -> None:
    path = tmp_path / "tally.toml"
    path.write_text("[broker]\nbrokerName = 'a'\ntransferMsgByHeap = true\n[store]\nbrokerName = 'b'\n")
    assert effects(path) == {"[broker] brokerName": "applies", "[broker] transferMsgByHeap": "no effect"} | {
        "[] brokerName": "unknown"
    }


def test_names_in_a_name_servers_file_are_the_name_servers(tmp_path: Path) -> None:
    path = conf(tmp_path, {"listenPort": "9877", "serverWorkerThreads": "4", "brokerName": "a"})
    assert effects(path, nameserver=True) == {
        "listenPort": "applies",
        "serverWorkerThreads": "no effect",
        "brokerName": "unknown",
    }
    path = conf(tmp_path, {"listenPort": "9877"})
    settings = load(file=path, nameserver_alone=True)
    assert (settings.nameserver.listenPort, settings.broker.listenPort) == (9877, 10911)


def test_java_properties() -> None:
    text = (
        b"a=b\n  c : d=e \n#x=y\n!z\naddr=10.0.0.1\\:9876\nlong = one \\\n   two\nempty\nname=\\u00e4\nname2=\xc3\xa4"
    )
    assert parse_properties(text) == {
        "a": "b",
        "c": "d=e",
        "addr": "10.0.0.1:9876",
        "long": "one two",
        "empty": "",
        "name": "ä",
        "name2": "ä",
    }


def test_comments_in_another_encoding_are_no_reason_to_refuse_a_file(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_bytes("# 代理\nbrokerName = a\n".encode("gbk"))
    assert load(file=path).broker.brokerName == "a"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"a=\\u12", "Invalid"),
        (b"brokerName = a\nbrokerNmae = b", "unknown key 'brokerNmae'; did you mean brokerName?"),
        (b"[broker]\nbrokerName = a", "Invalid value"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, data: bytes, says: str) -> None:
    path = tmp_path / "broker.conf"
    path.write_bytes(data)
    with pytest.raises(ConfigurationError) as caught:
        load(file=path)
    assert str(caught.value).startswith(f"{path}: ") and says in str(caught.value)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = conf(tmp_path, BROKER)
    assert main(["config", "check", str(path)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].split() == ["setting", "value", "effect", "note"]
    assert out[-1] == f"ok  {path}: 7 apply"

    path = conf(tmp_path, BROKER | {"filterServerNums": "1"})
    assert main(["config", "check", "--json", str(path)]) == 1
    rows = json.loads(capsys.readouterr().out)
    assert rows[-1] == {
        "key": "filterServerNums",
        "value": "1",
        "effect": "differs",
        "note": "there are no filter servers: use tags or SQL92",
    }
    assert main(["config", "check", str(tmp_path / "none.conf")]) == 2
    assert capsys.readouterr().err == f"tally: {tmp_path / 'none.conf'}: No such file or directory\n"


CLASSES = (
    "common.BrokerConfig",
    "store.config.MessageStoreConfig",
    "remoting.netty.NettyServerConfig",
    "remoting.netty.NettyClientConfig",
    "common.namesrv.NamesrvConfig",
)


@pytest.mark.parametrize("version", ["4.8.0", "4.9.7"])
def test_every_setting_of_rocketmqs_classes_is_known(tmp_path: Path, version: str) -> None:
    keys = sorted(setters(version, CLASSES))
    for kind, nameserver in (("broker", False), ("nameserver", True)):
        path = conf(tmp_path, dict.fromkeys(keys, "1"), f"{kind}.conf")
        unknown = {row.key for row in check_file(path, nameserver_alone=nameserver) if row.effect is Effect.UNKNOWN}
        if kind == "broker":
            assert unknown <= {"kvConfigPath", "orderMessageEnable"}, "only those of a name server"
    assert not set(ROCKETMQ_SETTINGS) & ROCKETMQ_5_SETTINGS
    assert set(ROCKETMQ_SETTINGS) & set(load().broker.__dataclass_fields__) == set()


def setters(version: str, names: Iterable[str]) -> set[str]:
    """The settings of RocketMQ's classes, from the jars of a version."""
    jars = Path.home() / ".cache" / "peer" / "lib" / version
    if not jars.is_dir():
        pytest.skip(f"RocketMQ {version} (../shared/peer, `peer.sh fetch {version}`) is not here")
    classes = [f"org.apache.rocketmq.{name}" for name in names]
    listing = subprocess.run(["javap", "-cp", f"{jars}/*", *classes], capture_output=True, text=True, check=True).stdout
    found = [line.partition(" void set")[2].partition("(")[0] for line in listing.splitlines() if " void set" in line]
    assert len(found) > 150
    return {name[0].lower() + name[1:] for name in found}


def test_every_newer_setting_is_known_as_one() -> None:
    newer = setters("5.5.0", (*CLASSES, "auth.config.AuthConfig"))
    declared = {item.name for kind in TABLES.values() for item in fields(kind)}
    assert newer - declared - set(ROCKETMQ_SETTINGS) == ROCKETMQ_5_SETTINGS - declared


def test_a_setting_of_rocketmq_5_is_refused_by_that_name(tmp_path: Path) -> None:
    path = conf(tmp_path, {"brokerName": "a", "enableControllerMode": "true"})
    with pytest.raises(ConfigurationError, match=r"unknown key 'enableControllerMode'; RocketMQ 5 has this setting"):
        load(file=path)
    row = check_file(path)[1]
    assert (row.effect, row.note) == (Effect.UNKNOWN, "RocketMQ 5 has this setting, tallystick does not")
