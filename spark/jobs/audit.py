"""`audit`: compares derived files with the log, and replicas with each other. It reports each difference and its place.

    log       each byte below the bound belongs to a sound record, entry or filler, and the CRCs of bodies are correct
    queues    each record that needs a unit has one, at its queue offset, with its position, size and tags code; a
              queue has no units beyond the records of the log
    index     each key of a record has an entry, in the log's order; no entry below the bound belongs to another record
    replicas  members of a group have the same bytes up to the smallest of their bounds, compared in MiB
    outcomes  a committed transaction refers to a half message; a delayed message has a level of the store and its
              original topic

The store of a running broker is audited below its bound, where it is settled:
- units and entries are written a little later than the log, so what the records of the last `lag_ms` lack is `behind`
  and not a difference, unless the store was closed in order;
- what retention removes between plan and read is `expired`, and units and entries for it are not reported;
- a difference is reported if it is still there when it is checked a second time.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tallystick.spark.jobs.audit_index import check_index
from tallystick.spark.jobs.audit_queues import QueueAudit, QueueSpan, check_ends
from tallystick.spark.jobs.findings import SETTLED, Difference, Findings
from tallystick.spark.jobs.job import CLEAN, DIFFERENCES, Argument, Job, Kind, Summary
from tallystick.spark.jobs.report import MOST_ROWS, bars, html_table, page, table_text
from tallystick.spark.options import ReadOptions
from tallystick.spark.planning import PlanTask, plan_source, plan_tasks
from tallystick.spark.presence import bring, release
from tallystick.spark.runner import Runner
from tallystick.spark.scan import EXPIRED, SplitScan, Wanted, has_expired
from tallystick.spark.splits import Split, plan
from tallystick.spark.volume import Volume
from tallystick.store.formats.derive import SCHEDULE_TOPIC

CHUNK_BYTES = 1 << 20
_DIGEST_BYTES = 256 << 20
LAG_MS = 60_000
"""A broker writes units to their files about once a second. On a slow disk it waits ten seconds between two writes."""


class _Settling(Protocol):
    @property
    def settled_ms(self) -> int: ...


class _Finding(Protocol):
    findings: Findings


Task = TypeVar("Task", bound=_Settling)
Found = TypeVar("Found", bound=_Finding)


Spans = dict[tuple[str, int], QueueSpan]


@dataclass(frozen=True)
class AuditPlan:
    """`settled_ms`: records stored at or after this time may not have their units and entries yet."""

    volume: Volume
    splits: tuple[Split, ...]
    settled_ms: int


@dataclass(frozen=True)
class SplitTask:
    split: Split
    root: str
    settled_ms: int

    @property
    def source(self) -> str:
        return self.split.source


@dataclass(frozen=True)
class VolumeTask:
    """`spans`: the queue offsets in its log, by queue."""

    volume: Volume
    settled_ms: int
    spans: Spans

    @property
    def source(self) -> str:
        return self.volume.source


@dataclass(frozen=True)
class DigestTask:
    """Bytes [begin, end) of a replica's file, with the same boundaries for all replicas."""

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
    queues: Spans = field(default_factory=dict)
    expired_end: int = 0
    """Not 0: the file had expired when it was to be read, and with it everything before this position."""


@dataclass
class VolumeAudit:
    findings: Findings = field(default_factory=Findings)


def run(options: ReadOptions, runner: Runner, lag_ms: int = LAG_MS) -> dict[str, Any]:
    """The summary as JSON's values. VolumeError, OSError; OptionError: two members have one name.

    Replicas are the members of a named group; stores without a group's name count as members of one group.
    """
    groups = {source.source: source.group for source in options.sources(members=True)}
    plans = runner(partial(plan_audit, lag_ms=lag_ms), plan_tasks(options, members=True))
    tasks = [SplitTask(split, plan.volume.root, plan.settled_ms) for plan in plans for split in plan.splits]
    parts = looked_at_twice(runner, audit_split, tasks)
    volumes = [_without_expired(plan.volume, parts) for plan in plans]
    spans = {volume.source: _spans(parts, volume.source) for volume in volumes}
    ends = looked_at_twice(
        runner,
        audit_volume,
        [
            VolumeTask(volume, plan.settled_ms, spans[volume.source])
            for volume, plan in zip(volumes, plans, strict=True)
            if volume.bytes
        ],
    )
    replicas = replica_groups(volumes, groups)
    digested = runner(
        digests, [task for each in replicas for task in _digest_tasks(each.volumes, each.begin, each.end)]
    )
    differing = [compared(each for each in digested if each[0] in group.sources) for group in replicas]
    findings = Findings.joined([*(part.findings for part in parts), *(end.findings for end in ends), *differing])
    return {
        "job": "audit",
        "clean": not findings.count,
        "replicas_compared": [
            {
                "group": each.group,
                "members": len(each.volumes),
                "begin": each.begin,
                "end": each.end,
                "empty": list(each.empty),
            }
            for each in replicas
        ],
        "sources": [
            {
                "source": volume.source,
                "group": groups[volume.source],
                "begin": volume.begin,
                "bound": volume.bound,
                "records": sum(part.records for part in parts if part.source == volume.source),
                "bytes": sum(part.bytes for part in parts if part.source == volume.source),
                "queues": len(spans[volume.source]),
                "expired_bytes": volume.begin - plan.volume.begin,
            }
            for volume, plan in zip(volumes, plans, strict=True)
        ],
        "differing": findings.count,
        "differences": [asdict(each) for each in findings.differences],
        "behind": findings.behind,
    }


