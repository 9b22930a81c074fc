"""The metrics of a broker and of its replicated group, for `/metrics`.

Metrics that RocketMQ 5 has use RocketMQ 5's names (`rocketmq_*`), with the base unit in the suffix. Metrics that it
lacks (dispatch lag, held pulls, findings) have the same prefix. The prefix of a replicated group is `tally_group_`.

Clients choose the names of topics and groups, so the number of series is bounded: see `bounded_series.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tallystick.node.broker.copying.follower import Follower
from tallystick.node.broker.copying.protocol import CopyProblem
from tallystick.node.broker.services.stats import (
    DLQ_PUT_NUMS,
    GROUP_GET_NUMS,
    GROUP_GET_SIZE,
    SNDBCK_PUT_NUMS,
    TOPIC_PUT_NUMS,
    TOPIC_PUT_SIZE,
)
from tallystick.node.broker.slaves.server import SlaveServer
from tallystick.node.broker.slaves.transfer import Refusal
from tallystick.node.http.bounded_series import Sample
from tallystick.node.http.consumer_lag import ConsumerLags, GroupLag, by_group
from tallystick.node.http.exposition import Form
from tallystick.node.http.metric import MetricDeclaration, MetricsPart, counter, gauge, histogram
from tallystick.node.remoting.request_times import send_times
from tallystick.store.engine.distribution import Distribution

if TYPE_CHECKING:
    from tallystick.node.broker.broker import Broker
    from tallystick.node.broker.group.group_role import BrokerGroup
    from tallystick.replication.member.status import GroupStatus

COMMON_LABELS = ("cluster", "node_type", "node_id")
"""Labels of all metrics of a broker: cluster, `broker`, and the broker's name."""


@dataclass(frozen=True, slots=True)
class GroupView:
    """A replicated group at the moment of a scrape, as this member sees it."""

    leads: bool
    in_sync: bool
    status: GroupStatus
    commits: Distribution
    """How long commits took while this member led, in s."""

    @classmethod
    def of(cls, group: BrokerGroup, commits: Distribution) -> GroupView:
        return cls(group.leads, group.unready() is None, group.status(), commits)


