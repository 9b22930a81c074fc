"""The text of a page of metrics, in the two formats that Prometheus reads.

    text          Prometheus text format 0.0.4
    OpenMetrics   1.0.0: a counter's family has no `_total`, and the page ends with `# EOF`

A page can have a hundred thousand lines, so it is written in pieces: who serves it can do other work between them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice

from tallystick.node.http.bounded_series import Sample
from tallystick.store.engine.distribution import Distribution

_LINES_A_PIECE = 200
_OPEN_METRICS = "application/openmetrics-text"


class Form(enum.Enum):
    """A format; the value is its content type."""

    TEXT = "text/plain; version=0.0.4; charset=utf-8"
    OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

    @property
    def end(self) -> str:
        """The last line of a page."""
        return "# EOF\n" if self is Form.OPEN_METRICS else ""


def form_for(accept: str) -> Form:
    """Returns the format for the header `Accept` of a request: OpenMetrics if the client prefers it to plain text."""
    best = {_OPEN_METRICS: 0.0, "text/plain": 0.0}
    for part in accept.split(","):
        name, *parameters = (word.strip() for word in part.lower().split(";"))
        if name in best and _is_supported(name, parameters):
            best[name] = max(best[name], _quality(parameters))
    return Form.OPEN_METRICS if best[_OPEN_METRICS] > best["text/plain"] else Form.TEXT


def _is_supported(name: str, parameters: Sequence[str]) -> bool:
    versions = {word.removeprefix("version=").strip('"') for word in parameters if word.startswith("version=")}
    return name != _OPEN_METRICS or not versions or bool(versions & {"1.0.0", "0.0.1"})


def _quality(parameters: Sequence[str]) -> float:
    for word in parameters:
        if word.startswith("q="):
            try:
                return float(word[2:])
            except ValueError:
                return 0.0
    return 1.0


def _escaped(value: str) -> str:
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return value


def family_head(form: Form, name: str, kind: str, help: str) -> str:
    """Returns the lines before the samples of a metric. `name`: that of a counter ends with `_total`."""
    if form is Form.OPEN_METRICS and kind == "counter":
        name = name.removesuffix("_total")
    text = help.replace("\\", r"\\").replace("\n", r"\n")
    if form is Form.OPEN_METRICS:
        text = text.replace('"', r"\"")
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


class Template:
    """The begin of the lines of a metric: the name, and all labels in the order of their names."""

    def __init__(self, name: str, constant: Mapping[str, str], labels: Sequence[str]) -> None:
        """`constant`: labels that all lines have, with their values. `labels`: the others."""
        self._labels = [label for label in sorted((*constant, *labels)) if label in labels]
        self._order = [labels.index(label) for label in self._labels]
        parts = [
            f'{label}="%s"' if label in labels else f'{label}="{_escaped(constant[label])}"'.replace("%", "%%")
            for label in sorted((*constant, *labels))
        ]
        self._text = f"{name}{{{','.join(parts)}}} " if parts else f"{name} "

    def line(self, values: Sequence[str], value: float) -> str:
        """Returns a line. `values`: of the labels that are not constant, in their order at the creation."""
        return f"{self._text % tuple([_escaped(values[at]) for at in self._order])}{float(value)!r}\n"


def sample_lines(
    name: str, constant: Mapping[str, str], labels: Sequence[str], found: Iterable[Sample]
) -> Iterator[str]:
    """Yields the lines of a counter or gauge."""
    template = Template(name, constant, labels)
    return (template.line(values, value) for values, value in found)


def histogram_lines(
    name: str,
    constant: Mapping[str, str],
    labels: Sequence[str],
    found: Iterable[tuple[tuple[str, ...], Distribution]],
) -> Iterator[str]:
    """Yields the lines of a histogram: for each limit, how many values were at most as great; their sum and number."""
    bucket = Template(f"{name}_bucket", constant, (*labels, "le"))
    total, count = (Template(f"{name}_{word}", constant, labels) for word in ("sum", "count"))
    for values, each in found:
        limits = [*(repr(float(limit)) for limit in each.limits), "+Inf"]
        for limit, number in zip(limits, accumulate(each.counts), strict=True):
            yield bucket.line((*values, limit), number)
        yield count.line(values, sum(each.counts))
        yield total.line(values, each.total)


def in_pieces(lines: Iterator[str]) -> Iterator[str]:
    """Yields the lines joined to pieces."""
    while piece := "".join(islice(lines, _LINES_A_PIECE)):
        yield piece
