"""Settings: what is wrong is named."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from tallystick.node.settings import CHANGEABLE, BrokerSettings, HttpSettings, NameServerSettings
from tallystick.store.settings import SettingsError


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
        ("aclEnable", True),
    ],
)
def test_a_wrong_value_is_refused_by_its_key(key: str, value: Any) -> None:
    with pytest.raises(SettingsError) as caught:
        BrokerSettings(**{key: value}).validate()
    assert caught.value.key == key


def test_what_may_be_changed_is_a_setting() -> None:
    assert {item.name for item in fields(BrokerSettings)} >= CHANGEABLE


def test_name_servers_are_a_list() -> None:
    BrokerSettings(namesrvAddr="10.0.0.1:9876; ns-2:9876;[::1]:9876;").validate()


def test_a_number_without_a_range_is_a_mistake_of_ours() -> None:
    from tallystick.node import settings

    numbers = {item.name for item in fields(BrokerSettings) if item.type == "int"}
    assert numbers == set(settings._BROKER_RANGES)