def looked_at_twice(runner: Runner, function: Callable[[Task], Found], tasks: Sequence[Task]) -> list[Found]:
    """Runs `function` of each task, and again for tasks that found a difference in a store that was not closed.

    Its broker may not have written the missing bytes yet: bytes that it has written by now are no difference.
    """
    found = runner(function, tasks)
    again = [
        number
        for number, (task, each) in enumerate(zip(tasks, found, strict=True))
        if each.findings.count and task.settled_ms != SETTLED
    ]
    for number, each in zip(again, runner(function, [tasks[number] for number in again]), strict=True):
        found[number] = each
    return found


def _without_expired(volume: Volume, parts: Iterable[SplitAudit]) -> Volume:
    """The remaining part of it, after some splits had expired when they were to be read."""
    begin = max([volume.begin, *(part.expired_end for part in parts if part.source == volume.source)])
    files = tuple(file for file in volume.files if file.end > begin)
    return replace(volume, begin=begin, bound=max(begin, volume.bound), files=files)


@dataclass(frozen=True)
class ReplicaGroup:
    """Members with the same log, and the range that all of them have: from the greatest begin to the smallest bound.

    `empty`: members without anything below their bound, such as a member that was not added yet or has a new disk. The
    others are compared without them.
    """

    group: str | None
    volumes: tuple[Volume, ...]
    begin: int
    end: int
    empty: tuple[str, ...] = ()

    @property
    def sources(self) -> set[str]:
        return {volume.source for volume in self.volumes}


def replica_groups(volumes: Iterable[Volume], groups: Mapping[str, str | None]) -> list[ReplicaGroup]:
    """The groups of several members. Only dledger's layout is replicated."""
    members: dict[str | None, list[Volume]] = {}
    empty: dict[str | None, list[str]] = {}
    for volume in volumes:
        if not volume.bytes:
            empty.setdefault(groups[volume.source], []).append(volume.source)
        elif volume.files[-1].entry_header_bytes:
            members.setdefault(groups[volume.source], []).append(volume)
    found = []
    for group, held in members.items():
        without = tuple(empty.get(group, ()))
        begin = max(each.begin for each in held)
        end = max(begin, min(each.bound for each in held)) if len(held) > 1 else begin
        if len(held) > 1 or without:
            found.append(ReplicaGroup(group, tuple(held), begin, end, without))
    return found


def _digest_tasks(volumes: Sequence[Volume], begin: int, end: int) -> list[DigestTask]:
    tasks = []
    for volume in volumes:
        for file in volume.files:
            low, stop = max(begin, file.start), min(end, file.end)
            while low < stop:
                high = min(stop, low - low % _DIGEST_BYTES + _DIGEST_BYTES)
                tasks.append(DigestTask(volume.source, file.path, file.start, low, high))
                low = high
    return tasks


def plan_audit(task: PlanTask, lag_ms: int) -> AuditPlan:
    planned = plan_source(task)
    return AuditPlan(planned.volume, planned.splits, _settled_ms(planned.volume, lag_ms))


def _settled_ms(volume: Volume, lag_ms: int) -> int:
    """In a store that was closed in order everything is settled; in another one, everything older than its last
    seconds."""
    if not (Path(volume.root) / "abort").exists():
        return SETTLED
    return last_store_ms(volume) - lag_ms


def last_store_ms(volume: Volume) -> int:
    """Store time of the newest record below the bound, or of a record in its last split."""
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
        reason = "the file is gone, and older ones are there" if damage.reason == EXPIRED else damage.reason
        found.findings.add(Difference(split.source, "log", damage.file, at, reason))
    found.findings.count += scan.damaged - len(scan.damage)
    if has_expired(split):  # also if only its queues' files were removed already: they are removed after the log's
        return SplitAudit(split.source, expired_end=split.file_end)
    return found


def digests(task: DigestTask) -> tuple[str, dict[int, int]]:
    """(source, CRC-32 of the bytes from each position up to the next multiple of a MiB). Fewer: the file expired."""
    pos, found = task.begin, {}
    try:
        with Path(task.path).open("rb") as file:
            while pos < task.end:
                stop = min(task.end, pos - pos % CHUNK_BYTES + CHUNK_BYTES)
                begin, end = pos - task.file_start, stop - task.file_start
                bring(task.path, begin, end)
                file.seek(begin)
                found[pos] = zlib.crc32(file.read(stop - pos))
                release(task.path, begin, end)
                pos = stop
    except FileNotFoundError:
        pass
    return task.source, found


