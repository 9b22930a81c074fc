"""Finds the end of the log after a stop of any kind, and makes the files derived from it agree with it again.

Two ways lead there. The short one goes on from our progress mark (`progress`): queues are cut at the mark's position,
and the log is read and dispatched from there. Where there is no mark, or it is not believed, RocketMQ's order is kept:

1. Was the last stop in order? The file `abort` says no.
2. Index: after a kill, files newer than the checkpoint's index time are dropped. (RocketMQ never rebuilds the early
   part of a dropped file; we index again from where it began.)
3. Each queue finds its own end; M is the greatest log position that any of them knows.
4. The log. Stopped in order: its last three segments are checked, record by record. Killed: the walk starts at the
   newest segment whose first record the checkpoint calls durable everywhere, and dispatches as it goes; queues and
   index know what they already have.
5. What lies behind the end is cut off: later segments go, queues forget records at or behind it.
6. Queues find their min offsets from the log's first segment.
7. The log is dispatched from M to its end.

Where the walk meets bytes that are no record, that is the log's end, as in RocketMQ: mostly a torn last write. But if a
sound record follows that queues know and that was durable, the log was damaged later. Then nothing is cut: the damage
is noted with its place, the walk goes on behind it, and what is damaged is never served.

Unlike RocketMQ, the cut part of a segment is zeroed: new records may otherwise end just where an old one begins, which
the next recovery would take for a message. And a log that lacks a segment in its middle is refused, not cut.

Source: DefaultMessageStore.load, CommitLog.recoverNormally / recoverAbnormally of RocketMQ 4.8.0; DLedger's logs always
take the orderly way (DLedgerCommitLog.recover).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.store import _kernel
from tallystick.store.checkpoint import StoreCheckpoint
from tallystick.store.ledger_format import ENTRY_HEADER_BYTES
from tallystick.store.log_walk import Step, StepKind, durable_segment, resync
from tallystick.store.progress import FILE_NAME as MARK_NAME
from tallystick.store.progress import Geometry, Point, ProgressMark
from tallystick.store.segment_files import SegmentFiles, has_data
from tallystick.store.settings import StoreSettings

if TYPE_CHECKING:
    from tallystick.store._kernel import Dispatch, Door

# One call of the kernel: about a tenth of a second without the GIL.
_RUN_BYTES = 64 << 20
_UNWRITTEN = "unwritten"
_ZEROS = bytes(1 << 16)


class RecoveryError(Exception):
    """The store cannot be opened as it is, and nothing was changed; `path` is the file or folder that is the reason."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path


class NoteKind(enum.Enum):
    DAMAGE = "damage"
    """Bytes inside the durable log are no record. The messages there are lost unless a replica has them."""
    CUT = "cut"
    """The log ended before the bytes did, and these were cut off."""
    MARK = "mark"
    """The progress mark was not believed; recovery took the long way."""
    REMOVED = "removed"
    """A file was removed."""


@dataclass(frozen=True, slots=True)
class Note:
    """Something that whoever runs the store should know. `pos`: byte in the log, -1 where none is meant."""

    kind: NoteKind
    pos: int
    text: str


@dataclass(slots=True)
class Recovered:
    """What recovery found and did. Positions are bytes in the log."""

    min_pos: int = 0
    end_pos: int = 0
    """Appends go on here."""
    clean: bool = True
    """The last stop was in order."""
    from_mark: bool = False
    """The progress mark was believed."""
    start_pos: int = 0
    """The walk over the log began here."""
    dispatched_from: int = 0
    """Dispatch went on from here after recovery."""
    records: int = 0
    """Records that the walk read."""
    store_timestamp_ms: int = 0
    """Store time of the log's last record; 0: not known."""
    committed_pos: int = 0
    """Of a replicated log: dispatched up to here, all of it committed."""
    notes: list[Note] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class KeptLog:
    """A log that is kept by replication: recovered by then, and of no concern here but for what is derived from it."""

    end_pos: int
    committed_pos: int
    """It was committed up to here, at least; what was dispatched was, too."""


