"""Metrics of Backups for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from tallystick.operator.backups.reasons import Phase
from tallystick.operator.core.kube import Json
from tallystick.operator.core.metric import CounterDeclaration, GaugeDeclaration, MetricDeclaration
from tallystick.operator.core.times import seconds

BACKUPS = GaugeDeclaration(
    "tallystick_operator_backups",
    "Backups",
    "Backups in each phase. A phase without a Backup has no series.",
    "the last reconciliation of each Backup",
    ("phase",),
)
LAST_SUCCESS = GaugeDeclaration(
    "tallystick_operator_backup_last_success_timestamp_seconds",
    "seconds",
    "Completion time (since 1970) of the newest completed Backup of a cluster that exists.",
    "the last reconciliation of each Backup",
    ("cluster_namespace", "cluster"),
)
FAILURES = CounterDeclaration(
    "tallystick_operator_backup_failures_total",
    "backups",
    "Backups that failed, by cluster.",
    "the operator that observes the end of a Backup",
    ("cluster_namespace", "cluster"),
)
BACKUP_METRICS: tuple[MetricDeclaration, ...] = (BACKUPS, LAST_SUCCESS, FAILURES)
"""Metrics of Backups. Only an operator that leads exposes them."""


class BackupMetrics:
    """The metrics in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.backups = BACKUPS.register(registry)
        self.last_success = LAST_SUCCESS.register(registry)
        self.failures = FAILURES.register(registry)
        self._seen: dict[tuple[str, str], tuple[str, str, float]] = {}

    def saw(self, namespace: str, name: str, cluster: str, status: Json) -> None:
        """Records the status after a pass."""
        ended = seconds(status.get("completionTime")) or 0.0
        self._seen[namespace, name] = str(status.get("phase") or ""), cluster, ended
        self._show()

    def failed(self, namespace: str, cluster: str) -> None:
        """A Backup has failed."""
        self.failures.labels(namespace, cluster).inc()

    def forgot(self, namespace: str, name: str) -> None:
        """Removes a deleted Backup."""
        if self._seen.pop((namespace, name), None) is not None:
            self._show()

    def _show(self) -> None:
        self.backups.clear()
        self.last_success.clear()
        phases = [phase for phase, _, _ in self._seen.values()]
        for phase in sorted(set(phases)):
            self.backups.labels(phase).set(phases.count(phase))
        newest: dict[tuple[str, str], float] = {}
        for (namespace, _), (phase, cluster, ended) in self._seen.items():
            if phase == Phase.COMPLETED:
                newest[namespace, cluster] = max(ended, newest.get((namespace, cluster), 0.0))
        for labels, ended in newest.items():
            self.last_success.labels(*labels).set(ended)
