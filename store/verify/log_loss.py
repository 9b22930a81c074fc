"""Lists what a truncation of a log at a byte removes: all sound records behind it, by topic, queue and queue offset.

A truncation removes messages that a broker would still serve. The user must see them before deciding.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tallystick.store.formats.derive import has_queue_unit
from tallystick.store.formats.log_walk import Step, StepKind, resync, walk
from tallystick.store.formats.segment_files import SegmentFiles


@dataclass(slots=True)
class QueueLoss:
    """Queue offsets of the sound records of one queue: from `first` to `last`, `count` of them."""

    first: int
    last: int
    count: int = 0


@dataclass(slots=True)
class LogLoss:
    """What a truncation at `pos` removes. `end_pos`: the end of the last sound record, which is the log's current
    end."""

    pos: int
    end_pos: int
    file: str
    offset: int
    """The byte in `file` at `pos`."""
    reason: str
    """The fault at `pos`."""
    records: int = 0
    """Number of sound records in [pos, end_pos)."""
    queues: dict[tuple[str, int], QueueLoss] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    """Files that are removed."""

    @property
    def bytes(self) -> int:
        return self.end_pos - self.pos

    def to_json(self) -> dict[str, Any]:
        queues = [
            {"topic": topic, "queue": queue, "first": loss.first, "last": loss.last, "messages": loss.count}
            for (topic, queue), loss in sorted(self.queues.items())
        ]
        return {
            "pos": self.pos,
            "endPos": self.end_pos,
            "bytes": self.bytes,
            "file": self.file,
            "offset": self.offset,
            "reason": self.reason,
            "records": self.records,
            "queues": queues,
            "files": self.files,
        }


def loss_of_cut(log: SegmentFiles, pos: int, reason: str, entry_header_bytes: int = 0) -> LogLoss:
    """Lists everything behind byte `pos`, where a record is damaged or the log has a gap. Reads the log to its end."""
    start = log.start_of(pos)
    file, offset = (log.folder.name, 0) if start is None else (log.path(start).name, pos - start)
    loss = LogLoss(pos, pos, file, offset, reason)
    loss.files = [log.path(begin).name for begin in log.starts if begin > pos or (begin == pos and offset == 0)]
    at: int | None = pos
    while at is not None:
        for step in walk(log, at, entry_header_bytes=entry_header_bytes):
            if step.kind in (StepKind.END, StepKind.DAMAGE):
                behind = resync(log, step.pos, entry_header_bytes=entry_header_bytes)
                at = None if behind is None else behind.pos
                break
            if step.kind is StepKind.RECORD:
                _count(loss, step)
    return loss


def _count(loss: LogLoss, step: Step) -> None:
    record = step.record
    assert record is not None, "a RECORD step has one"
    loss.records += 1
    loss.end_pos = step.pos + step.size
    if has_queue_unit(record):
        queue = loss.queues.setdefault((record.topic, record.queue_id), QueueLoss(record.queue_offset, -1))
        queue.first = min(queue.first, record.queue_offset)
        queue.last = max(queue.last, record.queue_offset)
        queue.count += 1