def log_layout(root: Path, settings: StoreSettings) -> tuple[Path, int]:
    """Where the log's segments are, and how many bytes precede each record there (dledger's layout: 48)."""
    if settings.enableDLegerCommitLog:
        return root / f"dledger-{settings.dLegerSelfId}" / "data", ENTRY_HEADER_BYTES
    return settings.commit_log_folder, 0


def open_dispatch(
    door: Door,
    root: Path,
    log_folder: Path,
    settings: StoreSettings,
    entry_header_bytes: int,
    ext_segment_bytes: int = 0,
) -> Dispatch:
    """The queues and the index in `root`, of the log in `log_folder`; neither is read yet.

    `ext_segment_bytes`: new units get an extension in files of this size; 0: none.
    """
    return _kernel.Dispatch(
        door,
        str(root),
        str(log_folder),
        log_segment_bytes=settings.mappedFileSizeCommitLog,
        queue_segment_bytes=settings.queue_segment_bytes,
        index_slots=settings.maxHashSlotNum,
        index_entries=settings.maxIndexNum,
        index_enabled=settings.messageIndexEnable,
        delay_ms=settings.delay_levels_ms(),
        max_open_files=settings.maxOpenQueueFiles,
        entry_header_bytes=entry_header_bytes,
        ext_segment_bytes=ext_segment_bytes,
    )


def geometry_of(settings: StoreSettings) -> Geometry:
    """The sizes that a progress mark is bound to."""
    return Geometry(
        settings.mappedFileSizeCommitLog,
        settings.queue_segment_bytes,
        settings.maxHashSlotNum,
        settings.maxIndexNum,
        ENTRY_HEADER_BYTES if settings.enableDLegerCommitLog else 0,
    )


