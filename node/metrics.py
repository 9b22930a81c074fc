"""The broker's figures in the names of RocketMQ 5, for `/metrics` (Prometheus text).

They are read when somebody asks, from what the broker keeps anyway; nothing is sampled between. Labels of topics and
groups come from clients, so their number is bounded: past `MAX_SERIES` of one metric, the rest is summed under the
label value `(other)`. Source: reference `admin.md` §5 (names `rocketmq_*` as RocketMQ 5 exposes them), base units in
the suffix; what it lacks (dispatch lag, held pulls, refused puts) is added under the same prefix. What a replicated
group tells has no name there: `tally_group_*`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tallystick.node.broker.stats import (
    GROUP_GET_NUMS,
    GROUP_GET_SIZE,
    SNDBCK_PUT_NUMS,
    TOPIC_PUT_NUMS,
    TOPIC_PUT_SIZE,
    Counter,
)

if TYPE_CHECKING:
    from tallystick.node.broker.broker import Broker

MAX_SERIES = 2000
_OTHER = "(other)"


class BrokerMetrics:
    """A Prometheus collector over one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self) -> bytes:
        """The body of `/metrics`."""
        self._broker.count_puts()  # those since the last whole second too
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        yield from self._messages()
        yield from self._consumers()
        yield from self._storage()
        yield from self._node()
        yield from self._group()

    def _messages(self) -> Iterator[Metric]:
        stats = self._broker.stats
        for name, help_text, table, labels in (
            ("rocketmq_messages_in", "messages stored", TOPIC_PUT_NUMS, ["topic"]),
            ("rocketmq_throughput_in", "bytes stored", TOPIC_PUT_SIZE, ["topic"]),
            ("rocketmq_messages_out", "messages given to consumers", GROUP_GET_NUMS, ["topic", "consumer_group"]),
            ("rocketmq_throughput_out", "bytes given to consumers", GROUP_GET_SIZE, ["topic", "consumer_group"]),
            ("rocketmq_send_back", "messages consumers gave back", SNDBCK_PUT_NUMS, ["topic", "consumer_group"]),
        ):
            family = CounterMetricFamily(name, help_text, labels=self._common(labels))
            for values, total in _bounded(_totals(stats.table(table), len(labels))):
                family.add_metric(self._values(values), total)
            yield family

    def _consumers(self) -> Iterator[Metric]:
        lag = GaugeMetricFamily(
            "rocketmq_consumer_lag_messages",
            "messages stored but not yet consumed",
            labels=self._common(["topic", "consumer_group"]),
        )
        behind: dict[tuple[str, ...], float] = {}
        store = self._broker.store
        for topic in {topic for topic, _ in store.queues()}:
            for group in self._broker.offsets.groups_of(topic):
                offsets = self._broker.offsets.queues(group, topic)
                behind[topic, group] = sum(
                    max(0, store.max_offset(topic, queue) - offset) for queue, offset in offsets.items()
                )
        for values, total in _bounded(behind.items()):
            lag.add_metric(self._values(values), total)
        yield lag
        connections = GaugeMetricFamily(
            "rocketmq_consumer_connections", "clients of a consumer group", labels=self._common(["consumer_group"])
        )
        consumers = self._broker.consumers
        for values, count in _bounded(((group,), len(consumers.members(group))) for group in consumers):
            connections.add_metric(self._values(values), count)
        yield connections
        producers = GaugeMetricFamily(
            "rocketmq_producer_connections", "clients of a producer group", labels=self._common(["producer_group"])
        )
        table = self._broker.producers
        for values, count in _bounded(((group,), len(table.members(group))) for group in table.groups()):
            producers.add_metric(self._values(values), count)
        yield producers

    def _storage(self) -> Iterator[Metric]:
        store = self._broker.store
        scrub = store.scrub
        for name, help_text, value in (
            ("rocketmq_storage_size", "bytes of the log that are kept", store.max_pos - store.min_pos),
            ("rocketmq_storage_flush_behind_bytes", "written but not on disk", store.max_pos - store.flushed_pos),
            ("rocketmq_storage_dispatch_behind_bytes", "written but not in queues", store.dispatch_behind_bytes),
            ("rocketmq_storage_max_position_bytes", "end of the log", store.max_pos),
            ("rocketmq_storage_disk_usage_ratio", "used part of the log's disk", store.upkeep.disk_ratio),
            ("rocketmq_storage_writable", "1: puts are taken", float(store.writable)),
            ("rocketmq_storage_unsaved_tables", "tables whose last save failed", len(self._broker.failing_tables)),
        ):
            yield self._gauge(name, help_text, value)
        damaged = CounterMetricFamily(
            "rocketmq_storage_damaged_reads", "reads that met a damaged record", labels=self._common([])
        )
        damaged.add_metric(self._values(()), store.damaged_records)
        yield damaged
        errors = CounterMetricFamily(
            "rocketmq_storage_write_errors", "failed writes of the log", labels=self._common([])
        )
        errors.add_metric(self._values(()), store.appender.write_errors)
        yield errors
        unread = CounterMetricFamily(
            "rocketmq_storage_unreadable_bytes",
            "bytes of files that the disk did not give to reads",
            labels=self._common([]),
        )
        unread.add_metric(self._values(()), store.media.unreadable_bytes)
        yield unread
        scrubbed = CounterMetricFamily(
            "rocketmq_storage_scrubbed_bytes", "bytes of the log that were read again", labels=self._common([])
        )
        scrubbed.add_metric(self._values(()), scrub.total_bytes)
        yield scrubbed
        for name, help_text, value in (
            (
                "rocketmq_storage_scrub_bytes_per_second",
                "how fast the log is read again; 0: not",
                scrub.bytes_per_second,
            ),
            ("rocketmq_storage_scrub_age_seconds", "since the last complete scrub ended", scrub.age_seconds),
            ("rocketmq_storage_unrepaired_damage", "damaged places that are not repaired", store.findings.unrepaired),
        ):
            yield self._gauge(name, help_text, value)
        findings = CounterMetricFamily(
            "rocketmq_storage_findings",
            "what was found wrong with files since the start, and what was done about it",
            labels=self._common(["kind"]),
        )
        for kind, count in store.findings.counts().items():
            findings.add_metric(self._values((kind,)), count)
        yield findings

    def _node(self) -> Iterator[Metric]:
        broker = self._broker
        yield self._gauge("rocketmq_broker_permission", "2: write, 4: read", broker.settings.brokerPermission)
        yield self._gauge("rocketmq_topic_number", "topics", len(broker.topics))
        yield self._gauge("rocketmq_consumer_group_number", "subscription groups", len(broker.groups))
        yield self._gauge("rocketmq_held_pulls", "pulls that wait for a message", len(broker.holds))
        yield self._gauge("rocketmq_connections", "open client connections", broker.connection_count)

    def _group(self) -> Iterator[Metric]:
        """A replicated group, as its member here sees it; lags are known to the leader alone."""
        group = self._broker.group
        if group is None:
            return
        status = group.status()
        for name, help_text, value in (
            ("tally_group_leads", "1: this member leads and is ready", float(group.leads)),
            ("tally_group_in_sync", "1: this member leads or follows closely", float(group.unready() is None)),
            ("tally_group_term", "term of the group", status.term),
            ("tally_group_voters", "members with a vote", len(status.voters)),
            ("tally_group_last_index", "last entry of the log here", status.last_index),
            ("tally_group_synced_index", "last durable entry here", status.synced_index),
            ("tally_group_commit_index", "last committed entry known here", status.commit_index),
            (
                "tally_group_damage_without_copy",
                "damaged places of this member's log that no other member has in a sound copy",
                sum(each.no_copy for each in status.unrepaired),
            ),
        ):
            yield self._gauge(name, help_text, value)
        refused = CounterMetricFamily(
            "tally_group_refused_messages", "messages of members that cannot be true", labels=self._common([])
        )
        refused.add_metric(self._values(()), status.refused_messages)
        yield refused
        labels = self._common(["peer"])
        lag = GaugeMetricFamily("tally_group_lag_bytes", "not known to be durable at the peer", labels=labels)
        linked = GaugeMetricFamily("tally_group_connected", "1: connected with the peer", labels=labels)
        for peer in status.peers:
            name = f"n{peer.member}"
            linked.add_metric(self._values((name,)), float(peer.connected))
            if peer.lag_bytes is not None:
                lag.add_metric(self._values((name,)), peer.lag_bytes)
        yield lag
        yield linked

    def _gauge(self, name: str, help_text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, help_text, labels=self._common([]))
        family.add_metric(self._values(()), value)
        return family

    def _common(self, labels: list[str]) -> list[str]:
        return ["cluster", "node_type", "node_id", *labels]

    def _values(self, values: tuple[str, ...]) -> list[str]:
        settings = self._broker.settings
        return [settings.brokerClusterName, "broker", settings.brokerName, *values]


def _totals(table: dict[str, Counter], labels: int) -> Iterator[tuple[tuple[str, ...], float]]:
    for key, counter in table.items():
        topic, _, group = key.partition("@")
        yield ((topic,) if labels == 1 else (topic, group)), counter.total


def _bounded(series: Iterable[tuple[tuple[str, ...], float]]) -> Iterator[tuple[tuple[str, ...], float]]:
    """The first `MAX_SERIES` series by name, and one more with the sum of the rest."""
    rest, labels = 0.0, 0
    for number, (values, total) in enumerate(sorted(series)):
        if number < MAX_SERIES:
            yield values, total
        else:
            rest, labels = rest + total, len(values)
    if labels:
        yield (_OTHER,) * labels, rest
