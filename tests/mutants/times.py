"""How long a run takes: what each bug took here before, and typical times for those that never ran here.

The times lie beside the private copies, in `build/mutants/seconds.json`. They only serve the estimate at the start of a
run and after each bug; a file that is missing or damaged means typical times.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from .catalogue import Mutant

_FILE = "seconds.json"
_START_S = 25.0  # to make the copies and see the canary
_TYPICAL_S = {"pytest": 4.0, "cargo": 8.0, "simulator": 8.0}
_BUILD_S = 8.0  # the kernel, once for each bug in it
_BASELINE = 0.25  # every detector once without a bug, as a part of the time with bugs


class Times:
    """Seconds by the name of a bug. `folder`: where the private copies lie."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _FILE
        self._seconds: dict[str, float] = {}
        try:
            kept = json.loads(self._path.read_bytes())
            self._seconds = {str(name): float(seconds) for name, seconds in kept.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            pass

    def note(self, mutant: Mutant, seconds: float) -> None:
        """A bug was tried. OSError."""
        self._seconds[mutant.name] = round(seconds, 1)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self._seconds, indent=0, sort_keys=True))

    def of(self, mutant: Mutant) -> float:
        """How many seconds this bug will take, about."""
        typical = _TYPICAL_S[mutant.detector.layer] + (_BUILD_S if mutant.in_kernel else 0.0)
        return self._seconds.get(mutant.name, typical)

    def left(self, mutants: Sequence[Mutant], jobs: int) -> float:
        """Seconds until all of these are tried. Kernel bugs run one after the other, whatever `jobs` is."""
        kernel = sum(self.of(mutant) for mutant in mutants if mutant.in_kernel)
        return max(kernel, sum(map(self.of, mutants)) / jobs)

    def whole(self, mutants: Sequence[Mutant], jobs: int) -> float:
        """As `left`, with what comes before the first bug."""
        return _START_S + (1 + _BASELINE) * self.left(mutants, jobs)


def minutes(seconds: float) -> str:
    """For people: `40 s`, `3 min`, `1 h 5 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    whole = round(seconds / 60)
    return f"{whole // 60} h {whole % 60} min" if whole >= 60 else f"{whole} min"
