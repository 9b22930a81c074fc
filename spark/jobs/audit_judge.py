"""Judges what the fast pass of an audit could not prove, with the code of `tally store verify` and in the same words.

The fast pass compares whole batches. Where a comparison fails, the part in question (a stretch of the log, a queue, an
index file) is checked again, item by item, by `store/verify`. So an audit finds what `tally store verify` finds, and
costs little more where everything is sound.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePath

from tallystick.spark.jobs.audit_ledger import Ends, follows
from tallystick.spark.jobs.findings import Difference, Findings
from tallystick.spark.presence import Segments, bring, bring_folder
from tallystick.spark.volume import VolumeError
from tallystick.store._kernel import QueuesOfLog
from tallystick.store.findings import Finding, Report
from tallystick.store.formats.file_sizes import FileSizes
from tallystick.store.formats.segment_files import is_of_log
from tallystick.store.verify.report import Known, Verification, VerifyError

Queue = tuple[str, int]


@dataclass(frozen=True)
class Store:
    """A store as an audit judges it, determined once for all its tasks.

    `live`: a broker works on it, so derived files may be behind the log, and data behind the bound is not settled.
    `whole`: nothing is behind the bound. `settled_ms`: records stored from then on may not have their units and entries
    yet. `known_end`: the greatest end of a record that a queue names. `repairable_from`: the next start dispatches the
    log again from here. `sizes`: of the files, if they were determined.
    """

    source: str
    root: str
    live: bool
    whole: bool
    settled_ms: int
    known_end: int
    repairable_from: int
    sizes: FileSizes | None
    known: Known

    @property
    def may_expire(self) -> bool:
        """Whether files can expire meanwhile: an idle broker, whose lock is not seen here, may use the store."""
        return self.live or (Path(self.root) / "abort").exists()


@contextmanager
def judging(store: Store) -> Iterator[Verification]:
    """A check of parts of the store. VolumeError, OSError."""
    try:
        with Verification(
            Path(store.root), known=store.known, open_log=Segments, known_end=store.known_end, sizes=store.sizes
        ) as verification:
            verification.repairable_from = store.repairable_from
            yield verification
    except VerifyError as error:
        raise VolumeError(str(error)) from error


def judge_log(store: Store, begin: int, end: int, findings: Findings) -> tuple[int, Ends | None]:
    """Checks [begin, end) of the log. Returns the number of damaged places, and the first and last entry.

    It does not check a log in the plain layout that dledger continued in its own.
    """
    with judging(store) as check:
        if begin < check.log.first:
            return 0, None
        log = check.log_check(begin, end)
        log.run()
        take(store, check.report, findings)
        return check.report.damaged, log.ends


def judge_order(check: Verification, ends: Sequence[Ends]) -> None:
    """Checks that entries follow each other where the ranges meet that were checked one by one."""
    for (_, before), (entry, _) in pairwise(ends):
        if not follows(before, entry):
            check.log_check(entry.pos, entry.pos + entry.size, before).run()


def judge_queues(
    store: Store,
    check: Verification,
    records: QueuesOfLog,
    suspects: Collection[Queue],
    seen: Mapping[Queue, Findings],
    findings: Findings,
) -> None:
    """Checks these queues. `seen`: what the fast pass found; it stands where the check finds nothing."""
    if not suspects:
        return
    for topic, queue in suspects:
        for kind in ("consumequeue", "consumequeue_ext"):
            bring_folder(Path(store.root) / kind / topic / str(queue))
    before = set(_reported(check.report))
    for part in [[queue] for queue in sorted(suspects)] if store.may_expire else [suspects]:
        try:
            check.check_queues(records, part)
        except FileNotFoundError:
            if not store.may_expire:
                raise
            # Retention removed its files, with the records that they name.
    named = {_queue_of(finding.file) for finding in _reported(check.report) if finding not in before}
    for queue_of, found in seen.items():
        if queue_of not in named and not store.live and check.report.damaged < _MANY:
            findings.merge(found)


def judge_index(
    store: Store, check: Verification, files: Mapping[Path, Findings], records_with_keys: int, findings: Findings
) -> None:
    """Checks these index files, and whether files are missing. `files`: what the fast pass found in each."""
    for path in files:
        bring(path)
    before = set(_reported(check.report))
    check.check_index(records_with_keys, files.keys())
    named = {finding.file for finding in _reported(check.report) if finding not in before}
    for path, found in files.items():
        if str(path.relative_to(store.root)) not in named and check.report.damaged < _MANY:
            findings.merge(found)


_MANY = 1000
"""With so many findings not all are listed, so that it is unknown which files they are in."""


def _reported(report: Report) -> list[Finding]:
    return [*report.damage, *report.notes]


def _queue_of(file: str) -> Queue | None:
    parts = PurePath(file).parts
    if len(parts) >= 3 and parts[0].startswith("consumequeue") and parts[2].isdigit():
        return parts[1], int(parts[2])
    return None


def take(store: Store, report: Report, findings: Findings) -> None:
    """Adds what a check reported. What the next start repairs is no difference in a live store: it is behind."""
    for finding in report.damage:
        findings.add(_difference(store, finding))
    findings.count += report.damaged - len(report.damage)
    repairable = [note for note in report.notes if note.repairable]
    for note in report.notes:
        if not note.repairable:
            findings.note(_difference(store, note))
    for note in () if store.live else repairable:
        findings.add(_difference(store, note))
    findings.count += 0 if store.live else report.repairable - len(repairable)


def _difference(store: Store, finding: Finding) -> Difference:
    path = str(Path(store.root) / finding.file)
    what = _kind(PurePath(finding.file).parts)
    return Difference(store.source, what, path, finding.offset, finding.reason, finding.size, finding.repairable)


def _kind(parts: tuple[str, ...]) -> str:
    if is_of_log(parts):
        return "log"
    kinds = {"consumequeue": "queue", "consumequeue_ext": "queue", "index": "index", "checkpoint": "checkpoint"}
    return kinds.get(parts[0], "ledger" if parts[0].startswith("dledger-") else "table")
