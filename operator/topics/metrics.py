"""Metrics of topics and consumer groups for Prometheus."""

from __future__ import annotations

from collections import Counter as Counting
from collections.abc import Iterable

from prometheus_client import CollectorRegistry

from tallystick.operator.core.metric import CounterDeclaration, GaugeDeclaration, MetricDeclaration

DECLARED = GaugeDeclaration(
    "tallystick_operator_declarations",
    "resources",
    "Resources in each phase, by kind (`Topic`, `ConsumerGroup`). A phase without a resource has no series.",
    "the last reconciliation of the topics of each cluster",
    ("kind", "phase"),
)
DRIFTS = CounterDeclaration(
    "tallystick_operator_drift_corrections_total",
    "resources",
    "Topics and consumer groups that differed on the brokers from their resource, and that the operator corrected.",
    "each correction, however many broker groups it concerns",
    ("kind",),
)
REFUSALS = CounterDeclaration(
    "tallystick_operator_refusals_total",
    "resources",
    "Resources that the operator rejected, by kind and reason.",
    "each rejection with a new reason; it also causes a warning event",
    ("kind", "reason"),
)
BROKER_WRITES = CounterDeclaration(
    "tallystick_operator_broker_writes_total",
    "writes",
    "Topics and consumer groups that the operator wrote to a broker group, by kind and result (`written`, `refused`,"
    " `failed`).",
    "each resource and broker group of a request to a broker",
    ("kind", "result"),
)
DELETIONS = CounterDeclaration(
    "tallystick_operator_broker_deletions_total",
    "resources",
    "Topics and consumer groups that the operator deleted on all their broker groups, by kind.",
    "each finished deletion of a resource",
    ("kind",),
)
TOPIC_METRICS: tuple[MetricDeclaration, ...] = (DECLARED, DRIFTS, REFUSALS, BROKER_WRITES, DELETIONS)
"""Metrics of topics and consumer groups. Only an operator that leads exposes them."""


class TopicMetrics:
    """The metrics in the registry of the operator."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.declared = DECLARED.register(registry)
        self.drifts = DRIFTS.register(registry)
        self.refusals = REFUSALS.register(registry)
        self.broker_writes = BROKER_WRITES.register(registry)
        self.deletions = DELETIONS.register(registry)
        self._phases: dict[tuple[str, str, str], Counting[str]] = {}

    def saw(self, kind: str, namespace: str, cluster: str, phases: Iterable[str]) -> None:
        """Replaces the phases of the declarations of one cluster; without phases, the cluster is removed."""
        counted = Counting(phases)
        if counted:
            self._phases[kind, namespace, cluster] = counted
        else:
            self._phases.pop((kind, namespace, cluster), None)
        totals: Counting[tuple[str, str]] = Counting()
        for (of_kind, _, _), phases_there in self._phases.items():
            totals.update({(of_kind, phase): count for phase, count in phases_there.items()})
        self.declared.clear()
        for labels, count in totals.items():
            self.declared.labels(*labels).set(count)
