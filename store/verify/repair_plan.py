"""Decides what a repair of a store does, from the report of a check. It reads and writes no files.

    damage of a ConsumeQueue or its extension   that queue is rebuilt from the log, with its extension
    damage of an index file                     that file and those behind it are rebuilt from the log
    damage of a table                           its backup replaces it; without a sound one a person decides
    a table that cannot be read                 kept: it may be sound, and a start is refused until it can be read
    damage of the checkpoint, the progress mark written again
    a file of the log that is too short         extended with zeros; the missing bytes are lost already
    damage of the log                           kept, and shown; only the option `--cut` removes what follows

A killed repair leaves a note of its plan (`RepairNote`). The next repair builds the files of that plan again, because a
check cannot notice damage of a file that was removed meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from tallystick.store.findings import Finding, Report
from tallystick.store.formats.segment_files import is_of_log
from tallystick.store.verify.log_loss import LogLoss
from tallystick.store.verify.queues import REMOVED_TOPIC

NOTE_NAME = "tally-repair"
SIZES = (
    "mappedFileSizeCommitLog",
    "mappedFileSizeConsumeQueue",
    "mappedFileSizeConsumeQueueExt",
    "enableConsumeQueueExt",
    "maxHashSlotNum",
    "maxIndexNum",
)
"""Settings that the files of a store have to agree with."""
MEMBER_ADVICE = (
    "Start the member: it fetches damaged entries from another member. If it does not, and another member has them: "
    "stop it, keep a copy of its folder, empty the folder and start it; the group fills it again"
)
"""Advice for damage in the log of a member of a group."""


class RepairError(Exception):
    """The repair did not start, and nothing was changed."""


@dataclass(slots=True)
class RepairPlan:
    """The faults of a store, and what a repair will do about them."""

    report: Report
    member: bool = False
    """Whether the store belongs to a member of a group, so that other members have the log as well."""
    queues: dict[tuple[str, int], str] = field(default_factory=dict)
    """ConsumeQueues to build again, with the reason."""
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    """The offset behind the last trustworthy unit of each queue."""
    index_from: str = ""
    """The first index file to build again; "" if all are sound."""
    tables: dict[Path, Path | None] = field(default_factory=dict)
    """Damaged tables, with the sound backup that replaces them."""
    unreadable: set[Path] = field(default_factory=set)
    """Small files that the disk could not read."""
    short_files: list[Path] = field(default_factory=list)
    """Files of the log to extend with zeros."""
    log: list[Finding] = field(default_factory=list)
    """Damage of the log. A repair does not change it."""
    losses: list[LogLoss] = field(default_factory=list)
    """What `--cut` would remove, for each place where it may cut."""
    interrupted: bool = False
    """Whether an earlier repair was killed."""

    @property
    def waits_for_peer(self) -> bool:
        """Whether the log of a member is damaged: its ConsumeQueues are rebuilt when another member has repaired
        it."""
        return self.member and bool(self.log or self.short_files)

    @property
    def useful(self) -> bool:
        """Whether a repair changes anything without `--cut`."""
        rebuilds = bool(self.queues or self.index_from or self.short_files) and not self.waits_for_peer
        restores = any(backup is not None for backup in self.tables.values())
        return rebuilds or restores or self._small_files or self.interrupted or not self._closed

    @property
    def _small_files(self) -> bool:
        names = {finding.file for finding in (*self.report.damage, *self.report.notes)}
        return bool(names & {"checkpoint", "tally-progress", "tally-queues"})

    @property
    def _closed(self) -> bool:
        return self.report.clean or self.member


def plan_of(
    report: Report, tables: Mapping[Path, Path | None], note: RepairNote | None, short: Collection[Path] = ()
) -> RepairPlan:
    """The plan for what `report` found; without `losses`. `tables`: damaged ones, with their sound backup. `short`: log
    files that are shorter than a segment."""
    plan = RepairPlan(report, member=report.layout.startswith("dledger-"), tables=dict(tables))
    index: list[str] = []
    files = dict(report.damaged_files)
    if not plan.member:  # the next start would repair these; a member's queues may lack uncommitted records
        files |= {note.file: note.reason for note in report.notes if REMOVED_TOPIC not in note.reason} | files
    for file, reason in files.items():
        parts = PurePath(file).parts
        if parts[0] in ("consumequeue", "consumequeue_ext") and len(parts) >= 3 and parts[2].isdigit():
            plan.queues.setdefault((parts[1], int(parts[2])), reason)
        elif parts[0] == "index":
            index.append(parts[1] if len(parts) > 1 else "")
    for finding in report.damage:
        parts = PurePath(finding.file).parts
        if is_of_log(parts) or parts[0] == report.layout or PurePath(finding.file).is_absolute():
            _add_log(plan, finding, short)
        elif parts[0].startswith("dledger-"):
            plan.log.append(finding)
    if index:
        plan.index_from = min(index) or "0"
    if note is not None:
        plan.interrupted = True
        for key in note.queues:
            plan.queues.setdefault(key, "a repair that built it again did not finish")
        names = [name for name in (plan.index_from, note.index_from) if name]
        plan.index_from = min(names, default="")
    return plan


def _add_log(plan: RepairPlan, finding: Finding, short: Collection[Path]) -> None:
    path = Path(plan.report.root) / finding.file
    if path in short and not plan.member:
        plan.short_files.append(path)
    else:
        plan.log.append(finding)


@dataclass(frozen=True, slots=True)
class RepairNote:
    """The file `tally-repair`: what a repair has begun to build again. `queues`: with their ends. `settings`: sizes
    that can no longer be determined when the files are removed."""

    queues: dict[tuple[str, int], int] = field(default_factory=dict)
    index_from: str = ""
    settings: dict[str, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        queues = [[topic, queue, end] for (topic, queue), end in sorted(self.queues.items())]
        return json.dumps({"queues": queues, "index": self.index_from, "settings": self.settings}).encode()

    @classmethod
    def decode(cls, data: bytes) -> RepairNote | None:
        """The note in the data; None if it is not valid. It is written as a whole, so a damaged one is useless."""
        try:
            value: Any = json.loads(data)
            queues = {(str(topic), int(queue)): int(end) for topic, queue, end in value["queues"]}
            settings = {str(key): str(text) for key, text in value["settings"].items()}
            return cls(queues, str(value["index"]), settings)
        except (ValueError, TypeError, KeyError, AttributeError):
            return None
