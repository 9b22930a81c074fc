"""Rebuilds a table whose newest version is lost from the broker's other files.

    table                    is rebuilt from                               as
    topics.json              ConsumeQueues, keys of consumerOffset.json,   perm 6, at least the default number of queues
                             delayed messages, half messages
    subscriptionGroup.json   %RETRY% topics, keys of consumerOffset.json   default settings
    consumerOffset.json      nothing: consumers begin at their consumeFromWhere
    delayOffset.json         nothing: delayed messages that are kept are delivered again
    firstOffset.json         nothing: the next pass finds again what has expired by the retention of a topic
    consumerFilter.json      heartbeats of consumers

Recovery has made the ConsumeQueues agree with the log before, so a topic with messages has queues. Rows of the table's
backup stay as they are. Rows that only the lost version had get default settings: an administrator may have to change
them, so a finding names each. A topic that was deleted after the backup was written is restored as well: that is
harmless, while a missing topic hides messages.

A member of a group rebuilds nothing: its tables are in the log.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.node.broker.services.delay import DelayError, real_queue
from tallystick.node.broker.services.half import GROUP as TRANSACTION_GROUP
from tallystick.node.broker.services.transaction_check import read_record
from tallystick.node.broker.tables.consumer_groups import SubscriptionGroup, validate_group_name
from tallystick.node.broker.tables.topics import (
    DLQ_PREFIX,
    HALF_TOPIC,
    MAX_QUEUE_NUMS,
    OPERATION_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TopicConfig,
    validate_topic_name,
)
from tallystick.store.findings import FindingKind
from tallystick.store.formats import properties
from tallystick.store.table_opening import Origin

if TYPE_CHECKING:
    from tallystick.node.broker.context import BrokerContext
    from tallystick.node.broker.tables.consumer_groups import SubscriptionGroupTable
    from tallystick.node.broker.tables.offsets import ConsumerOffsets
    from tallystick.node.broker.tables.topics import TopicTable
    from tallystick.store.finding_log import FindingLog

_MAX_NAMED = 20
# The broker reads their queues without a row.
_INTERNAL = frozenset((SCHEDULE_TOPIC, TIMER_TOPIC, HALF_TOPIC, OPERATION_TOPIC))
_READ_COUNT = 512


def all_queues(broker: BrokerContext) -> Iterator[tuple[str, int]]:
    """Queues (topic, queue id) with messages, and those to which delayed messages, timers and half messages will go:
    they may be the first messages of their topics. Reads all such messages."""
    names = broker.store.queues.names()
    yield from names
    for topic, queue_id in names:
        if topic == SCHEDULE_TOPIC:
            yield from _named_by(broker, topic, queue_id, broker.schedule.offsets.offsets.get(queue_id + 1, 0))
        elif topic == TIMER_TOPIC:
            yield from _named_by(broker, topic, queue_id, 0)
        elif topic == HALF_TOPIC:
            yield from _named_by(broker, topic, queue_id, broker.offsets.query(TRANSACTION_GROUP, topic, queue_id))


def _named_by(broker: BrokerContext, topic: str, queue_id: int, offset: int) -> set[tuple[str, int]]:
    found = set()
    offset = max(offset, broker.store.queues.min_offset(topic, queue_id))
    while units := broker.store.reads.units(topic, queue_id, offset, _READ_COUNT):
        offset += len(units)
        for pos, _, _ in units:
            record = read_record(broker.store, pos)
            if record is not None:
                with contextlib.suppress(DelayError):
                    found.add(real_queue(properties.decode(record.properties)))
    return found


def missing_topics(
    known: Iterable[str], queues: Iterable[tuple[str, int]], offsets: Mapping[str, Iterable[int]], default_queues: int
) -> list[TopicConfig]:
    """Topics that have ConsumeQueues or committed offsets (queue ids by topic) and are not `known`."""
    highest: dict[str, int] = defaultdict(int)
    for topic, queue_id in queues:
        highest[topic] = max(highest[topic], queue_id)
    for topic, queue_ids in offsets.items():
        highest[topic] = max([highest[topic], *queue_ids])
    found = []
    for topic in sorted(highest.keys() - set(known) - _INTERNAL):
        if validate_topic_name(topic) is None:
            least = 1 if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) else default_queues
            count = min(MAX_QUEUE_NUMS, max(highest[topic] + 1, least))
            found.append(TopicConfig(topic, count, count))
    return found


def missing_groups(known: Iterable[str], topics: Iterable[str], committed: Iterable[str]) -> list[SubscriptionGroup]:
    """Groups that have a retry topic or committed offsets and are not `known`."""
    names = {topic.removeprefix(RETRY_PREFIX) for topic in topics if topic.startswith(RETRY_PREFIX)} | set(committed)
    return [
        SubscriptionGroup(name)
        for name in sorted(names - set(known) - {TRANSACTION_GROUP})
        if validate_group_name(name) is None
    ]


class Rebuilding:
    """Rebuilds the tables of one broker that were not read from their newest version."""

    def __init__(self, origins: Mapping[str, Origin], config: Path, findings: FindingLog) -> None:
        """`origins`: by the table's file name; `config`: the folder."""
        self._origins, self._config, self._findings = origins, config, findings

    def run(
        self,
        topics: TopicTable,
        groups: SubscriptionGroupTable,
        offsets: ConsumerOffsets,
        queues: Iterable[tuple[str, int]],
    ) -> None:
        """Adds missing rows; the caller must save the tables afterwards.

        `queues`: `all_queues`; it is read only if topics are lost.
        """
        if self._lost(topics.what):
            by_topic = offsets.queue_ids()
            found = missing_topics(topics, queues, by_topic, topics.settings.defaultTopicQueueNums)
            topics.update(*found)
            shape = ", ".join(f"{topic.topic_name} ({topic.read_queue_nums} queues)" for topic in found[:_MAX_NAMED])
            self._tell(topics.what, "topics", len(found), shape)
        if self._lost(groups.what):
            names = missing_groups(groups, topics, offsets.group_names())
            groups.update(*names)
            self._tell(groups.what, "groups", len(names), ", ".join(name.group_name for name in names[:_MAX_NAMED]))

    def _lost(self, what: str) -> bool:
        return self._origins.get(what, Origin.FILE) is not Origin.FILE

    def _tell(self, what: str, kind: str, count: int, names: str) -> None:
        if count:
            more = f" and {count - _MAX_NAMED} more" if count > _MAX_NAMED else ""
            reason = f"{count} {kind} with default settings, which may differ from the previous ones: {names}{more}"
            self._findings.add(FindingKind.REBUILT, self._config / what, reason)
