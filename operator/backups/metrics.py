"""Metrics of Backups for Prometheus."""

from __future__ import annotations

from dataclasses import dataclass

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
FAILED = GaugeDeclaration(
    "tallystick_operator_failed_backups",
    "Backups",
    "Failed Backups of a cluster that exist. One of a ScheduledBackup counts until a later one of it completes.",
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
BACKUP_METRICS: tuple[MetricDeclaration, ...] = (BACKUPS, LAST_SUCCESS, FAILED, FAILURES)
"""Metrics of Backups. Only an operator that leads exposes them."""


@dataclass(frozen=True, slots=True)
class _Row:
    """What is shown of a Backup. `ended`: seconds since 1970."""

    phase: str
    cluster: str
    ended: float
    schedule: str


class BackupMetrics:
    """The metrics in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.backups = BACKUPS.register(registry)
        self.last_success = LAST_SUCCESS.register(registry)
        self.failed = FAILED.register(registry)
        self.failures = FAILURES.register(registry)
        self._seen: dict[tuple[str, str], _Row] = {}

    def saw(self, namespace: str, name: str, cluster: str, status: Json, schedule: str = "") -> None:
        """Records the status after a pass. `schedule`: the ScheduledBackup that created it; empty: a user did."""
        ended = seconds(status.get("completionTime")) or 0.0
        self._seen[namespace, name] = _Row(str(status.get("phase") or ""), cluster, ended, schedule)
        self._show()

    def count_failure(self, namespace: str, cluster: str) -> None:
        """A Backup has failed."""
        self.failures.labels(namespace, cluster).inc()

    def forgot(self, namespace: str, name: str) -> None:
        """Removes a deleted Backup."""
        if self._seen.pop((namespace, name), None) is not None:
            self._show()

    def _show(self) -> None:
        for gauge in (self.backups, self.last_success, self.failed):
            gauge.clear()
        phases = [row.phase for row in self._seen.values()]
        for phase in sorted(set(phases)):
            self.backups.labels(phase).set(phases.count(phase))
        newest: dict[tuple[str, str], float] = {}
        made_good: dict[tuple[str, str], float] = {}
        for (namespace, _), row in self._seen.items():
            if row.phase == Phase.COMPLETED:
                for found, key in ((newest, (namespace, row.cluster)), (made_good, (namespace, row.schedule))):
                    found[key] = max(row.ended, found.get(key, 0.0))
        for labels, ended in newest.items():
            self.last_success.labels(*labels).set(ended)
        failed = {(namespace, row.cluster): 0 for (namespace, _), row in self._seen.items()}
        for (namespace, _), row in self._seen.items():
            later = made_good.get((namespace, row.schedule), 0.0) if row.schedule else 0.0
            failed[namespace, row.cluster] += row.phase == Phase.FAILED and row.ended >= later
        for labels, count in failed.items():
            self.failed.labels(*labels).set(count)
