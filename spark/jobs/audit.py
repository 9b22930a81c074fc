"""`audit`: what is derived agrees with the log, and replicas with each other; every difference with place and reason.

    log       each byte below the bound belongs to a sound record, entry or filler; bodies' CRCs hold
    queues    each record that asks for a unit has one, at its queue offset, with its position, size and tags code; and
              a queue's units go no further than the log's records
    index     each key of a record has an entry, in the log's order, and no entry below the bound is of another record
    replicas  members of a group hold the same bytes up to the smallest of their bounds, compared MiB by MiB
    outcomes  a committed transaction points back at a half message; a delayed message names a level that the store
              keeps to, and where it came from

A live store is audited below its bound, which is settled. Units and entries follow the log by moments, so what lacks of
the records of its last `lag_ms` is `behind`, no difference, unless the store was closed in order.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tallystick.spark.jobs.audit_index import check_index
from tallystick.spark.jobs.audit_queues import QueueAudit, QueueSpan, check_ends
from tallystick.spark.jobs.findings import SETTLED, Difference, Findings
from tallystick.spark.jobs.runner import Runner
from tallystick.spark.options import ReadOptions
from tallystick.spark.scan import SplitScan, Wanted
from tallystick.spark.splits import Split, plan
from tallystick.spark.volume import Volume
from tallystick.store.derive import SCHEDULE_TOPIC

CHUNK_BYTES = 1 << 20
_DIGEST_BYTES = 256 << 20
LAG_MS = 10_000


@dataclass(frozen=True)
class SplitTask:
    """`settled_ms`: records stored at or after it may still lack what is derived of them."""

    split: Split
    root: str
    settled_ms: int


@dataclass(frozen=True)
class DigestTask:
    """Bytes [begin, end) of a replica's file, cut alike for all replicas."""

    source: str
    path: str
    file_start: int
    begin: int
    end: int


@dataclass
class SplitAudit:
    source: str
    records: int = 0
    bytes: int = 0
    findings: Findings = field(default_factory=Findings)
    queues: dict[tuple[str, int], QueueSpan] = field(default_factory=dict)


def run(options: ReadOptions, runner: Runner, lag_ms: int = LAG_MS) -> dict[str, Any]:
    """The summary as JSON's values. VolumeError, OSError. Stores in dledger's layout are taken for replicas."""
    volumes = options.volumes()
    settled = {volume.source: _settled_ms(volume, lag_ms) for volume in volumes}
    tasks = [
        SplitTask(split, volume.root, settled[volume.source])
        for volume in volumes
        for split in plan(volume, split_bytes=options.split_bytes)
    ]
    parts = runner(audit_split, tasks)
    spans = {volume.source: _spans(parts, volume.source) for volume in volumes}
    ends = runner(partial(_audit_volume, spans=spans, settled_ms=settled), volumes)
    common = _common(volumes)
    digested = runner(digests, _digest_tasks(volumes, *common))
    findings = Findings.joined([part.findings for part in parts] + ends + [compared(digested)])
    return {
        "job": "audit",
        "clean": not findings.differences,
        "replicas_compared": {"begin": common[0], "end": common[1]} if digested else None,
        "sources": [
            {
                "source": volume.source,
                "begin": volume.begin,
                "bound": volume.bound,
                "records": sum(part.records for part in parts if part.source == volume.source),
                "bytes": sum(part.bytes for part in parts if part.source == volume.source),
                "queues": len(spans[volume.source]),
            }
            for volume in volumes
        ],
        "differing": findings.count,
        "differences": [asdict(each) for each in findings.differences],
        "behind": findings.behind,
    }


def _common(volumes: Sequence[Volume]) -> tuple[int, int]:
    """What all members have: from the greatest begin to the smallest bound."""
    members = _members(volumes)
    return max((each.begin for each in members), default=0), min((each.bound for each in members), default=0)