class BrokerMetrics(MetricsPart["Broker"]):
    """The metrics of one broker, and of its group if it has one."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker, [declared for section in BROKER_METRICS.values() for declared in section])
        self._lags = ConsumerLags(broker)

    def common(self) -> dict[str, str]:
        """Returns the labels that all metrics of the broker have, with their values."""
        settings = self._source.settings
        values = (settings.brokerClusterName, "broker", settings.brokerName)
        return dict(zip(COMMON_LABELS, values, strict=True))

    def pieces(self, form: Form) -> Iterator[str]:
        """Yields this part of the page. Each piece takes a short time; some are empty."""
        broker = self._source
        broker.count_puts()  # also those since the last whole second
        yield from super().pieces(form)
        yield from self.declared_pieces(form, LAG_METRICS, (yield from self._lags.read()))
        if broker.slaves is not None:
            yield from self.declared_pieces(form, SLAVE_METRICS, broker.slaves)
        if (copying := broker.copying) is not None and copying.copies:
            yield from self.declared_pieces(form, COPY_METRICS, copying.follower)
        if broker.group is not None:
            view = GroupView.of(broker.group, broker.store.group.commits.distribution())
            yield from self.declared_pieces(form, GROUP_METRICS, view)
        yield from self.declared_pieces(form, PAGE_METRICS, self)


# -- reading ----------------------------------------------------------------------------------------------------------


def _table(name: str, labels: int) -> Callable[[Broker], Iterator[Sample]]:
    """Returns what reads the counters of a name: their keys are `topic` or `topic@group`."""

    def read(broker: Broker) -> Iterator[Sample]:
        for key, found in list(broker.stats.table(name).items()):
            topic, _, group = key.partition("@")
            yield ((topic,) if labels == 1 else (topic, group)), found.total

    return read


def _denied(broker: Broker) -> Iterator[Sample]:
    if broker.access is not None:
        for reason, count in broker.access.control.denied.items():
            yield (reason,), count


def _consumer_connections(broker: Broker) -> Iterator[Sample]:
    table = broker.consumers
    return (((group,), len(table.members(group))) for group in list(table))


def _producer_connections(broker: Broker) -> Iterator[Sample]:
    table = broker.producers
    return (((group,), len(table.members(group))) for group in table.groups())


def _half_messages(broker: Broker) -> Iterator[Sample]:
    """Followers do not know which ones are open."""
    if broker.transactions.handles_halves:
        for topic, count in list(broker.transactions.figures.open_counts().items()):
            yield (topic,), count


def _half_age_seconds(broker: Broker) -> Iterator[Sample]:
    if broker.transactions.handles_halves:
        oldest_ms = broker.transactions.figures.oldest_ms()
        yield (), 0.0 if oldest_ms is None else max(0, broker.now_ms() - oldest_ms) / 1000


def _reserve_time_ms(broker: Broker) -> Iterator[Sample]:
    stored_ms = broker.store.figures.earliest_store_time()
    if stored_ms > 0:
        yield (), max(0, broker.now_ms() - stored_ms)


def _findings(broker: Broker) -> Iterator[Sample]:
    for kind, count in broker.store.findings.counts().items():
        yield (kind,), count


def _lag_bytes(view: GroupView) -> Iterator[Sample]:
    for peer in view.status.peers:
        if peer.lag_bytes is not None:
            yield (f"n{peer.member}",), peer.lag_bytes


def _connected(view: GroupView) -> Iterator[Sample]:
    """Only members: `dLegerPeers` also names processes that were never started, so nothing connects to them."""
    members = {*view.status.voters, *view.status.learners}
    for peer in view.status.peers:
        if peer.member in members:
            yield (f"n{peer.member}",), float(peer.connected)


# -- declarations -----------------------------------------------------------------------------------------------------

_MESSAGES: tuple[MetricDeclaration[Broker], ...] = (
    counter(
        "rocketmq_messages_in_total",
        "messages",
        "Messages that the broker stored, by topic. Half messages, delayed messages and retries count under the system"
        " topic that the broker stored them in, and again under their topic when it delivers them there.",
        "broker statistics `TOPIC_PUT_NUMS`: each put to the log; at a follower no put, because it copies the log",
        _table(TOPIC_PUT_NUMS, 1),
        "topic",
        shared=sum,
    ),
    counter(
        "rocketmq_throughput_in_total",
        "bytes",
        "Bytes of the log that these messages take, by topic.",
        "broker statistics `TOPIC_PUT_SIZE`: the sizes of the same records",
        _table(TOPIC_PUT_SIZE, 1),
        "topic",
        shared=sum,
    ),
    counter(
        "rocketmq_messages_out_total",
        "messages",
        "Messages that pulls delivered to consumers, by topic and consumer group. A message counts each time that it is"
        " delivered.",
        "broker statistics `GROUP_GET_NUMS`: each pull that found messages",
        _table(GROUP_GET_NUMS, 2),
        *("topic", "consumer_group"),
        shared=sum,
    ),
    counter(
        "rocketmq_throughput_out_total",
        "bytes",
        "Bytes of the records that pulls delivered to consumers, by topic and consumer group.",
        "broker statistics `GROUP_GET_SIZE`: the bodies of the same answers",
        _table(GROUP_GET_SIZE, 2),
        *("topic", "consumer_group"),
        shared=sum,
    ),
    counter(
        "rocketmq_send_back_total",
        "messages",
        "Messages that consumers could not process and sent back, for a retry or as dead letters, by topic and consumer"
        " group.",
        "broker statistics `SNDBCK_PUT_NUMS`: each accepted request `CONSUMER_SEND_MSG_BACK`",
        _table(SNDBCK_PUT_NUMS, 2),
        *("topic", "consumer_group"),
        shared=sum,
    ),
    counter(
        "rocketmq_send_to_dlq_messages_total",
        "messages",
        "Messages that were stored as dead letters of a consumer group, because it failed as often as it may try, by"
        " the topic that they were first sent to.",
        "broker statistics `DLQ_PUT_NUMS`: each put to a topic `%DLQ%GROUP` for a request `CONSUMER_SEND_MSG_BACK`, or"
        " for a send to the group's retry topic",
        _table(DLQ_PUT_NUMS, 2),
        *("topic", "consumer_group"),
        shared=sum,
    ),
    histogram(
        "rocketmq_message_size",
        "Bytes of the records that the broker stored, headers and properties included. Messages of a batch count one by"
        " one, half messages and others as for `rocketmq_messages_in_total`.",
        "store: log, each put",
        lambda broker: broker.store.figures.record_sizes,
        unit="bytes",
    ),
    counter(
        "rocketmq_send_failures_total",
        "sends",
        "Sends that failed because of the broker and not because of a mistake of the client: the store did not accept"
        " them, the disk or a copy failed or was late, or no leader accepted them in time. A batch counts once.",
        "answers to sends with the codes 1, 2, 10, 11, 12 and 14, except refusals of what a client asked for",
        lambda broker: broker.stats.send_failures + broker.store.figures.put_times.failed_in_kernel,
    ),
)

_CLIENTS: tuple[MetricDeclaration[Broker], ...] = (
    gauge(
        "rocketmq_consumer_connections",
        "clients",
        "Clients of a consumer group that are connected to this broker.",
        "table of consumers: heartbeats",
        _consumer_connections,
        "consumer_group",
        shared=sum,
    ),
    gauge(
        "rocketmq_producer_connections",
        "clients",
        "Clients of a producer group that are connected to this broker.",
        "table of producers: heartbeats",
        _producer_connections,
        "producer_group",
        shared=sum,
    ),
)

_TRANSACTIONS: tuple[MetricDeclaration[Broker], ...] = (
    gauge(
        "rocketmq_half_messages",
        "messages",
        "Half messages that their producers have neither committed nor rolled back, by the topic that they are for."
        " After a start, those that ended before it count until the first check that finds them old enough. Followers"
        " have no series.",
        "service of transactions",
        _half_messages,
        "topic",
        shared=sum,
    ),
    gauge(
        "rocketmq_half_message_age_seconds",
        "seconds",
        "Age of the oldest of these half messages, by the clock of its producer. 0: there is none.",
        "service of transactions",
        _half_age_seconds,
    ),
    counter(
        "rocketmq_commit_messages_total",
        "messages",
        "Half messages that were committed, by topic.",
        "service of transactions: each stored end",
        lambda broker: (((topic,), count) for topic, count in list(broker.transactions.figures.committed.items())),
        "topic",
        shared=sum,
    ),
    counter(
        "rocketmq_rollback_messages_total",
        "messages",
        "Half messages that were rolled back, by topic.",
        "service of transactions: each stored end",
        lambda broker: (((topic,), count) for topic, count in list(broker.transactions.figures.rolled_back.items())),
        "topic",
        shared=sum,
    ),
    histogram(
        "rocketmq_finish_message_latency_seconds",
        "Time from the birth of a half message until its producer committed it or rolled it back.",
        "service of transactions: each stored end",
        lambda broker: broker.transactions.figures.finished.distribution(),
    ),
)

_STORAGE: tuple[MetricDeclaration[Broker], ...] = (
    gauge(
        "rocketmq_storage_size",
        "bytes",
        "Size of the log: from the first byte that is kept to the end.",
        "store: positions of the log",
        lambda broker: broker.store.max_pos - broker.store.min_pos,
    ),
    gauge(
        "rocketmq_storage_size_bytes",
        "bytes",
        "The same as `rocketmq_storage_size`, under the name that RocketMQ 5 shows to Prometheus.",
        "store: positions of the log",
        lambda broker: broker.store.max_pos - broker.store.min_pos,
    ),
    gauge(
        "rocketmq_storage_message_reserve_time_milliseconds",
        "milliseconds",
        "Age of the oldest message of the log. No series while the log is empty.",
        "store: the first record of the log",
        _reserve_time_ms,
    ),
    gauge(
        "rocketmq_storage_flush_behind_bytes",
        "bytes",
        "Bytes at the end of the log that are written and not yet flushed to the disk.",
        "store: positions of the log",
        lambda broker: broker.store.max_pos - broker.store.flushed_pos,
    ),
    histogram(
        "rocketmq_storage_flush_seconds",
        "Duration of the flushes of the log to the disk (`fdatasync` of its changed files). One flush covers all"
        " messages that wait for it.",
        "store: log, around the system calls of each flush",
        lambda broker: broker.store.figures.syncs,
    ),
    histogram(
        "rocketmq_storage_put_seconds",
        "Time from the arrival of a send until its acknowledgement: with `SYNC_FLUSH` it includes the flush, in a group"
        " the commit. A batch counts once. Messages that the broker itself stores one by one (of transactions, retries)"
        " count too. The clock has whole milliseconds.",
        "store: puts, each one that was acknowledged",
        lambda broker: broker.store.figures.put_times.acknowledged(),
    ),
    gauge(
        "rocketmq_storage_dispatch_behind_bytes",
        "bytes",
        "Bytes at the end of the log whose messages are not yet in ConsumeQueues and index. Consumers do not see them.",
        "store: dispatcher",
        lambda broker: broker.store.figures.dispatch_behind_bytes,
    ),
    gauge(
        "rocketmq_storage_max_position_bytes",
        "bytes",
        "Position of the end of the log, from its very beginning. Deleting old segments does not change it.",
        "store: positions of the log",
        lambda broker: broker.store.max_pos,
    ),
    gauge(
        "rocketmq_storage_disk_usage_ratio",
        "ratio, 0 to 1",
        "Used part of the disk of the log, or of the other store files if their disk is fuller. -1: the system does not"
        " report it.",
        "`statvfs` of the file systems",
        lambda broker: broker.store.upkeep.disk_ratio,
    ),
    counter(
        "rocketmq_storage_segments_deleted_early_total",
        "segments",
        "Segments of the log that the broker deleted before `fileReservedTime`, because the disk was too full.",
        "store: cleaner",
        lambda broker: broker.store.upkeep.segments_deleted_early,
    ),
    gauge(
        "rocketmq_storage_writable",
        "0 or 1",
        "1 if the store accepts messages. 0 if it refuses them, for example because the disk is full or failed, or"
        " because this member of a group does not lead it.",
        "store: the check that each send passes",
        lambda broker: float(broker.store.admission.writable),
    ),
    gauge(
        "rocketmq_storage_unsaved_tables",
        "tables",
        "Tables under `config/` (topics, consumer groups, offsets, filters, delay offsets, first offsets) whose last"
        " save failed.",
        "tables: the result of the last save of each",
        lambda broker: len(broker.failing_tables),
    ),
    counter(
        "rocketmq_storage_damaged_reads_total",
        "reads",
        "Reads that met a damaged record, which the broker did not serve. One record counts at each read.",
        "store: pulls and dispatch",
        lambda broker: broker.store.figures.damaged_records,
    ),
    counter(
        "rocketmq_storage_write_errors_total",
        "errors",
        "Writes to the log that failed.",
        "store: appender",
        lambda broker: broker.store.appender.write_errors,
    ),
    counter(
        "rocketmq_storage_unreadable_bytes_total",
        "bytes",
        "Bytes of store files that the disk could not read (I/O errors).",
        "store: reads through mapped files",
        lambda broker: broker.store.media.unreadable_bytes,
    ),
    counter(
        "rocketmq_storage_scrubbed_bytes_total",
        "bytes",
        "Bytes of store files that the scrubber has read.",
        "store: scrubber",
        lambda broker: broker.store.scrub.total_bytes,
    ),
    gauge(
        "rocketmq_storage_scrub_bytes_per_second",
        "bytes per second",
        "Rate at which the scrubber reads during a pass. 0: it is switched off.",
        "setting `scrubBytesPerSecond`, and the size of the log if the rate follows from it",
        lambda broker: broker.store.scrub.bytes_per_second,
    ),
    gauge(
        "rocketmq_storage_scrub_age_seconds",
        "seconds",
        "Time since the last complete pass of the scrubber ended, or since the first one began. 0: no pass has begun.",
        "store: scrubber, file `tally-scrub`",
        lambda broker: broker.store.scrub.age_seconds,
    ),
    gauge(
        "rocketmq_storage_unrepaired_damage",
        "places",
        "Damaged places in store files that were found since the start and are not repaired, rebuilt or removed.",
        "findings of the process (`GET /node`)",
        lambda broker: broker.store.findings.unrepaired,
    ),
    counter(
        "rocketmq_storage_findings_total",
        "findings",
        "Problems that the process found in its files, and what it did about them, by kind: `damage`, `cut`, `rebuilt`,"
        " `repaired`, `removed`, `mark` or `note`.",
        "findings of the process (`GET /node`)",
        _findings,
        "kind",
    ),
)

_TIMERS: tuple[MetricDeclaration[Broker], ...] = (
    gauge(
        "rocketmq_timing_messages",
        "messages",
        "Messages that wait for their time (`TIMER_DELIVER_MS` and others), those in delivery included. A message with"
        " a delay level does not count.",
        "store: index of timers",
        lambda broker: broker.timers.figures().pending,
    ),
    gauge(
        "rocketmq_timer_dequeue_latency_seconds",
        "seconds",
        "How late the first message is that waits for its time. 0: no message is late. At a follower, which delivers"
        " nothing, a message counts until the leader has delivered it.",
        "store: index of timers, and the wall clock",
        lambda broker: broker.timers.late_ms() / 1000,
    ),
    gauge(
        "rocketmq_timer_enqueue_lag",
        "messages",
        "Stored messages that the index of timers has not read yet.",
        "store: index of timers, and ConsumeQueue of `rmq_sys_wheel_timer`",
        lambda broker: broker.timers.figures().unread,
    ),
    counter(
        "rocketmq_timer_dequeue_total",
        "messages",
        "Messages that were delivered at their time, since the start. A follower counts what the leader delivered.",
        "store: index of timers",
        lambda broker: broker.timers.figures().delivered,
    ),
    counter(
        "rocketmq_timer_recalled_total",
        "messages",
        "Messages that producers recalled before their time, since the start.",
        "store: index of timers",
        lambda broker: broker.timers.figures().recalled,
    ),
    counter(
        "rocketmq_timer_rolled_total",
        "messages",
        "Messages that were stored again because their segment of the log was to be deleted, since the start.",
        "store: index of timers",
        lambda broker: broker.timers.figures().rolled,
    ),
    counter(
        "rocketmq_timer_lost_total",
        "messages",
        "Messages that cannot be delivered: their record is lost from the log, or does not name its topic.",
        "store: index of timers; service of timers",
        lambda broker: broker.timers.figures().lost,
    ),
)

_BROKER: tuple[MetricDeclaration[Broker], ...] = (
    gauge(
        "rocketmq_broker_permission",
        "sum of flags",
        "What clients may do: 4 (read) + 2 (write). 6 permits both.",
        "setting `brokerPermission`",
        lambda broker: broker.settings.brokerPermission,
    ),
    gauge(
        "rocketmq_topic_number",
        "topics",
        "Topics of the broker, system topics included.",
        "table of topics",
        lambda broker: len(broker.topics),
    ),
    counter(
        "rocketmq_expired_messages_total",
        "messages",
        "Messages that readers no longer see because of the retention of their topic (`retention.hours`), since the"
        " start.",
        "service of expiry",
        lambda broker: broker.expiry.expired,
    ),
    gauge(
        "rocketmq_consumer_group_number",
        "groups",
        "Consumer groups that the broker has a configuration of, connected or not.",
        "table of subscription groups",
        lambda broker: len(broker.groups),
    ),
    gauge(
        "rocketmq_held_pulls",
        "requests",
        "Pull requests that the broker holds until a message arrives or their time is over (long polling).",
        "table of held pulls",
        lambda broker: len(broker.holds),
    ),
    histogram(
        "rocketmq_rpc_latency_milliseconds",
        "Time from the arrival of a request until its answer, by the names of both codes in lower case. For pulls that"
        " were held (`is_long_polling`) it includes the wait. Sends that the kernel stores count as `send_message_v2`,"
        " pulls on the fast path as `pull_message`."
        " One-way requests have no answer and do not count, nor do requests of an unknown code.",
        "remoting servers of the broker: each answer; kernel: each answer to a send",
        lambda broker: broker.request_times.distributions(send_times(broker.store.figures.answers())),
        *("protocol_type", "request_code", "response_code", "is_long_polling"),
        unit="milliseconds",
    ),
    gauge(
        "rocketmq_connections",
        "connections",
        "Open connections of clients at both ports of the broker (`listenPort`, and the one 2 below it).",
        "remoting servers of the broker",
        lambda broker: broker.connection_count,
    ),
)

_ACCESS: tuple[MetricDeclaration[Broker], ...] = (
    counter(
        "rocketmq_acl_denied_requests_total",
        "requests",
        "Requests that access control refused, by reason: `no_access_key`, `unknown_account`, `wrong_signature`,"
        " `disabled`, `not_permitted` or `unreadable` (a body that does not say what the request concerns)."
        " No series without `aclEnable`.",
        "each refused request",
        _denied,
        "reason",
    ),
    gauge(
        "rocketmq_acl_accounts_unusable",
        "0 or 1",
        "1 if the accounts as they are stored cannot be used: the account file is invalid, or a secret cannot be"
        " decrypted. The broker uses the last good ones.",
        "the last look at the account file, or the group's table of accounts",
        lambda broker: float(broker.access is not None and broker.access.problem != ""),
    ),
)

_AUDIT: tuple[MetricDeclaration[Broker], ...] = (
    counter(
        "rocketmq_audit_lines_total",
        "lines",
        "Lines of the access log that were to be stored in the topic `rmq_sys_audit`, by result: `stored`, or `dropped`"
        " because too many waited or the broker stopped.",
        "each line",
        lambda broker: ((("stored",), broker.audit.stored), (("dropped",), broker.audit.dropped)),
        "result",
    ),
    gauge(
        "rocketmq_audit_lines_waiting",
        "lines",
        "Lines that are not stored yet.",
        "memory of the broker",
        lambda broker: broker.audit.waiting,
    ),
)

_QUOTAS: tuple[MetricDeclaration[Broker], ...] = (
    counter(
        "rocketmq_quota_throttled_requests_total",
        "requests",
        "Requests that waited or were refused because a quota was used up: whose (`client` or `user`), and which limit"
        " (`messages`, `bytes` or `requests` per second).",
        "each such request",
        lambda broker: iter(broker.quotas.throttled.items()),
        "scope",
        "limit",
    ),
    gauge(
        "rocketmq_quota_clients",
        "clients",
        "Clients whose requests are counted. 0 without a quota for clients.",
        "the broker's table of clients with a quota",
        lambda broker: broker.quotas.table_size,
    ),
    counter(
        "rocketmq_connections_refused_total",
        "connections",
        "Connections that the broker closed at once, because too many are open: in `all`, or of their `address`.",
        "remoting servers of the broker",
        lambda broker: (((reason,), count) for reason, count in broker.connections_refused.items()),
        "reason",
    ),
)

BROKER_METRICS = {
    "Messages": _MESSAGES,
    "Consumers and producers": _CLIENTS,
    "Transactions": _TRANSACTIONS,
    "Storage": _STORAGE,
    "Timers": _TIMERS,
    "Process": _BROKER,
    "Access control": _ACCESS,
    "Audit": _AUDIT,
    "Quotas": _QUOTAS,
}
"""Metrics of every broker, by section. `LAG_METRICS` and `PAGE_METRICS` are read from other objects."""

LAG_METRICS: tuple[MetricDeclaration[list[GroupLag]], ...] = (
    gauge(
        "rocketmq_consumer_lag_messages",
        "messages",
        "Messages of a topic that a consumer group has not consumed: the ends of the queues minus the committed"
        " offsets. A queue without a committed offset does not count.",
        "table of consumer offsets and ConsumeQueues",
        by_group(lambda lag: lag.behind),
        *("topic", "consumer_group"),
        shared=sum,
    ),
    gauge(
        "rocketmq_consumer_lag_latency_milliseconds",
        "milliseconds",
        "Age of the oldest of these messages. 0: there is none. `(other)` has the greatest age of the rest.",
        "table of consumer offsets, and store times in the log",
        by_group(lambda lag: lag.behind_ms),
        *("topic", "consumer_group"),
        shared=max,
    ),
    gauge(
        "rocketmq_consumer_inflight_messages",
        "messages",
        "Those of these messages that pulls have delivered: the group processes them, or has not committed them yet.",
        "table of consumer offsets, and pulls since the start",
        by_group(lambda lag: lag.in_flight),
        *("topic", "consumer_group"),
        shared=sum,
    ),
    gauge(
        "rocketmq_consumer_ready_messages",
        "messages",
        "Those of these messages that no pull has delivered yet.",
        "ConsumeQueues, and pulls since the start",
        by_group(lambda lag: lag.ready),
        *("topic", "consumer_group"),
        shared=sum,
    ),
    gauge(
        "rocketmq_consumer_queueing_latency_milliseconds",
        "milliseconds",
        "Age of the oldest message that no pull has delivered yet. 0: there is none. `(other)` has the greatest age of"
        " the rest.",
        "pulls since the start, and store times in the log",
        by_group(lambda lag: lag.ready_ms),
        *("topic", "consumer_group"),
        shared=max,
    ),
)
"""Metrics of the consumer groups of a broker."""

PAGE_METRICS: tuple[MetricDeclaration[BrokerMetrics], ...] = (
    gauge(
        "rocketmq_series_left_out",
        "series",
        "Combinations of label values (topics, groups) that this page does not show by name, because the metric has too"
        " many series: the series with the label value `(other)` has their sum.",
        "the page itself, by the name of the metric",
        lambda part: part.left_out(),
        "metric",
    ),
)
"""Metrics of a broker's part of the page."""

