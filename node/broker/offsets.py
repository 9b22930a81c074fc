"""How far each group has consumed each queue: `config/consumerOffset.json`.

An offset is the next one to consume, so it equals the number of messages done when the queue began at 0. It may go
backwards: that is a reset. The table is written by time, not by commit; what was committed since the last write is
consumed again after a crash, or in a replicated group after the leader is lost. `topic@group` is the key on disk and
here; the topic has no `@`.

Source: ConsumerOffsetManager of RocketMQ 4.8.0.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from tallystick.node.broker.saving import ReplicatedTable, TableFile, rows
from tallystick.store.fastjson import int_keys

SEPARATOR = "@"


class ConsumerOffsets(ReplicatedTable):
    """Offsets by group, topic and queue."""

    what = "consumerOffset.json"
    rows_field = "offsetTable"

    def __init__(self, file: TableFile) -> None:
        """What `file` holds. ValueError: it holds no table of offsets."""
        super().__init__(file)
        self._offsets: dict[str, dict[int, int]] = {}
        # The groups of a topic and the topics of a group without a walk through all of it.
        self._topics: dict[str, set[str]] = {}
        self._groups: dict[str, set[str]] = {}
        stored = file.load() or {}
        for key, queues in rows(stored, "offsetTable").items():
            topic, separator, group = key.partition(SEPARATOR)
            if separator:
                for queue_id, offset in int_keys(queues).items():
                    self._set(group, topic, queue_id, int(offset))

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Remember where `group` goes on in a queue. True: that is a step backwards (a reset, or a bug of a client)."""
        if self.follows:
            return False  # the leader hears of it from the same client
        before = self._set(group, topic, queue_id, offset)
        if before != offset:
            self.changed(topic + SEPARATOR + group)
        return before > offset

    def _set(self, group: str, topic: str, queue_id: int, offset: int) -> int:
        key = topic + SEPARATOR + group
        queues = self._offsets.get(key)
        if queues is None:
            queues = self._offsets[key] = {}
            self._topics.setdefault(group, set()).add(topic)
            self._groups.setdefault(topic, set()).add(group)
        before = queues.get(queue_id, -1)
        queues[queue_id] = offset
        return before

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """The next offset to consume; -1: this group never committed one here."""
        queues = self._offsets.get(topic + SEPARATOR + group)
        return -1 if queues is None else queues.get(queue_id, -1)

    def queues(self, group: str, topic: str) -> Mapping[int, int]:
        """Offset by queue id, empty if the group never committed in this topic."""
        return self._offsets.get(topic + SEPARATOR + group, {})

    def topics_of(self, group: str) -> set[str]:
        """Topics this group committed in."""
        return set(self._topics.get(group, ()))

    def groups_of(self, topic: str) -> set[str]:
        """Groups that committed in this topic."""
        return set(self._groups.get(topic, ()))

    def lowest(self, topic: str, except_groups: Iterable[str] = ()) -> dict[int, int]:
        """By queue, the smallest offset of any group but these."""
        result: dict[int, int] = {}
        for group in self.groups_of(topic).difference(except_groups):
            for queue_id, offset in self.queues(group, topic).items():
                result[queue_id] = min(offset, result.get(queue_id, offset))
        return result

    def clone(self, source_group: str, target_group: str, topic: str) -> None:
        """`target_group` goes on where `source_group` is, in every queue of the topic."""
        for queue_id, offset in dict(self.queues(source_group, topic)).items():
            self.commit(target_group, topic, queue_id, offset)

    def remove_group(self, group: str) -> None:
        """Forget all a group committed. ValueError: this broker follows in its group."""
        self.must_lead()
        for topic in self.topics_of(group):
            self._remove(group, topic)

    def remove_topic(self, topic: str) -> None:
        """Forget what every group committed in a topic. ValueError: this broker follows in its group."""
        self.must_lead()
        for group in self.groups_of(topic):
            self._remove(group, topic)

    def _remove(self, group: str, topic: str) -> None:
        self._drop(group, topic)
        self.changed(topic + SEPARATOR + group)

    def _drop(self, group: str, topic: str) -> None:
        del self._offsets[topic + SEPARATOR + group]
        for index, name, member in ((self._topics, group, topic), (self._groups, topic, group)):
            index[name].discard(member)
            if not index[name]:
                del index[name]

    def row_names(self) -> Collection[str]:
        return self._offsets.keys()

    def row_json(self, name: str) -> dict[str, int] | None:
        queues = self._offsets.get(name)
        return None if queues is None else {str(queue_id): offset for queue_id, offset in queues.items()}

    def file_form(self, picture: Mapping[str, Any]) -> dict[str, Any]:
        return {"offsetTable": {key: int_keys(queues) for key, queues in picture.get("offsetTable", {}).items()}}

    def take_row(self, name: str, row: Any) -> None:
        topic, separator, group = name.partition(SEPARATOR)
        if not separator:
            return
        if name in self._offsets:
            self._drop(group, topic)
        for queue_id, offset in int_keys(row or {}).items():
            self._set(group, topic, queue_id, int(offset))

    def to_json(self) -> dict[str, Any]:
        """The file's content, and the answer to GET_ALL_CONSUMER_OFFSET."""
        return {"offsetTable": {key: dict(queues) for key, queues in self._offsets.items()}}
