"""Repairs a store that is not open in a broker: `tally store repair`.

    look   a check of the whole store (`verify`) and a plan for what it found (`repair_plan`); writes nothing
    run    repairs derived files and tables, and truncates the log at a byte if the user asked for exactly this byte

The log is the only source of truth, so a repair does not change it: it runs the recovery of a start in the form that
does not touch the log (`KeptLog`), with the damaged files of the check as suspects. There are two exceptions, both for
a plain store: `cut`, and a file that is shorter than a segment, which is extended with zeros.

A repair can be killed at any point and run again. Before the first change it writes `abort`, so that a start in between
recovers the store, and the note `tally-repair` with the files that it will build again. It removes the note just before
`abort`.

A cut overwrites the removed bytes with zeros (`zeroing`), from the last file to the first. After a kill, the rest is
damage at the same byte and can be cut there again. Progress marks are removed first, because they refer to removed
bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tallystick.store._kernel import Door
from tallystick.store.engine import abort
from tallystick.store.engine.inherited import sync_files
from tallystick.store.engine.lock import StoreLock, check_unlocked
from tallystick.store.engine.queue_recovery import Suspect
from tallystick.store.engine.recovery import KeptLog, Suspects, log_layout, open_dispatch, recover
from tallystick.store.engine.restoring import why_incomplete
from tallystick.store.engine.thorough_save import save_derived
from tallystick.store.engine.timers import FOLDER as TIMERS
from tallystick.store.engine.zeroing import zero_behind
from tallystick.store.finding_log import FindingLog
from tallystick.store.findings import Finding, FindingKind, Progress
from tallystick.store.formats.progress import FILE_NAME as PROGRESS_NAME
from tallystick.store.formats.queue_table import FILE_NAME as QUEUES_NAME
from tallystick.store.formats.segment_files import SegmentFiles, segment_start
from tallystick.store.replace_file import replace_file
from tallystick.store.settings import StoreSettings
from tallystick.store.tables import JsonTable
from tallystick.store.verify.dump import committed_end, overridden, settings_of
from tallystick.store.verify.log import LEFT_OVER, TORN_TAIL
from tallystick.store.verify.log_loss import LogLoss, loss_of_cut
from tallystick.store.verify.repair_plan import (
    MEMBER_ADVICE,
    NOTE_NAME,
    SIZES,
    RepairError,
    RepairNote,
    RepairPlan,
    plan_of,
)
from tallystick.store.verify.report import Known, VerifyError, verify
from tallystick.store.verify.tables import SCRUB_NAME, table_faults


class StoreRepair:
    """One repair of the store in `root`. All methods block. `opened` creates it."""

    def __init__(
        self, root: Path, overrides: Mapping[str, str], door: Door | None = None, *, restoring: bool = False
    ) -> None:
        self.root = root
        self.findings = FindingLog(root)
        """The actions of the repair."""
        self._overrides = overrides
        self._door = door or Door()
        self._restoring = restoring

    @classmethod
    @contextmanager
    def opened(
        cls,
        root: Path,
        overrides: Mapping[str, str] | None = None,
        *,
        dry_run: bool = False,
        restoring: bool = False,
        door: Door | None = None,
    ) -> Iterator[StoreRepair]:
        """Holds the lock of the store meanwhile; with `dry_run` it only checks that the store is not locked.

        `overrides`: settings that the files do not contain, as text. `restoring`: the caller restores the store. Raises
        VerifyError if there is no store, or a restore or conversion of it did not finish; StoreLockedError if a broker
        has it open; SettingsError, OSError.
        """
        repair = cls(root, overrides or {}, door, restoring=restoring)
        repair._check_is_store()
        if dry_run:
            check_unlocked(root)
            yield repair
            return
        lock = StoreLock.acquire(root, repair._door, unfinished=restoring)
        try:
            yield repair
        finally:
            lock.release()

    def settings(self) -> StoreSettings:
        """The settings as determined from the files, with the overrides. Raises SettingsError, OSError."""
        note = self._note()
        return overridden(settings_of(self.root), {**(note.settings if note else {}), **self._overrides})

    def _check_is_store(self) -> None:
        if not self.root.is_dir():
            raise VerifyError(f"{self.root} is no folder")
        if not self._restoring and (reason := why_incomplete(self.root)):
            raise VerifyError(reason)
        folder, _ = log_layout(self.root, self.settings())
        if not folder.is_dir():
            raise VerifyError(f"{self.root} is no store: neither commitlog nor dledger-*/data is in it")
        with SegmentFiles(folder) as log:
            if not log.starts and not any(path.is_file() for path, _ in log.strange):
                raise VerifyError(f"{folder} has no file of a log, and everything else is built from the log")

    # -- look ----------------------------------------------------------------------------------------------------------

    def look(self, progress: Progress | None = None) -> RepairPlan:
        """Checks the whole store. Raises VerifyError, OSError."""
        ends: dict[tuple[str, int], int] = {}
        folder = Path(self._overrides["storePathCommitLog"]) if "storePathCommitLog" in self._overrides else None
        report = verify(
            self.root,
            log_folder=folder,
            known=Known.of(self._overrides),
            progress=progress,
            queue_ends=ends,
            unfinished=self._restoring,
        )
        faults = table_faults(self.root)
        tables = {each.path: each.backup for each in faults if each.path.suffix == ".json"}
        note = self._note()
        plan = plan_of(report, tables, note, self._short_files())
        plan.unreadable = {each.path for each in faults if each.unreadable}
        plan.ends = ends
        for key, end in {} if note is None else note.queues.items():
            plan.ends[key] = max(plan.ends.get(key, 0), end)
        if not plan.member:
            plan.losses = self._losses(plan)
        return plan

    def _short_files(self) -> set[Path]:
        """Files of the log that are shorter than a segment."""
        settings = self.settings()
        folder, _ = log_layout(self.root, settings)
        size = settings.mappedFileSizeCommitLog
        with SegmentFiles(folder, size) as log:
            files = [path for path, _ in log.strange if segment_start(path.name) is not None and path.is_file()]
        return {path for path in files if path.stat().st_size < size}

    def _note(self) -> RepairNote | None:
        try:
            return RepairNote.decode((self.root / NOTE_NAME).read_bytes())
        except FileNotFoundError:
            return None

    def _losses(self, plan: RepairPlan) -> list[LogLoss]:
        settings = self.settings()
        folder, header_bytes = log_layout(self.root, settings)
        with SegmentFiles(folder, settings.mappedFileSizeCommitLog) as log:
            places = {finding.pos: finding.reason for finding in plan.log if finding.pos >= 0}
            for start in log.gaps:
                before = max(begin for begin in log.starts if begin < start) + log.segment_bytes
                places[before] = "a file of the log is missing"
            return [loss_of_cut(log, pos, reason, header_bytes) for pos, reason in sorted(places.items())]

    # -- run -----------------------------------------------------------------------------------------------------------

    def run(self, plan: RepairPlan, cut: int | None = None, progress: Progress | None = None) -> list[Finding]:
        """Carries out the plan and returns the actions. `cut`: also truncates the log at this byte, one of
        `plan.losses`.

        RepairError: nothing was changed. RecoveryError, DamageError, OSError: it was interrupted; run it again.
        """
        loss = None if cut is None else self._loss_at(plan, cut)
        if cut is None and not plan.useful:
            return []
        was_open = abort.was_aborted(self.root)
        self._door.keep_fs(self.root)
        abort.mark_open(self.root, self._door)
        self._write_note(plan, cutting=loss is not None)
        self._restore_tables(plan)
        if loss is not None:
            self._cut(loss)
            plan = self.look(progress)
        for path in () if plan.waits_for_peer else plan.short_files:
            self._extend(path)
        if plan.short_files and not plan.waits_for_peer:
            plan = self.look(progress)
        if not plan.waits_for_peer:
            self._write_note(plan)
            self._rebuild(plan, was_open, progress)
        self._remove(self.root / NOTE_NAME)
        self._close(plan, was_open)
        return self.findings.listed()

    def _end_of_log(self, pos: int) -> LogLoss:
        settings = self.settings()
        folder, header_bytes = log_layout(self.root, settings)
        with SegmentFiles(folder, settings.mappedFileSizeCommitLog) as log:
            return loss_of_cut(log, pos, "the log ends here", header_bytes)

    def _loss_at(self, plan: RepairPlan, cut: int) -> LogLoss:
        if plan.member:
            raise RepairError(
                "the log of a member of a group is not cut here: the group may count on what this member has "
                f"acknowledged. {MEMBER_ADVICE}"
            )
        for loss in plan.losses:
            if loss.pos == cut:
                return loss
        if cut == plan.report.end_pos:
            return self._end_of_log(cut)  # an earlier repair was killed in its cut
        places = ", ".join(str(loss.pos) for loss in plan.losses) or "none: the log has no damage"
        raise RepairError(f"the log is not damaged at byte {cut}, so it is not cut there; places to cut: {places}")

    def _restore_tables(self, plan: RepairPlan) -> None:
        for path, backup in plan.tables.items():
            if backup is None:
                continue
            content = backup.read_bytes()
            kept = JsonTable(self._door, path).set_aside(path).name
            replace_file(self._door, path, content)
            reason = f"its backup {backup.name} took its place; the damaged file is kept as {kept}"
            self.findings.add(FindingKind.REPAIRED, path, reason)

    def _extend(self, path: Path) -> None:
        size, start = self.settings().mappedFileSizeCommitLog, segment_start(path.name)
        had = path.stat().st_size
        if start is None or had >= size:
            return
        self._door.create(path, size, True)
        self._door.sync(path)
        reason = f"the file was {had} bytes long instead of {size}; zeros follow now"
        self.findings.add(FindingKind.REPAIRED, path, reason, offset=had, size=size - had, pos=start + had)

    def _cut(self, loss: LogLoss) -> None:
        for name in (PROGRESS_NAME, QUEUES_NAME):
            self._remove(self.root / name)
        settings = self.settings()
        folder, _ = log_layout(self.root, settings)
        with SegmentFiles(folder, settings.mappedFileSizeCommitLog) as log:
            starts, last = list(log.starts), log.start_of(loss.pos)
        for start in reversed([start for start in starts if start > loss.pos]):
            self._remove(folder / f"{start:020d}")
        if last is not None:
            path = folder / f"{last:020d}"
            zero_behind(self._door, path, loss.pos - last)
        path = folder / loss.file if last is not None else folder
        reason = f"from byte {loss.pos} of the log on, as asked for; {loss.records} sound records are gone"
        self.findings.add(FindingKind.CUT, path, reason, offset=loss.offset, size=loss.bytes, pos=loss.pos)

    def _write_note(self, plan: RepairPlan, *, cutting: bool = False) -> None:
        settings = self.settings()
        sizes = {name: str(getattr(settings, name)) for name in SIZES}
        note = RepairNote({key: 0 if cutting else plan.ends.get(key, 0) for key in plan.queues}, plan.index_from, sizes)
        replace_file(self._door, self.root / NOTE_NAME, note.encode())

    def _rebuild(self, plan: RepairPlan, was_open: bool, progress: Progress | None) -> None:
        root, settings, report = self.root, self.settings(), plan.report
        folder, header_bytes = log_layout(root, settings)
        dispatch = open_dispatch(self._door, root, folder, settings, header_bytes)
        committed = report.end_pos
        if plan.member:
            committed = min(committed_end(folder) or report.min_pos, report.end_pos)

        def on_progress(pos: int, end: int) -> None:
            if progress is not None:
                progress("rebuild", pos - report.min_pos, end - report.min_pos)

        self._remove(root / TIMERS / "state")  # it may reflect records that the log did not have, or no longer has
        found = recover(
            root,
            settings,
            dispatch,
            self._door,
            clean=not was_open,
            kept=KeptLog(report.end_pos, committed),
            on_progress=on_progress,
            findings=self.findings,
            suspects=_suspects(plan),
        )
        if "checkpoint" in report.damaged_files:
            self._remove(root / "checkpoint")
        if any(finding.file == SCRUB_NAME for finding in report.notes):
            self._remove(root / SCRUB_NAME)
        dispatch.write_out()
        for name in ("consumequeue", "consumequeue_ext", "index"):
            sync_files(self._door, root / name)
        sync_files(self._door, folder)
        save_derived(self._door, root, settings, dispatch, found.min_pos, report.last_store_timestamp_ms)

    def _close(self, plan: RepairPlan, was_open: bool) -> None:
        """The next start judges the bytes behind the log's end, so the store stays marked as open for it."""
        behind_end = any(TORN_TAIL in note.reason or LEFT_OVER in note.reason for note in plan.report.notes)
        if not was_open or not (plan.member or behind_end or plan.waits_for_peer):
            abort.mark_closed(self.root, self._door)

    def _remove(self, path: Path) -> None:
        if path.exists():
            self._door.remove(path)
            self._door.sync_dir(path.parent)


def _suspects(plan: RepairPlan) -> Suspects:
    queues = {
        (topic.encode(errors="surrogateescape"), queue): Suspect(reason, plan.ends.get((topic, queue), 0))
        for (topic, queue), reason in plan.queues.items()
    }
    return Suspects(queues, plan.index_from)


def summary_json(before: RepairPlan, done: list[Finding], after: RepairPlan | None) -> dict[str, Any]:
    """The output of `--json`. `after`: None if nothing was changed."""
    last = after or before
    return {
        "sound": last.report.sound,
        "before": before.report.to_json(),
        "rebuild": {
            "queues": [
                {"topic": topic, "queue": queue, "reason": why} for (topic, queue), why in before.queues.items()
            ],
            "indexFrom": before.index_from or None,
        },
        "tables": [
            {"file": str(path.relative_to(before.report.root)), "backup": None if backup is None else backup.name}
            for path, backup in before.tables.items()
        ],
        "cuts": [loss.to_json() for loss in last.losses],
        "done": [finding.to_json() for finding in done],
        "after": None if after is None else after.report.to_json(),
    }
