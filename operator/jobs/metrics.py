"""Metrics of StoreJobs for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from tallystick.operator.core.kube import Json
from tallystick.operator.core.metric import (
    CounterDeclaration,
    GaugeDeclaration,
    HistogramDeclaration,
    MetricDeclaration,
)
from tallystick.operator.jobs.result import FOUND

JOBS = GaugeDeclaration(
    "tallystick_operator_store_jobs",
    "StoreJobs",
    "StoreJobs in each phase. A phase without a StoreJob has no series.",
    "the last reconciliation of each StoreJob",
    ("phase",),
)
FINDINGS = GaugeDeclaration(
    "tallystick_operator_store_jobs_with_findings",
    "StoreJobs",
    "StoreJobs whose result has the verdict `DifferencesFound` or `DamageFound`, by verdict. They count until they are"
    " deleted.",
    "the last reconciliation of each StoreJob",
    ("verdict",),
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
JOB_METRICS: tuple[MetricDeclaration, ...] = (JOBS, FINDINGS, ENDS, FAILED_ATTEMPTS, SECONDS)
"""Metrics of StoreJobs. Only an operator that leads exposes them."""


class JobMetrics:
    """The metrics in one registry. An ended run is counted once, by the operator that observed its end."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.jobs = JOBS.register(registry)
        self.findings = FINDINGS.register(registry)
        self.ends = ENDS.register(registry)
        self.attempts_failed = FAILED_ATTEMPTS.register(registry)
        self.seconds = SECONDS.register(registry)
        self._seen: dict[tuple[str, str], tuple[str, str]] = {}
        self._show()

    def saw(self, namespace: str, name: str, status: Json) -> None:
        """Records phase and verdict of the status after a pass."""
        seen = str(status["phase"]), str((status.get("result") or {}).get("verdict") or "")
        if self._seen.get((namespace, name)) != seen:
            self._seen[namespace, name] = seen
            self._show()

    def forgot(self, namespace: str, name: str) -> None:
        """Removes a deleted StoreJob."""
        if self._seen.pop((namespace, name), None) is not None:
            self._show()

    def _show(self) -> None:
        self.jobs.clear()
        phases = [phase for phase, _ in self._seen.values()]
        for phase in sorted(set(phases)):
            self.jobs.labels(phase).set(phases.count(phase))
        verdicts = [verdict for _, verdict in self._seen.values()]
        for verdict in FOUND:
            self.findings.labels(verdict).set(verdicts.count(verdict))