def _members(volumes: Sequence[Volume]) -> list[Volume]:
    members = [volume for volume in volumes if volume.files and volume.files[-1].entry_header_bytes]
    return members if len(members) > 1 else []


def _digest_tasks(volumes: Sequence[Volume], begin: int, end: int) -> list[DigestTask]:
    tasks = []
    for volume in _members(volumes):
        for file in volume.files:
            low, stop = max(begin, file.start), min(end, file.end)
            while low < stop:
                high = min(stop, low - low % _DIGEST_BYTES + _DIGEST_BYTES)
                tasks.append(DigestTask(volume.source, file.path, file.start, low, high))
                low = high
    return tasks


def _settled_ms(volume: Volume, lag_ms: int) -> int:
    """Of a store that was closed in order everything is settled; of another one what is older than its last seconds."""
    if not (Path(volume.root) / "abort").exists():
        return SETTLED
    return last_store_ms(volume) - lag_ms


def last_store_ms(volume: Volume) -> int:
    """Store time of the newest record below the bound, or of one in the last of its splits."""
    newest = 0
    for split in plan(volume, split_bytes=1 << 20)[-1:]:
        for batch in SplitScan(split, ["store_timestamp_ms"]):
            newest = max(newest, *batch.column(0).to_pylist())
    return newest


def audit_split(task: SplitTask) -> SplitAudit:
    split = task.split
    found = SplitAudit(split.source, bytes=split.bytes)
    with QueueAudit(task.root, split.source, task.settled_ms, found.findings) as queues:
        scan = SplitScan(split, QueueAudit.COLUMNS, check_crc=True)
        for batch in scan:
            queues.check(batch)
        for batch in SplitScan(split, QueueAudit.DELAYED, Wanted(topics=(SCHEDULE_TOPIC,))):
            queues.check_deliveries(batch)
        found.records, found.queues = scan.records, queues.spans
    for damage in scan.damage:
        at = damage.position - split.file_start
        found.findings.add(Difference(split.source, "log", damage.file, at, damage.reason))
    found.findings.count += scan.damaged - len(scan.damage)
    return found


def digests(task: DigestTask) -> tuple[str, dict[int, int]]:
    """(source, CRC-32 of the bytes from each position up to the next multiple of a MiB)."""
    pos, found = task.begin, {}
    with Path(task.path).open("rb") as file:
        file.seek(pos - task.file_start)
        while pos < task.end:
            stop = min(task.end, pos - pos % CHUNK_BYTES + CHUNK_BYTES)
            found[pos] = zlib.crc32(file.read(stop - pos))
            pos = stop
    return task.source, found


def compared(digested: Iterable[tuple[str, dict[int, int]]]) -> Findings:
    """Chunks of the replicas side by side; one that differs from what most have is named."""
    findings = Findings()
    by_pos: dict[int, dict[str, int]] = {}
    for source, chunks in digested:
        for pos, digest in chunks.items():
            by_pos.setdefault(pos, {})[source] = digest
    for pos, held in sorted(by_pos.items()):
        values = list(held.values())
        usual = max(values, key=values.count)
        for source, digest in held.items():
            if digest != usual:
                reason = f"bytes from {pos} to the next MiB are not those of the other members"
                findings.add(Difference(source, "replicas", "", pos, reason))
    return findings


def _spans(parts: Iterable[SplitAudit], source: str) -> dict[tuple[str, int], QueueSpan]:
    spans: dict[tuple[str, int], QueueSpan] = {}
    for part in parts:
        if part.source == source:
            for key, span in part.queues.items():
                spans[key] = spans[key].joined(span) if key in spans else span
    return spans


def _audit_volume(
    volume: Volume, spans: dict[str, dict[tuple[str, int], QueueSpan]], settled_ms: dict[str, int]
) -> Findings:
    findings = Findings()
    check_ends(volume, spans[volume.source], findings)
    check_index(volume, settled_ms[volume.source], findings)
    return findings