SLAVE_METRICS: tuple[MetricDeclaration[SlaveServer], ...] = (
    gauge(
        "tally_slaves",
        "slaves",
        "Slaves that are connected and copy the log.",
        "port for slaves",
        lambda slaves: len(slaves.slaves),
    ),
    gauge(
        "tally_slave_behind_bytes",
        "bytes",
        "Bytes of the log that the connected slave with the longest copy has not stored. 0 without a slave.",
        "port for slaves: reports of the slaves",
        lambda slaves: min((each.behind_bytes for each in slaves.states()), default=0),
    ),
    counter(
        "tally_slave_sent_bytes_total",
        "bytes",
        "Bytes of the log that were sent to slaves.",
        "port for slaves",
        lambda slaves: slaves.sent_bytes,
    ),
    counter(
        "tally_slave_refusals_total",
        "connections",
        "Connections to the port for slaves that the broker closed. `reason`: "
        + ", ".join(f"`{each.value}`" for each in Refusal)
        + ".",
        "port for slaves: a refused connection",
        lambda slaves: [((each.value,), slaves.refusals[each]) for each in Refusal],
        "reason",
    ),
)
"""Metrics of a broker with a port for slaves."""

COPY_METRICS: tuple[MetricDeclaration[Follower], ...] = (
    gauge(
        "tally_copy_follows",
        "0 or 1",
        "1 if this slave follows its master closely, with log and tables.",
        "copy of the master",
        lambda follower: follower.unready() is None,
    ),
    gauge(
        "tally_copy_behind_bytes",
        "bytes",
        "Bytes of the master's log that are not here, by the end that the master told last.",
        "copy of the master: answers of the master, once a second",
        lambda follower: follower.behind_bytes,
    ),
    counter(
        "tally_copy_received_bytes_total",
        "bytes",
        "Bytes that were received from the master's port for slaves.",
        "copy of the master",
        lambda follower: follower.received_bytes,
    ),
    counter(
        "tally_copy_problems_total",
        "attempts",
        "Ended attempts to copy the log. `problem`: " + ", ".join(f"`{each.value}`" for each in CopyProblem) + ".",
        "copy of the master: the end of an attempt",
        lambda follower: [((each.value,), follower.problems[each]) for each in CopyProblem],
        "problem",
    ),
)
"""Metrics of a slave."""

