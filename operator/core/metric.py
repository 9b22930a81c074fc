"""The declaration of a metric: one place gives its name, type, unit, labels, meaning, and what it counts.

`/metrics` of the operator and `docs/metrics.md` both come from the declarations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


@dataclass(frozen=True, slots=True)
class MetricDeclaration:
    """The part that all types have in common."""

    type: ClassVar[str]
    name: str
    """As Prometheus shows it: the name of a counter ends with `_total`."""
    unit: str
    help: str
    """One sentence for the HELP line and the page: what the value means."""
    source: str
    """What is counted or measured, and when."""
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CounterDeclaration(MetricDeclaration):
    """A counter. It begins at 0 with the process."""

    type: ClassVar[str] = "counter"

    def register(self, registry: CollectorRegistry) -> Counter:
        """Returns a new counter that `registry` exposes."""
        return Counter(self.name, self.help, self.labels, registry=registry)


@dataclass(frozen=True, slots=True)
class GaugeDeclaration(MetricDeclaration):
    """A gauge."""

    type: ClassVar[str] = "gauge"

    def register(self, registry: CollectorRegistry) -> Gauge:
        """Returns a new gauge that `registry` exposes."""
        return Gauge(self.name, self.help, self.labels, registry=registry)


@dataclass(frozen=True, slots=True)
class HistogramDeclaration(MetricDeclaration):
    """A histogram. Prometheus shows it as `NAME_bucket`, `NAME_sum` and `NAME_count`."""

    type: ClassVar[str] = "histogram"
    buckets: tuple[float, ...] = ()
    """Upper bounds of the buckets, in the metric's unit."""

    def register(self, registry: CollectorRegistry) -> Histogram:
        """Returns a new histogram that `registry` exposes."""
        return Histogram(self.name, self.help, self.labels, buckets=self.buckets, registry=registry)
