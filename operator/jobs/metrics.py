"""Metrics of StoreJobs for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

BUCKETS = (10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0)


class JobMetrics:
    """Series of one operator. An ended run is counted once, by the operator that observed its end."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.jobs = Gauge("tallystick_operator_store_jobs", "StoreJobs in each phase.", ["phase"], registry=registry)
        self.ends = Counter(
            "tallystick_operator_store_job_ends",
            "Finished runs, by job and verdict. Failed: the run has no result.",
            ["job", "verdict"],
            registry=registry,
        )
        self.attempts_failed = Counter(
            "tallystick_operator_store_job_failed_attempts",
            "Failed attempts of runs, by reason.",
            ["reason"],
            registry=registry,
        )
        self.seconds = Histogram(
            "tallystick_operator_store_job_seconds",
            "Duration of runs in seconds, all attempts together.",
            ["job"],
            buckets=BUCKETS,
            registry=registry,
        )
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
