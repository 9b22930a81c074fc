"""What a check of a store found: damage, which loses or hides messages, and notes, which the next start mends itself.

Lists are bounded: a store whose disk went bad has millions of findings, and the first thousand tell the story.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

MAX_LISTED = 1000

Progress = Callable[[str, int, int], None]
"""Called now and then with the stage's name, what is done and what there is to do (bytes)."""


@dataclass(frozen=True, slots=True)
class Finding:
    """`file`: path below the store's root; `offset`: byte in that file."""

    file: str
    offset: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file} at byte {self.offset}: {self.reason}"


@dataclass(slots=True)
class Report:
    """The outcome of a check. Positions are bytes in the log, times ms since 1970."""

    root: str
    layout: str = "commitlog"
    """`commitlog`, or the folder of dledger's layout."""
    clean: bool = True
    """The last stop was in order (there is no `abort`)."""
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
    damage: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        return self.damaged == 0

    def add_damage(self, path: Path, offset: int, reason: str) -> None:
        self.damaged += 1
        if len(self.damage) < MAX_LISTED:
            self.damage.append(self._finding(path, offset, reason))

    def add_note(self, path: Path, offset: int, reason: str) -> None:
        self.noted += 1
        if len(self.notes) < MAX_LISTED:
            self.notes.append(self._finding(path, offset, reason))

    def add(self, path: Path, offset: int, reason: str, *, mended: bool) -> None:
        """Damage, or a note if the next start makes it good."""
        (self.add_note if mended else self.add_damage)(path, offset, reason)

    def to_json(self) -> dict[str, Any]:
        return {"sound": self.sound} | asdict(self)

    def _finding(self, path: Path, offset: int, reason: str) -> Finding:
        root = Path(self.root)
        return Finding(str(path.relative_to(root) if path.is_relative_to(root) else path), offset, reason)
