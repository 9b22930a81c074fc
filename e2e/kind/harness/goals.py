"""What the product promises, and what was measured in a run: one table at its end, and a test that fails for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.slo import percentile


@dataclass(slots=True)
class Goal:
    """`limit`: what must stay below (with `inclusive`: at most). `summary`: how samples become the figure."""

    name: str
    limit: float
    unit: str
    summary: Callable[[Sequence[float]], float] = max
    inclusive: bool = False
    samples: list[float] = field(default_factory=list)

    def add(self, *values: float) -> None:
        self.samples += values

    @property
    def figure(self) -> float | None:
        """None: nothing was measured."""
        return self.summary(self.samples) if self.samples else None

    @property
    def met(self) -> bool:
        figure = self.figure
        return figure is None or figure < self.limit or (self.inclusive and figure == self.limit)

    def row(self) -> tuple[str, ...]:
        sign = "at most" if self.inclusive else "below"
        if self.figure is None:
            return self.name, f"{sign} {self.limit:g} {self.unit}".strip(), "not measured", "", ""
        middle = percentile(self.samples, 0.5)
        return (
            self.name,
            f"{sign} {self.limit:g} {self.unit}".strip(),
            f"{self.figure:.4g} {self.unit}".strip(),
            f"median {middle:.4g} of {len(self.samples)}" if len(self.samples) > 1 else "1 sample",
            "met" if self.met else "MISSED",
        )


def p99(samples: Sequence[float]) -> float:
    return percentile(samples, 0.99)


@dataclass(slots=True)
class Goals:
    leader_change: Goal = field(default_factory=lambda: Goal("a leader is lost: outage, p99", 2.0, "s", p99))
    java_again: Goal = field(default_factory=lambda: Goal("a pod is killed: outage of a Java producer", 5.0, "s"))
    planned_switch: Goal = field(default_factory=lambda: Goal("a leader hands over: outage, p99", 300.0, "ms", p99))
    lost: Goal = field(default_factory=lambda: Goal("acknowledged messages lost", 0, "", sum, inclusive=True))
    failed: Goal = field(
        default_factory=lambda: Goal("planned changes: sends failed after all tries", 0, "", sum, inclusive=True)
    )
    topic_ready: Goal = field(default_factory=lambda: Goal("a Topic is Ready after it was applied", 3.0, "s"))
    thousand_topics: Goal = field(default_factory=lambda: Goal("1 000 Topics are Ready", 60.0, "s"))
    store_job: Goal = field(default_factory=lambda: Goal("a StoreJob, small volumes: apply to result", 45.0, "s"))
    operator_memory: Goal = field(default_factory=lambda: Goal("operator's resident memory, peak", 150.0, "MiB"))

    def all(self) -> list[Goal]:
        return [getattr(self, name) for name in self.__dataclass_fields__]

    def table(self) -> str:
        head = ("goal", "limit", "measured", "samples", "")
        rows = [head, *(goal.row() for goal in self.all())]
        widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
        return "\n".join("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in rows)

    def write(self, file: Path) -> None:
        """All samples, for who wants to look closer."""
        found = {goal.name: {"limit": goal.limit, "unit": goal.unit, "samples": goal.samples} for goal in self.all()}
        file.write_text(json.dumps(found, indent=1) + "\n")
