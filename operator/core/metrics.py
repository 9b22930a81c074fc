"""Metrics of the operator for Prometheus: reconciliations, steps, clusters and memory."""

from __future__ import annotations

import resource
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from tallystick.operator.core.metric import (
    CounterDeclaration,
    GaugeDeclaration,
    HistogramDeclaration,
    MetricDeclaration,
)

PASSES = CounterDeclaration(
    "tallystick_operator_passes_total",
    "reconciliations",
    "Finished reconciliations, by kind (`cluster`, `job`, `topics`) and result (`done`, `failed`).",
    "work queue: the end of each reconciliation",
    ("kind", "result"),
)
PASS_SECONDS = HistogramDeclaration(
    "tallystick_operator_pass_seconds",
    "seconds",
    "Duration of reconciliations in seconds, by kind. Failed ones count as well.",
    "work queue: the end of each reconciliation",
    ("kind",),
    buckets=(0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
ERRORS = CounterDeclaration(
    "tallystick_operator_errors_total",
    "reconciliations",
    "Failed reconciliations, by kind and class of the error.",
    "work queue: each reconciliation that ends with an error",
    ("kind", "error"),
)
WRITES = CounterDeclaration(
    "tallystick_operator_writes_total",
    "objects",
    "Objects that the operator created or changed in Kubernetes, by their kind, such as `StatefulSet`.",
    "each successful request to the API server that creates or applies an object; not: status, events",
    ("resource",),
)
STEPS = CounterDeclaration(
    "tallystick_operator_steps_total",
    "steps",
    "Steps of changes of clusters that the operator carried out, by action: `StopMember`, `ReplaceNode`,"
    " `ForceDeletePod`, `RestartMember`, `MoveLeader`, `AddMember`, `PromoteMember`, `RemoveMember`, `DeleteNode`,"
    " `TakeBackFence`, `RehearseSwitch`, `SwitchGroup` or `VerifyGroup`.",
    "reconciliation of a cluster: each step whose requests succeeded",
    ("action",),
)
CLUSTERS = GaugeDeclaration(
    "tallystick_operator_clusters",
    "clusters",
    "BrokerClusters in each phase. A phase without a cluster has no series.",
    "the last reconciliation of each cluster",
    ("phase",),
)
NODES = GaugeDeclaration(
    "tallystick_operator_nodes",
    "broker nodes",
    "Broker nodes of all clusters: `wanted` by the specs, and `ready`.",
    "the last reconciliation of each cluster",
    ("state",),
)
LEADERLESS = GaugeDeclaration(
    "tallystick_operator_groups_without_leader",
    "groups",
    "Broker groups of a BrokerCluster that have stored messages and have no leader, also if all their members are gone."
    " Groups that the operator cannot reach do not count.",
    "the last reconciliation of each cluster",
    ("cluster_namespace", "cluster"),
)
UNPLANNED = GaugeDeclaration(
    "tallystick_operator_unplanned_clusters",
    "0 or 1",
    "1 for each BrokerCluster that is `Degraded`, `Failed` or `Unknown` and needs attention. A cluster that is degraded"
    " because of a fence alone has no series.",
    "the last reconciliation of each cluster",
    ("cluster_namespace", "cluster", "phase"),
)
STOPPED = GaugeDeclaration(
    "tallystick_operator_stopped_members",
    "0 or 1",
    "1 for each member that a user stops, by reason: `Fenced` or `Hibernating`. `node_id` (the group) and `peer` (such"
    " as `n1`) are those of the brokers' metrics.",
    "the last reconciliation of each cluster",
    ("cluster_namespace", "cluster", "node_id", "peer", "reason"),
)
QUEUE = GaugeDeclaration(
    "tallystick_operator_queue_keys",
    "keys",
    "Keys in the work queue. A key is a cluster, a job, or the topics of a cluster.",
    "work queue, at each scrape",
)
WAITING = GaugeDeclaration(
    "tallystick_operator_queue_longest_wait_seconds",
    "seconds",
    "Longest time that a key has been due or running, in seconds.",
    "work queue, at each scrape",
)
LEADS = GaugeDeclaration(
    "tallystick_operator_leads",
    "0 or 1",
    "1 while this operator holds the lease and reconciles. 0: it is on standby.",
    "lease of the operator, at each scrape",
)
NAMESPACES = GaugeDeclaration(
    "tallystick_operator_namespaces",
    "namespaces",
    "Namespaces with something to reconcile: those in which this operator acts (`acting`), and those in which it waits"
    " because another operator manages them (`waiting`). Both are 0 on standby.",
    "leases of the namespaces, at each scrape",
    ("state",),
)
RESIDENT = GaugeDeclaration(
    "process_resident_memory_bytes",
    "bytes",
    "Resident memory of the process in bytes. Without /proc: its maximum so far.",
    "`/proc/self/statm`, at each scrape",
)
CORE_METRICS: tuple[MetricDeclaration, ...] = (
    *(PASSES, PASS_SECONDS, ERRORS, WRITES, STEPS),
    *(CLUSTERS, NODES, LEADERLESS, UNPLANNED, STOPPED, QUEUE, WAITING, LEADS, NAMESPACES, RESIDENT),
)
"""Metrics of every operator, also of one on standby."""


def resident_bytes() -> int:
    """Returns the resident memory of this process; without /proc, its maximum so far."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * resource.getpagesize()


class Metrics:
    """The metrics of one operator, in a separate registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.passes = PASSES.register(self.registry)
        self.pass_seconds = PASS_SECONDS.register(self.registry)
        self.errors = ERRORS.register(self.registry)
        self.writes = WRITES.register(self.registry)
        self.steps = STEPS.register(self.registry)
        self.clusters = CLUSTERS.register(self.registry)
        self.nodes = NODES.register(self.registry)
        self.leaderless = LEADERLESS.register(self.registry)
        self.unplanned = UNPLANNED.register(self.registry)
        self.stopped = STOPPED.register(self.registry)
        self.queue = QUEUE.register(self.registry)
        self.waiting = WAITING.register(self.registry)
        self.leads = LEADS.register(self.registry)
        self.namespaces = NAMESPACES.register(self.registry)
        RESIDENT.register(self.registry).set_function(resident_bytes)
        self._phases: dict[tuple[str, str], tuple[str, int, int]] = {}
        self._unplanned: dict[tuple[str, str], str] = {}
        self._stops: dict[tuple[str, str], tuple[tuple[str, str, str], ...]] = {}

    def saw_cluster(
        self, namespace: str, name: str, phase: str, nodes: int, ready: int, leaderless: int | None = None
    ) -> None:
        """Records the state that a pass found. A cluster counts in one phase. `leaderless`: None if it was not read."""
        self._phases[namespace, name] = (phase, nodes, ready)
        if leaderless is not None:
            self.leaderless.labels(namespace, name).set(leaderless)
        self._show()

    def saw_stops(
        self, namespace: str, name: str, unplanned: str, stops: Iterable[tuple[str, str, str]] | None = None
    ) -> None:
        """Records which members a user stops, and the phase of a cluster that needs attention (empty: it needs none).

        `stops`: `node_id`, `peer` and reason of each; None: they were not read.
        """
        self._unplanned[namespace, name] = unplanned
        if stops is not None:
            self._stops[namespace, name] = tuple(stops)
        self._show_stops()

    def forgot_cluster(self, namespace: str, name: str) -> None:
        """Removes a deleted cluster."""
        if self._phases.pop((namespace, name), None) is not None:
            with suppress(KeyError):  # no pass has read its groups
                self.leaderless.remove(namespace, name)
        self._unplanned.pop((namespace, name), None)
        self._stops.pop((namespace, name), None)
        self._show_stops()
        self._show()

    def text(self) -> bytes:
        """Returns the metrics in the text format of Prometheus."""
        return generate_latest(self.registry)

    def _show_stops(self) -> None:
        self.unplanned.clear()
        self.stopped.clear()
        for cluster, phase in self._unplanned.items():
            if phase:
                self.unplanned.labels(*cluster, phase).set(1)
        for cluster, stops in self._stops.items():
            for stop in stops:
                self.stopped.labels(*cluster, *stop).set(1)

    def _show(self) -> None:
        self.clusters.clear()
        for phase, count in _counted(phase for phase, _, _ in self._phases.values()):
            self.clusters.labels(phase).set(count)
        self.nodes.labels("wanted").set(sum(nodes for _, nodes, _ in self._phases.values()))
        self.nodes.labels("ready").set(sum(ready for _, _, ready in self._phases.values()))


def _counted(values: Iterable[str]) -> list[tuple[str, int]]:
    listed = list(values)
    return [(value, listed.count(value)) for value in sorted(set(listed))]
