"""The settings of broker, name server and HTTP port: declarations, checks, and the page that describes them."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from scripts import loaded

from tallystick.node.core.rocketmq_settings import ROCKETMQ_SETTINGS, SHOWN
from tallystick.node.core.settings import BrokerSettings, HttpSettings, NameServerSettings
from tallystick.store.setting import SettingsError, changeable, declarations, why_not_changeable
from tallystick.store.settings import StoreSettings

ROOT = Path(__file__).resolve().parents[2]


def test_the_defaults_are_sound() -> None:
    BrokerSettings().validate()
    NameServerSettings().validate()
    HttpSettings().validate()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("brokerName", ""),
        ("brokerName", "../up"),
        ("brokerName", "x" * 128),
        ("brokerClusterName", "x" * 116),
        ("brokerClusterName", "a\nb"),
        ("brokerIP1", " "),
        ("brokerPermission", 8),
        ("listenPort", 65536),
        ("listenPort", 2),
        ("listenPort", "10911"),
        ("brokerId", True),
        ("autoCreateTopicEnable", 1),
        ("namesrvAddr", "localhost"),
        ("namesrvAddr", "a:1;b:x"),
        ("namesrvAddr", "a:70000"),
        ("flushConsumerOffsetInterval", 0),
    ],
)
def test_a_wrong_value_is_refused_by_its_key(key: str, value: Any) -> None:
    with pytest.raises(SettingsError) as caught:
        BrokerSettings(**{key: value}).validate()
    assert caught.value.key == key


def test_what_may_be_changed_is_a_setting() -> None:
    assert {item.name for item in fields(BrokerSettings)} >= changeable(BrokerSettings)


def test_name_servers_are_a_list() -> None:
    BrokerSettings(namesrvAddr="10.0.0.1:9876; ns-2:9876;[::1]:9876;").validate()


@pytest.mark.parametrize("kind", [BrokerSettings, StoreSettings, NameServerSettings, HttpSettings])
def test_every_number_declares_its_range(kind: type) -> None:
    numbers = {item.name for item in fields(kind) if item.type in ("int", "float")}
    assert numbers == {name for name, known in declarations(kind).items() if known.range is not None}


@pytest.mark.parametrize("kind", [BrokerSettings, StoreSettings, NameServerSettings, HttpSettings])
def test_every_setting_is_described_in_a_sentence(kind: type) -> None:
    for name, known in declarations(kind).items():
        assert known.description.strip() == known.description, name
        assert known.description[-1] in ".)", name
        assert known.description[0].isupper() or known.description[0] in "`0", name
        assert not known.no_effect or known.no_effect[-1] != ".", name


def test_nothing_reads_a_setting_without_an_effect() -> None:
    """A setting that the code reads has an effect. The exceptions: the runtime information shows three of them."""
    shown = {"sendThreadPoolQueueCapacity", "queryThreadPoolQueueCapacity", "endTransactionPoolQueueCapacity"}
    sources = [path.read_text() for part in ("node", "store", "replication") for path in (ROOT / part).rglob("*.py")]
    for kind in (BrokerSettings, StoreSettings, NameServerSettings, HttpSettings):
        for name, known in declarations(kind).items():
            is_read = any(re.search(rf"\.{name}\b", text) for text in sources)
            assert is_read is not bool(known.no_effect) or name in shown, name


def test_the_reference_is_what_the_declarations_say() -> None:
    reference = loaded(ROOT / "docs" / "settings_reference.py")
    assert reference.PAGE.read_text() == reference.page(), "run `make settings-reference`"


def test_the_configuration_that_tools_get_has_every_key_of_rocketmq() -> None:
    """The keys are those of `MixAll.object2Properties` for the configuration classes of a broker of 4.8.0."""
    keys = (Path(__file__).parent / "rocketmq_4_8_configuration.txt").read_text().split()
    declared = {item.name for kind in (BrokerSettings, StoreSettings) for item in fields(kind)}
    assert len(keys) == 160
    assert set(keys) - declared == SHOWN.keys() - declared
    assert set(ROCKETMQ_SETTINGS) >= SHOWN.keys() - declared, "each of them is accepted in a file, with the reason"


def test_a_refused_change_says_why() -> None:
    kinds = BrokerSettings, StoreSettings
    assert why_not_changeable("listenPort", *kinds) == "cannot be changed while the process runs: set it and restart"
    assert "files of the store" in why_not_changeable("mappedFileSizeCommitLog", *kinds)
    assert why_not_changeable("isEnableBatchPush", *kinds).startswith("has no effect: the leader always sends")
    assert why_not_changeable("brokerName2", *kinds) == "is not a setting"
