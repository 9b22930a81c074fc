"""Metrics of StoreJobs for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from tallystick.operator.core.metric import (
    CounterDeclaration,
    GaugeDeclaration,
    HistogramDeclaration,
    MetricDeclaration,
)

JOBS = GaugeDeclaration(
    "tallystick_operator_store_jobs",
    "StoreJobs",
    "StoreJobs in each phase. A phase without a StoreJob has no series.",
    "the last reconciliation of each StoreJob",
    ("phase",),
)
ENDS = CounterDeclaration(
    "tallystick_operator_store_job_ends_total",
    "runs",
    "Finished runs, by job and verdict. `Failed`: the run has no result.",
    "the operator that observes the end of a run",
    ("job", "verdict"),
)
FAILED_ATTEMPTS = CounterDeclaration(
    "tallystick_operator_store_job_failed_attempts_total",
    "attempts",
    "Failed attempts of runs, by reason.",
    "the operator that observes the end of an attempt",
    ("reason",),
)
SECONDS = HistogramDeclaration(
    "tallystick_operator_store_job_seconds",
    "seconds",
    "Duration of runs in seconds, by job, from the start of the first attempt to the end of the last one.",
    "the operator that observes the end of a run: `startTime` and `completionTime` of its status",
    ("job",),
    buckets=(10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0),
)
JOB_METRICS: tuple[MetricDeclaration, ...] = (JOBS, ENDS, FAILED_ATTEMPTS, SECONDS)
"""Metrics of StoreJobs. Only an operator that leads exposes them."""


class JobMetrics:
    """The metrics in one registry. An ended run is counted once, by the operator that observed its end."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.jobs = JOBS.register(registry)
        self.ends = ENDS.register(registry)
        self.attempts_failed = FAILED_ATTEMPTS.register(registry)
        self.seconds = SECONDS.register(registry)
        self._phases: dict[tuple[str, str], str] = {}

    def saw(self, namespace: str, name: str, phase: str) -> None:
        """Records the phase after a pass."""
        if self._phases.get((namespace, name)) != phase:
            self._phases[namespace, name] = phase
            self._show()

    def forgot(self, namespace: str, name: str) -> None:
        """Removes a deleted StoreJob."""
        if self._phases.pop((namespace, name), None) is not None:
            self._show()

    def _show(self) -> None:
        self.jobs.clear()
        phases = list(self._phases.values())
        for phase in sorted(set(phases)):
            self.jobs.labels(phase).set(phases.count(phase))
