"""Which messages of a queue a group gets: by tags through their hash, by SQL92 through the record's properties.

A pull contains its subscription or relies on the one of its group's heartbeats. Tags become a set of hash codes, which
the store compares without reading the log (the client compares the text: two tags can share a hash). A SQL92 expression
becomes a function over a record's properties.

The expressions of groups are stored in `config/consumerFilter.json`, so that a restarted broker can answer before the
first heartbeat. An entry has the client's version of the subscription (its clock when it subscribed). The newer of two
versions is valid. A pull with a newer version than the entry's is refused until the heartbeat has arrived (28). When a
group leaves, its entry is marked dead, and removed `filterDataCleanTimeSpan` later.

Source: ConsumerFilterManager, ConsumerFilterData, ExpressionMessageFilter and ExpressionForRetryMessageFilter of
RocketMQ 4.8.0.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from tallystick.node.broker import sql92
from tallystick.node.broker.tables.bloom import BloomFilter
from tallystick.node.broker.tables.saving import SavedTable, TableFile, rows
from tallystick.node.broker.tables.subscriptions import SQL92, SUB_ALL, SubscriptionData, SubscriptionError, is_tag_type
from tallystick.node.broker.tables.topics import RETRY_PREFIX
from tallystick.node.core.settings import BrokerSettings
from tallystick.store.clock import wall_ms
from tallystick.store.formats import properties
from tallystick.store.formats.message import UNLIMITED
from tallystick.store.formats.properties import RETRY_TOPIC

if TYPE_CHECKING:
    from tallystick.store._kernel import BitTest

_logger = logging.getLogger("tallystick.broker.filters")

Accept = Callable[[int, bytes], bool]
"""Given a unit's tags code and a record's stored properties: whether the record passes."""

DEAD_AT_LOAD_MS = 30_000
"""The assumed time since a group left, if its entry was alive when the broker stopped."""


_TESTED_CHARACTERS, _LEAST_TESTED = 64 << 10, 8
"""About 2 ms in all. RocketMQ's own limit of 800 records applies as well: 80 characters reach it."""
_TESTED_RETRIES = 64
"""The same for a retry topic, whose records can belong to several expressions."""


class MessageFilter(NamedTuple):
    """The filter that `Reads.get_message` takes: with both None everything passes."""

    codes: frozenset[int] | None = None
    accept: Accept | None = None
    bits: BitTest | None = None
    """Excludes records by the bit maps that dispatch made (`services/bit_maps.py`)."""
    most_accepts: int = UNLIMITED
    """How many records `accept` tests in one pull."""


EVERYTHING = MessageFilter()


def tag_filter(subscription: SubscriptionData) -> MessageFilter:
    """The filter of a subscription by tags."""
    if subscription.sub_string == SUB_ALL or subscription.class_filter_mode:
        return EVERYTHING
    return MessageFilter(subscription.code_set)


_CACHED_CHARACTERS = 2048  # longer texts are parsed for each pull: clients would decide the cache's size


def filter_of(sub_string: str | None, expression_type: str | None) -> MessageFilter:
    """The filter of a subscription in a pull. Texts of the usual length are parsed once.

    Raises SubscriptionError if it selects nothing, is too long or of an unknown type; Sql92Error if it is invalid.
    """
    if sub_string is not None and len(sub_string) > _CACHED_CHARACTERS:
        return _filter_of(sub_string, expression_type)
    return _cached_filter_of(sub_string, expression_type)


def _filter_of(sub_string: str | None, expression_type: str | None) -> MessageFilter:
    subscription = SubscriptionData.build("", sub_string, expression_type)
    if is_tag_type(expression_type):
        return tag_filter(subscription)
    accept = accepting(_compiled(subscription.sub_string, subscription.expression_type))
    return MessageFilter(accept=accept, most_accepts=most_accepts(subscription.sub_string))


