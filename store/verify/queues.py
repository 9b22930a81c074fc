"""Checks ConsumeQueues (and their extension) against the log: each unit, and that every record has one.

A unit is right if it refers to a record of this topic, queue and queue offset, and has its size and tags code. Units of
expired records cannot be checked. Units before a queue's first message are blank, and so are placeholders of records
that were lost in a damaged part of the log. Behind its last unit a queue contains zeros.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tallystick.store import _kernel
from tallystick.store._kernel import LostQueue, QueuesOfLog, UnitDelay
from tallystick.store.findings import Progress, Report
from tallystick.store.formats.segment_files import SegmentFiles
from tallystick.store.settings import StoreSettings

REMOVED_TOPIC = "its topic was removed"
_RARE = 1
"""A delay that only this many units of a level have is not one of its setting, if other units have another one."""


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


def queue_folders(root: Path) -> Iterator[tuple[str, int, Path]]:
    """Topic, queue id and folder of each queue. Skips folders whose name is not a queue id, as RocketMQ does."""
    base = root / "consumequeue"
    for topic in sorted(base.iterdir()) if base.is_dir() else ():
        for folder in sorted(topic.iterdir()) if topic.is_dir() else ():
            if folder.name.isascii() and folder.name.isdigit() and folder.is_dir():
                yield topic.name, int(folder.name), folder


def end_known_to_queues(root: Path) -> int:
    """The greatest end of a record in the queues; -1 without units."""
    return _kernel.queue_ends(root / "consumequeue").named_end


def check_queues(
    derived: Derived,
    in_log: QueuesOfLog,
    topics: frozenset[str] | None,
    delay_levels_ms: Sequence[int] | None = None,
    only: Collection[tuple[str, int]] | None = None,
) -> None:
    """Checks all queues. `topics`: the existing topics, None if unknown; a removed topic needs no queues.

    `delay_levels_ms`: the store's delays by level, if they are known. `only`: the queues whose units are compared; the
    others were already found to be sound. OSError.
    """
    report = derived.report
    checked = _kernel.check_queues(
        derived.root,
        derived.log.for_kernel(),
        in_log,
        entry_header_bytes=derived.entry_header_bytes,
        begin=report.min_pos,
        end=report.end_pos,
        clean=report.clean,
        repairable_from=derived.repairable_from,
        segment_bytes=derived.queue_segment_bytes,
        only=None if only is None else set(only),
        progress=derived.progress and partial(derived.progress, "queues"),
    )
    report.queues += checked.queues
    report.units += checked.units
    report.queue_segment_bytes = report.queue_segment_bytes or checked.segment_bytes
    report.take(checked.findings)
    derived.ends.update({(end.topic, end.queue): end.offset for end in checked.ends})
    for path, at, reason in delay_faults(checked.delays, delay_levels_ms):
        report.add_damage(path, at, reason)
    for lost in checked.lost:
        _report_lost(derived, lost, removed=topics is not None and lost.topic not in topics)


def _report_lost(derived: Derived, lost: LostQueue, *, removed: bool) -> None:
    path = derived.root / "consumequeue" / lost.topic / str(lost.queue)
    reason = f"the queue is missing, the log has {lost.records} messages of it"
    if removed:
        derived.report.add_note(path, 0, f"{reason} ({REMOVED_TOPIC})")
    else:
        repairable = 0 <= lost.repairable_offset <= lost.first_offset
        derived.report.add(path, 0, reason, repairable=repairable)


def delay_faults(delays: Sequence[UnitDelay], settings_ms: Sequence[int] | None) -> Iterator[tuple[Path, int, str]]:
    """The units of delayed messages with a wrong delay, the time of delivery minus the time of storing: file, byte,
    reason.

    The delay of a level is a setting. Where it is unknown, the units of a level show it: a damaged unit has a delay of
    its own, and the delays of a setting (also of one that was changed) stand in several units. All delays are whole
    seconds.
    """
    levels: dict[int, dict[int, UnitDelay]] = {}
    for each in delays:
        levels.setdefault(each.level, {})[each.delay_ms] = each
    for level, units in levels.items():
        wrong = wrong_delays(level, {delay: each.units for delay, each in units.items()}, settings_ms)
        first_two = [delay for delay, _ in zip(units, range(2), strict=False)]
        for delay_ms in wrong:
            each = units[delay_ms]
            usual = next((delay for delay in first_two if delay != delay_ms), None)
            others = "" if usual is None else f", other messages of level {level} wait {usual} ms"
            if each.units <= _RARE:
                reason = f"unit {each.offset} makes the message at {each.pos} wait {delay_ms} ms{others}"
                yield Path(each.file), each.at, reason


def wrong_delays(level: int, counts: Mapping[int, int], settings_ms: Sequence[int] | None) -> list[int]:
    """Which delays of a level's units are wrong. `counts`: number of units by delay; `settings_ms`: the delays of the
    levels, None if unknown."""
    expected = StoreSettings().delay_levels_ms() if settings_ms is None else settings_ms
    set_to = expected[min(level, len(expected)) - 1] if expected else 0
    usual = {delay for delay, count in counts.items() if count > _RARE}
    if settings_ms is not None or set_to in counts:
        usual.add(set_to)
    return [delay for delay in counts if delay not in usual and (usual or delay < 0 or delay % 1000 or len(counts) > 1)]
