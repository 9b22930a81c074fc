"""Metrics of the operator for Prometheus: passes, steps, clusters and memory."""

from __future__ import annotations

import resource
from collections.abc import Iterable
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

PASS_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


def resident_bytes() -> int:
    """Returns the resident memory of this process; without /proc, its maximum so far."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * resource.getpagesize()


class Metrics:
    """All series of one operator, in a separate registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.passes = Counter(
            "tallystick_operator_passes",
            "Finished reconciliations, by kind and result.",
            ["kind", "result"],
            registry=self.registry,
        )
        self.pass_seconds = Histogram(
            "tallystick_operator_pass_seconds",
            "Duration of reconciliations in seconds.",
            ["kind"],
            buckets=PASS_BUCKETS,
            registry=self.registry,
        )
        self.errors = Counter(
            "tallystick_operator_errors",
            "Failed reconciliations, by class of error.",
            ["kind", "error"],
            registry=self.registry,
        )
        self.writes = Counter(
            "tallystick_operator_writes", "Objects written, by kind.", ["resource"], registry=self.registry
        )
        self.steps = Counter(
            "tallystick_operator_steps", "Steps carried out, by action.", ["action"], registry=self.registry
        )
        self.clusters = Gauge(
            "tallystick_operator_clusters", "Clusters in each phase.", ["phase"], registry=self.registry
        )
        self.nodes = Gauge(
            "tallystick_operator_nodes", "Broker nodes, wanted and ready.", ["state"], registry=self.registry
        )
        self.queue = Gauge("tallystick_operator_queue_keys", "Keys in the work queue.", registry=self.registry)
        self.waiting = Gauge(
            "tallystick_operator_queue_longest_wait_seconds",
            "Longest time that a key has been due or running, in seconds.",
            registry=self.registry,
        )
        self.leads = Gauge(
            "tallystick_operator_leads", "1 while this operator holds the lease.", registry=self.registry
        )
        resident = Gauge("process_resident_memory_bytes", "Resident memory size in bytes.", registry=self.registry)
        resident.set_function(resident_bytes)
        self._phases: dict[tuple[str, str], tuple[str, int, int]] = {}

    def saw_cluster(self, namespace: str, name: str, phase: str, nodes: int, ready: int) -> None:
        """Records the state that a pass found. A cluster counts in one phase."""
        self._phases[namespace, name] = (phase, nodes, ready)
        self._show()

    def forgot_cluster(self, namespace: str, name: str) -> None:
        """Removes a deleted cluster."""
        self._phases.pop((namespace, name), None)
        self._show()

    def text(self) -> bytes:
        """Returns the metrics in the text format of Prometheus."""
        return generate_latest(self.registry)

    def _show(self) -> None:
        self.clusters.clear()
        for phase, count in _counted(phase for phase, _, _ in self._phases.values()):
            self.clusters.labels(phase).set(count)
        self.nodes.labels("wanted").set(sum(nodes for _, nodes, _ in self._phases.values()))
        self.nodes.labels("ready").set(sum(ready for _, _, ready in self._phases.values()))


def _counted(values: Iterable[str]) -> list[tuple[str, int]]:
    listed = list(values)
    return [(value, listed.count(value)) for value in sorted(set(listed))]
