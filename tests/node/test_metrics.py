"""The page of /metrics: names, labels, and that clients cannot make it grow without bound."""

from types import SimpleNamespace
from typing import Any

import pytest
from fake_broker import FakeBroker
from prometheus_client.parser import text_string_to_metric_families

from tallystick.node.http import metric, metrics
from tallystick.node.http.exposition import Form
from tallystick.node.http.metrics import BrokerMetrics
from tallystick.node.remoting.request_times import LIMITS_MS
from tallystick.store.engine.distribution import Distribution
from tallystick.store.finding_log import FindingLog
from tallystick.store.findings import FindingKind

# What RocketMQ 5's brokers call theirs (its metrics manager); dashboards ask for these.
OF_ROCKETMQ = {
    "rocketmq_messages_in_total",
    "rocketmq_messages_out_total",
    "rocketmq_throughput_in_total",
    "rocketmq_throughput_out_total",
    "rocketmq_message_size",
    "rocketmq_send_to_dlq_messages_total",
    "rocketmq_half_messages",
    "rocketmq_commit_messages_total",
    "rocketmq_rollback_messages_total",
    "rocketmq_rpc_latency_milliseconds",
    "rocketmq_consumer_lag_messages",
    "rocketmq_consumer_lag_latency_milliseconds",
    "rocketmq_consumer_inflight_messages",
    "rocketmq_consumer_ready_messages",
    "rocketmq_consumer_queueing_latency_milliseconds",
    "rocketmq_consumer_connections",
    "rocketmq_producer_connections",
    "rocketmq_storage_size_bytes",
    "rocketmq_storage_message_reserve_time_milliseconds",
    "rocketmq_storage_dispatch_behind_bytes",
    "rocketmq_topic_number",
    "rocketmq_consumer_group_number",
    "rocketmq_storage_flush_behind_bytes",
    "rocketmq_broker_permission",
}


class MeasuredBroker(FakeBroker):
    """The fake broker with what only metrics ask for."""

    def __init__(self) -> None:
        super().__init__()
        self.holds: list[Any] = []
        self.connection_count = 3
        self.connections_refused = {"all": 0, "address": 0}
        self.uncounted: list[tuple[str, int, int]] = []
        self.ends: dict[tuple[str, int], int] = {}
        self.failing_tables: list[Any] = []
        self.answers: dict[int, Distribution] = {}
        self.earliest_ms = -1
        self.store_times: dict[tuple[str, int, int], int] = {}
        self.looks = 0
        store = SimpleNamespace(
            max_pos=1000,
            min_pos=100,
            flushed_pos=900,
            figures=SimpleNamespace(
                dispatch_behind_bytes=50,
                record_sizes=Distribution([1024], [2, 1], 5000),
                answers=lambda: self.answers,
                earliest_store_time=lambda: self.earliest_ms,
                damaged_records=2,
                syncs=Distribution([0.25, 1.0], [3, 0, 1], 4.5),
                put_times=SimpleNamespace(failed_in_kernel=2, acknowledged=lambda: Distribution([0.001], [7, 1], 0.5)),
            ),
            admission=SimpleNamespace(writable=True),
            upkeep=SimpleNamespace(disk_ratio=0.25, segments_deleted_early=0),
            appender=SimpleNamespace(write_errors=1),
            findings=FindingLog(),
            media=SimpleNamespace(unreadable_bytes=0),
            scrub=SimpleNamespace(total_bytes=7, bytes_per_second=5, age_seconds=3.0),
            queues=SimpleNamespace(
                names=lambda: list(self.ends),
                max_offset=lambda topic, queue: self.ends[topic, queue],
                min_offset=lambda topic, queue: 0,
            ),
            reads=SimpleNamespace(stored_at=self._stored_at),
        )
        self.store: Any = store

    def _stored_at(self, topic: str, queue_id: int, offset: int) -> int:
        self.looks += 1
        return self.store_times.get((topic, queue_id, offset), -1)

    def count_puts(self) -> None:
        while self.uncounted:
            self.stats.put(*self.uncounted.pop())


@pytest.fixture
def broker() -> MeasuredBroker:
    return MeasuredBroker()


