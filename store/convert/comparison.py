"""Compares the old and the new log by their content, in a pass over each that knows nothing of the conversion.

Both are read with their CRCs. For each queue the number of records, their bytes and offsets, and a digest of all their
fields must agree: everything but the positions, which differ, and which count as the record that they name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tallystick.store._kernel import LogTotals
from tallystick.store.convert.source import ConvertError, Part
from tallystick.store.formats.conversion import Gap

if TYPE_CHECKING:
    from tallystick.store._kernel import QueueTotal

_TURN_BYTES = 64 << 20
_MOST_NAMED = 5
_FIGURES = ("records", "bytes", "first", "last", "digest")


@dataclass(frozen=True, slots=True)
class Contents:
    """What a log contains. `references`: records that name a half message."""

    queues: dict[tuple[bytes, int], QueueTotal]
    references: int


def contents_of(parts: Sequence[Part], end: int, gaps: Sequence[Gap], progress: Callable[[int], None]) -> Contents:
    """Reads the log up to `end`, without `gaps`. Raises ConvertError if it stops before; OSError."""
    totals = LogTotals([(gap.begin, gap.end) for gap in gaps])
    for part in parts:
        pos, part_end = part.begin, end if part.is_last else part.end
        left_out = [gap for gap in gaps if part.begin <= gap.begin < part_end]
        for stop, behind in [*((gap.begin, gap.end) for gap in left_out), (part_end, part_end)]:
            _read(totals, part, pos, stop, progress)
            pos = behind
    return Contents({(row.topic, row.queue): row for row in totals.rows()}, totals.references)


def _read(totals: LogTotals, part: Part, pos: int, end: int, progress: Callable[[int], None]) -> None:
    folder, segment_bytes = str(part.log.folder), part.log.segment_bytes
    while pos < end:
        step = totals.read(folder, segment_bytes, part.entry_header_bytes, pos, end, _TURN_BYTES)
        if step.pos <= pos or step.stopped is not None:
            file, offset = part.place(step.pos)
            reason = step.stopped or "the files end"
            raise ConvertError(f"the comparison stopped at {file}, byte {offset}: {reason}")
        pos = step.pos
        progress(pos)


def differences(old: Contents, new: Contents) -> list[str]:
    """What differs, as sentences; empty if the contents are equal."""
    found = []
    for key in sorted(old.queues.keys() | new.queues.keys()):
        before, after = old.queues.get(key), new.queues.get(key)
        name = f"{key[0].decode(errors='backslashreplace')} queue {key[1]}"
        if before is None or after is None:
            row, where = (after, "new") if before is None else (before, "old")
            assert row is not None, "the key is of one of them"
            found.append(f"{name}: only the {where} log has its {row.records} messages")
        elif before[2:] != after[2:]:
            what = next(name for name in _FIGURES if getattr(before, name) != getattr(after, name))
            found.append(f"{name}: {what} {getattr(before, what)} became {getattr(after, what)}")
    if old.references != new.references:
        found.append(f"{old.references} records name a half message in the old log, {new.references} in the new one")
    return found


def check_equal(old: Contents, new: Contents) -> None:
    """Raises ConvertError if the contents differ."""
    found = differences(old, new)
    if found:
        more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
        raise ConvertError(f"the new log differs from the old one: {'; '.join(found[:_MOST_NAMED])}{more}")
