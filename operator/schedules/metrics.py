"""Metrics of ScheduledBackups for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from tallystick.operator.core.kube import Json
from tallystick.operator.core.metric import GaugeDeclaration, MetricDeclaration
from tallystick.operator.core.times import seconds

LABELS = ("cluster_namespace", "cluster", "schedule")
LAST_SUCCESS = GaugeDeclaration(
    "tallystick_operator_schedule_last_success_timestamp_seconds",
    "seconds",
    "Completion time (since 1970) of the newest completed Backup of a ScheduledBackup that exists; 0: there is none.",
    "the last reconciliation of each ScheduledBackup",
    LABELS,
)
REQUIRED = GaugeDeclaration(
    "tallystick_operator_schedule_required_timestamp_seconds",
    "seconds",
    "Time (since 1970) after which a Backup of a ScheduledBackup must have completed: its last scheduled time but one."
    " No series: it is suspended, or its cluster hibernates, or it has not had two scheduled times since.",
    "the last reconciliation of each ScheduledBackup",
    LABELS,
)
SCHEDULES = GaugeDeclaration(
    "tallystick_operator_schedules",
    "ScheduledBackups",
    "ScheduledBackups in each phase. A phase without a ScheduledBackup has no series.",
    "the last reconciliation of each ScheduledBackup",
    ("phase",),
)
SCHEDULE_METRICS: tuple[MetricDeclaration, ...] = (SCHEDULES, LAST_SUCCESS, REQUIRED)
"""Metrics of ScheduledBackups. Only an operator that leads exposes them."""


class ScheduleMetrics:
    """The metrics in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.schedules = SCHEDULES.register(registry)
        self.last_success = LAST_SUCCESS.register(registry)
        self.required = REQUIRED.register(registry)
        self._seen: dict[tuple[str, str], tuple[str, str, float, float | None]] = {}

    def saw(self, namespace: str, name: str, cluster: str, status: Json, required: float | None) -> None:
        """Records the status after a pass. `required`: see `required_time`."""
        success = seconds(status.get("lastSuccessfulTime")) or 0.0
        self._seen[namespace, name] = str(status["phase"]), cluster, success, required
        self._show()

    def forgot(self, namespace: str, name: str) -> None:
        """Removes a deleted ScheduledBackup."""
        if self._seen.pop((namespace, name), None) is not None:
            self._show()

    def _show(self) -> None:
        for gauge in (self.schedules, self.last_success, self.required):
            gauge.clear()
        phases = [phase for phase, _, _, _ in self._seen.values()]
        for phase in sorted(set(phases)):
            self.schedules.labels(phase).set(phases.count(phase))
        for (namespace, name), (_, cluster, success, required) in self._seen.items():
            self.last_success.labels(namespace, cluster, name).set(success)
            if required is not None:
                self.required.labels(namespace, cluster, name).set(required)
