"""Checks ConsumeQueues (and their extension) against the log: each unit, and that every record has one.

A unit is right if it refers to a record of this topic, queue and queue offset, and has its size and tags code. Units of
expired records cannot be checked. Units before a queue's first message are blank, and so are placeholders of records
that were lost in a damaged part of the log. Behind its last unit a queue contains zeros.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tallystick.store import _kernel
from tallystick.store.findings import Progress, Report
from tallystick.store.formats.derive import delay_level, has_queue_unit, tags_code
from tallystick.store.formats.log_walk import StepKind, step_at
from tallystick.store.formats.mapped import UNREADABLE, unread_ranges
from tallystick.store.formats.queue_format import BLANK_UNIT_SIZE, MAX_EXT_ADDRESS, UNIT
from tallystick.store.formats.record import Record
from tallystick.store.formats.segment_files import SegmentFiles
from tallystick.store.settings import StoreSettings

REMOVED_TOPIC = "its topic was removed"
EXT_UNIT = struct.Struct(">hqqh")
_EMPTY = (0, 0, 0)
_BLANK = (0, BLANK_UNIT_SIZE, 0)
_NOT_ZERO = re.compile(rb"[^\0]")
_RARE = 1
"""A delay that only this many units of a level have is not one of its setting, if other units have another one."""

Unit = tuple[int, int, int]


@dataclass(slots=True)
class QueueOfLog:
    """The records of one queue in the log that must have a unit. If the topic was created again, only the new ones."""

    records: int = 0
    first_offset: int = -1
    last_offset: int = -1
    repairable_offset: int = -1
    """The first offset that the next start dispatches again; -1 if there is none."""

    def add(self, record: Record, repairable: bool) -> str:
        """Counts a record. Returns what is unusual about its place in the queue, or ""."""
        offset, before = record.queue_offset, self.last_offset
        if self.records == 0 or offset <= before:
            self.records, self.first_offset, self.repairable_offset = 0, offset, -1
        self.records += 1
        self.last_offset = offset
        if repairable and self.repairable_offset < 0:
            self.repairable_offset = offset
        return f"queue offset {offset} follows {before}" if before >= 0 and offset != before + 1 else ""

    def joined(self, later: QueueOfLog) -> QueueOfLog:
        """This queue's records, followed by those of a later part of the log."""
        if self.records == 0 or later.first_offset <= self.last_offset:
            return later
        repairable = self.repairable_offset if self.repairable_offset >= 0 else later.repairable_offset
        return QueueOfLog(self.records + later.records, self.first_offset, later.last_offset, repairable)


@dataclass(frozen=True, slots=True)
class Derived:
    """The inputs of a check of derived files. `repairable_from`: the next start dispatches the log again from here."""

    root: Path
    log: SegmentFiles
    entry_header_bytes: int
    report: Report
    repairable_from: int
    progress: Progress | None
    queue_segment_bytes: int | None = None
    """The size that most files of all queues have; None: determine it for each queue."""
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    """The offset behind the last trustworthy unit of each queue."""

    def record_at(self, pos: int) -> tuple[Record | None, str]:
        """The sound record at `pos`, or why there is none. Does not check the CRC of its body again."""
        header_bytes = self.entry_header_bytes
        step = step_at(self.log, pos - header_bytes, entry_header_bytes=header_bytes, check_crc=False)
        if step.kind is not StepKind.RECORD:
            return None, step.reason or "a filler"
        return step.record, ""


def queue_folders(root: Path) -> Iterator[tuple[str, int, Path]]:
    """Topic, queue id and folder of each queue. Skips folders whose name is not a queue id, as RocketMQ does."""
    base = root / "consumequeue"
    for topic in sorted(base.iterdir()) if base.is_dir() else ():
        for folder in sorted(topic.iterdir()) if topic.is_dir() else ():
            if folder.name.isascii() and folder.name.isdigit() and folder.is_dir():
                yield topic.name, int(folder.name), folder


def end_known_to_queues(root: Path) -> int:
    """The greatest end of a record in the queues; -1 without units."""
    return _kernel.queue_ends(root / "consumequeue")[1]


def check_queues(
    derived: Derived,
    in_log: Mapping[tuple[str, int], QueueOfLog],
    topics: frozenset[str] | None,
    delay_levels_ms: Sequence[int] | None = None,
    only: Collection[tuple[str, int]] | None = None,
) -> None:
    """Checks all queues. `topics`: the existing topics, None if unknown; a removed topic needs no queues.

    `delay_levels_ms`: the store's delays by level, if they are known. `only`: the queues whose units are compared; the
    others were already found to be sound.
    """
    folders = {(topic, queue): folder for topic, queue, folder in queue_folders(derived.root)}
    delays = DelayLevels(delay_levels_ms)
    for number, ((topic, queue), folder) in enumerate(folders.items()):
        if only is not None and (topic, queue) not in only:
            continue
        if derived.progress:
            derived.progress("queues", number, len(folders))
        with ExitStack() as stack:
            extension_folder = derived.root / "consumequeue_ext" / topic / str(queue)
            files = stack.enter_context(SegmentFiles(folder, derived.queue_segment_bytes))
            extension = stack.enter_context(SegmentFiles(extension_folder))
            check = _QueueCheck(derived, topic, queue, files, extension, delays)
            check.run(in_log.get((topic, queue)))
            derived.ends[topic, queue] = check.sound_end
    for path, at, reason in delays.faults():
        derived.report.add_damage(path, at, reason)
    for (topic, queue), wanted in in_log.items():
        if (topic, queue) not in folders:
            path = derived.root / "consumequeue" / topic / str(queue)
            removed = topics is not None and topic not in topics
            reason = f"the queue is missing, the log has {wanted.records} messages of it"
            if removed:
                derived.report.add_note(path, 0, f"{reason} ({REMOVED_TOPIC})")
            else:
                repairable = 0 <= wanted.repairable_offset <= wanted.first_offset
                derived.report.add(path, 0, reason, repairable=repairable)


