"""The declaration of a metric: one place gives its name, type, unit, labels, meaning, and how to read its value.

`/metrics` and `docs/metrics.md` both come from the declarations. A value is read when a scrape asks for it; nothing is
sampled between scrapes.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tallystick.node.http.bounded_series import BoundedSeries, Combine, Sample
from tallystick.node.http.exposition import Form, family_head, histogram_lines, in_pieces, sample_lines
from tallystick.store.engine.distribution import Distribution

S = TypeVar("S")
T = TypeVar("T")

MAX_SERIES = 2000
"""Series of one metric with labels that clients choose, without the one that all others share."""

Distributions = Iterable[tuple[tuple[str, ...], Distribution]]
"""The values of a histogram's labels, and its classes."""
Read = Callable[[S], float | Iterable[Sample]]


class MetricType(enum.StrEnum):
    """The types of Prometheus that the processes of a node use."""

    COUNTER = "counter"
    """It begins at 0 with the process, and only grows."""
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    """Counts of values at most as great as each limit, all values together, and their number. Since the start."""


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
    read: Callable[[S], float | Iterable[Sample] | Distribution | Distributions]
    """Returns the value; with labels, a sample for each combination of their values; of a histogram, its classes.
    What it returns is read in steps, between which other work runs."""
    labels: tuple[str, ...] = ()
    shared: Combine | None = None
    """Clients choose the values of the labels, so the number of series is limited: makes one value of those that share
    a series. None: the values of the labels are few."""


def counter(
    name: str, unit: str, help: str, source: str, read: Read[S], *labels: str, shared: Combine | None = None
) -> MetricDeclaration[S]:
    """Returns the declaration of a counter."""
    return MetricDeclaration(MetricType.COUNTER, name, unit, help, source, read, labels, shared)


def gauge(
    name: str, unit: str, help: str, source: str, read: Read[S], *labels: str, shared: Combine | None = None
) -> MetricDeclaration[S]:
    """Returns the declaration of a gauge."""
    return MetricDeclaration(MetricType.GAUGE, name, unit, help, source, read, labels, shared)


def histogram(
    name: str,
    help: str,
    source: str,
    read: Callable[[S], Distribution | Distributions],
    *labels: str,
    unit: str = "seconds",
) -> MetricDeclaration[S]:
    """Returns the declaration of a histogram, of durations in seconds by default."""
    return MetricDeclaration(MetricType.HISTOGRAM, name, unit, help, source, read, labels)


class MetricsPart(Generic[S]):
    """One part of the page `/metrics`: declared metrics that are read from one object."""

    def __init__(self, source: S, declared: Sequence[MetricDeclaration[S]]) -> None:
        self._source = source
        self._declared = declared
        self._bounds: dict[str, BoundedSeries] = {}

    def text(self) -> bytes:
        """Returns this part of the page, in the text format of Prometheus."""
        return "".join(self.pieces(Form.TEXT)).encode()

    def common(self) -> Mapping[str, str]:
        """Returns the labels that all metrics of this part have, with their values."""
        return {}

    def pieces(self, form: Form) -> Iterator[str]:
        """Yields this part of the page. Each piece takes a short time; some are empty."""
        yield from self.declared_pieces(form, self._declared, self._source)

    def declared_pieces(
        self, form: Form, declared: Iterable[MetricDeclaration[T]], source: T, common: Mapping[str, str] | None = None
    ) -> Iterator[str]:
        """Yields the text of some metrics that are read from `source`."""
        constant = self.common() if common is None else common
        for each in declared:
            yield family_head(form, each.name, each.type, each.help)
            found = each.read(source)
            if each.shared is not None:
                found = yield from self._bound(each).bounded(found, MAX_SERIES)  # type: ignore[arg-type]
            yield from in_pieces(self._lines(each, found, constant))

    def left_out(self) -> Iterator[Sample]:
        """Yields how many combinations of label values had no series in this page, by the name of the metric."""
        for name, bound in self._bounds.items():
            yield (name,), bound.left_out

    def _bound(self, declared: MetricDeclaration[T]) -> BoundedSeries:
        bound = self._bounds.get(declared.name)
        if bound is None:
            is_counter = declared.type is MetricType.COUNTER
            bound = BoundedSeries(len(declared.labels), is_counter=is_counter, combine=declared.shared or sum)
            self._bounds[declared.name] = bound
        return bound

    def _lines(
        self,
        declared: MetricDeclaration[T],
        found: float | Iterable[Sample] | Distribution | Distributions,
        constant: Mapping[str, str],
    ) -> Iterator[str]:
        name, labels = declared.name, declared.labels
        if declared.type is MetricType.HISTOGRAM:
            each = [((), found)] if isinstance(found, Distribution) else found
            return histogram_lines(name, constant, labels, each)  # type: ignore[arg-type]
        samples: Iterable[Sample] = [((), found)] if isinstance(found, float | int) else found  # type: ignore[assignment]
        return sample_lines(name, constant, labels, samples)
