"""How far each group has consumed each queue: the table `config/consumerOffset.json`.

An offset is the next one to consume, so it equals the number of consumed messages if the queue began at 0. It can go
back: that is a reset. The key on disk and here is `topic@group`; a topic contains no `@`.

Clients commit every few seconds and do not wait for an answer. These offsets are saved at intervals
(`flushConsumerOffsetInterval`): after a kill, or after a group lost its leader, messages since the last save are
consumed again. A commit that asks for an answer gets it when the offset is durable.

Source: ConsumerOffsetManager of RocketMQ 4.8.0.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from tallystick.node.broker.tables.saving import ReplicatedTable, TableFile, rows
from tallystick.store.fastjson import int_keys
from tallystick.store.limited_log import LimitedLog

SEPARATOR = "@"
MAX_OFFSETS = 1_000_000
"""Limit for all groups, topics and queues together, chosen by tallystick. Clients choose the groups' names, and offsets
are kept: at the limit, new ones are refused and known ones can change. Each takes at most 100 bytes of memory."""


class ConsumerOffsets(ReplicatedTable):
    """Offsets by group, topic and queue."""

    what = "consumerOffset.json"
    rows_field = "offsetTable"

    def __init__(self, file: TableFile) -> None:
        """The content of `file`. Raises ValueError if it is not a table of offsets."""
        super().__init__(file)
        self._offsets: dict[str, dict[int, int]] = {}
        self._count = 0
        self._log = LimitedLog(logging.getLogger("tallystick.broker"), time.monotonic)
        # The groups of a topic and the topics of a group, without a scan of the whole table.
        self._topics: dict[str, set[str]] = {}
        self._groups: dict[str, set[str]] = {}
        stored = file.load()
        for key, queues in ({} if stored is None else rows(stored, "offsetTable")).items():
            topic, separator, group = key.partition(SEPARATOR)
            if separator:
                for queue_id, offset in int_keys(queues).items():
                    self._set(group, topic, queue_id, int(offset))

    def has_room(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether an offset of this group in this queue can be stored: it is known, or `MAX_OFFSETS` is not reached."""
        return self._count < MAX_OFFSETS or queue_id in self.queues(group, topic)

    def __len__(self) -> int:
        """Number of offsets."""
        return self._count

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Stores the offset at which `group` continues in a queue, if the limit allows it.

        True if that is a step back (a reset, or an error of a client).
        """
        if self.follows:
            return False  # the same client also commits to the leader
        if not self.has_room(group, topic, queue_id):
            self._log.warning("full", "cannot store an offset of %s in %s: the limit is %d", group, topic, MAX_OFFSETS)
            return False
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
        self._count += queue_id not in queues
        queues[queue_id] = offset
        return before

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """The next offset to consume; -1 if this group never committed one here."""
        queues = self._offsets.get(topic + SEPARATOR + group)
        return -1 if queues is None else queues.get(queue_id, -1)

    def queues(self, group: str, topic: str) -> Mapping[int, int]:
        """Offset by queue id; empty if the group never committed in this topic."""
        return self._offsets.get(topic + SEPARATOR + group, {})

    def topics_of(self, group: str) -> set[str]:
        """Topics in which this group committed."""
        return set(self._topics.get(group, ()))

    def groups_of(self, topic: str) -> set[str]:
        """Groups that committed in this topic."""
        return set(self._groups.get(topic, ()))

    def queue_ids(self) -> dict[str, set[int]]:
        """The queues with committed offsets, by topic."""
        ids: dict[str, set[int]] = {}
        for key, queues in self._offsets.items():
            ids.setdefault(key.partition(SEPARATOR)[0], set()).update(queues)
        return ids

    def group_names(self) -> set[str]:
        """All groups that committed an offset."""
        return set(self._topics)

    def lowest(self, topic: str, except_groups: Iterable[str] = ()) -> dict[int, int]:
        """By queue, the smallest offset of all groups except these."""
        result: dict[int, int] = {}
        for group in self.groups_of(topic).difference(except_groups):
            for queue_id, offset in self.queues(group, topic).items():
                result[queue_id] = min(offset, result.get(queue_id, offset))
        return result

    def clone(self, source_group: str, target_group: str, topic: str) -> None:
        """`target_group` gets the offsets of `source_group` in every queue of the topic.

        Raises ValueError if the limit does not allow all of them; then none is changed.
        """
        offsets = dict(self.queues(source_group, topic))
        known = self.queues(target_group, topic).keys()
        if not self.follows and self._count + len(offsets.keys() - known) > MAX_OFFSETS:
            raise ValueError(f"the offsets of {target_group} in {topic} are not kept: there are {MAX_OFFSETS} already")
        for queue_id, offset in offsets.items():
            self.commit(target_group, topic, queue_id, offset)

    def remove_group(self, group: str) -> None:
        """Removes all offsets of a group. Raises ValueError if this broker is a follower."""
        self.must_lead()
        for topic in self.topics_of(group):
            self._remove(group, topic)

    def remove_topic(self, topic: str) -> None:
        """Removes the offsets of all groups in a topic. Raises ValueError if this broker is a follower."""
        self.must_lead()
        for group in self.groups_of(topic):
            self._remove(group, topic)

    def _remove(self, group: str, topic: str) -> None:
        self._drop(group, topic)
        self.changed(topic + SEPARATOR + group)

    def _drop(self, group: str, topic: str) -> None:
        self._count -= len(self._offsets.pop(topic + SEPARATOR + group))
        for index, name, member in ((self._topics, group, topic), (self._groups, topic, group)):
            index[name].discard(member)
            if not index[name]:
                del index[name]

    def row_names(self) -> Collection[str]:
        return self._offsets.keys()

    def row_json(self, name: str) -> dict[str, int] | None:
        queues = self._offsets.get(name)
        return None if queues is None else {str(queue_id): offset for queue_id, offset in queues.items()}

    @staticmethod
    def file_form(picture: Mapping[str, Any]) -> dict[str, Any]:
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
