"""Faults in a store's files: a single finding, and the report of a check of a whole store.

A finding has a kind, a file, a place in it, and a reason in words. Checks without a process (`tally store verify`)
collect findings in a `Report`; a running process collects them in a `FindingLog`. Both use the same words.

A report distinguishes damage, which loses or hides messages, from notes, which the next start repairs itself. Its lists
are bounded: on a failing disk a store can have millions of findings, and the first thousand are enough.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tallystick.store._kernel import CheckFindings

MAX_LISTED = 1000

Progress = Callable[[str, int, int], None]
"""Called regularly with the name of the stage, the bytes done and the bytes in total."""


def printable(path: Path) -> str:
    """The path as text that can be printed: damage can make a folder's name something else than UTF-8."""
    return str(path).encode("utf-8", "surrogateescape").decode("utf-8", "replace")


class FindingKind(enum.StrEnum):
    DAMAGE = "damage"
    """Bytes are not what was written. Messages there are lost or hidden unless the file is repaired or rebuilt."""
    CUT = "cut"
    """Bytes behind the end of a log or table were removed: an unfinished write, or what followed it."""
    REBUILT = "rebuilt"
    """A file that is derived from the log (ConsumeQueue, index) was rebuilt from it."""
    REPAIRED = "repaired"
    """Damaged bytes were replaced with a sound copy from another member or a backup."""
    REMOVED = "removed"
    """A file was removed."""
    MARK = "mark"
    """A progress mark was not used; recovery read more of the log instead."""
    NOTE = "note"
    """Something unusual that loses nothing."""


_DONE = {
    FindingKind.DAMAGE: "found damage in",
    FindingKind.CUT: "cut",
    FindingKind.REBUILT: "rebuilt",
    FindingKind.REPAIRED: "repaired",
    FindingKind.REMOVED: "removed",
    FindingKind.MARK: "did not use",
    FindingKind.NOTE: "note on",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """`file`: path below the store's root; `offset`: byte in that file; `size`: how many bytes are affected, 0 if that
    is unknown or the whole file is affected. `pos`: byte in the log where the file is a part of it, else -1.
    `repairable`: not damage only because the next start of the store repairs it."""

    file: str
    offset: int
    reason: str
    kind: FindingKind = FindingKind.DAMAGE
    size: int = 0
    pos: int = -1
    repairable: bool = False

    def __str__(self) -> str:
        return f"{self.file} at byte {self.offset}: {self.reason}"

    def sentence(self) -> str:
        """One log line: the event, the place, the reason."""
        size = f", {self.size} bytes" if self.size else ""
        place = f" at byte {self.offset}" if self.offset or self.size else ""
        return f"{_DONE[self.kind]} {self.file}{place}{size}: {self.reason}"

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind.value,
            "file": self.file,
            "offset": self.offset,
            "bytes": self.size,
            "pos": self.pos,
            "reason": self.reason,
        }


@dataclass(slots=True)
class Report:
    """The outcome of a check. Positions are bytes in the log, times ms since 1970."""

    root: str
    layout: str = "commitlog"
    """`commitlog`, or the folder with dledger's layout."""
    clean: bool = True
    """Whether the last stop was a clean shutdown (there is no file `abort`)."""
    log_segment_bytes: int = 0
    queue_segment_bytes: int = 0
    index_slots: int = 0
    index_entries_max: int = 0
    min_pos: int = 0
    end_pos: int = 0
    segments: int = 0
    records: int = 0
    fillers: int = 0
    queues: int = 0
    units: int = 0
    index_files: int = 0
    index_entries: int = 0
    ledger_entries: int = 0
    last_store_timestamp_ms: int = 0
    checkpoint: dict[str, int] = field(default_factory=dict)
    damaged: int = 0
    """All damage found, listed or not."""
    noted: int = 0
    repairable: int = 0
    """Notes that are not damage only because the next start repairs it, listed or not."""
    damage: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)
    damaged_files: dict[str, str] = field(default_factory=dict)
    """Every file or folder with damage, even if the list is full, with its first reason."""

    @property
    def sound(self) -> bool:
        return self.damaged == 0

    def add_damage(self, path: Path, offset: int, reason: str, *, size: int = 0, pos: int = -1) -> None:
        """`size`: affected bytes, 0 if unknown. `pos`: byte in the log, -1 for other files."""
        self.damaged += 1
        finding = self._finding(path, offset, reason, FindingKind.DAMAGE, size, pos)
        self.damaged_files.setdefault(finding.file, reason)
        if len(self.damage) < MAX_LISTED:
            self.damage.append(finding)

    def add_note(
        self,
        path: Path,
        offset: int,
        reason: str,
        kind: FindingKind = FindingKind.NOTE,
        *,
        repairable: bool = False,
    ) -> None:
        self.noted += 1
        self.repairable += repairable
        if len(self.notes) < MAX_LISTED:
            self.notes.append(replace(self._finding(path, offset, reason, kind), repairable=repairable))

    def add(self, path: Path, offset: int, reason: str, *, repairable: bool) -> None:
        """Adds damage, or a note if the next start repairs it."""
        if repairable:
            self.add_note(path, offset, reason, repairable=True)
        else:
            self.add_damage(path, offset, reason)

    def take(self, found: CheckFindings) -> None:
        """Adds what a check in the kernel found."""
        before = self.damaged, self.noted, self.repairable
        for each in found.listed:
            reason = each.reason.decode("utf-8", "replace")
            if each.note:
                self.add_note(Path(each.file), each.offset, reason, repairable=each.repairable)
            else:
                self.add_damage(Path(each.file), each.offset, reason, size=each.size, pos=each.pos)
        self.damaged, self.noted, self.repairable = (
            count + more for count, more in zip(before, (found.damaged, found.noted, found.repairable), strict=True)
        )

    def to_json(self) -> dict[str, Any]:
        found = {key: [each.to_json() for each in getattr(self, key)] for key in ("damage", "notes")}
        report = asdict(self)
        del report["damaged_files"]
        return {"sound": self.sound} | report | found

    def _finding(
        self, path: Path, offset: int, reason: str, kind: FindingKind, size: int = 0, pos: int = -1
    ) -> Finding:
        root = Path(self.root)
        name = printable(path.relative_to(root) if path.is_relative_to(root) else path)
        return Finding(name, offset, reason, kind, size, pos)