class DelayLevels:
    """Judges the delays in the units of delayed messages: the time of delivery minus the time of storing.

    The delay of a level is a setting. Where it is unknown, the units of a level show it: a damaged unit has a delay of
    its own, and the delays of a setting (also of one that was changed) stand in several units. All delays are whole
    seconds.
    """

    def __init__(self, settings_ms: Sequence[int] | None = None) -> None:
        self._settings_ms = settings_ms
        self._counts: dict[int, Counter[int]] = {}
        self._rare: dict[tuple[int, int], list[tuple[Path, int, int, int]]] = {}

    def add(self, level: int, delay_ms: int, path: Path, at: int, offset: int, pos: int) -> None:
        """Takes the delay of unit `offset`, at byte `at` of the file, whose record is at `pos` of the log."""
        counts = self._counts.setdefault(level, Counter())
        counts[delay_ms] += 1
        if counts[delay_ms] <= _RARE:
            self._rare.setdefault((level, delay_ms), []).append((path, at, offset, pos))
        else:
            self._rare.pop((level, delay_ms), None)

    def faults(self) -> Iterator[tuple[Path, int, str]]:
        """The units with a wrong delay: file, byte, reason."""
        for level, counts in self._counts.items():
            for delay_ms in wrong_delays(level, counts, self._settings_ms):
                usual = [str(each) for each in counts if each != delay_ms]
                others = f", other messages of level {level} wait {usual[0]} ms" if usual else ""
                for path, at, offset, pos in self._rare.get((level, delay_ms), ()):
                    yield path, at, f"unit {offset} makes the message at {pos} wait {delay_ms} ms{others}"


def wrong_delays(level: int, counts: Mapping[int, int], settings_ms: Sequence[int] | None) -> list[int]:
    """Which delays of a level's units are wrong. `counts`: number of units by delay; `settings_ms`: the delays of the
    levels, None if unknown."""
    expected = StoreSettings().delay_levels_ms() if settings_ms is None else settings_ms
    set_to = expected[min(level, len(expected)) - 1] if expected else 0
    usual = {delay for delay, count in counts.items() if count > _RARE}
    if settings_ms is not None or set_to in counts:
        usual.add(set_to)
    return [delay for delay in counts if delay not in usual and (usual or delay < 0 or delay % 1000 or len(counts) > 1)]


