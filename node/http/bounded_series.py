"""Limits the number of series of a metric whose label values clients choose.

The first `limit` label values have series of their own; the others share one series with the label value `(other)`. A
series of a counter must never go back: Prometheus would take that for a restart, and show what is left of it as new
events. So a label value whose counts are in the shared series stays there, and the counts of one that is deleted stay
in it as well.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from itertools import islice

Sample = tuple[tuple[str, ...], float]
"""The values of the metric's labels, in their order, and its value."""
Combine = Callable[[Iterable[float]], float]

OTHER = "(other)"
_KEYS_A_STEP = 500


class BoundedSeries:
    """The series of one metric. It keeps the label values that have series between the scrapes."""

    def __init__(self, labels: int, *, is_counter: bool, combine: Combine = sum) -> None:
        """`labels`: number of labels. `combine`: makes one value of those that share a series, `sum` or `max`."""
        self._other = (OTHER,) * labels
        self._is_counter = is_counter
        self._combine = combine
        self._named: dict[tuple[str, ...], None] = {}
        self._rest: dict[tuple[str, ...], float] = {}
        self._deleted = 0.0  # counts of the rest whose label values are deleted

    @property
    def left_out(self) -> int:
        """How many label values had no series of their own in the last scrape."""
        return len(self._rest)

    def bounded(self, found: Iterable[Sample], limit: int) -> Generator[str, None, list[Sample]]:
        """Returns the samples to show. It yields an empty text after each step; other work may run before the
        next one, so `found` must not read from what that work changes."""
        values: dict[tuple[str, ...], float] = {}
        samples_left = iter(found)
        while step := list(islice(samples_left, _KEYS_A_STEP)):
            values.update(step)
            yield ""
        named = {key: None for key in self._named if key in values}
        before = self._rest if self._is_counter else {}
        rest: dict[tuple[str, ...], float] = {}
        yield ""
        keys_left = iter(values.items())
        while step := list(islice(keys_left, _KEYS_A_STEP)):
            for key, value in step:
                if key in named:
                    continue
                if len(named) < limit and key not in before:
                    named[key] = None
                else:
                    rest[key] = value
            yield ""
        for key, value in before.items():
            if key not in rest or rest[key] < value:  # deleted, or deleted and created again
                self._deleted += value
        self._named, self._rest = named, rest
        yield ""
        samples = [(key, values[key]) for key in named]
        if rest or self._deleted:
            samples.append((self._other, self._combine(rest.values()) + self._deleted if rest else self._deleted))
        return samples
