"""Checks the files of a store of tallystick or RocketMQ, and reports damage with its place.

The check writes nothing, so it works on read-only media. A store in use can be checked too, but may then show faults at
its moving end. The sizes of files are determined from the files. The order is:

1. the log: every record's magic, sizes, CRC and PHYSICALOFFSET, every filler; with dledger's layout also the entries'
   chain of index and term, their CRCs if they have CRCs, and their index units;
2. the ConsumeQueues: `queues.py`;
3. the index: `index.py`;
4. checkpoint and `abort`;
5. tables and files of progress: `tables.py`.

The report lists as notes, not as damage, what the next start repairs itself: a torn last write, or queues that a killed
process left behind. Bytes behind the last record that are in no queue remain from a torn write or an earlier
truncation.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType

from tallystick.store import tables
from tallystick.store._kernel import QueuesOfLog, queue_ends
from tallystick.store.engine.restoring import why_incomplete
from tallystick.store.engine.written_end import written_end
from tallystick.store.findings import FindingKind, Progress, Report
from tallystick.store.formats.checkpoint import CHECKPOINT_BYTES, StoreCheckpoint
from tallystick.store.formats.file_sizes import FileSizes
from tallystick.store.formats.ledger_format import ENTRY_HEADER_BYTES, EntryHeader
from tallystick.store.formats.log_walk import durable_segment
from tallystick.store.formats.progress import ProgressMark
from tallystick.store.formats.queue_format import IndexGeometry
from tallystick.store.formats.queue_table import QueueTable
from tallystick.store.formats.segment_files import SegmentFiles, segment_start
from tallystick.store.settings import SettingsError, StoreSettings
from tallystick.store.verify.dump import overridden
from tallystick.store.verify.index import check_index, check_missing, has_index_files
from tallystick.store.verify.log import Layout, LogCheck
from tallystick.store.verify.queues import Derived, check_queues
from tallystick.store.verify.tables import table_faults


class VerifyError(Exception):
    """There is no store in the given folder."""


@dataclass(frozen=True, slots=True)
class Known:
    """Settings of a store that its files do not contain, as far as they are known."""

    delay_levels_ms: tuple[int, ...] | None = None
    index_geometry: IndexGeometry | None = None
    index_enabled: bool = True

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Known:
        """`given`: settings by RocketMQ's names, as text; a check does not need most of them. SettingsError."""
        if unknown := given.keys() - {each.name for each in fields(StoreSettings)}:
            raise SettingsError(min(unknown), "there is no such setting")
        chosen = overridden(StoreSettings(), {name: text for name, text in given.items() if name in _NEEDED})
        has_geometry = given.keys() & {"maxHashSlotNum", "maxIndexNum"}
        return cls(
            chosen.delay_levels_ms() if "messageDelayLevel" in given else None,
            IndexGeometry(chosen.maxHashSlotNum, chosen.maxIndexNum) if has_geometry else None,
            chosen.messageIndexEnable,
        )


_NEEDED = frozenset({"messageDelayLevel", "maxHashSlotNum", "maxIndexNum", "messageIndexEnable"})


class Verification:
    """The parts of a check of one store, for `verify` and for audits, which find out in another way what is sound.

    `report` gets what the parts find. A context manager. Raises VerifyError, OSError. `open_log`: opens the segments of
    the log; `clean`: whether the last stop was in order. `known_end`, `sizes`: the greatest end of a record that a
    queue names, and the sizes of the files, if they were determined before.
    """

    def __init__(
        self,
        root: Path,
        *,
        log_folder: Path | None = None,
        known: Known = Known(),
        progress: Progress | None = None,
        open_log: Callable[[Path, int | None], SegmentFiles] = SegmentFiles,
        known_end: int | None = None,
        sizes: FileSizes | None = None,
    ) -> None:
        self.root = root
        self.known = known
        self.layout = layout = _layout(root, log_folder)
        if sizes is None or known_end is None:
            ends = queue_ends(root / "consumequeue")
            sizes = FileSizes.of(root, ends.lengths()) if sizes is None else sizes
            known_end = ends.named_end if known_end is None else known_end
        self.sizes = sizes
        self.report = report = Report(str(root), clean=not (root / "abort").exists())
        report.layout = str(layout.log.relative_to(root)) if layout.log.is_relative_to(root) else str(layout.log)
        self.log = log = open_log(layout.log, self.sizes.log_segment_bytes)
        report.log_segment_bytes, report.segments = log.segment_bytes, len(log.starts)
        report.min_pos = report.end_pos = log.first
        self.checkpoint = StoreCheckpoint.load(root / "checkpoint")
        self.known_end = known_end
        if report.clean or layout.entry_header_bytes:  # after any stop, dledger's layout is dispatched from the queues
            self.repairable_from = self.known_end
        else:
            self.repairable_from = durable_segment(log, self.checkpoint.min_timestamp_ms, 0)
        self._progress = progress
        self.queue_ends: dict[tuple[str, int], int] = {}

    def __enter__(self) -> Verification:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.log.close()

    def check_segments(self, below: int | None = None) -> None:
        """Reports files that are no segments of the log, or have a wrong length, and gaps between the files.

        `below`: only segments that begin below this position; a broker may be creating the others.
        """
        for path, reason in self.log.strange:
            start = segment_start(path.name)
            if below is None or start is None or start < below:
                self.report.add_damage(path, 0, reason)
        for start in self.log.gaps:
            self.report.add_damage(self.log.path(start), 0, "the segment before this one is missing")

    def log_check(
        self,
        begin: int | None = None,
        end: int | None = None,
        before: EntryHeader | None = None,
        *,
        count_keys: bool = False,
    ) -> LogCheck:
        """A check of the log, or of a part of it."""
        return LogCheck(
            self.log,
            self.layout,
            self.report,
            self.known_end,
            self.repairable_from,
            self._progress,
            _written_end(self.root, self.log, self.layout),
            begin=begin,
            end=end,
            before=before,
            count_keys=count_keys,
        )

    def check_queues(self, in_log: QueuesOfLog, only: Collection[tuple[str, int]] | None = None) -> None:
        """Compares the queues, or `only` these, with the records of the log."""
        derived = self._derived()
        check_queues(derived, in_log, _topics(self.root), self.known.delay_levels_ms, only)
        self.queue_ends |= derived.ends

    @property
    def index_geometry(self) -> IndexGeometry | None:
        """The geometry of the index files, if it is known without them."""
        return self.known.index_geometry or self.sizes.index

    def check_index(self, records_with_keys: int, only: Collection[Path] | None = None) -> None:
        """Compares the index files, or `only` the entries of these, with the records of the log."""
        check_index(
            self._derived(),
            self.index_geometry,
            self.checkpoint.index_timestamp_ms,
            records_with_keys if self.known.index_enabled else 0,
            only,
        )

    def check_missing_index(self, records_with_keys: int) -> None:
        """Checks only whether files of the index are missing, in a store that a broker uses."""
        check_missing(self._derived(), records_with_keys if self.known.index_enabled else 0, repairable=False)

    def check_small_files(self, *, live: bool = False) -> None:
        """Checks the checkpoint, the tables, and the files of progress. `live`: a broker may be writing the checkpoint
        and the files of progress."""
        if not live:
            _check_checkpoint(self.root / "checkpoint", self.checkpoint, self.report)
        for fault in table_faults(self.root):
            if fault.kind is FindingKind.DAMAGE:
                self.report.add_damage(fault.path, 0, fault.reason)
            elif not live:
                self.report.add_note(fault.path, 0, fault.reason, fault.kind)

    def _derived(self) -> Derived:
        return Derived(
            self.root,
            self.log,
            self.layout.entry_header_bytes,
            self.report,
            self.repairable_from,
            self._progress,
            self.sizes.queue_segment_bytes,
        )