def most_accepts(expression: str) -> int:
    """How many records an expression tests in one pull. A long one takes long for each of them, and other clients wait
    meanwhile."""
    return max(_LEAST_TESTED, _TESTED_CHARACTERS // max(1, len(expression)))


_cached_filter_of = lru_cache(maxsize=4096)(_filter_of)


def _compiled(expression: str, expression_type: str) -> sql92.Expression:
    if expression_type != SQL92:
        raise SubscriptionError(f"unknown type of expression: {expression_type}")
    return sql92.compile(expression)


def accepting(expression: sql92.Expression) -> Accept:
    """The expression as a test of records."""
    matches, pick = expression.matches, picker(expression.names)
    return lambda _, stored: matches(pick(stored))


def picker(names: Iterable[str]) -> Callable[[bytes], Mapping[str, str]]:
    """A function that reads only these properties of a stored text; what it yields for them is what `decode` would."""
    marks = [(name, b"\x02" + name.encode() + b"\x01") for name in names]

    def pick(stored: bytes) -> Mapping[str, str]:
        found = {}
        stored = b"\x02" + stored
        for name, mark in marks:
            start = stored.rfind(mark)  # the last one is valid
            if start < 0:
                continue
            start += len(mark)
            end = stored.find(b"\x02", start)
            value = stored[start:] if end < 0 else stored[start:end]
            if not value or b"\x01" in value:  # no pair: an earlier one of that name might be
                return _decoded(stored)
            found[name] = value.decode("utf-8", "replace")
        return found

    return pick


def _decoded(stored: bytes) -> dict[str, str]:
    return properties.decode(stored.decode("utf-8", "replace"))


@dataclass(slots=True)
class FilterData:
    """One group's expression for one topic. Times in ms; `dead_time` 0: its consumers are there."""

    topic: str
    consumer_group: str
    expression: sql92.Expression
    born_time: int
    client_version: int
    bloom_positions: tuple[int, ...]
    dead_time: int = 0
    valid_from: int = -1
    """Bit maps of records from this position of the log on have the group's bits; -1: none has."""
    filter: MessageFilter = field(init=False)
    bloom_mask: int = field(init=False)
    """The group's bits; bit p of the number is bit p of a map."""

    def __post_init__(self) -> None:
        self.filter = MessageFilter(accept=accepting(self.expression), most_accepts=most_accepts(self.expression.text))
        self.bloom_mask = sum(1 << position for position in set(self.bloom_positions))

    @property
    def dead(self) -> bool:
        return self.dead_time >= self.born_time

    def to_json(self, bloom: BloomFilter) -> dict[str, Any]:
        return {
            "bloomFilterData": {"bitNum": bloom.bits, "bitPos": list(self.bloom_positions)},
            "bornTime": self.born_time,
            "clientVersion": self.client_version,
            "consumerGroup": self.consumer_group,
            "dead": self.dead,
            "deadTime": self.dead_time,
            "expression": self.expression.text,
            "expressionType": SQL92,
            "topic": self.topic,
        }


class ConsumerFilterTable(SavedTable):
    """The SQL92 expressions of consumer groups.

    `register` and `unregister` are listeners of the consumer table (`on_subscribed`, `on_gone`).
    """

    what = "consumerFilter.json"

    def __init__(self, file: TableFile, settings: BrokerSettings, now_ms: Callable[[], int] = wall_ms) -> None:
        """What `file` holds. ValueError: it holds no table of filters."""
        super().__init__(file)
        self.on_change: Callable[[FilterData | None], None] = lambda added: None
        """Called with each new expression, and with None after a removal."""
        self.settings = settings  # replaced when settings change while the broker runs
        self._now_ms = now_ms
        self.bloom = BloomFilter.create(settings.maxErrorRateOfBloomFilter, settings.expectConsumerNumUseFilter)
        self._topics: dict[str, dict[str, FilterData]] = {}
        self._groups: dict[str, set[str]] = {}  # topics by group, for heartbeats
        stored = file.load() or {"filterDataByTopic": {}}
        for topic, value in rows(stored, "filterDataByTopic").items():
            for group, row in rows(value, "groupFilterData").items():
                self._load(topic, group, row)

    def _load(self, topic: str, group: str, row: Mapping[str, Any]) -> None:
        positions = self.bloom.positions(f"{group}#{topic}")
        if row.get("bloomFilterData") != {"bitNum": self.bloom.bits, "bitPos": list(positions)}:
            _logger.info("the filter of %s on %s was made with other bloom settings: ignored", group, topic)
            return
        try:
            expression = _compiled(str(row.get("expression")), str(row.get("expressionType")))
            born, version = int(row.get("bornTime") or 0), int(row.get("clientVersion") or 0)
            dead = int(row.get("deadTime") or 0)
        except ValueError as error:  # also Sql92Error, SubscriptionError: a heartbeat restores it
            _logger.warning("the filter of %s on %s cannot be read: %s", group, topic, error)
            return
        data = FilterData(topic, group, expression, born, version, positions)
        data.dead_time = dead or max(born, self._now_ms() - DEAD_AT_LOAD_MS)
        self._put(data)

    def get(self, topic: str, group: str) -> FilterData | None:
        """Returns the group's expression, also after its consumers left; None if the group never sent an expression."""
        groups = self._topics.get(topic)
        return None if groups is None else groups.get(group)

    def topics(self) -> list[str]:
        """The topics with expressions."""
        return list(self._topics)

    def of_topic(self, topic: str) -> list[FilterData]:
        """Every group's expression for the topic."""
        return list(self._topics.get(topic, {}).values())

    def retry_filter(self, topic: str) -> MessageFilter:
        """For a `%RETRY%` topic with `filterSupportRetry`: uses the expression for the topic that a message came
        from."""
        group = topic.removeprefix(RETRY_PREFIX)

        def accept(_: int, stored: bytes) -> bool:
            found = _decoded(stored)
            data = self.get(found.get(RETRY_TOPIC, ""), group)
            return data is None or data.expression.matches(found)

        return MessageFilter(accept=accept, most_accepts=_TESTED_RETRIES)

    def register(self, group: str, subscriptions: Iterable[SubscriptionData]) -> None:
        """Handles a heartbeat with all subscriptions of the group. An invalid expression removes the previous one."""
        topics = set()
        for subscription in subscriptions:
            topics.add(subscription.topic)
            if not is_tag_type(subscription.expression_type):
                self._register(group, subscription)
        for topic in self._groups.get(group, set()) - topics:
            self._bury(self._topics[topic][group])

    def _register(self, group: str, subscription: SubscriptionData) -> None:
        topic, version = subscription.topic, subscription.sub_version
        old = self.get(topic, group)
        if old is not None and version <= old.client_version:
            if version == old.client_version and old.dead:
                self._revive(old)
            return
        if old is not None and old.expression.text == subscription.sub_string:
            old.client_version = version
            self._revive(old)
            return
        try:
            expression = _compiled(subscription.sub_string, subscription.expression_type)
        except ValueError as error:
            # The client was told when it started (46), and is told again with each pull (27)
            _logger.info("the filter of %s on %s is refused: %s", group, topic, error)
            if old is not None:
                self._remove(old)
            return
        positions = self.bloom.positions(f"{group}#{topic}")
        self._put(FilterData(topic, group, expression, self._now_ms(), version, positions))
        self.changed()

    def unregister(self, group: str) -> None:
        """The group's last consumer left."""
        for topic in self._groups.get(group, ()):
            self._bury(self._topics[topic][group])

    def clean(self) -> int:
        """Removes entries that have been dead for too long; returns how many."""
        limit = self._now_ms() - self.settings.filterDataCleanTimeSpan
        old = [
            data
            for groups in self._topics.values()
            for data in groups.values()
            if data.dead and data.dead_time <= limit
        ]
        for data in old:
            self._remove(data)
        return len(old)

    def to_json(self) -> dict[str, Any]:
        """The file's content."""
        return {
            "filterDataByTopic": {
                topic: {
                    "groupFilterData": {group: data.to_json(self.bloom) for group, data in groups.items()},
                    "topic": topic,
                }
                for topic, groups in self._topics.items()
            }
        }

    def _put(self, data: FilterData) -> None:
        self._topics.setdefault(data.topic, {})[data.consumer_group] = data
        self._groups.setdefault(data.consumer_group, set()).add(data.topic)
        self.on_change(data)

    def _remove(self, data: FilterData) -> None:
        groups, topics = self._topics[data.topic], self._groups[data.consumer_group]
        del groups[data.consumer_group]
        topics.discard(data.topic)
        if not groups:
            del self._topics[data.topic]
        if not topics:
            del self._groups[data.consumer_group]
        self.on_change(None)
        self.changed()

    def _bury(self, data: FilterData) -> None:
        if not data.dead:
            data.dead_time = self._now_ms()
            self.changed()

    def _revive(self, data: FilterData) -> None:
        data.dead_time = 0
        self.changed()