class _QueueCheck:
    def __init__(
        self,
        derived: Derived,
        topic: str,
        queue: int,
        files: SegmentFiles,
        extension: SegmentFiles,
        delays: DelayLevels,
    ) -> None:
        self.derived = derived
        self.report = derived.report
        self.topic = topic
        self.queue = queue
        self.files = files
        self.extension = extension
        self.delays = delays
        self.first_offset = -1
        self.last_offset = -1
        self.last_pos = -1
        self.wanted: QueueOfLog | None = None
        self.named = self.placeholders = 0
        self.sound_end = 0

    def run(self, wanted: QueueOfLog | None) -> None:
        self.wanted = wanted
        self.report.queues += 1
        self.report.queue_segment_bytes = self.report.queue_segment_bytes or self.files.segment_bytes
        for path, reason in self.files.strange:
            self.report.add_damage(path, 0, reason)
        for start in self.files.gaps:
            self.report.add_damage(self.files.path(start), 0, "the segment before this one is missing")
        if self.files.segment_bytes % UNIT.size:
            reason = f"files of {self.files.segment_bytes} bytes do not hold whole units"
            self.report.add_damage(self.files.folder, 0, reason)
            return
        for start in self.files.starts:
            self._segment(start)
        if wanted is not None:
            self._missing(wanted)

    def _segment(self, start: int) -> None:
        path, data = self.files.path(start), self.files.buffer(start)
        unread = dict(unread_ranges(data))
        for place, size in unread.items():
            self.report.add_damage(path, place, f"{UNREADABLE} ({size} bytes)")
        at = 0
        while at < len(data):
            if unread and data.spoils(at, UNIT.size):
                self.last_offset = (start + at) // UNIT.size
                at += UNIT.size
                continue
            unit: Unit = UNIT.unpack_from(data, at)
            if unit == _EMPTY:
                more = _NOT_ZERO.search(data, at)
                if more is None:
                    if start != self.files.starts[-1]:
                        self._hole(path, at, "the segment is not full, but there is a next one")
                    return
                self._hole(path, at, "units follow an empty unit")
                at = more.start() // UNIT.size * UNIT.size
                continue
            if unit == _BLANK and self.first_offset >= 0:
                self.last_offset = (start + at) // UNIT.size  # a placeholder: its record was lost
                self.sound_end = self.last_offset + 1
                self.placeholders += 1
            elif unit != _BLANK:
                self._unit(path, at, (start + at) // UNIT.size, unit)
            at += UNIT.size

    def _hole(self, path: Path, at: int, reason: str) -> None:
        # Recovery after a kill truncates the queue there, and dispatches its records again if it goes back that far.
        repairable = not self.report.clean and max(self.last_pos, self.report.min_pos) >= self.derived.repairable_from
        self.report.add(path, at, reason, repairable=repairable)

    def _unit(self, path: Path, at: int, offset: int, unit: Unit) -> None:
        self.report.units += 1
        pos, size, _ = unit
        reason, repairable = "", False
        if pos < 0 or size <= 0:
            reason = f"is not valid: position {pos}, size {size}"
        elif pos >= self.report.min_pos:  # otherwise the record has expired
            if pos + size > self.report.end_pos:
                reason = f"names a record at {pos}, the log ends at {self.report.end_pos}"
                repairable = not self.report.clean
            else:
                reason = self._compare(path, at, offset, unit)
                if not reason and pos <= self.last_pos:
                    reason = f"names the record at {pos} after the one at {self.last_pos}"
        if reason:
            self.report.add(path, at, f"unit {offset} {reason}", repairable=repairable)
        self.first_offset = offset if self.first_offset < 0 else self.first_offset
        self.last_offset = offset
        if not reason:
            self.sound_end = offset + 1
            self.last_pos = max(self.last_pos, pos)
            self.named += self.wanted is not None and offset >= self.wanted.first_offset

    def _compare(self, path: Path, at: int, offset: int, unit: Unit) -> str:
        pos, size, code = unit
        record, reason = self.derived.record_at(pos)
        if record is None:
            return f"names position {pos}, where no sound record begins: {reason}"
        if (record.topic, record.queue_id) != (self.topic, self.queue):
            return f"names a record of {record.topic} queue {record.queue_id} at {pos}"
        if not has_queue_unit(record):
            return f"names a prepared or rolled-back record at {pos}"
        if record.queue_offset != offset:
            return f"names the record at {pos}, which has queue offset {record.queue_offset}"
        if record.size != size:
            return f"says {size} bytes, the record at {pos} has {record.size}"
        return self._compare_code(path, at, offset, record, code)

    def _compare_code(self, path: Path, at: int, offset: int, record: Record, code: int) -> str:
        if code <= MAX_EXT_ADDRESS:
            address = code + (1 << 63)
            data = self.extension.read(address, EXT_UNIT.size)
            if data is None:
                return f"names an extension unit at {address}, which is not there"
            size, code, store_ms, map_bytes = EXT_UNIT.unpack(data)
            if map_bytes < 0 or size != EXT_UNIT.size + map_bytes:
                return f"names an extension unit at {address} that is not valid (size {size}, map {map_bytes})"
            if store_ms != record.store_timestamp_ms:
                wanted_ms = record.store_timestamp_ms
                what = f"names an extension unit at {address} with store time {store_ms}"
                return f"{what}, the record at {record.pos} has {wanted_ms}"
        properties = record.property_table()
        level = delay_level(record, properties)
        if level > 0:
            self.delays.add(level, code - record.store_timestamp_ms, path, at, offset, record.pos)
            return ""
        wanted = tags_code(record, properties, ())
        return "" if code == wanted else f"has tags code {code}, the record at {record.pos} has {wanted}"

    def _missing(self, wanted: QueueOfLog) -> None:
        """Reports records in the log that are before the queue's first or behind its last unit, or hidden by a
        placeholder."""
        if self.placeholders and self.first_offset <= wanted.first_offset and self.named < wanted.records:
            hidden = min(wanted.records - self.named, self.placeholders)
            if self.last_offset >= wanted.last_offset:
                reason = f"{hidden} placeholders stand where the log has messages"
                self.report.add_damage(self.files.folder, 0, reason)
        if self.last_offset < wanted.last_offset:
            first = max(self.last_offset + 1, wanted.first_offset)
            start = self.files.starts[-1] if self.files.starts else 0
            repairable = 0 <= wanted.repairable_offset <= first
            reason = f"lacks the queue's last {wanted.last_offset - first + 1} messages"
            self.report.add(self.files.path(start), max(first * UNIT.size - start, 0), reason, repairable=repairable)
        if 0 <= wanted.first_offset < self.first_offset:
            reason = f"lacks the queue's first {self.first_offset - wanted.first_offset} messages"
            self.report.add_damage(self.files.path(self.files.starts[0]), 0, reason)