def page(broker: MeasuredBroker) -> dict[str, dict[tuple[str, ...], float]]:
    """Every sample by its name and the values of its labels (those beyond cluster and node)."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(BrokerMetrics(broker).text().decode()):  # type: ignore[arg-type]
        for sample in family.samples:
            labels = dict(sample.labels)
            node = tuple(labels.pop(name) for name in ("cluster", "node_type", "node_id"))
            assert node == ("C1", "broker", "broker-a")
            found.setdefault(sample.name, {})[tuple(labels.values())] = sample.value
    return found


def test_an_idle_broker_has_every_name(broker: MeasuredBroker) -> None:
    text = BrokerMetrics(broker).text().decode()  # type: ignore[arg-type]
    families = {family.name for family in text_string_to_metric_families(text)}
    assert {name.removesuffix("_total") for name in OF_ROCKETMQ} <= families
    assert all(name.startswith("rocketmq_") for name in families)


def test_findings_are_counted_by_kind_from_the_first_scrape_on(broker: MeasuredBroker) -> None:
    assert page(broker)["rocketmq_storage_findings_total"] == {(kind.value,): 0 for kind in FindingKind}
    broker.store.findings.add(FindingKind.DAMAGE, "commitlog/0", "the CRC differs", offset=7, size=9)
    broker.store.findings.add(FindingKind.REBUILT, "consumequeue/T/0", "a file was missing")
    found = page(broker)["rocketmq_storage_findings_total"]
    assert (found[("damage",)], found[("rebuilt",)], found[("cut",)]) == (1, 1, 0)


def test_what_the_store_says(broker: MeasuredBroker) -> None:
    found = page(broker)
    assert found["rocketmq_storage_size"] == {(): 900}
    assert found["rocketmq_storage_flush_behind_bytes"] == {(): 100}
    assert found["rocketmq_storage_dispatch_behind_bytes"] == {(): 50}
    assert found["rocketmq_storage_disk_usage_ratio"] == {(): 0.25}
    assert found["rocketmq_storage_write_errors_total"] == {(): 1}
    assert found["rocketmq_storage_writable"] == {(): 1}
    broker.store.admission.writable = False
    assert page(broker)["rocketmq_storage_writable"] == {(): 0}


def test_a_histogram_has_buckets_a_sum_and_a_count(broker: MeasuredBroker) -> None:
    found = page(broker)
    name = "rocketmq_storage_flush_seconds"
    assert found[f"{name}_bucket"] == {("0.25",): 3, ("1.0",): 3, ("+Inf",): 4}
    assert (found[f"{name}_count"], found[f"{name}_sum"]) == ({(): 4}, {(): 4.5})


def test_failed_sends_are_those_of_the_kernel_and_the_others(broker: MeasuredBroker) -> None:
    broker.stats.send_failures += 3
    assert page(broker)["rocketmq_send_failures_total"] == {(): 5}


def test_messages_are_counted_up_to_now(broker: MeasuredBroker) -> None:
    broker.uncounted.append(("T", 3, 300))
    found = page(broker)
    assert found["rocketmq_messages_in_total"] == {("T",): 3}
    assert found["rocketmq_throughput_in_total"] == {("T",): 300}


def test_lag_is_what_a_group_has_not_read(broker: MeasuredBroker) -> None:
    broker.ends = {("T", 0): 10, ("T", 1): 5}
    broker.offsets.commit("g", "T", 0, 4)
    broker.offsets.commit("g", "T", 1, 7)  # ahead: as after the topic was created again
    assert list(page(broker)["rocketmq_consumer_lag_messages"].values()) == [6]


def test_lag_is_in_flight_or_ready_and_has_the_age_of_its_oldest_message(broker: MeasuredBroker) -> None:
    now_ms = broker.now_ms()
    broker.ends = {("T", 0): 10, ("T", 1): 5, ("T", 2): 5}
    for queue_id, committed in ((0, 4), (1, 5), (2, 1)):
        broker.offsets.commit("g", "T", queue_id, committed)
    broker.pulled.note("g", "T", 0, 7)
    broker.pulled.note("g", "T", 2, 99)  # ahead: as after the topic was created again
    broker.store_times = {("T", 0, 4): now_ms - 3000, ("T", 0, 7): now_ms - 1000, ("T", 2, 1): now_ms - 9000}
    found = page(broker)
    figures = {name: list(found[f"rocketmq_consumer_{name}"].values()) for name in (
        "lag_messages", "inflight_messages", "ready_messages", "lag_latency_milliseconds",
        "queueing_latency_milliseconds",
    )}  # fmt: skip
    assert figures == {
        "lag_messages": [10],
        "inflight_messages": [3 + 4],
        "ready_messages": [3],
        "lag_latency_milliseconds": [9000],
        "queueing_latency_milliseconds": [1000],
    }


def test_a_group_that_does_not_move_costs_no_reads_of_the_log(broker: MeasuredBroker) -> None:
    broker.ends = {("T", 0): 10}
    broker.offsets.commit("g", "T", 0, 4)
    broker.store_times = {("T", 0, 4): 1, ("T", 0, 5): 2}
    part = BrokerMetrics(broker)  # type: ignore[arg-type]
    part.text()
    assert broker.looks == 1
    part.text()
    assert broker.looks == 1
    broker.offsets.commit("g", "T", 0, 5)
    part.text()
    assert broker.looks == 2


def test_lags_of_many_groups_are_read_in_steps(broker: MeasuredBroker) -> None:
    """Who serves the page can do other work between the pieces: none of them has more than a few groups."""
    for number in range(100):
        broker.ends[f"T{number}", 0] = 10
        broker.offsets.commit("g", f"T{number}", 0, 4)
    before, most = 0, 0
    for _ in BrokerMetrics(broker).pieces(Form.TEXT):  # type: ignore[arg-type]
        before, most = broker.looks, max(most, broker.looks - before)
    assert broker.looks == 200, "the oldest message that is not committed, and the one that is not pulled"
    assert most <= 40


def test_answers_to_requests_are_counted_by_their_codes(broker: MeasuredBroker) -> None:
    """Those of the kernel and of the processors to the same kind of request are one series."""
    classes = [0] * 10
    broker.answers = {0: Distribution(LIMITS_MS, [5, 1, *classes[2:]], 7)}
    broker.request_times.add(310, 0, 0.004)
    broker.request_times.add(11, 0, 2.5, held=True)
    found = page(broker)
    sends = ("false", "remoting", "send_message_v2", "success")
    assert found["rocketmq_rpc_latency_milliseconds_count"] == {
        sends: 7,
        ("true", "remoting", "pull_message", "success"): 1,
    }
    assert found["rocketmq_rpc_latency_milliseconds_sum"][sends] == 11
    buckets = {
        key[1]: value
        for key, value in found["rocketmq_rpc_latency_milliseconds_bucket"].items()
        if "send_message_v2" in key
    }
    assert (buckets["1.0"], buckets["3.0"], buckets["5.0"], buckets["+Inf"]) == (5, 6, 7, 7)


def test_the_age_of_the_log_has_no_series_while_it_is_empty(broker: MeasuredBroker) -> None:
    name = "rocketmq_storage_message_reserve_time_milliseconds"
    assert name not in page(broker)
    broker.earliest_ms = broker.now_ms() - 5000
    assert page(broker)[name] == {(): 5000}


def test_clients_of_a_group(broker: MeasuredBroker) -> None:
    broker.producer("writers")
    broker.producer("writers", "p@2")
    assert page(broker)["rocketmq_producer_connections"] == {("writers",): 2}


def test_labels_that_need_escapes(broker: MeasuredBroker) -> None:
    broker.stats.put('T"\\\n', 1, 1)
    assert page(broker)["rocketmq_messages_in_total"] == {('T"\\\n',): 1}


def test_clients_cannot_make_the_page_grow_without_bound(
    broker: MeasuredBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metric, "MAX_SERIES", 10)
    for number in range(25):
        broker.stats.put(f"T{number:02}", 1, 100)
        broker.ends[f"T{number:02}", 0] = 1
        broker.offsets.commit("g", f"T{number:02}", 0, 0)
        broker.producer(f"group {number:02}")
    found = page(broker)
    for name, rest in (
        ("rocketmq_messages_in_total", ("(other)",)),
        ("rocketmq_consumer_lag_messages", ("(other)", "(other)")),
        ("rocketmq_producer_connections", ("(other)",)),
    ):
        assert len(found[name]) == 11
        assert found[name][rest] == 15, "nothing is lost, only the names"
        assert found["rocketmq_series_left_out"][name,] == 15
    assert found["rocketmq_throughput_in_total"]["(other)",] == 1500
    assert found["rocketmq_series_left_out"]["rocketmq_messages_out_total",] == 0
    assert sum(found["rocketmq_messages_in_total"].values()) == 25


def test_only_members_of_a_group_count_as_unreachable() -> None:
    """`dLegerPeers` of a group of three in Kubernetes names five processes. Two of them were never started."""
    peers = [SimpleNamespace(member=number, connected=number == 1) for number in (1, 2, 3, 4)]
    status = SimpleNamespace(voters=(0, 1), learners=(2,), peers=peers)
    view: Any = metrics.GroupView(leads=True, in_sync=True, status=status, commits=Distribution([], [0], 0))  # type: ignore[arg-type]
    (connected,) = [each for each in metrics.GROUP_METRICS if each.name == "tally_group_connected"]
    assert dict(connected.read(view)) == {("n1",): 1, ("n2",): 0}  # type: ignore[arg-type]
