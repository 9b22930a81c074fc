"""Groups of consumers: what makes one, and the file as RocketMQ wrote it."""

from __future__ import annotations

from typing import Any

import pytest
from golden_rows import table_lines

from tallystick.node.broker.tables.consumer_groups import SubscriptionGroup, SubscriptionGroupTable, validate_group_name
from tallystick.node.core.settings import BrokerSettings
from tallystick.store._kernel import Door
from tallystick.store.tables import JsonTable


class MemoryFile:
    def __init__(self, value: Any = None) -> None:
        self.value = value

    def load(self) -> Any:
        return self.value

    def save(self, value: Any) -> None:
        self.value = value


def table(**settings: Any) -> SubscriptionGroupTable:
    return SubscriptionGroupTable(MemoryFile(), BrokerSettings(**settings), lambda: 1000)


def test_a_new_broker_has_the_predefined_groups() -> None:
    assert set(table()) == {
        "TOOLS_CONSUMER",
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PULL",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
    }


def test_a_consumer_makes_its_group_unless_that_is_off() -> None:
    assert table().get("g") == SubscriptionGroup("g")
    strict = table(autoCreateSubscriptionGroup=False)
    assert strict.get("g") is None
    assert strict.get("CID_RMQ_SYS_TRANS") is not None
    assert table().find("g") is None, "looking makes nothing"


@pytest.mark.parametrize("name", ["", " ", "../g", "a/b", "x" * 256, "ü"])
def test_a_name_that_could_not_be_part_of_a_topics_is_refused(name: str) -> None:
    groups = table()
    assert validate_group_name(name) is not None
    assert groups.get(name) is None
    with pytest.raises(ValueError, match="group"):
        groups.update(SubscriptionGroup(name))
    assert len(groups) == 7


def test_rocketmqs_file_is_read_and_written_back(golden: Any) -> None:
    path = golden("clean") / "config" / "subscriptionGroup.json"
    before = path.read_bytes()
    groups = SubscriptionGroupTable(JsonTable(Door(), path), BrokerSettings(), lambda: 5)
    assert groups.find("GoldGroupTag") == SubscriptionGroup("GoldGroupTag")
    assert groups.data_version.counter == 5
    groups.changed()
    groups.persist()
    again = SubscriptionGroupTable(JsonTable(Door(), path), BrokerSettings(), lambda: 6)
    assert dict(again.items()) == dict(groups.items())
    assert again.to_json() == groups.to_json()
    assert table_lines(path.read_bytes()) == table_lines(before)


def test_a_file_that_is_no_table_of_groups_is_named() -> None:
    with pytest.raises(ValueError, match="subscriptionGroupTable"):
        SubscriptionGroupTable(MemoryFile({"subscriptionGroupTable": {"g": 5}}), BrokerSettings(), lambda: 0)
