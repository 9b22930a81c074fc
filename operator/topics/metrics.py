"""Metrics of topics and consumer groups for Prometheus."""

from __future__ import annotations

from collections import Counter as Counting
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge


class TopicMetrics:
    """Series in the registry of the operator. `kind`: Topic or ConsumerGroup."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.declared = Gauge(
            "tallystick_operator_declarations", "Resources in each phase.", ["kind", "phase"], registry=registry
        )
        self.drifts = Counter(
            "tallystick_operator_drift_corrections",
            "Topics and consumer groups that differed on the brokers and were corrected.",
            ["kind"],
            registry=registry,
        )
        self.refusals = Counter(
            "tallystick_operator_refusals",
            "Resources that were rejected, by reason.",
            ["kind", "reason"],
            registry=registry,
        )
        self.broker_writes = Counter(
            "tallystick_operator_broker_writes",
            "Topics and consumer groups written to a broker group.",
            ["kind", "result"],
            registry=registry,
        )
        self.deletions = Counter(
            "tallystick_operator_broker_deletions",
            "Topics and consumer groups deleted on all their broker groups.",
            ["kind"],
            registry=registry,
        )
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