GROUP_METRICS: tuple[MetricDeclaration[GroupView], ...] = (
    gauge(
        "tally_group_leads",
        "0 or 1",
        "1 if this member leads the group and is ready to serve as its leader.",
        "role of the broker",
        lambda view: float(view.leads),
    ),
    gauge(
        "tally_group_in_sync",
        "0 or 1",
        "1 if this member leads and accepts messages, or follows its leader closely.",
        "role of the broker",
        lambda view: float(view.in_sync),
    ),
    gauge(
        "tally_group_term",
        "term number",
        "Raft term of the group, as this member knows it. It grows with each election.",
        "status of the member",
        lambda view: view.status.term,
    ),
    gauge(
        "tally_group_voters",
        "members",
        "Members of the group that have a vote, this one included.",
        "status of the member",
        lambda view: len(view.status.voters),
    ),
    gauge(
        "tally_group_last_index",
        "entry number",
        "Index of the last entry in this member's log. -1: the log has no entry.",
        "status of the member",
        lambda view: view.status.last_index,
    ),
    gauge(
        "tally_group_synced_index",
        "entry number",
        "Index of the last entry that is durable on this member's disk. -1: no entry is durable.",
        "status of the member",
        lambda view: view.status.synced_index,
    ),
    gauge(
        "tally_group_commit_index",
        "entry number",
        "Index of the last entry that this member knows to be committed. -1: it knows of no committed entry.",
        "status of the member",
        lambda view: view.status.commit_index,
    ),
    gauge(
        "tally_group_damage_without_copy",
        "places",
        "Damaged places in this member's log of which all other members answered that they have no sound copy.",
        "status of the member: repairs of the log",
        lambda view: sum(each.no_copy for each in view.status.unrepaired),
    ),
    gauge(
        "tally_group_recovered_timestamp_seconds",
        "seconds",
        "Time (since 1970) at which this member was made the only voter of its group by force, with `tally group"
        " recover` or by a restore from a backup. 0: never.",
        "status of the member: the file tally-recovered",
        lambda view: 0 if view.status.recovered is None else view.status.recovered.at_ms / 1000,
    ),
    counter(
        "tally_group_refused_messages_total",
        "messages",
        "Messages of other members that this member refused because their content is impossible, and entries that"
        " arrived damaged.",
        "member: the check of each received message",
        lambda view: view.status.refused_messages,
    ),
    histogram(
        "tally_group_commit_seconds",
        "Time from a write to the log of the leader until the group has committed it: a majority of the members has it"
        " on the disk. One write covers many messages.",
        "store: each write while this member leads",
        lambda view: view.commits,
    ),
    gauge(
        "tally_group_lag_bytes",
        "bytes",
        "Bytes of the leader's log that are not known to be durable at the peer. Only the leader exposes it.",
        "leader: acknowledgements of the peer (`peer` is its id, such as `n1`)",
        _lag_bytes,
        "peer",
    ),
    gauge(
        "tally_group_connected",
        "0 or 1",
        "1 if this member has all its connections to the peer. Voters and learners have a series.",
        "transport of the member (`peer` is the id of the other member, such as `n1`)",
        _connected,
        "peer",
    ),
)
"""Metrics of a broker that is a member of a replicated group."""
