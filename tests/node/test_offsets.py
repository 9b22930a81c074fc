"""Consumer offsets agree with a plain dict, and with the file RocketMQ wrote."""

from __future__ import annotations

from typing import Any

from golden_rows import table_lines
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tallystick.node.broker.tables.offsets import ConsumerOffsets
from tallystick.store._kernel import Door
from tallystick.store.tables import JsonTable

GROUPS, TOPICS = st.sampled_from(["g", "h", "CID_i"]), st.sampled_from(["T", "%RETRY%g", "U"])
QUEUES = st.integers(0, 3)


class MemoryFile:
    def __init__(self) -> None:
        self.value: Any = None

    def load(self) -> Any:
        return self.value

    def save(self, value: Any) -> None:
        self.value = value


class OffsetsAgreeWithADict(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.file = MemoryFile()
        self.offsets = ConsumerOffsets(self.file)
        self.model: dict[tuple[str, str, int], int] = {}

    @rule(group=GROUPS, topic=TOPICS, queue=QUEUES, offset=st.integers(0, 2**62))
    def commit(self, group: str, topic: str, queue: int, offset: int) -> None:
        before = self.model.get((group, topic, queue), -1)
        assert self.offsets.commit(group, topic, queue, offset) == (before > offset)
        self.model[group, topic, queue] = offset

    @rule(source=GROUPS, destination=GROUPS, topic=TOPICS)
    def clone(self, source: str, destination: str, topic: str) -> None:
        self.offsets.clone(source, destination, topic)
        for (group, name, queue), offset in list(self.model.items()):
            if (group, name) == (source, topic):
                self.model[destination, topic, queue] = offset

    @rule(group=GROUPS)
    def remove_group(self, group: str) -> None:
        self.offsets.remove_group(group)
        self.model = {key: offset for key, offset in self.model.items() if key[0] != group}

    @rule(topic=TOPICS)
    def remove_topic(self, topic: str) -> None:
        self.offsets.remove_topic(topic)
        self.model = {key: offset for key, offset in self.model.items() if key[1] != topic}

    @rule()
    def restart_in_order(self) -> None:
        self.offsets.persist()
        self.offsets = ConsumerOffsets(self.file)

    @invariant()
    def same_content(self) -> None:
        for group in ("g", "h", "CID_i"):
            assert self.offsets.topics_of(group) == {key[1] for key in self.model if key[0] == group}
            for topic in ("T", "%RETRY%g", "U"):
                queues = {key[2]: offset for key, offset in self.model.items() if key[:2] == (group, topic)}
                assert self.offsets.queues(group, topic) == queues
                assert [self.offsets.query(group, topic, queue) for queue in range(4)] == [
                    queues.get(queue, -1) for queue in range(4)
                ]
        for topic in ("T", "U"):
            assert self.offsets.groups_of(topic) == {key[0] for key in self.model if key[1] == topic}
            lowest: dict[int, int] = {}
            for (group, name, queue), offset in self.model.items():
                if name == topic and group != "h":
                    lowest[queue] = min(offset, lowest.get(queue, offset))
            assert self.offsets.lowest(topic, ["h"]) == lowest


TestOffsetsAgreeWithADict = OffsetsAgreeWithADict.TestCase


def test_rocketmqs_file_is_read_and_written_back(golden: Any) -> None:
    path = golden("clean") / "config" / "consumerOffset.json"
    before = path.read_bytes()
    offsets = ConsumerOffsets(JsonTable(Door(), path))
    assert offsets.queues("GoldGroupAll", "GoldA") == {0: 246, 1: 246, 2: 246, 3: 245}
    assert offsets.query("GoldGroupTag", "GoldB", 0) == 1258
    assert not offsets.dirty
    offsets.changed()
    offsets.persist()
    assert ConsumerOffsets(JsonTable(Door(), path)).to_json() == offsets.to_json()
    assert table_lines(path.read_bytes()) == table_lines(before)


def test_a_table_with_quoted_numbers_is_read_too() -> None:
    file = MemoryFile()
    file.value = {"offsetTable": {"T@g": {"0": 14}}}
    assert ConsumerOffsets(file).query("g", "T", 0) == 14
