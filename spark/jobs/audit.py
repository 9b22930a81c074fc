"""`audit`: compares derived files with the log, and replicas with each other. It reports each difference and its place.

    log       each byte below the bound belongs to a sound record, entry or filler, and the CRCs of bodies are correct
    ledger    in dledger's layout: entries follow each other, and each has its unit in the index of entries
    queues    each record that needs a unit has one, at its queue offset, with its position, size and tags code; a
              queue has no units beyond the records of the log
    index     each key of a record has an entry, in the log's order; no entry belongs to another record
    replicas  members of a group have the same bytes up to the smallest of their bounds
    outcomes  a committed transaction refers to a half message; a delayed message has a level of the store and its
              original topic
    the rest  checkpoint, tables and files of progress are sound

An audit finds everything that `tally store verify` finds, in the same words: what its fast pass cannot prove is judged
by that command's code (`audit_judge.py`).

A store is live if its broker works on it: the file `lock` is locked, the broker answers, or the newest record is recent
by the clock. Only in a live store derived files may be behind the log, and it is audited below its bound, where it is
settled:
- units and entries are written a little later than the log, so what the records of the last `lag_ms` lack is `behind`
  and not a difference;
- what retention removes between plan and read is `expired`, and units and entries for it are not reported;
- a difference is reported if it is still there when it is checked a second time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tallystick.spark.jobs import audit_replicas
from tallystick.spark.jobs.audit_index import check_index
from tallystick.spark.jobs.audit_judge import Store, judge_index, judge_log, judge_order, judge_queues, judging, take
from tallystick.spark.jobs.audit_ledger import Ends, sound_ends
from tallystick.spark.jobs.audit_queues import (
    Delays,
    Queue,
    delays_of,
    suspicious_ends,
    take_units,
    wrong_units,
)
from tallystick.spark.jobs.audit_replicas import replica_groups
from tallystick.spark.jobs.findings import SETTLED, Difference, Findings
from tallystick.spark.jobs.job import CLEAN, DIFFERENCES, SETTINGS, Argument, Job, Kind, Summary
from tallystick.spark.jobs.report import MOST_ROWS, bars, html_table, page, table_text
from tallystick.spark.options import OptionError, ReadOptions
from tallystick.spark.planning import PlanTask, broker_bound, plan_tasks, volume_of
from tallystick.spark.presence import bringer
from tallystick.spark.runner import Runner
from tallystick.spark.scan import EXPIRED, SplitScan, has_expired, units_of
from tallystick.spark.splits import Split, plan, tasks_of
from tallystick.spark.volume import Volume, VolumeError
from tallystick.store import clock
from tallystick.store._kernel import QueuesOfLog
from tallystick.store.engine.lock import StoreLockedError, check_unlocked
from tallystick.store.formats.derive import SCHEDULE_TOPIC
from tallystick.store.formats.file_sizes import FileSizes
from tallystick.store.formats.segment_files import segment_start
from tallystick.store.settings import SettingsError
from tallystick.store.verify.queues import wrong_delays
from tallystick.store.verify.report import Known, Verification, VerifyError

LAG_MS = 60_000
"""A broker writes units to their files about once a second. On a slow disk it waits ten seconds between two writes."""
_NOWHERE = 1 << 62
"""Behind every position of a log."""
_TASK_BYTES_A_QUEUE = 48 << 10
"""Opening a queue takes as long as reading so many bytes, so a task that opens all queues reads at least that much."""
_MOST_TASK_BYTES = 384 << 20
"""The units that a task requires are in memory until they are compared: about 50 bytes for each record."""


class _OfStore(Protocol):
    @property
    def store(self) -> Store: ...


class _Finding(Protocol):
    findings: Findings


Task = TypeVar("Task", bound=_OfStore)
Found = TypeVar("Found", bound=_Finding)


@dataclass(frozen=True)
class AuditPlan:
    """`tasks`: the splits, by the task that reads them."""

    volume: Volume
    tasks: tuple[tuple[Split, ...], ...]
    store: Store

    @property
    def splits(self) -> Iterator[Split]:
        return (split for splits in self.tasks for split in splits)


@dataclass(frozen=True)
class SplitTask:
    """`ranges`: splits, in the log's order, whose units are compared together."""

    ranges: tuple[Split, ...]
    store: Store

    @property
    def source(self) -> str:
        return self.ranges[0].source


