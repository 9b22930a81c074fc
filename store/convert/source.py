"""The store that is converted: its log, where the log ends, what is damaged, and where its queues end.

A log has one part, or two: RocketMQ in DLedger mode on an old store keeps the old log in `commitlog/` and continues
behind it in `dledger-*/data`. Nothing of the source is changed.

Where records stop, the log ends or is damaged. The rules are those of `tally store verify`: sound records that follow,
or a file that states how far the log was written, prove damage. Behind what the queues know, a process that was killed
may have left anything.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from tallystick.store.engine.written_end import written_end
from tallystick.store.formats.conversion import UNFINISHED
from tallystick.store.formats.ledger_format import ENTRY_HEADER_BYTES, GROUP_LOG_TOPIC
from tallystick.store.formats.log_walk import resync
from tallystick.store.formats.mapped import UNREADABLE
from tallystick.store.formats.progress import ANCHOR_BYTES, ProgressMark
from tallystick.store.formats.queue_format import BLANK_UNIT_SIZE, UNIT, units_written
from tallystick.store.formats.queue_table import QueueTable
from tallystick.store.formats.segment_files import SegmentFiles, has_data, segment_start
from tallystick.store.verify.queues import end_known_to_queues, queue_folders

Queue = tuple[str, int]


class ConvertError(Exception):
    """The store cannot be converted, or not further; the text says why and names the place."""


@dataclass(slots=True)
class Part:
    """A range of the log in one layout."""

    log: SegmentFiles
    entry_header_bytes: int
    end: int
    """Behind its last byte: where the next part begins, or its files end."""
    is_last: bool

    @property
    def begin(self) -> int:
        return self.log.first

    def place(self, pos: int) -> tuple[str, int]:
        """File (its folder and name) and byte in it of a position."""
        start = self.log.start_of(pos)
        if start is None:
            return str(self.log.folder), 0
        return str(self.log.path(start)), pos - start


@dataclass(frozen=True, slots=True)
class Stop:
    """Records stop at a position. `behind`: where they continue behind damage; None: the log ends. `note`: what is
    unusual about the end, else ""."""

    behind: int | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class QueueEnd:
    """Where a queue ends. `offset`: behind its last unit, a placeholder or not. `file` has that unit, and `units` up to
    it. `is_idle`: the record of that unit was deleted with the first segments of the log, like all before it."""

    offset: int
    file: Path
    units: int
    is_idle: bool


@dataclass(slots=True)
class Source:
    """One store, read only. Close it after use."""

    root: Path
    parts: list[Part]
    known_end: int
    """The greatest end of a record in the queues; -1 without units."""
    written_end: int
    """The log was written up to here; -1 if unknown."""
    is_clean: bool
    """Whether the last process closed the store in order."""
    notes: list[str] = field(default_factory=list)

    @classmethod
    def open(cls, root: Path, log_folder: Path | None = None, ledger_end: int = -1) -> Source:
        """The store in `root`. `log_folder`: of its plain log, if elsewhere. `ledger_end`: how far a log in dledger's
        layout was written, if that is known. Raises ConvertError or OSError."""
        if not root.is_dir():
            raise ConvertError(f"{root} is no folder")
        notes: list[str] = []
        parts = _parts_of(root, log_folder or root / "commitlog", notes)
        last, reached = parts[-1], ledger_end
        if not last.entry_header_bytes:
            mark, table = ProgressMark.load(root), QueueTable.load(root)
            reached = written_end(root, last.log.segment_bytes, last.end, mark, table)
        clean = not (root / "abort").exists()
        return cls(root, parts, end_known_to_queues(root), reached, clean, notes)

    def close(self) -> None:
        for part in self.parts:
            part.log.close()

    @property
    def first(self) -> int:
        """Position of the first byte of the log."""
        return self.parts[0].begin

    @property
    def segment_bytes(self) -> int:
        return self.parts[-1].log.segment_bytes

    @property
    def estimated_end(self) -> int:
        """Where the log ends at least, if that is known, else where its files end."""
        known = max(self.known_end, self.written_end)
        return known if 0 <= known <= self.parts[-1].end else self.parts[-1].end

    def stop_at(self, part: Part, pos: int, reason: str) -> Stop:
        """Decides what it means that records stop at `pos`. Reads the log behind it. Raises OSError."""
        header = part.entry_header_bytes
        if not part.is_last:
            if pos >= part.end:
                return Stop(None)
            step = resync(part.log, pos, entry_header_bytes=header)
            return Stop(part.end if step is None else step.pos)
        step = resync(part.log, pos, entry_header_bytes=header) if pos < part.end else None
        behind = None if step is None else step.pos
        if pos < self.written_end and (behind is None or behind >= self.written_end):
            return Stop(self.written_end)
        if behind is None:
            return self._end_at(part, pos, reason)
        if 0 <= self.known_end <= pos >= self.written_end and reason != UNREADABLE:
            # Sound records that no queue knows: RocketMQ does not erase what it truncates.
            return Stop(None, f"{_at(part, pos)}: {reason}; what follows is left over from before a truncation")
        return Stop(behind)

    def _end_at(self, part: Part, pos: int, reason: str) -> Stop:
        if self.is_clean and self.known_end > pos:
            return Stop(min(self.known_end, part.end))
        if reason == UNREADABLE:
            return Stop(part.end)
        if reason and reason != "unwritten":
            return Stop(None, f"{_at(part, pos)}: {reason}: a torn last write, the log ends here")
        return Stop(None)

    def anchor(self, number: int, pos: int) -> tuple[int, int]:
        """(bytes, CRC-32): of bytes of part `number` before `pos`, which identify the log. (0, 0) at its begin."""
        part = self.parts[number]
        size = min(ANCHOR_BYTES, pos - part.begin, (pos - 1) % part.log.segment_bytes + 1 if pos else 0)
        data = part.log.read(pos - size, size) if size > 0 else None
        return (0, 0) if data is None else (size, zlib.crc32(data))

    def queue_ends(self, log_end: int) -> dict[Queue, QueueEnd]:
        """Where each queue ends, as far as its units refer to bytes before `log_end`; without the queue of an old
        group's own entries. Raises OSError."""
        return {
            (topic, queue): end
            for topic, queue, folder in queue_folders(self.root)
            if topic != GROUP_LOG_TOPIC and (end := _queue_end(folder, log_end, self.first)) is not None
        }


