"""The declaration of a metric: one place gives its name, type, unit, labels, meaning, and how to read its value.

`/metrics` and `docs/metrics.md` both come from the declarations. A value is read when a scrape asks for it; nothing is
sampled between scrapes.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from tallystick.store.engine.put_times import Distribution

S = TypeVar("S")

Sample = tuple[tuple[str, ...], float]
"""The values of the metric's labels, in their order, and its value."""


class MetricType(enum.StrEnum):
    """The types of Prometheus that the processes of a node use."""

    COUNTER = "counter"
    """It begins at 0 with the process, and only grows."""
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    """Counts of durations at most as long as each limit, all durations together, and their number. Since the start."""


@dataclass(frozen=True, slots=True)
class MetricDeclaration(Generic[S]):
    """One metric that is read from an object of type `S`."""

    type: MetricType
    name: str
    """As Prometheus shows it: the name of a counter ends with `_total`."""
    unit: str
    help: str
    """One sentence for the HELP line and the page: what the value means."""
    source: str
    """Where the value is counted or read: the part of the process, and for a counter the event."""
    read: Callable[[S], float | Iterable[Sample] | Distribution]
    """Returns the value; with labels, a sample for each combination of their values; of a histogram, its classes."""
    labels: tuple[str, ...] = ()

    def family(self, source: S, common: Mapping[str, str]) -> Metric:
        """Returns the metric with its current samples. `common`: labels that all samples have, before the others."""
        found = self.read(source)
        if isinstance(found, Distribution):
            histogram = HistogramMetricFamily(self.name, self.help, labels=list(common))
            histogram.add_metric(list(common.values()), _buckets(found), found.seconds)
            return histogram
        make = CounterMetricFamily if self.type is MetricType.COUNTER else GaugeMetricFamily
        family = make(self.name, self.help, labels=[*common, *self.labels])
        for values, value in [((), found)] if isinstance(found, float | int) else found:
            family.add_metric([*common.values(), *values], value)
        return family


def _buckets(found: Distribution) -> list[tuple[str, float]]:
    """Returns the buckets of Prometheus: for each limit, how many durations were at most as long."""
    limits = [*(str(float(limit)) for limit in found.limits_s), "+Inf"]
    return [(limit, float(total)) for limit, total in zip(limits, accumulate(found.counts), strict=True)]


Read = Callable[[S], float | Iterable[Sample]]


def counter(name: str, unit: str, help: str, source: str, read: Read[S], *labels: str) -> MetricDeclaration[S]:
    """Returns the declaration of a counter."""
    return MetricDeclaration(MetricType.COUNTER, name, unit, help, source, read, labels)


def gauge(name: str, unit: str, help: str, source: str, read: Read[S], *labels: str) -> MetricDeclaration[S]:
    """Returns the declaration of a gauge."""
    return MetricDeclaration(MetricType.GAUGE, name, unit, help, source, read, labels)


def histogram(name: str, help: str, source: str, read: Callable[[S], Distribution]) -> MetricDeclaration[S]:
    """Returns the declaration of a histogram of durations in seconds."""
    return MetricDeclaration(MetricType.HISTOGRAM, name, "seconds", help, source, read)


class MetricsPart(Generic[S]):
    """One part of the page `/metrics`: declared metrics that are read from one object."""

    def __init__(self, source: S, declared: Sequence[MetricDeclaration[S]]) -> None:
        self._source = source
        self._declared = declared
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self) -> bytes:
        """Returns this part of the page, in the text format of Prometheus."""
        return generate_latest(self._registry)

    def common(self) -> Mapping[str, str]:
        """Returns the labels that all metrics of this part have, with their values."""
        return {}

    def collect(self) -> Iterator[Metric]:
        """Yields each metric with its current samples. The registry calls it for each scrape."""
        common = self.common()
        for declared in self._declared:
            yield declared.family(self._source, common)