@dataclass(frozen=True)
class LogSums:
    """What the log of a store contains. `settled_end`: the first record that may not have its unit yet. `entries`: the
    first and last entry of each range that was checked, in dledger's layout. `has_unseen`: see `SplitAudit`."""

    records: int
    newest_ms: int
    settled_end: int
    queues: QueuesOfLog
    suspects: frozenset[Queue]
    seen: dict[Queue, Findings]
    delays: Delays
    entries: list[Ends]
    has_unseen: bool


@dataclass(frozen=True)
class VolumeTask:
    volume: Volume
    store: Store
    log: LogSums

    @property
    def source(self) -> str:
        return self.volume.source


@dataclass
class SplitAudit:
    """`queues`: its records by queue; `suspects`: the queues that it could not prove to be sound; `seen`: the wrong
    units that it saw, which are judged once more; `delays`: see `Delays`."""

    source: str
    records: int = 0
    bytes: int = 0
    newest_ms: int = 0
    settled_end: int = _NOWHERE
    findings: Findings = field(default_factory=Findings)
    queues: QueuesOfLog = field(default_factory=QueuesOfLog)
    suspects: set[Queue] = field(default_factory=set)
    seen: dict[Queue, Findings] = field(default_factory=dict)
    delays: Delays = field(default_factory=dict)
    entries: list[Ends] = field(default_factory=list)
    has_unseen: bool = False
    """The scan passed records that are not sound, so that it proves nothing about the index."""
    expired_end: int = 0
    """Not 0: the file had expired when it was to be read, and with it everything before this position."""


@dataclass
class VolumeAudit:
    findings: Findings = field(default_factory=Findings)


