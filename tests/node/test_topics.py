"""Topics: names, what makes one, and the file as RocketMQ wrote it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from golden_rows import table_lines

from tallystick.node.broker.tables.topics import (
    AUTO_CREATE_TOPIC,
    TopicConfig,
    TopicTable,
    retry_topic,
    validate_topic_name,
)
from tallystick.node.core.settings import BrokerSettings
from tallystick.store._kernel import Door
from tallystick.store.tables import JsonTable


class MemoryFile:
    """A file of one table that keeps the contract of JsonTable: what was saved last is loaded."""

    def __init__(self, value: Any = None) -> None:
        self.value = value
        self.saves = 0

    def load(self) -> Any:
        return self.value

    def save(self, value: Any) -> None:
        self.value = value
        self.saves += 1


SETTINGS = BrokerSettings(brokerIP1="10.0.0.1", brokerName="broker-a", brokerClusterName="C")


def table(file: MemoryFile | None = None, **settings: Any) -> TopicTable:
    values = {"brokerIP1": "10.0.0.1", "brokerName": "broker-a", "brokerClusterName": "C", **settings}
    return TopicTable(file or MemoryFile(), BrokerSettings(**values), lambda: 1000)


@pytest.mark.parametrize("name", ["TopicTest", "%RETRY%g-1", "a|b", "x" * 127])
def test_names_that_are_fine(name: str) -> None:
    assert validate_topic_name(name) is None


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "blank"),
        ("   ", "blank"),
        (None, "blank"),
        ("../x", "illegal"),
        ("a/b", "illegal"),
        ("a\n", "illegal"),
        ("日本", "illegal"),
        ("a.b", "illegal"),
        ("x" * 128, "longer"),
    ],
)
def test_names_that_are_not(name: str | None, reason: str) -> None:
    assert reason in str(validate_topic_name(name))


def test_a_new_broker_has_the_system_topics() -> None:
    topics = table()
    shape = {name: (config.read_queue_nums, config.perm) for name, config in topics.items()}
    assert shape == {
        "SELF_TEST_TOPIC": (1, 6),
        "TBW102": (8, 7),
        "BenchmarkTest": (1024, 6),
        "C": (16, 7),
        "broker-a": (1, 7),
        "OFFSET_MOVED_EVENT": (1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 6),
        "C_REPLY_TOPIC": (1, 6),
    }
    assert "RMQ_SYS_TRACE_TOPIC" in table(traceTopicEnable=True)
    assert "TBW102" not in table(autoCreateTopicEnable=False)
    assert topics.is_system("RMQ_SYS_TRANS_HALF_TOPIC")
    assert topics.is_system("broker-a")
    assert not topics.is_system("TopicTest")


def test_a_send_makes_a_topic_like_its_model() -> None:
    topics = table()
    seen: list[str] = []
    topics.on_change.append(seen.append)
    made = topics.create_on_send("T", AUTO_CREATE_TOPIC, 4)
    assert made == TopicConfig("T", 4, 4, 6)
    assert topics.create_on_send("Many", AUTO_CREATE_TOPIC, 64) == TopicConfig("Many", 8, 8, 6)
    assert topics.create_on_send("T", AUTO_CREATE_TOPIC, 2) is made, "a known topic stays as it is"
    assert seen == ["T", "Many"]
    assert topics.data_version.counter == 2
    assert topics.create_on_send("U", "T", 4) is None, "no topic may inherit from T"
    assert topics.create_on_send("U", "nowhere", 4) is None
    assert topics.create_on_send("../U", AUTO_CREATE_TOPIC, 4) is None
    assert topics.create_on_send("Minus", AUTO_CREATE_TOPIC, -3) == TopicConfig("Minus", 0, 0, 6)


def test_no_topic_is_made_where_that_is_off_even_if_the_file_has_the_model() -> None:
    file = MemoryFile()
    topics = table(file)
    topics.persist()
    assert table(file, autoCreateTopicEnable=False).create_on_send("T", AUTO_CREATE_TOPIC, 4) is None


def test_retry_topics_are_made_but_not_for_names_that_would_leave_the_folder() -> None:
    topics = table()
    assert topics.create_on_send_back(retry_topic("g"), 1) == TopicConfig("%RETRY%g", 1, 1, 6)
    assert topics.create_on_send_back(retry_topic("../../g"), 1) is None
    assert topics.create_on_send_back(retry_topic("g" * 121), 1) is None


def test_an_update_is_checked() -> None:
    topics = table()
    with pytest.raises(ValueError, match="illegal characters"):
        topics.update(TopicConfig("a/../b"))
    with pytest.raises(ValueError, match="writeQueueNums"):
        topics.update(TopicConfig("a", 1, -1))
    with pytest.raises(ValueError, match="perm"):
        topics.update(TopicConfig("a", 1, 1, perm=64))
    assert "a" not in topics
    assert not topics.delete("a")


def test_rocketmqs_file_is_read_and_written_back(golden: Any, tmp_path: Path) -> None:
    path = golden("clean") / "config" / "topics.json"
    before = path.read_bytes()
    settings = BrokerSettings(brokerName="broker-a", brokerClusterName="PeerCluster")
    topics = TopicTable(JsonTable(Door(), path), settings, lambda: 5)
    assert topics.get("GoldReadOnly") == TopicConfig("GoldReadOnly", 3, 3, 4)
    assert topics.data_version.to_json() == {"counter": 15, "timestamp": 1795217466741}
    assert not topics.dirty, "nothing to write: every system topic of these settings is in the file"
    topics.changed()
    topics.persist()
    again = TopicTable(JsonTable(Door(), path), settings, lambda: 6)
    assert dict(again.items()) == dict(topics.items())
    assert again.data_version == topics.data_version
    assert table_lines(path.read_bytes()) == table_lines(before)


async def test_changes_made_together_are_written_together() -> None:
    file = MemoryFile()
    topics = table(file)
    for number in range(100):
        topics.create_on_send(f"T{number}", AUTO_CREATE_TOPIC, 4)
    await topics.saved()
    assert not topics.dirty
    assert len(file.value["topicConfigTable"]) == 100 + 8
    assert file.saves <= 2


async def test_a_disk_that_fails_leaves_the_table_dirty_and_tells_who_waits() -> None:
    class FullDisk(MemoryFile):
        full = True

        def save(self, value: Any) -> None:
            if self.full:
                raise OSError(28, "no space")
            super().save(value)

    file = FullDisk()
    topics = table(file)
    topics.update(TopicConfig("T"))
    with pytest.raises(OSError, match="no space"):
        await topics.saved()
    assert topics.dirty
    file.full = False
    await topics.saved()
    assert "T" in file.value["topicConfigTable"]