def recover(
    root: Path,
    settings: StoreSettings,
    dispatch: Dispatch,
    door: Door,
    *,
    clean: bool | None = None,
    on_loaded: Callable[[Recovered], None] | None = None,
    kept: KeptLog | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Recovered:
    """Brings the store in `root` into order and dispatches all of its log; see the module's head.

    Blocks: after a kill without a mark perhaps for minutes. `dispatch`: new, not loaded. `clean`: whether the last stop
    was in order; None: look for the file `abort`. `on_loaded` is called before the rest of the log is dispatched.
    `kept`: the log is replicated; only what is derived from it is brought into order, from committed records.
    `on_progress(pos, end)`: now and then, how far the log was read and up to where it will be.
    RecoveryError, OSError, DamageError: it could not be opened.
    """
    folder, entry_header_bytes = log_layout(root, settings)
    with SegmentFiles(folder, settings.mappedFileSizeCommitLog) as log:
        clean = not (root / "abort").exists() if clean is None else clean
        recovery = _Recovery(root, settings, dispatch, door, log, entry_header_bytes, clean, kept)
        if on_progress is not None:
            recovery.on_progress = on_progress
        found = recovery.run()
        if on_loaded is not None:
            on_loaded(found)
        recovery.dispatch_rest()
        return found


class _Recovery:
    def __init__(
        self,
        root: Path,
        settings: StoreSettings,
        dispatch: Dispatch,
        door: Door,
        log: SegmentFiles,
        entry_header_bytes: int,
        clean: bool,
        kept: KeptLog | None,
    ) -> None:
        self.root = root
        self.settings = settings
        self.dispatch = dispatch
        self.door = door
        self.log = log
        self.entry_header_bytes = entry_header_bytes
        self.kept = kept
        self.checkpoint = StoreCheckpoint.load(root / "checkpoint")
        self.cache_lost = False  # recovery goes on from a mark, and the machine was restarted since
        self.known_end = -1  # M: how far the queues knew the log before anything was cut
        self.found = Recovered(clean=clean)
        self.on_progress: Callable[[int, int], None] = lambda pos, end: None

    def run(self) -> Recovered:
        found = self.found
        if self.kept is None:
            self._check_files()
        self.dispatch.load()
        if not self.log.starts:
            self._forget_everything()
            return found
        found.min_pos = self.log.first
        if not self._from_mark():
            self._remove_mark()
            if self.kept is not None:
                self._derive_from(self.kept)
            elif found.clean or self.entry_header_bytes:
                self._after_orderly_stop()
            else:
                self._after_kill()
        if self.kept is None:
            self._cut_log()
        else:
            self._trim_index(self.kept.end_pos)
        self.dispatch.correct_min_offsets(found.min_pos)
        self.dispatch.start(found.dispatched_from)
        return found

    def _note(self, kind: NoteKind, pos: int, text: str) -> None:
        self.found.notes.append(Note(kind, pos, text))

    # -- files ---------------------------------------------------------------------------------------------------------

    def _check_files(self) -> None:
        for path, reason in self.log.strange:
            if self._is_unfinished(path):
                self._note(NoteKind.REMOVED, -1, f"{path} {reason} and nothing in it: it was being made")
                self._remove(path)
            elif path.is_file():
                raise RecoveryError(path, f"{reason}: mappedFileSizeCommitLog is not what the log was written with")
        for start in self.log.gaps:
            raise RecoveryError(self.log.path(start), "the segment before this one is missing")

    def _is_unfinished(self, path: Path) -> bool:
        """A last segment that a kill left without its full length: it never had a record."""
        last = not self.log.starts or path.name > self.log.path(self.log.starts[-1]).name
        return (
            path.is_file()
            and last
            and path.stat().st_size < self.log.segment_bytes
            and not has_data(path, 0, self.log.segment_bytes)
        )

    def _forget_everything(self) -> None:
        """No log, no messages: queues and index speak of nothing."""
        if self.dispatch.queues():
            self._note(NoteKind.REMOVED, 0, f"the queues are removed: there is no log in {self.log.folder}")
        self._remove_mark()
        self.dispatch.destroy_queues()
        self.dispatch.drop_index_after(-1)
        if self.kept is not None:
            # A member that begins behind a base has no entries yet, and does not begin at 0.
            self.found.min_pos = self.found.dispatched_from = self.kept.end_pos
            self._keep(self.kept, self.kept.end_pos)
        self.dispatch.start(self.found.dispatched_from)

    def _remove(self, path: Path) -> None:
        self.door.remove(str(path))
        self.door.sync_dir(str(path.parent))

    def _remove_mark(self) -> None:
        # First of all changes: a recovery that is killed halfway must not leave a mark that fits again by chance.
        if (self.root / MARK_NAME).exists():
            self._remove(self.root / MARK_NAME)

    # -- the short way -------------------------------------------------------------------------------------------------

    def _from_mark(self) -> bool:
        mark = ProgressMark.load(self.root)
        if mark is None:
            return False
        point, cache_lost, reason = mark.judge(self.root, geometry_of(self.settings), self.log.read)
        if not reason and not self.log.first <= point.pos <= self.log.end:
            reason = f"its position {point.pos} is not in the log"
        if not reason and self.kept is not None and point.pos > self.kept.end_pos:
            reason = f"the log ends at {self.kept.end_pos}, before its position {point.pos}"
        reason = reason or self._cut_derived(point, cache_lost)
        if reason:
            self._note(NoteKind.MARK, point.pos, f"the progress mark is not used: {reason}")
            return False
        self.found.from_mark, self.cache_lost = True, cache_lost
        self.found.store_timestamp_ms = point.store_timestamp_ms
        if self.kept is not None:
            self.found.start_pos = self.found.dispatched_from = point.pos
            self._keep(self.kept, point.pos)
            return True
        self.found.end_pos = self._dispatch_walk(point.pos)
        self.found.dispatched_from = self.found.end_pos
        return True

    def _cut_derived(self, point: Point, cache_lost: bool) -> str:
        """Brings queues and index to what they were at the mark; why that is not possible, or ""."""
        self.known_end = self.dispatch.recover_queues()
        self.dispatch.truncate_queues(point.pos)
        lengths = [queue[3] for queue in self.dispatch.queues() if queue[3] > 0]
        queues, units = len(lengths), sum(lengths)
        if (queues, units) != (point.queues, point.units):
            return f"{queues} queues hold {units} messages, at the mark {point.queues} held {point.units}"
        if not self.settings.messageIndexEnable:
            return ""
        if cache_lost:
            # The newest index file is a map that was never whole on disk: only what the mark counted is.
            if not self.dispatch.trim_index(point.index_name, point.index_count):
                return f"the index has no file {point.index_name} with {point.index_count} entries"
        elif point.index_name and all(file[0] != point.index_name for file in self.dispatch.index_files()):
            return f"the index file {point.index_name} is gone"
        return ""

    # -- RocketMQ's way ------------------------------------------------------------------------------------------------

    def _after_orderly_stop(self) -> None:
        dropped_pos = self._drop_index()
        self.known_end = self.dispatch.recover_queues()
        self.found.start_pos = pos = self.log.starts[max(0, len(self.log.starts) - 3)]
        while True:
            result = _kernel.scan(
                str(self.log.folder),
                self.log.segment_bytes,
                pos,
                self.settings.checkCRCOnRecover,
                self.entry_header_bytes,
            )
            self._count(result.records, result.last_store_timestamp_ms)
            pos = result.end
            if (behind := self._behind_damage(pos, result.stopped)) is None:
                break
            pos = behind
        self.found.end_pos = pos
        self._cut_queues()
        known = self._queues_end()
        known = known if dropped_pos is None else min(known, dropped_pos)
        self.found.dispatched_from = max(known, self.found.min_pos, 0)

    def _after_kill(self) -> None:
        dropped_pos = self._drop_index()
        self.known_end = self.dispatch.recover_queues()
        start = self._durable_segment()
        if dropped_pos is not None:
            start = min(start, dropped_pos)
        self.found.end_pos = self._dispatch_walk(start)
        self._cut_queues()
        self.found.dispatched_from = self.found.end_pos

    def _derive_from(self, kept: KeptLog) -> None:
        """Goes on where the queues end; after a kill from a durable segment on: one queue may know less than another.

        What the queues knew was committed: dispatching it again changes nothing. (RocketMQ takes the end of the queue
        that got furthest, and loses what others lack.)"""
        dropped_pos = self._drop_index()
        self.known_end = self.dispatch.recover_queues()
        self.found.end_pos = kept.end_pos
        self._cut_queues()
        self._keep(kept, self._queues_end())
        known = self._queues_end() if self.found.clean else self._durable_segment()
        known = known if dropped_pos is None else min(known, dropped_pos)
        self.found.start_pos = self.found.dispatched_from = max(known, self.found.min_pos, 0)

    def _keep(self, kept: KeptLog, dispatched: int) -> None:
        self.found.end_pos = kept.end_pos
        self.found.committed_pos = min(max(kept.committed_pos, dispatched), kept.end_pos)

    def _drop_index(self) -> int | None:
        """After a kill: drops index files that were not durable; where in the log they began, None: none were."""
        if self.found.clean or not self.settings.messageIndexEnable:
            return None
        pos = self.dispatch.drop_index_after(self.checkpoint.index_timestamp_ms)
        if pos < 0:
            return None
        self._note(NoteKind.REMOVED, pos, "index files that were not durable are made again from here")
        return max(pos - self.entry_header_bytes, self.found.min_pos)

    def _durable_segment(self) -> int:
        safe_index = self.settings.messageIndexEnable and self.settings.messageIndexSafe
        limit_ms = self.checkpoint.min_timestamp_index_ms if safe_index else self.checkpoint.min_timestamp_ms
        return durable_segment(self.log, limit_ms, self.entry_header_bytes)

    def _cut_queues(self) -> None:
        if self.known_end >= self.found.end_pos:
            self.dispatch.truncate_queues(self.found.end_pos)

    def _queues_end(self) -> int:
        return max((queue[5] for queue in self.dispatch.queues()), default=-1)

    # -- the log -------------------------------------------------------------------------------------------------------

    def _dispatch_walk(self, pos: int) -> int:
        """Checks and dispatches records from `pos` on; returns the log's end."""
        self.found.start_pos = pos
        self.dispatch.start(pos)
        while True:
            self.on_progress(pos, self.log.end)
            result = self.dispatch.run(self.log.end, _RUN_BYTES, self.settings.checkCRCOnRecover)
            self._count(result.records, result.last_store_timestamp_ms)
            if result.stopped is not None or result.pos in (pos, self.log.end):
                behind = self._behind_damage(result.pos, result.stopped)
                if behind is None:
                    return result.pos
                self.dispatch.start(behind)
            pos = self.dispatch.position

    def dispatch_rest(self) -> None:
        """Dispatches from `dispatched_from` to the end, past what is damaged."""
        end = self.found.end_pos if self.kept is None else self.found.committed_pos
        while (pos := self.dispatch.position) < end:
            self.on_progress(pos, end)
            result = self.dispatch.run(end, _RUN_BYTES)
            if result.stopped is not None:
                step = resync(self.log, result.pos, entry_header_bytes=self.entry_header_bytes)
                if step is None or step.pos >= end:
                    return
                self._note(NoteKind.DAMAGE, result.pos, f"{result.stopped}: not dispatched up to {step.pos}")
                self.dispatch.start(step.pos)
            elif result.pos == pos:
                return

    def _count(self, records: int, store_timestamp_ms: int) -> None:
        self.found.records += records
        if records:
            self.found.store_timestamp_ms = store_timestamp_ms

    def _behind_damage(self, pos: int, reason: str | None) -> int | None:
        """Where the walk goes on if the bytes at `pos` are damage inside the durable log; None: the log ends there."""
        if pos >= self.log.end:
            return None
        reason = reason or _UNWRITTEN  # the kernel calls zeros at the beginning of a segment no reason
        # Nothing can speak for a record that no queue knows: do not search a gigabyte of zeros for one.
        if reason == _UNWRITTEN and self.known_end <= pos:
            return None
        step = resync(self.log, pos, entry_header_bytes=self.entry_header_bytes)
        if step is None:
            return None
        if self._was_durable(step):
            text = f"{reason}: {step.pos - pos} bytes of the log are damaged"
            self._note(NoteKind.DAMAGE, pos, text)
            return step.pos
        self._note(NoteKind.CUT, pos, f"{reason}: the log ends here, although sound records follow from {step.pos} on")
        return None

    def _was_durable(self, step: Step) -> bool:
        """Not left over from an earlier cut (a queue knows it), and not only in the cache when the machine died."""
        assert step.kind is StepKind.RECORD and step.record is not None, "resync gives records only"
        synced = self.found.clean or step.record.store_timestamp_ms <= self.checkpoint.physic_timestamp_ms
        return synced and step.pos + step.size <= self.known_end

    def _cut_log(self) -> None:
        """Removes segments behind the one with the end, and zeroes the rest of that one."""
        end = self.found.end_pos
        self._trim_index(end)
        # From the last one on: power loss halfway must not leave a gap.
        for start in [start for start in reversed(self.log.starts) if start > end]:
            if has_data(self.log.path(start), 0, len(_ZEROS)):  # a record would stand at its begin
                self._note(NoteKind.CUT, start, f"{self.log.path(start)} lies behind the log's end and is removed")
            self.dispatch.forget_log_segment(start)
            self._remove(self.log.path(start))
        last = self.log.start_of(end)
        if last is not None:
            self._zero_behind(self.log.path(last), end - last)
            self.dispatch.forget_log_segment(last)

    def _trim_index(self, end: int) -> None:
        if any(end_pos >= end for _, _, _, _, end_pos, _, _ in self.dispatch.index_files()):
            # RocketMQ leaves such entries; its guard then keeps new records out of the index until they get as far.
            self.dispatch.trim_index_at(end)

    def _zero_behind(self, path: Path, offset: int) -> None:
        """Zeroes a segment from `offset` on, if there may be anything."""
        # The first read of a gigabyte of allocated blocks takes seconds, even if nothing was ever written to them. The
        # process writes in order: after its death a torn record is all that can stand there. Power loss keeps no order.
        limit = self.settings.maxMessageSize + len(_ZEROS) if self.found.from_mark else self.log.segment_bytes
        dirty = has_data(path, offset, limit)
        if dirty:
            self._note(NoteKind.CUT, self.found.end_pos, f"{path} has bytes behind the log's end: they are zeroed")
        if dirty or self.cache_lost:
            self.door.truncate(path, offset)
            self.door.create(path, self.log.segment_bytes, True)
            self.door.sync(path)