def run(
    options: ReadOptions, runner: Runner, lag_ms: int = LAG_MS, settings: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The summary as JSON's values. VolumeError, OSError; OptionError: two members have one name, or a setting is
    invalid.

    Replicas are the members of a named group; stores without a group's name count as members of one group. `settings`:
    of the stores, by RocketMQ's names, as far as their files do not contain them.
    """
    try:
        known = Known.of(settings or {})
    except SettingsError as error:
        raise OptionError("settings", str(error)) from error
    groups = {source.source: source.group for source in options.sources(members=True)}
    planning = partial(plan_audit, lag_ms=lag_ms, known=known, at_once=runner.at_once)
    plans = runner(planning, plan_tasks(options, members=True))
    parts = looked_at_twice(
        runner, audit_split, [SplitTask(ranges, plan.store) for plan in plans for ranges in plan.tasks]
    )
    volumes = [_without_expired(plan.volume, parts) for plan in plans]
    sums = {volume.source: _sums(parts, volume.source) for volume in volumes}
    tasks = [VolumeTask(volume, plan.store, sums[volume.source]) for volume, plan in zip(volumes, plans, strict=True)]
    ends = looked_at_twice(runner, audit_volume, tasks)
    replicas = replica_groups(volumes, groups)
    differing = audit_replicas.compare(replicas, runner)
    findings = Findings.joined([*(part.findings for part in parts), *(end.findings for end in ends), differing])
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
                "live": plan.store.live,
                "begin": volume.begin,
                "bound": volume.bound,
                "records": sums[volume.source].records,
                "bytes": sum(part.bytes for part in parts if part.source == volume.source),
                "queues": len(sums[volume.source].queues),
                "expired_bytes": volume.begin - plan.volume.begin,
                "lost_bytes": sum(each.bytes for each in plan.splits if each.missing or each.begin >= volume.bound),
            }
            for volume, plan in zip(volumes, plans, strict=True)
        ],
        "differing": findings.count,
        "differences": [asdict(each) for each in findings.differences],
        "behind": findings.behind,
        "notes": [asdict(each) for each in findings.notes],
    }


def looked_at_twice(runner: Runner, function: Callable[[Task], Found], tasks: Sequence[Task]) -> list[Found]:
    """Runs `function` of each task, and again for tasks that found a difference in a live store.

    Its broker may not have written the missing bytes yet: bytes that it has written by now are no difference.
    """
    found = runner(function, tasks)
    again = [
        number
        for number, (task, each) in enumerate(zip(tasks, found, strict=True))
        if each.findings.count and task.store.live
    ]
    for number, each in zip(again, runner(function, [tasks[number] for number in again]), strict=True):
        found[number] = each
    return found


def _without_expired(volume: Volume, parts: Iterable[SplitAudit]) -> Volume:
    """The remaining part of it, after some splits had expired when they were to be read."""
    begin = max([volume.begin, *(part.expired_end for part in parts if part.source == volume.source)])
    files = tuple(file for file in volume.files if file.end > begin)
    return replace(volume, begin=begin, bound=max(begin, volume.bound), files=files)


def plan_audit(task: PlanTask, lag_ms: int, known: Known, at_once: int) -> AuditPlan:
    volume = volume_of(task)
    splits = plan(volume, split_bytes=task.split_bytes)
    root = Path(volume.root)
    answered = task.of.http is not None and broker_bound(task.of) is not None
    live = answered or is_live(volume, lag_ms)
    whole = not live and task.committed is None
    known_end, repairable_from, sizes = -1, _NOWHERE, None
    if volume.ends is not None:
        sizes = FileSizes.of(root, volume.ends.lengths())
    if not live:
        try:
            known_end_of_volume = volume.named_end if task.committed is None else None
            with Verification(root, known=known, known_end=known_end_of_volume, sizes=sizes) as check:
                known_end, repairable_from, sizes = check.known_end, check.repairable_from, check.sizes
        except VerifyError as error:
            raise VolumeError(str(error)) from error
    settled_ms = clock.wall_ms() - lag_ms if live else SETTLED
    store = Store(volume.source, volume.root, live, whole, settled_ms, known_end, repairable_from, sizes, known)
    return AuditPlan(volume, _tasks_of(volume, splits, store, at_once), store)


def _tasks_of(volume: Volume, splits: Sequence[Split], store: Store, at_once: int) -> tuple[tuple[Split, ...], ...]:
    """Returns the splits by task. Each task opens the queues of its records, so with many queues it has several splits.

    A split is a separate task if its file may expire meanwhile, or if it has to be fetched.
    """
    if store.may_expire or bringer() is not None:
        return tuple((split,) for split in splits)
    queues = 0 if volume.ends is None else len(volume.ends)
    wanted = min(queues * _TASK_BYTES_A_QUEUE, _MOST_TASK_BYTES, volume.bytes // at_once)
    return tuple(each.splits for each in tasks_of(splits, wanted))


def is_live(volume: Volume, lag_ms: int) -> bool:
    """Whether a broker works on the store: it has locked the store, or has stored a record within the last `lag_ms` by
    the clock. A lock is not seen from another machine. A store that was closed in order is not live."""
    root = Path(volume.root)
    if not (root / "abort").exists():
        return False
    try:
        check_unlocked(root)
    except StoreLockedError:
        return True
    except OSError:
        pass  # a file system without locks
    return last_store_ms(volume) > clock.wall_ms() - lag_ms


def last_store_ms(volume: Volume) -> int:
    """Store time of the newest record below the bound, or of a record in its last split."""
    newest = 0
    for split in plan(volume, end=volume.bound, split_bytes=1 << 20)[-1:]:
        for batch in SplitScan(split, ["store_timestamp_ms"]):
            newest = max(newest, *batch.column(0).to_pylist())
    return newest


def audit_split(task: SplitTask) -> SplitAudit:
    """The checks of ranges of the log, and of the units of their records."""
    store, root = task.store, Path(task.store.root)
    found = SplitAudit(task.source, bytes=sum(split.bytes for split in task.ranges))
    scans = [SplitScan(split, (), check_crc=True) for split in task.ranges]
    units = units_of(scans, root, store.repairable_from, store.settled_ms)
    if units is not None:
        found.newest_ms = units.newest_ms
        found.settled_end = _NOWHERE if units.unsettled is None else units.unsettled
        take_units(root, task.source, units, found.findings)
        found.queues, found.delays = units.queues, delays_of(units.delays)
        found.suspects, found.seen = set(units.suspects), wrong_units(task.source, units.differing)
    found.records = sum(scan.records for scan in scans)
    # Also if only its queues' files were removed already: they are removed after the log's.
    if expired := [split for split in task.ranges if has_expired(split)]:
        rest = tuple(split for split in task.ranges if split not in expired)
        found = audit_split(replace(task, ranges=rest)) if rest else SplitAudit(task.source)
        found.expired_end = max(found.expired_end, *(split.file_end for split in expired))
        return found
    segment_bytes = store.sizes.log_segment_bytes if store.sizes else None
    for scan in scans:
        if not store.live and scan.split.file_end - scan.split.file_start < (segment_bytes or 0):
            found.suspects |= set(found.queues.names())  # a broker does not serve what is left of a short file
        _audit_bytes(scan.split, store, scan, found)
    return found


def _audit_bytes(split: Split, store: Store, scan: SplitScan, found: SplitAudit) -> None:
    """Reports the damage that the scan met, and entries that are not sound, in the words of a check of the log."""
    is_ledger = split.entry_header_bytes > 0 and not split.missing
    entries: Ends | None = None
    if not scan.damaged:
        with suppress(FileNotFoundError):
            entries = sound_ends(split) if is_ledger else None
        if entries is not None:
            found.entries.append(entries)
        if entries is not None or not is_ledger:
            return
    findings = found.findings
    try:
        # A check of the log reads nothing of a short file, so it finds the gap where the file begins.
        start = segment_start(Path(split.path).name) if split.missing else None
        begin = split.begin if start is None else start
        damaged, entries = judge_log(store, begin, split.end, findings)
        found.entries += [] if entries is None else [entries]
    except FileNotFoundError:
        if not store.may_expire:
            raise
        damaged = 0  # it has expired since the scan
    if damaged > scan.damaged:  # the scan does not see damage in the header of an entry
        found.suspects |= set(found.queues.names())
        found.has_unseen = True
    if damaged:
        return
    for damage in scan.damage:
        at = damage.position - split.file_start
        reason = "the file is gone, and older ones are there" if damage.reason == EXPIRED else damage.reason
        findings.add(Difference(split.source, "log", damage.file, at, reason, damage.size))
    findings.count += scan.damaged - len(scan.damage)


def _sums(parts: Sequence[SplitAudit], source: str) -> LogSums:
    parts = [part for part in parts if part.source == source]
    queues = QueuesOfLog()
    suspects: set[Queue] = set()
    seen: dict[Queue, Findings] = {}
    delays: Delays = {}
    for part in parts:
        queues.join(part.queues)
        suspects |= part.suspects
        for key, differences in part.seen.items():
            seen.setdefault(key, Findings()).merge(differences)
        for level, counts in part.delays.items():
            delays.setdefault(level, Counter()).update(counts)
    return LogSums(
        sum(part.records for part in parts),
        max((part.newest_ms for part in parts), default=0),
        min((part.settled_end for part in parts), default=_NOWHERE),
        queues,
        frozenset(suspects),
        seen,
        delays,
        [entries for part in parts for entries in part.entries],
        any(part.has_unseen for part in parts),
    )


def audit_volume(task: VolumeTask) -> VolumeAudit:
    """The checks that do not belong to one range of the log: files, queues as a whole, the index, and the rest."""
    found, volume, log = VolumeAudit(), task.volume, task.log
    store = replace(task.store, repairable_from=min(task.store.repairable_from, log.settled_end))
    queues = QueuesOfLog()
    queues.join(log.queues)
    with judging(store) as check:
        report = check.report
        report.records, report.last_store_timestamp_ms = log.records, log.newest_ms
        check.check_segments(below=volume.bound if store.live else None)
        judge_order(check, log.entries)
        report.end_pos = volume.bound
        if store.whole:
            _audit_tail(check, volume, log, queues)
        elif not store.live:
            report.end_pos = check.log.end  # the bound was given, and may be any
        suspects = log.suspects | suspicious_ends(
            volume, queues, check.sizes.queue_segment_bytes, whole=store.whole, closed=not store.live
        )
        suspects |= _suspicious_delays(log.delays, store.known)
        judge_queues(store, check, queues, suspects, log.seen, found.findings)
        index = check_index(
            volume, store.settled_ms, check.index_geometry, whole=store.whole, enabled=store.known.index_enabled
        )
        found.findings.merge(index.findings)
        for what, count in index.findings.behind.items():
            found.findings.add_behind(what, count)
        if store.live:
            for differences in index.files.values():
                found.findings.merge(differences)
            check.check_missing_index(index.records_with_keys)
        else:
            files = index.files
            if log.has_unseen:
                files = {path: files.get(path, Findings()) for path in (Path(store.root) / "index").glob("*")}
            judge_index(store, check, files, index.records_with_keys, found.findings)
        check.check_small_files(live=store.live)
        take(store, report, found.findings)
    return found


def _audit_tail(check: Verification, volume: Volume, log: LogSums, queues: QueuesOfLog) -> None:
    """Checks what is behind the bound, up to the end of the files."""
    before = log.entries[-1][1] if log.entries else None
    behind = check.log_check(volume.bound, None, before).run()
    if not check.layout.entry_header_bytes:  # a group may not have committed its entries, so no queue has them
        queues.join(behind)


def _suspicious_delays(delays: Delays, known: Known) -> set[Queue]:
    """The queues of levels in which messages wait for different times, or not as long as they should."""
    levels: dict[int, Counter[int]] = {}
    for (level, _), counts in delays.items():
        levels.setdefault(level, Counter()).update(counts)
    wrong = {level for level, counts in levels.items() if wrong_delays(level, counts, known.delay_levels_ms)}
    return {(SCHEDULE_TOPIC, queue) for level, queue in delays if level in wrong}


# -- the report --------------------------------------------------------------------------------------------------------


def _audit_text(summary: Summary) -> str:
    word = "clean" if summary["clean"] else f"differences: {summary['differing']:,}"
    if repairable := sum(each["repairable"] for each in summary["differences"]):
        word += f", {repairable:,} of which the next start of the broker repairs"
    names = ("source", "records", "queues", "begin", "bound")
    rows = [[source[name] for name in names] for source in summary["sources"]]
    lines = [word, "", table_text(names, rows), *_replica_lines(summary)]
    for source in summary["sources"]:
        if source["expired_bytes"]:
            lines.append(f"expired before they were read: {source['expired_bytes']:,} bytes of {source['source']}")
        if source["lost_bytes"]:
            lines.append(f"missing: {source['lost_bytes']:,} bytes of the log of {source['source']}")
    lines += [f"behind: {count} {what}" for what, count in summary["behind"].items()]
    lines += [difference_text(each) for each in summary["differences"][:MOST_ROWS]]
    if summary["differing"] > MOST_ROWS:
        lines.append(f"... and {summary['differing'] - MOST_ROWS} more")
    lines += [f"note: {difference_text(each)}" for each in summary["notes"][:MOST_ROWS]]
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
    run=lambda call: run(call.options, call.runner, call.arguments["lagMillis"], call.arguments["settings"]),
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
        SETTINGS,
    ),
    all_members=True,
    verdict=lambda summary: CLEAN if summary["clean"] else DIFFERENCES,
    findings=lambda summary: [difference_text(each) for each in summary["differences"]],
)
