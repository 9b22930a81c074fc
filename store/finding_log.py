"""Collects all faults that a running process finds in its files, and what it did about them.

    recovery, scrubber, table loader, reads ──add──▶ FindingLog ──▶ one log line, at WARNING or ERROR
                                                               ├──▶ a counter by kind in /metrics
                                                               └──▶ a list in GET /node, the newest `MAX_KEPT`

A process has one `FindingLog`. Everything that opens or checks files uses it, in a plain store and in a group. Findings
are kept as long as the process runs: after a restart, the same damage is reported again.

Damage is reported once per place, however often a read or a scrub finds it, until the file is repaired, rebuilt or
removed. A failing disk causes millions of findings: after `MAX_LINES` log lines of a kind, further ones are only
counted.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from pathlib import Path
from typing import Any

from tallystick.store.clock import wall_ms
from tallystick.store.findings import Finding, FindingKind

MAX_KEPT = 200
"""Number of listed findings; older ones are only counted."""
MAX_LINES = 1000
"""Largest number of log lines per kind."""
MAX_PLACES = 10_000
"""Largest number of damaged places that are remembered as reported."""

_logger = logging.getLogger("tallystick.store.findings")
# Lost or hidden messages are an error; what was repaired is a warning.
_LEVELS = {FindingKind.DAMAGE: logging.ERROR, FindingKind.NOTE: logging.INFO}


class FindingLog:
    """See the docstring of the module. All methods are thread-safe; none of them blocks or raises."""

    def __init__(self, root: Path | None = None) -> None:
        """`root`: findings show paths below this folder relative to it."""
        self._root = root
        self._lock = threading.Lock()
        self._kept: deque[tuple[int, Finding]] = deque(maxlen=MAX_KEPT)
        self._counts = dict.fromkeys(FindingKind, 0)
        self._places: dict[tuple[str, int], None] = {}

    def add(
        self, kind: FindingKind, path: Path | str, reason: str, *, offset: int = 0, size: int = 0, pos: int = -1
    ) -> bool:
        """Reports one finding. Returns false if this damage was reported before.

        `offset`, `size`: byte in the file, and how many bytes are affected (0: unknown, or the whole file). `pos`: byte
        in the log, if the file is a part of the log. `reason`: in words, without the place.
        """
        return self.report(Finding(self.name_of(path), offset, reason, kind, size, pos))

    def report(self, finding: Finding) -> bool:
        """Like `add`, for an existing finding."""
        with self._lock:
            if not self._is_new(finding):
                return False
            self._counts[finding.kind] += 1
            count = self._counts[finding.kind]
            self._kept.append((wall_ms(), finding))
        if count <= MAX_LINES:
            _logger.log(_LEVELS.get(finding.kind, logging.WARNING), "%s", finding.sentence())
        if count == MAX_LINES:
            _logger.warning("%d findings of kind %s were logged, more are only counted", MAX_LINES, finding.kind)
        return True

    def name_of(self, path: Path | str) -> str:
        """The name of a file in findings: relative to the store's root if the file is below it."""
        path = Path(path)
        if self._root is not None and path.is_relative_to(self._root):
            path = path.relative_to(self._root)
        return str(path)

    @property
    def unrepaired(self) -> int:
        """Number of damaged places that were reported and not repaired, rebuilt or removed since."""
        with self._lock:
            return len(self._places)

    @property
    def total(self) -> int:
        """Number of findings since the process started."""
        with self._lock:
            return sum(self._counts.values())

    def counts(self) -> dict[str, int]:
        """Number of findings of each kind since the process started, including zeros."""
        with self._lock:
            return {kind.value: count for kind, count in self._counts.items()}

    def listed(self) -> list[Finding]:
        """The newest `MAX_KEPT`, oldest first."""
        with self._lock:
            return [finding for _, finding in self._kept]

    def to_json(self) -> dict[str, Any]:
        """The object in GET /node: `total`, `counts` by kind, `newest` (oldest first) with `time` in ms since 1970."""
        with self._lock:
            kept = list(self._kept)
        counts = self.counts()
        newest = [{"time": time_ms} | finding.to_json() for time_ms, finding in kept]
        return {"total": sum(counts.values()), "counts": counts, "newest": newest}

    def _is_new(self, finding: Finding) -> bool:
        if finding.kind is FindingKind.DAMAGE:
            place = finding.file, finding.offset
            if place in self._places:
                return False
            if len(self._places) >= MAX_PLACES:
                self._places.pop(next(iter(self._places)))
            self._places[place] = None
        elif finding.kind in (FindingKind.REPAIRED, FindingKind.REBUILT, FindingKind.REMOVED):
            # Damage in the new file is new damage. A folder stands for all files in it.
            inside = finding.file + "/"
            for place in [place for place in self._places if place[0] == finding.file or place[0].startswith(inside)]:
                del self._places[place]
        return True
