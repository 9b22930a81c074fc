"""What the tasks of a user's program read, and how: they report it to the driver (`job_stores.report_read`)."""

from __future__ import annotations

import hmac
import json
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tallystick.spark.cluster.plan import Place
from tallystick.spark.job_stores import BACKUP, HTTP, LOCAL, signature


class Reads:
    """The reports of a run, by node, for any thread. `secret`: the one that tasks sign with."""

    def __init__(self, places: Sequence[Place], secret: str) -> None:
        self._nodes = {place.elsewhere: place.node for place in places}
        self._secret = secret
        self._lock = threading.Lock()
        self._ways: dict[str, set[str]] = {}
        self.records: Counter[str] = Counter()
        self.bytes = 0

    def add(self, body: bytes, signed: str) -> bool:
        """Adds a report. False: it has no valid signature, or names no store of the job."""
        if not hmac.compare_digest(signature(self._secret, body).encode(), signed.encode()):
            return False
        report: Mapping[str, Any] = json.loads(body)
        node, via = self._nodes.get(report["store"]), report["via"]
        if node is None or via not in (LOCAL, HTTP, BACKUP):
            return False
        with self._lock:
            self._ways.setdefault(node, set()).add(via)
            self.records[node] += int(report["records"])
            self.bytes += int(report["bytes"])
        return True

    def via(self, node: str) -> str | None:
        """Returns `local`, `http` or `mixed`; None: nothing was read from the node's store."""
        with self._lock:
            ways = set(self._ways.get(node, ()))
        return None if not ways else ways.pop() if len(ways) == 1 else "mixed"

    def sources(self) -> list[dict[str, Any]]:
        """Returns the sources of a summary."""
        with self._lock:
            return [{"source": node, "records": records} for node, records in sorted(self.records.items())]


def with_reads(summary: Mapping[str, Any], reads: Reads) -> dict[str, Any]:
    """Returns the summary of a program with what its tasks read. Figures of the program have priority."""
    figures = {"records": sum(reads.records.values()), "bytes": reads.bytes} | summary["figures"]
    return {**summary, "sources": reads.sources(), "figures": figures}