def _at(part: Part, pos: int) -> str:
    file, offset = part.place(pos)
    return f"{file} at byte {offset}"


def _parts_of(root: Path, plain_folder: Path, notes: list[str]) -> list[Part]:
    ledgers = [path for path in sorted(root.glob("dledger-*/data")) if path.parent.suffix != UNFINISHED]
    if not plain_folder.is_dir() and not ledgers:
        raise ConvertError(f"{root} is no store: neither commitlog nor dledger-*/data is in it")
    if len(ledgers) > 1:
        names = ", ".join(path.parent.name for path in ledgers)
        raise ConvertError(f"{root} has more than one dledger folder: {names}")
    logs = [(SegmentFiles(plain_folder), 0), *((SegmentFiles(path), ENTRY_HEADER_BYTES) for path in ledgers)]
    for log, _ in logs:
        _check_files(log, notes)
    # Without any file, the layout is the one of the folder that exists.
    logs = [each for each in logs if each[0].starts] or logs[-1:]
    parts = [Part(log, header, log.end, False) for log, header in logs]
    parts[-1].is_last = True
    for first, second in pairwise(parts):
        if first.end != second.begin:
            raise ConvertError(
                f"{first.log.folder} ends at byte {first.end} of the log, and {second.log.folder} begins at "
                f"{second.begin}: they are not one log"
            )
    return parts


def _check_files(log: SegmentFiles, notes: list[str]) -> None:
    last = log.starts[-1] if log.starts else -1
    for path, reason in log.strange:
        start = segment_start(path.name)
        if start is None:
            continue
        if start > last and path.stat().st_size < log.segment_bytes and not has_data(path, 0, log.segment_bytes):
            notes.append(f"{path} {reason}, and it is empty: its creation was interrupted")
            continue
        raise ConvertError(
            f"{path} {reason}: all files of a log have one size. A file that was cut needs to be repaired "
            "(tally store repair); files of another store do not belong here"
        )
    for start in log.gaps:
        raise ConvertError(f"{log.path(start)}: the file before this one is missing")


def _queue_end(folder: Path, log_end: int, log_first: int) -> QueueEnd | None:
    with SegmentFiles(folder) as files:
        for start in reversed(files.starts):
            data = files.buffer(start)
            for number in reversed(range(units_written(data))):
                pos, size, _ = UNIT.unpack_from(data, number * UNIT.size)
                is_blank = size == BLANK_UNIT_SIZE
                if is_blank or pos + size <= log_end:
                    is_idle = not is_blank and pos + size <= log_first
                    return QueueEnd(start // UNIT.size + number + 1, files.path(start), number + 1, is_idle)
    return None
