"""The one place where a running process keeps what it found wrong with its files, and what it did about it.

    recovery, scrubber, table loader, reads ──add──▶ FindingLog ──▶ one log line, at WARNING or ERROR
                                                               ├──▶ a counter by kind in /metrics
                                                               └──▶ a list in GET /node, the newest `MAX_KEPT`

A process makes one `FindingLog` and gives it to everything that opens or checks files, of a plain store and of a group
alike. Findings live as long as the process: a restart that finds the same damage reports it again.

Damage is reported once for each place, however often a read or a scrub meets it, until the file is repaired, rebuilt or
removed. A disk that went bad makes millions of findings: after `MAX_LINES` log lines of a kind, the rest of that kind
is only counted.
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
"""Findings that are listed; older ones are only counted."""
MAX_LINES = 1000
"""Log lines of one kind."""
MAX_PLACES = 10_000
"""Damaged places that are remembered as reported."""

_logger = logging.getLogger("tallystick.findings")
# What loses or hides messages is an error; what was set right is a warning.
_LEVELS = {FindingKind.DAMAGE: logging.ERROR, FindingKind.NOTE: logging.INFO}


class FindingLog:
    """See the module's head. All methods may be called on any thread; none of them blocks or raises."""

    def __init__(self, root: Path | None = None) -> None:
        """`root`: paths below this folder are shown relative to it."""
        self._root = root
        self._lock = threading.Lock()
        self._kept: deque[tuple[int, Finding]] = deque(maxlen=MAX_KEPT)
        self._counts = dict.fromkeys(FindingKind, 0)
        self._places: dict[tuple[str, int], None] = {}

    def add(
        self, kind: FindingKind, path: Path | str, reason: str, *, offset: int = 0, size: int = 0, pos: int = -1
    ) -> bool:
        """Reports one finding; false if this damage was reported before.

        `offset`, `size`: byte in the file, and how many bytes are concerned (0: not known, or all of it). `pos`: byte
        in the log, if the file is a part of the log. `reason`: in words, without the place.
        """
        return self.report(Finding(self.name_of(path), offset, reason, kind, size, pos))

    def report(self, finding: Finding) -> bool:
        """Reports a finding that is already made; as `add`."""
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
        """How findings name a file: below the store's root, if it is there."""
        path = Path(path)
        if self._root is not None and path.is_relative_to(self._root):
            path = path.relative_to(self._root)
        return str(path)

    @property
    def unrepaired(self) -> int:
        """Damaged places that were reported and not repaired, rebuilt or removed since."""
        with self._lock:
            return len(self._places)

    @property
    def total(self) -> int:
        """All findings since the process began."""
        with self._lock:
            return sum(self._counts.values())

    def counts(self) -> dict[str, int]:
        """How many of each kind since the process began; every kind is there."""
        with self._lock:
            return {kind.value: count for kind, count in self._counts.items()}

    def listed(self) -> list[Finding]:
        """The newest `MAX_KEPT`, oldest first."""
        with self._lock:
            return [finding for _, finding in self._kept]

    def to_json(self) -> dict[str, Any]:
        """What GET /node shows: `total`, `counts` by kind, `newest` (oldest first) with `time` in ms since 1970."""
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
            # What is damaged in the new file is new damage. A folder stands for all files in it.
            inside = finding.file + "/"
            for place in [place for place in self._places if place[0] == finding.file or place[0].startswith(inside)]:
                del self._places[place]
        return True
