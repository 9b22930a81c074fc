"""What producers see of changes of leader: the outage after each, in one table with its percentiles."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

CHANGES = int(os.environ.get("CHANGES", "") or 30)
"""Changes of leader of each kind in a run."""
BATCH = 10
"""Changes under one load: its history has to fit into the memory of its pod."""


def percentile(samples: Sequence[float], share: float) -> float:
    """Nearest rank: with fewer than a hundred samples, the 99th is the highest."""
    return sorted(samples)[max(0, math.ceil(share * len(samples)) - 1)]


def batches(changes: int = CHANGES, size: int = BATCH) -> Iterator[int]:
    """Yields how many changes belong to each load."""
    for begin in range(0, changes, size):
        yield min(size, changes - begin)


@dataclass(slots=True)
class Row:
    """One kind of change. `outages_s`: for each change, the longest time in which no send was acknowledged."""

    name: str
    outages_s: list[float] = field(default_factory=list)
    failed: int = 0
    """Messages that were not acknowledged within the time of a send, with all its tries."""
    acknowledged: int = 0
    lost: int = 0

    def cells(self) -> tuple[str, ...]:
        def milliseconds(share: float) -> str:
            return f"{1000 * percentile(self.outages_s, share):.0f} ms"

        figures = (milliseconds(0.5), milliseconds(0.99), milliseconds(1.0))
        return (
            self.name,
            str(len(self.outages_s)),
            *figures,
            str(self.failed),
            f"{self.acknowledged:,}",
            str(self.lost),
        )


HEAD = ("change of leader", "changes", "p50", "p99", "longest", "failed sends", "acknowledged", "lost")


def table(rows: Sequence[Row]) -> str:
    """Returns the rows as a table in Markdown, without those that were not measured."""
    lines = [HEAD, ("---",) * len(HEAD), *(row.cells() for row in rows if row.outages_s)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def machine() -> str:
    """Returns the processor, cores and memory of this machine, and the day (UTC)."""
    model = next((line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo", "model name")), platform.machine())
    memory = next((int(line.split()[1]) for line in _lines("/proc/meminfo", "MemTotal")), 0)
    return f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores of {model}, {memory / (1 << 20):.0f} GiB"


def _lines(file: str, begin: str) -> list[str]:
    path = Path(file)
    return [line for line in path.read_text().splitlines() if line.startswith(begin)] if path.is_file() else []


def write(rows: Sequence[Row], file: Path) -> None:
    """Writes all samples, for further analysis."""
    found = {row.name: {"outages_s": row.outages_s, "failed": row.failed, "lost": row.lost} for row in rows}
    file.write_text(json.dumps({"machine": machine(), "changes": found}, indent=1) + "\n")
