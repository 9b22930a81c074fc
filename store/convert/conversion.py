"""Converts a store between the plain layout of the log and the one of dledger, offline: `tally store convert`.

    1. log       each record at its new position, in turns; the state says how far that is durable   `log_copy`
    2. tables    the files of `config/`, as they are, or as the old group had them at the end of its log
    3. derived   ConsumeQueues and index, from the new log                                            `derived`
    4. check     both logs by content, in a second pass over each; then all files as `verify` does    `comparison`
    5. name      the new log gets its name, and the files of the conversion are removed    `formats.conversion`

The old store is not changed. The new one is in an empty folder, and no broker takes it for a store before step 5, which
is one rename. Steps 2 to 4 are done again if the conversion is interrupted; step 1 continues.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.store.convert import derived
from tallystick.store.convert.comparison import Contents, check_equal, contents_of
from tallystick.store.convert.log_copy import FIRST_INDEX, INDEX_SEGMENT_BYTES, SAVE_BYTES, TURN_BYTES, LogCopy
from tallystick.store.convert.source import ConvertError, Part, Queue, Source
from tallystick.store.engine.lock import FILE_NAME as LOCK_NAME
from tallystick.store.engine.lock import StoreLock, check_unlocked
from tallystick.store.engine.restoring import why_incomplete
from tallystick.store.findings import FindingKind, Progress, Report
from tallystick.store.formats.conversion import FILE_NAME, PLACES_NAME, UNFINISHED, State
from tallystick.store.formats.ledger_format import ENTRY_HEADER_BYTES
from tallystick.store.formats.segment_files import SegmentFiles
from tallystick.store.replace_file import replace_file
from tallystick.store.verify.dump import committed_end, overridden, settings_of
from tallystick.store.verify.repair_plan import NOTE_NAME
from tallystick.store.verify.report import verify
from tallystick.store.verify.tables import table_faults

if TYPE_CHECKING:
    from tallystick.store._kernel import Door
    from tallystick.store.settings import StoreSettings

PLAIN, LEDGER = "plain", "dledger"
_OF_A_MEMBER = ("tally-metadata", "tally-queue-ends")
"""Files in `config/` that belong to the member of the old group."""
_ALLOWED = {"lost+found", LOCK_NAME, FILE_NAME, PLACES_NAME, f"{FILE_NAME}.tmp"}


@dataclass(frozen=True, slots=True)
class Options:
    """What to convert into, and how. `overrides`: settings that the files do not show, as text."""

    layout: str
    member: str = "n0"
    """The member whose folder the new log is in, if `layout` is dledger."""
    segment_bytes: int | None = None
    """Of the new log; None: as in the old one."""
    skip_damage: bool = False
    log_folder: Path | None = None
    """The plain log of the old store, if it is not in it."""
    overrides: Mapping[str, str] = field(default_factory=dict)
    ledger_end: int = -1
    """How far the log of the old member was written, if known."""
    tables: Mapping[str, bytes] = field(default_factory=dict)
    """Files of `config/` that are not copied but written: the tables of the old group."""
    finish_member: Callable[[Path, int, dict[Queue, int]], None] | None = None
    """Called before the new log gets its name, with its folder, the index of its last entry, and the ends of queues
    that the log does not show."""
    index_segment_bytes: int = INDEX_SEGMENT_BYTES
    turn_bytes: int = TURN_BYTES
    save_bytes: int = SAVE_BYTES


@dataclass(frozen=True, slots=True)
class Summary:
    """The result of a conversion. `raised`: queues that end behind their last message in the new log."""

    state: State
    contents: Contents
    raised: dict[Queue, int]
    report: Report
    notes: list[str]


class Conversion:
    """One conversion of the store `source` into the folder `target`. `run` blocks, also for hours."""

    def __init__(self, source: Path, target: Path, options: Options, door: Door) -> None:
        self._source_root, self._target, self._options, self._door = source, target, options, door
        self._log_name = f"dledger-{options.member}" if options.layout == LEDGER else "commitlog"

    def run(self, progress: Progress | None = None) -> Summary | None:
        """Converts, compares, and names the new log. None: an earlier run had done all of that, and was interrupted
        before it had removed its own files.

        Raises ConvertError, JournalError, StoreLockedError, SettingsError, RecoveryError, DamageError or OSError: the
        conversion is not finished. Run again, it continues.
        """
        self._check_folders()
        with self._hold_source():
            source = Source.open(self._source_root, self._options.log_folder, self._options.ledger_end)
            try:
                self._check_tables()
                self._door.mkdir(self._target)
                self._check_target()
                lock = StoreLock.acquire(self._target, self._door, unfinished=True)
                try:
                    return self._run(source, progress or (lambda stage, done, total: None))
                finally:
                    lock.release()
            finally:
                source.close()

    # -- before anything is written ------------------------------------------------------------------------------------

    def _check_folders(self) -> None:
        source, target = self._source_root.resolve(), self._target.resolve()
        if source == target or source in target.parents or target in source.parents:
            raise ConvertError(f"{self._target} is not apart from {self._source_root}: name an empty folder elsewhere")
        if reason := why_incomplete(self._source_root):
            raise ConvertError(reason)
        if (self._source_root / NOTE_NAME).exists():
            raise ConvertError(f"a repair of {self._source_root} did not finish: run tally store repair first")

    @contextmanager
    def _hold_source(self) -> Iterator[None]:
        """Keeps brokers away from the old store, without changing it; on a read-only disk it only looks."""
        root = self._source_root
        check_unlocked(root)
        lock = None
        try:
            if (root / LOCK_NAME).read_bytes() == b"lock":
                lock = StoreLock.acquire(root, self._door)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR):
                raise
        try:
            yield
        finally:
            if lock is not None:
                lock.release()

    def _check_tables(self) -> None:
        if self._options.skip_damage:
            return
        for fault in table_faults(self._source_root):
            if fault.kind is FindingKind.DAMAGE and fault.path.name not in self._options.tables:
                raise ConvertError(
                    f"{fault.path} {fault.reason}: repair it (tally store repair), or use --skip-damage, which takes "
                    f"{'its backup' if fault.backup else 'no file'} in its place"
                )

    def _check_target(self) -> None:
        names = {path.name for path in self._target.iterdir()}
        if FILE_NAME not in names and names - _ALLOWED:
            other = sorted(names - _ALLOWED)[0]
            raise ConvertError(f"{self._target} is not empty ({other}): the new store needs an empty folder")

    def _state(self, source: Source) -> State:
        """The state of the conversion that was begun in the folder, or a new one."""
        options, state = self._options, State.load(self._target)
        if state is None:
            segment_bytes = options.segment_bytes or source.segment_bytes or self._settings().mappedFileSizeCommitLog
            first = max(source.first // segment_bytes, min(source.first, 1)) * segment_bytes
            is_ledger = options.layout == LEDGER
            state = State(
                options.layout, options.member if is_ledger else "", segment_bytes, first, source.first,
                options.index_segment_bytes, target_pos=first, next_index=FIRST_INDEX if is_ledger else 0,
            )  # fmt: skip
            state.save(self._door, self._target)
            return state
        begun = f"{self._target} has an unfinished conversion"
        if (state.layout, state.member) != (options.layout, options.member if options.layout == LEDGER else ""):
            raise ConvertError(
                f"{begun} to {state.layout} {state.member}".rstrip() + ": remove it to begin another one"
            )
        if options.segment_bytes not in (None, state.segment_bytes):
            raise ConvertError(f"{begun} with files of {state.segment_bytes} bytes, not {options.segment_bytes}")
        part = min(state.part, len(source.parts) - 1)
        same = state.source_first == source.first and (state.anchor_bytes, state.anchor_crc) == (
            source.anchor(part, state.pos) if state.anchor_bytes else (0, 0)
        )
        if not same:
            raise ConvertError(
                f"{begun} of another store, or {self._source_root} has changed: remove it to begin again"
            )
        return state

    def _settings(self) -> StoreSettings:
        """Of the old store."""
        return overridden(settings_of(self._source_root), self._options.overrides)

    def _check_space(self, source: Source, state: State) -> None:
        disk = os.statvfs(self._target)
        free, needed = disk.f_bavail * disk.f_frsize, source.known_end - max(state.pos, source.first)
        if free < needed:
            raise OSError(
                errno.ENOSPC, f"{needed} bytes of the log are left to copy, and {free} are free", str(self._target)
            )

    # -- the steps -----------------------------------------------------------------------------------------------------

    def _run(self, source: Source, progress: Progress) -> Summary | None:
        state = self._state(source)
        unfinished = self._target / (self._log_name + UNFINISHED)
        if state.complete and not unfinished.exists():
            self._remove_own_files()
            return None
        state.complete = False
        segments = unfinished / "data" if state.layout == LEDGER else unfinished
        self._check_space(source, state)
        first, total = source.first, max(source.estimated_end - source.first, 1)
        copy = LogCopy(source, state, self._door, self._target, segments, skip_damage=self._options.skip_damage)
        copy.run(lambda pos: progress("copy", pos - first, total), self._options.turn_bytes, self._options.save_bytes)
        self._copy_config()
        ends = source.queue_ends(state.pos)
        settings = derived.settings_for(
            self._settings(), self._target, state.layout, state.member, state.segment_bytes, UNFINISHED
        )
        derived.remove_derived(self._door, self._target)
        raised = derived.build(
            self._door, settings, state.target_pos, ends,
            lambda pos, end: progress("queues", pos - state.first, max(end - state.first, 1)),
        )  # fmt: skip
        if self._options.finish_member is not None and state.layout == LEDGER:
            idle = {queue: end.offset for queue, end in ends.items() if end.is_idle}
            self._options.finish_member(unfinished, state.next_index - 1, idle | raised)
        contents = self._compare(source, state, segments, progress)
        report = verify(
            self._target,
            log_folder=segments,
            progress=lambda stage, done, all_: progress(f"check {stage}", done, all_),
            unfinished=True,
        )
        if not report.sound:
            raise ConvertError(f"the new store is not sound: {report.damage[0]}")
        self._name(state, unfinished)
        return Summary(state, contents, raised, report, self._notes(source, state))

    def _copy_config(self) -> None:
        """Copies the tables. A file of an interrupted run is replaced."""
        old, new = self._source_root / "config", self._target / "config"
        self._door.mkdir(new)
        backups = {
            fault.path: fault.backup for fault in table_faults(self._source_root) if fault.kind is FindingKind.DAMAGE
        }
        for path in sorted(old.iterdir()) if old.is_dir() else ():
            if not path.is_file() or path.name in _OF_A_MEMBER or path.suffix == ".tmp" or ".damaged-" in path.name:
                continue
            if path.name.removesuffix(".bak") in self._options.tables:
                continue
            content = backups.get(path, path)
            if content is not None:
                replace_file(self._door, new / path.name, content.read_bytes(), durable=False)
        for name, data in self._options.tables.items():
            replace_file(self._door, new / name, data, durable=False)
        self._door.sync_dir(new)

    def _compare(self, source: Source, state: State, segments: Path, progress: Progress) -> Contents:
        size = max(state.pos - source.first, 1)
        old = contents_of(
            source.parts, state.pos, state.gaps, lambda pos: progress("read old", pos - source.first, size)
        )
        header = ENTRY_HEADER_BYTES if state.layout == LEDGER else 0
        with SegmentFiles(segments, state.segment_bytes) as log:
            size = max(state.target_pos - state.first, 1)
            parts = [Part(log, header, log.end, True)] if log.starts else []
            new = contents_of(parts, state.target_pos, (), lambda pos: progress("read new", pos - state.first, size))
        check_equal(old, new)
        return new

    def _name(self, state: State, unfinished: Path) -> None:
        """The new log gets its name: from here on this is a store."""
        state.complete = True
        state.save(self._door, self._target)
        self._door.rename(unfinished, self._target / self._log_name)
        self._door.sync_dir(self._target)
        self._remove_own_files()

    def _remove_own_files(self) -> None:
        for name in (PLACES_NAME, FILE_NAME):
            if (self._target / name).exists():
                self._door.remove(self._target / name)
        self._door.sync_dir(self._target)

    def _notes(self, source: Source, state: State) -> list[str]:
        notes = [*source.notes, *state.notes]
        last = source.parts[-1]
        if last.entry_header_bytes:
            committed = committed_end(last.log.folder) or last.begin
            if committed < state.pos:
                notes.append(
                    f"{state.pos - committed} bytes at the end of the log were not known to be committed when this "
                    "member saved its state last; they are in the new log"
                )
        return notes
