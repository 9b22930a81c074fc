"""The result of a run, for people: a line for each bug as it is tried, a table by part, and what needs an answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .catalogue import Mutant
from .detectors import Result, Verdict

Tried = tuple[Mutant, Result]
_FOUND = (Verdict.FOUND, Verdict.TIMEOUT)


def line(mutant: Mutant, result: Result) -> str:
    told = " ".join(result.told.split())[:200]
    listed = " (listed)" if result.verdict is Verdict.SURVIVED and mutant.equivalent else ""
    return f"{result.verdict.value:8} {result.seconds:5.0f} s  {mutant.part}: {mutant.name}{listed}  {told}".rstrip()


def failures(tried: Sequence[Tried]) -> list[str]:
    """What must not stay: unlisted survivors, invalid bugs, and reasons that a test has refuted."""
    found = []
    for mutant, result in tried:
        if result.verdict is Verdict.INVALID:
            found.append(f"invalid: {mutant.part}: {mutant.name}: {result.told}")
        elif result.verdict is Verdict.SURVIVED and not mutant.equivalent:
            found.append(f"survived: {mutant.part}: {mutant.name}\n    must be found by {mutant.detector}")
        elif result.verdict in _FOUND and mutant.equivalent:
            found.append(f"found, although listed as equivalent: {mutant.part}: {mutant.name}: {result.told}")
    return found


def table(tried: Sequence[Tried], seconds: float) -> str:
    """Part by part: what was planted, which layer found how much of it, and what survived."""
    heads = ("part", "planted", "pytest", "cargo", "simulator", "timeouts", "survived", "invalid", "seconds")
    rows = [
        _row(part, [each for each in tried if each[0].part == part]) for part in dict.fromkeys(m.part for m, _ in tried)
    ]
    rows.append(_row("all", tried))
    widths = [max(len(row[column]) for row in (heads, *rows)) for column in range(len(heads))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in (heads, *rows)]
    return "\n".join([*lines, *_remarks(tried), f"{len(tried)} bugs in {seconds:.0f} s"])


def _row(part: str, tried: Sequence[Tried]) -> tuple[str, ...]:
    def count(verdict: Verdict) -> str:
        return str(sum(result.verdict is verdict for _, result in tried))

    by_layer = [
        str(sum(result.verdict is Verdict.FOUND and mutant.detector.layer == layer for mutant, result in tried))
        for layer in ("pytest", "cargo", "simulator")
    ]
    counts = (count(Verdict.TIMEOUT), count(Verdict.SURVIVED), count(Verdict.INVALID))
    return (part, str(len(tried)), *by_layer, *counts, f"{sum(result.seconds for _, result in tried):.0f}")


def _remarks(tried: Sequence[Tried]) -> Iterator[str]:
    for mutant, result in tried:
        if result.verdict is Verdict.TIMEOUT:
            yield f"found by a timeout: {mutant.part}: {mutant.name}"
        if result.verdict is Verdict.SURVIVED and mutant.equivalent:
            yield f"survived, and may: {mutant.part}: {mutant.name}: {' '.join(mutant.equivalent.split())}"
