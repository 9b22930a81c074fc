"""What docs/metrics.md documents, compared with the text of a `/metrics` page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
OF_BROKERS = {"Broker", "Port for slaves", "Member of a replicated group"}
"""Parts whose metrics have the labels of a broker."""
BROKER_LABELS = ("cluster", "node_type", "node_id")
_ROW = re.compile(r"\| `(\w+)` \| (\w+) \| [^|]+ \| ([^|]*) \|")

Documented = dict[str, tuple[str, frozenset[str]]]
"""Type and labels of each metric by its name."""


def documented(*parts: str) -> Documented:
    """Returns the metrics of some parts of the page (headings of level 2), of all parts without an argument."""
    return {name: found for part, name, found in _rows() if not parts or part in parts}


def _rows() -> Iterator[tuple[str, str, tuple[str, frozenset[str]]]]:
    part = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            part = line.removeprefix("## ")
        elif match := _ROW.match(line):
            labels = frozenset(re.findall(r"`(\w+)`", match[3]))
            yield part, match[1], (match[2], labels | (frozenset(BROKER_LABELS) if part in OF_BROKERS else set()))


def documented_series() -> set[str]:
    """Returns the names of all series of the page, as a query may use them."""
    suffixes = {"histogram": ("_bucket", "_sum", "_count")}
    return {name + suffix for name, (kind, _) in documented().items() for suffix in suffixes.get(kind, ("",))}


def check_page(text: str, *parts: str) -> set[str]:
    """Checks that a page exposes the metrics of these parts of the document and no others, with their types and labels.

    Returns the names of the metrics that have samples.
    """
    expected, exposed, with_samples = documented(*parts), dict[str, str](), set[str]()
    assert expected, parts
    for family in text_string_to_metric_families(text):
        if family.name.endswith("_created"):
            continue  # the library adds one to each counter and histogram of the operator
        name = f"{family.name}_total" if family.type == "counter" else family.name
        exposed[name] = family.type
        for sample in family.samples:
            labels = set(sample.labels) - ({"le"} if family.type == "histogram" else set())
            assert labels == set(expected.get(name, ("", labels))[1]), f"{name} has the labels {labels}"
            with_samples.add(name)
        assert family.documentation.endswith("."), name
    assert exposed == {name: kind for name, (kind, _) in expected.items()}
    return with_samples
