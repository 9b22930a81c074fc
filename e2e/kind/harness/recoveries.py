"""How long recoveries took, and what they lost, beside the figures that CloudNativePG publishes for PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

SNAPSHOT = "RTO 2 min for 4.5 TB from a volume snapshot"
ARCHIVE = "RPO up to 5 min (archive_timeout)"
"""Published for CloudNativePG: the article "PostgreSQL Disaster Recovery with Kubernetes Volume Snapshots" of EDB
(18 October 2023), and the page on WAL archiving of EDB Postgres for Kubernetes."""
NOT_PUBLISHED = "no figure"


@dataclass(frozen=True, slots=True)
class Recovery:
    """One recovery. `rto_s`: from the first command until messages are accepted; `whole_s`: until all members vote."""

    name: str
    rto_s: float
    whole_s: float
    acknowledged: int
    """Messages that were acknowledged before the moment to which the cluster is recovered."""
    lost: int
    """Of these, the ones that the recovered cluster does not have; 0 means an RPO of 0."""
    peer: str


HEAD = ("recovery", "RTO", "all members vote", "acknowledged before", "lost", "CloudNativePG")


def table(recoveries: Sequence[Recovery]) -> str:
    """Returns them as a table in Markdown."""
    rows = [
        (each.name, f"{each.rto_s:.0f} s", f"{each.whole_s:.0f} s", f"{each.acknowledged:,}", str(each.lost), each.peer)
        for each in recoveries
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (HEAD, ("---",) * len(HEAD), *rows))


def write(recoveries: Sequence[Recovery], file: Path) -> None:
    file.write_text(json.dumps([asdict(each) for each in recoveries], indent=1) + "\n")
