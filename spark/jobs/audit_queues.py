"""Compares records with the units of their ConsumeQueues, and with the records to which they refer.

This is the fast pass: the kernel compares all units that the records of a range require, and finds the queues that it
cannot prove to be sound. They are judged by the code of `tally store verify`, in the same words (`audit_judge.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tallystick.spark.jobs.findings import Difference, Findings
from tallystick.spark.volume import Logs, Volume, ends_of_queues
from tallystick.store._kernel import DelayCount, DifferingUnits, QueuesOfLog, RequiredUnits
from tallystick.store.findings import printable
from tallystick.store.formats.log_walk import step_at

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
Queue = tuple[str, int]
Delays = dict[tuple[int, int], Counter[int]]
"""Number of units by their delay in ms, by level and queue id of the schedule topic."""


def take_units(root: Path, source: str, units: RequiredUnits, findings: Findings) -> None:
    """Adds what the records of a range show without their queues as a whole."""
    _outcomes(root, source, units.committed, findings)
    for pos in units.nameless:
        reason = "a delayed message does not name its topic (REAL_TOPIC)"
        findings.add(Difference(source, "delay", "", pos, reason))
    if units.behind:
        findings.add_behind("queue units", units.behind)


def wrong_units(source: str, differing: Iterable[DifferingUnits]) -> dict[Queue, Findings]:
    """The wrong units of each queue. They are judged once more."""
    found: dict[Queue, Findings] = {}
    for each in differing:
        findings = found[each.topic, each.queue] = Findings()
        for file, at, reason in each.listed:
            findings.add(Difference(source, "queue", printable(file), at, reason))
        findings.count = each.units
    return found


def delays_of(counts: Iterable[DelayCount]) -> Delays:
    delays: Delays = {}
    for each in counts:
        delays.setdefault((each.level, each.queue), Counter())[each.delay_ms] += each.units
    return delays


def _outcomes(root: Path, source: str, committed: Iterable[tuple[int, int]], findings: Findings) -> None:
    """The record of a committed transaction, given with the position of its half message, must name this message,
    unless that has expired."""
    if not committed:
        return
    with Logs(root) as logs:
        for pos, half in committed:
            for log, header in logs.parts:
                if half and log.start_of(half - header) is not None:
                    record = step_at(log, half - header, entry_header_bytes=header, check_crc=False).record
                    if record is None or record.topic != HALF_TOPIC:
                        reason = f"the half message of a committed message should be at {half}, but there is none"
                        findings.add(Difference(source, "transaction", "", pos, reason))


def suspicious_ends(
    volume: Volume, queues: QueuesOfLog, segment_bytes: int | None, *, whole: bool, closed: bool
) -> set[Queue]:
    """Returns the queues with units, or files, that no record of the log explains, and the queues without a folder.

    `whole`: nothing is behind the bound, so that units must not name anything there. `closed`: no broker writes them,
    so that they are still as they were when the volume was opened.
    """
    root = Path(volume.root)
    ends = volume.ends if closed and volume.ends is not None else ends_of_queues(root)
    found = ends.suspicious(
        root / "consumequeue",
        queues,
        segment_bytes=segment_bytes,
        begin=volume.begin,
        bound=volume.bound,
        whole=whole,
        closed=closed,
    )
    return set(found)