def compared(digested: Iterable[tuple[str, dict[int, int]]]) -> Findings:
    """Compares the chunks of one group's replicas; reports each one that differs from the majority."""
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
                reason = f"bytes from {pos} to the next MiB differ from those of the other members"
                findings.add(Difference(source, "replicas", "", pos, reason))
    return findings


def _spans(parts: Iterable[SplitAudit], source: str) -> Spans:
    spans: Spans = {}
    for part in parts:
        if part.source == source:
            for key, span in part.queues.items():
                spans[key] = spans[key].joined(span) if key in spans else span
    return spans


def audit_volume(task: VolumeTask) -> VolumeAudit:
    """The checks that do not belong to one range of the log: the ends of queues, and the index."""
    found = VolumeAudit()
    check_ends(task.volume, task.spans, found.findings)
    check_index(task.volume, task.settled_ms, found.findings)
    return found


# -- the report --------------------------------------------------------------------------------------------------------


def _audit_text(summary: Summary) -> str:
    word = "clean" if summary["clean"] else f"differences: {summary['differing']:,}"
    names = ("source", "records", "queues", "begin", "bound")
    rows = [[source[name] for name in names] for source in summary["sources"]]
    lines = [word, "", table_text(names, rows), *_replica_lines(summary)]
    for source in summary["sources"]:
        if source["expired_bytes"]:
            lines.append(f"expired before they were read: {source['expired_bytes']:,} bytes of {source['source']}")
    lines += [f"behind: {count} {what}" for what, count in summary["behind"].items()]
    lines += [difference_text(each) for each in summary["differences"][:MOST_ROWS]]
    if summary["differing"] > MOST_ROWS:
        lines.append(f"... and {summary['differing'] - MOST_ROWS} more")
    return "\n".join(lines)


def _replica_lines(summary: Summary) -> list[str]:
    lines = []
    for each in summary["replicas_compared"]:
        name = f" of {each['group']}" if each["group"] else ""
        if each["members"] > 1:
            lines.append(f"{each['members']} replicas{name} compared from {each['begin']:,} to {each['end']:,}")
        lines += [f"{source} contains no messages yet and was not compared" for source in each["empty"]]
    return lines


def difference_text(each: dict[str, Any]) -> str:
    place = f"{each['file']} at byte {each['offset']}" if each["file"] else f"position {each['offset']}"
    return f"{each['source']}: {each['what']}: {place}: {each['reason']}"


def _audit_page(summary: Summary) -> str:
    word = (
        '<p class="good">Clean: log, queues, index and replicas agree.</p>'
        if summary["clean"]
        else f'<p class="bad">Differences: {summary["differing"]:,}.</p>'
    )
    kinds: dict[str, int] = {}
    for each in summary["differences"]:
        kinds[each["what"]] = kinds.get(each["what"], 0) + 1
    names = ("source", "records", "queues", "begin", "bound")
    parts = [
        word,
        "<h2>Records read</h2>",
        bars([(source["source"], source["records"]) for source in summary["sources"]]),
        html_table(names, [[source[name] for name in names] for source in summary["sources"]]),
        *(f"<p>{escape(line)}</p>" for line in _replica_lines(summary)),
    ]
    if summary["behind"]:
        parts += ["<h2>Temporarily behind the log</h2>", bars(sorted(summary["behind"].items()))]
    if kinds:
        rows = [
            [each["source"], each["what"], each["file"], each["offset"], each["reason"]]
            for each in summary["differences"]
        ]
        heads = ("source", "what", "file", "byte", "difference")
        parts += ["<h2>Differences by kind</h2>", bars(sorted(kinds.items())), html_table(heads, rows)]
    return page("Audit of the stores", parts)


def _figures(summary: Summary) -> dict[str, int]:
    read = {name: sum(source[name] for source in summary["sources"]) for name in ("records", "bytes")}
    return read | {"differing": summary["differing"]}


def _message(summary: Summary, figures: Mapping[str, int]) -> str:
    stores = len(summary["sources"])
    found = "clean" if summary["clean"] else f"{figures['differing']:,} differences"
    return f"{found}: {figures['records']:,} records of {stores} {'store' if stores == 1 else 'stores'}"


JOB = Job(
    name="audit",
    help="compare log, queues, index and replicas with each other",
    run=lambda call: run(call.options, call.runner, call.arguments["lagMillis"]),
    text=_audit_text,
    page=_audit_page,
    figures=_figures,
    message=_message,
    arguments=(
        Argument(
            "lagMillis",
            f"milliseconds by which derived files may be behind the log ({LAG_MS})",
            "--lag-ms",
            kind=Kind.NUMBER,
            metavar="MS",
            default=LAG_MS,
        ),
    ),
    all_members=True,
    verdict=lambda summary: CLEAN if summary["clean"] else DIFFERENCES,
    findings=lambda summary: [difference_text(each) for each in summary["differences"]],
)
