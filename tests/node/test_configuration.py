"""Settings from the file, the environment and flags: which one wins, and what an error says."""

from pathlib import Path

import pytest

from tallystick.node.core.configuration import ConfigurationError, Flag, as_text, load, parse_text
from tallystick.node.core.settings import BrokerSettings, HttpSettings, NameServerSettings
from tallystick.store.settings import FlushDiskType, StoreSettings


def file(folder: Path, text: str) -> Path:
    path = folder / "broker.toml"
    path.write_text(text)
    return path


def test_without_settings_the_defaults_apply() -> None:
    settings = load()
    assert settings.broker == BrokerSettings()
    assert settings.store == StoreSettings()
    assert (settings.nameserver, settings.http) == (NameServerSettings(), HttpSettings())


def test_the_later_layer_wins(tmp_path: Path) -> None:
    layers = {
        "presets": [Flag("tally run", "store.fileReservedTime", 1)],
        "file": file(tmp_path, "[store]\nfileReservedTime = 2\n"),
        "environment": {"TALLY_FILERESERVEDTIME": "3"},
        "assignments": ["fileReservedTime=4"],
        "flags": [Flag("--hours", "store.fileReservedTime", 5)],
    }
    for last, name in enumerate(layers, 1):
        chosen = {key: layers[key] for key in list(layers)[:last]}
        assert load(**chosen).store.fileReservedTime == last, name  # type: ignore[arg-type]


def test_every_kind_of_value_from_text_and_from_toml(tmp_path: Path) -> None:
    path = file(
        tmp_path,
        """
        [store]
        flushDiskType = "SYNC_FLUSH"
        diskSpaceWarningLevelRatio = 0.95
        [broker]
        autoCreateTopicEnable = false
        listenPort = 20911
        [nameserver]
        listenPort = 9877
        [http]
        port = -1
        """,
    )
    texts = {
        "TALLY_FLUSHDISKTYPE": "SYNC_FLUSH",
        "TALLY_diskSpaceWarningLevelRatio": "0.95",
        "TALLY_AUTOCREATETOPICENABLE": "False",
        "TALLY_LISTENPORT": "20911",
        "TALLY_NAMESERVER_LISTENPORT": "9877",
        "TALLY_HTTP_PORT": "-1",
        "HOME": "/not/ours",
    }
    settings = load(file=path)
    assert settings == load(environment=texts)
    assert settings.store.flushDiskType is FlushDiskType.SYNC_FLUSH
    assert settings.broker.autoCreateTopicEnable is False
    assert (settings.broker.listenPort, settings.nameserver.listenPort, settings.http.port) == (20911, 9877, -1)