def verify(
    root: Path,
    *,
    log_folder: Path | None = None,
    known: Known = Known(),
    progress: Progress | None = None,
    queue_ends: dict[tuple[str, int], int] | None = None,
    unfinished: bool = False,
) -> Report:
    """Checks the store in `root`. Raises VerifyError if there is no store; OSError if it cannot be read.

    `log_folder`: where the log is if not in the store (storePathCommitLog). `known`: settings that the files do not
    contain; what is unknown is determined from the files. `queue_ends` gets the offset behind the last trustworthy unit
    of each queue. `unfinished`: the caller restores or converts the store.
    """
    if not unfinished and (reason := why_incomplete(root)):
        raise VerifyError(reason)
    with Verification(root, log_folder=log_folder, known=known, progress=progress) as check:
        check.check_segments()
        in_log = check.log_check(count_keys=not has_index_files(root))
        queues = in_log.run()
        check.check_queues(queues)
        check.check_index(in_log.records_with_keys)
        check.check_small_files()
        if queue_ends is not None:
            queue_ends |= check.queue_ends
        return check.report


def _layout(root: Path, log_folder: Path | None) -> Layout:
    if not root.is_dir():
        raise VerifyError(f"{root} is no folder")
    ledgers = sorted(path for path in root.glob("dledger-*/data") if path.is_dir())
    if log_folder is None and len(ledgers) > 1:
        raise VerifyError(f"{root} has more than one dledger folder: {', '.join(path.parent.name for path in ledgers)}")
    folder = log_folder or (ledgers[0] if ledgers else root / "commitlog")
    if not folder.is_dir():
        raise VerifyError(f"{root} is no store: neither commitlog nor dledger-*/data is in it")
    if folder in ledgers:
        return Layout(folder, ENTRY_HEADER_BYTES, folder.parent / "index")
    return Layout(folder)


def _written_end(root: Path, log: SegmentFiles, layout: Layout) -> int:
    if layout.entry_header_bytes:
        return -1
    return written_end(root, log.segment_bytes, log.end, ProgressMark.load(root), QueueTable.load(root))


def _topics(root: Path) -> frozenset[str] | None:
    """Topics of config/topics.json; None if the file does not exist or is not valid."""
    try:
        table = tables.decode((root / "config" / "topics.json").read_bytes())
    except (OSError, tables.DamagedTableError):
        return None
    topics = table.get("topicConfigTable")
    return frozenset(topics) if isinstance(topics, dict) else None


def _check_checkpoint(path: Path, checkpoint: StoreCheckpoint, report: Report) -> None:
    report.checkpoint = {
        "physicMsgTimestamp": checkpoint.physic_timestamp_ms,
        "logicsMsgTimestamp": checkpoint.logics_timestamp_ms,
        "indexMsgTimestamp": checkpoint.index_timestamp_ms,
    }
    try:
        size = path.stat().st_size
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise
        report.add_note(path, 0, "there is no checkpoint")
        return
    if size != CHECKPOINT_BYTES:
        report.add_damage(path, 0, f"has {size} bytes instead of {CHECKPOINT_BYTES}")
    for at, (name, timestamp_ms) in enumerate(report.checkpoint.items()):
        if timestamp_ms < 0:
            report.add_damage(path, 8 * at, f"{name} is {timestamp_ms}")
        elif timestamp_ms > report.last_store_timestamp_ms and report.records:
            reason = (
                f"messages stored until {timestamp_ms} were durable, the log ends at {report.last_store_timestamp_ms}"
            )
            report.add_damage(path, 8 * at, f"{name}: {reason}")