def test_a_setting_without_an_effect_is_a_line_that_says_where_it_was_given(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text("[store]\nisEnableBatchPush = true\nfileReservedTime = 48\n")
    found = load(file=path, environment={"TALLY_FORCEREGISTER": "true"}, assignments=["debugLockEnable=true"])
    places = [line.partition(" has no effect: ")[0] for line in found.without_effect]
    assert places == [
        f"{path}: [store] isEnableBatchPush",
        "environment variable TALLY_FORCEREGISTER (broker.forceRegister)",
        "--set debugLockEnable",
    ]
    assert load().without_effect == ()


def test_variables_of_the_commands_are_no_settings() -> None:
    load(environment={"TALLY_CONFIG": "a.toml", "TALLY_NAMESERVER": "127.0.0.1:1"})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[broker]\nlistenport = 1", "unknown key 'listenport' in [broker]; did you mean listenPort?"),
        ("[broker]\nflushDiskType = 1", "unknown key 'flushDiskType' in [broker]"),
        ("[brokers]\n", "unknown table 'brokers'; there are [broker], [store], [nameserver], [http]"),
        ("listenPort = 1", "unknown table 'listenPort'; it belongs in [broker]"),
        ("broker = 1", "unknown table 'broker'"),
        ("[broker]\nlistenPort = '1x'", "[broker] listenPort: must be a whole number, not '1x'"),
        ("[broker]\nlistenPort = 70000", "[broker] listenPort: must be 0 to 65535, not 70000"),
        ("[broker]\nlistenPort = true", "[broker] listenPort: must be int, not True"),
        ("[broker]\nbrokerName = ['a']", "[broker] brokerName: must be str, not ['a']"),
        ("[broker]\ntraceOn = 1", "[broker] traceOn: must be bool, not 1"),
        ("[store]\nflushDiskType = 'FLUSH'", "[store] flushDiskType: must be one of ASYNC_FLUSH, SYNC_FLUSH"),
        ("[store]\nflushDiskType = [1]", "[store] flushDiskType: must be one of ASYNC_FLUSH, SYNC_FLUSH, not [1]"),
        ("[store]\nmessageDelayLevel = '1y'", "[store] messageDelayLevel: '1y' is not a number"),
        ("[http]\nport = -2", "[http] port: must be -1 to 65535, not -2"),
        ("a = ", "Invalid value"),
        ("[broker]\nlistenPort = 1\nlistenPort = 2", "Cannot overwrite a value"),
    ],
)
def test_an_error_in_the_file_names_file_and_key(tmp_path: Path, text: str, says: str) -> None:
    path = file(tmp_path, text)
    with pytest.raises(ConfigurationError) as caught:
        load(file=path)
    assert str(caught.value).startswith(f"{path}: ")
    assert says in str(caught.value)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match=r"broker\.toml"):
        load(file=path)
    with pytest.raises(FileNotFoundError):
        load(file=tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("TALLY_FLUSHDISKTYP", "x", "unknown variable TALLY_FLUSHDISKTYP; did you mean TALLY_FLUSHDISKTYPE?"),
        ("TALLY_PORT", "1", "unknown variable TALLY_PORT"),  # whose port?
        ("TALLY_FLUSHDISKTYPE", "x", "TALLY_FLUSHDISKTYPE (store.flushDiskType): must be one of"),
        ("TALLY_traceon", "yes", "TALLY_traceon (broker.traceOn): must be true or false, not 'yes'"),
        ("TALLY_HTTP_PORT", "", "TALLY_HTTP_PORT (http.port): must be a whole number, not ''"),
        ("TALLY_DISKSPACEWARNINGLEVELRATIO", "nan", "(store.diskSpaceWarningLevelRatio): must be 0.0 to 1.0, not nan"),
    ],
)
def test_an_error_in_the_environment_names_the_variable(name: str, value: str, says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(environment={name: value})
    assert str(caught.value).startswith("environment")
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("listenPort", "--set listenPort: must be key=value"),
        ("listenPort=x", "--set listenPort: must be a whole number, not 'x'"),
        ("brokerName=", "--set brokerName: must not be empty"),
        ("nameserver.listenPort=x", "--set nameserver.listenPort: must be a whole number"),
        ("listen=1", "--set: unknown key 'listen'"),
        ("kvConfigPath=1", "--set: unknown key 'kvConfigPath'; did you mean nameserver.kvConfigPath?"),
        ("nameserver.brokerName=1", "--set: unknown key 'nameserver.brokerName'"),
        ("=1", "--set: unknown key ''"),
        ("brokerIP1=0.0.0.0", "--set brokerIP1: 0.0.0.0 stands for every address: clients need one address"),
    ],
)
def test_an_error_of_set_names_the_key(text: str, says: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(assignments=[text])
    assert says in str(caught.value)


def test_a_value_of_set_may_hold_equal_signs_and_outer_blanks() -> None:
    assert load(assignments=[" brokerName = a=b "]).broker.brokerName == "a=b"


def test_an_error_of_a_flag_names_flag_and_key() -> None:
    with pytest.raises(ConfigurationError, match=r"--port \(broker.listenPort\): must be 0 to 65535, not 99999"):
        load(flags=[Flag("--port", "broker.listenPort", 99999)])


def test_an_error_between_two_keys_names_one_that_was_given(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"broker\.toml.*diskSpaceCleanForciblyRatio"):
        load(file=file(tmp_path, "[store]\ndiskSpaceCleanForciblyRatio = 0.99"))
    with pytest.raises(ConfigurationError, match=r"diskSpaceWarningLevelRatio=0\.1"):
        load(assignments=["diskSpaceWarningLevelRatio=0.1"])


def test_a_name_alone_means_one_setting() -> None:
    """`--set name=value` reaches the broker or the store; RocketMQ has their names in one list."""
    assert set(as_text(BrokerSettings())).isdisjoint(as_text(StoreSettings()))


@pytest.mark.parametrize("kind", [BrokerSettings, StoreSettings, NameServerSettings, HttpSettings])
def test_settings_as_text_read_back_are_the_same(kind: type) -> None:
    settings = kind()
    assert parse_text(kind(), as_text(settings), "text") == settings


def test_a_kept_setting_that_is_wrong_names_where_it_was_kept() -> None:
    with pytest.raises(ConfigurationError, match=r"^kept\.json: brokerPermission: must be 0 to 6, not 99$"):
        parse_text(BrokerSettings(), {"brokerPermission": "99"}, "kept.json")
    with pytest.raises(ConfigurationError, match=r"^kept\.json: unknown key 'brokerPermision'; did you mean"):
        parse_text(BrokerSettings(), {"brokerPermision": "6"}, "kept.json")


@pytest.mark.parametrize("alone", [False, True])
def test_access_control_of_a_broker_is_also_that_of_a_name_server_without_its_own(alone: bool) -> None:
    given = ["aclEnable=true", "aclFile=/etc/acl.yml"]
    found = load(assignments=given, nameserver_alone=alone).nameserver
    assert found.aclEnable and found.aclFile == "/etc/acl.yml" and found.aclKeyFile == ""
    for both in ([*given, "nameserver.aclEnable=false"], ["nameserver.aclEnable=false", *given]):
        found = load(assignments=both, nameserver_alone=alone).nameserver
        assert not found.aclEnable and found.aclFile == "/etc/acl.yml"
    assert not load(assignments=["nameserver.aclEnable=true"]).broker.aclEnable
    assert load(environment={"TALLY_ACLENABLE": "true"}, nameserver_alone=alone).nameserver.aclEnable
