"""The periodic work of a store: it syncs derived files, saves the checkpoint and the progress mark, creates segments in
advance, deletes old ones, and watches the disk usage.

No message waits for this work. It blocks on the disk, so it runs on threads. `cleaning.py`, `flush.py` and
`progress.py` make the decisions, as functions of positions and times.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tallystick.store._kernel import DamageError
from tallystick.store.clock import elapsed_ms, steady_ms, wall_ms
from tallystick.store.engine import abort
from tallystick.store.engine.age_clock import PATIENCE_MS, AgeClock
from tallystick.store.engine.cleaning import DiskState, used_part
from tallystick.store.engine.dispatcher import REST
from tallystick.store.engine.flush import PageFlush
from tallystick.store.engine.inherited import sync_files
from tallystick.store.engine.recovery import Recovered, geometry_of
from tallystick.store.engine.segment_cleaner import SegmentCleaner
from tallystick.store.engine.segments import SegmentError, list_segments
from tallystick.store.engine.thorough_save import save_table, sync_derived
from tallystick.store.formats.checkpoint import StoreCheckpoint
from tallystick.store.formats.progress import FILE_NAME as PROGRESS_NAME
from tallystick.store.formats.progress import Point, ProgressKeeper
from tallystick.store.limited_log import RepeatedError

if TYPE_CHECKING:
    from tallystick.store._kernel import Dispatch, Door, Log
    from tallystick.store.engine.durability import Durability
    from tallystick.store.engine.pace import Pace
    from tallystick.store.engine.preallocation import Preallocator
    from tallystick.store.engine.threads import Threads
    from tallystick.store.engine.timers import Timers
    from tallystick.store.settings import StoreSettings

_logger = logging.getLogger("tallystick.store")

# A start reads what a replicated log received since the last mark, at most 300 MiB: a fraction of a second.
_MARK_INTERVAL_MS = 1000


@dataclass(frozen=True, slots=True)
class Chore:
    """Work of another part that is done periodically. `interval_ms()`: the pause before the next run."""

    name: str
    interval_ms: Callable[[], int]
    work: Callable[[], Awaitable[None]]


class Upkeep:
    """The timers of one store. Owns where the log begins, what is saved and synced of the derived files, and the state
    of the disk.

    `on_disk_checked`: called when the disk may have filled, or may have space again.
    """

    def __init__(
        self,
        settings: StoreSettings,
        door: Door,
        log: Log,
        dispatch: Dispatch,
        durability: Durability,
        threads: Threads,
        recovered: Recovered,
        preallocator: Preallocator,
        pace: Pace,
        on_disk_checked: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._root = settings.root
        self._door = door
        self._log = log
        self._dispatch = dispatch
        self._durability = durability
        self._threads = threads
        self._on_disk_checked = on_disk_checked
        self._pace = pace
        self._checkpoint_path = self._root / "checkpoint"
        self._checkpoint = StoreCheckpoint.load(self._checkpoint_path)
        self._progress = ProgressKeeper(door, self._root, geometry_of(settings), recovered.store_timestamp_ms)
        self._thorough = PageFlush(0, settings.flushConsumeQueueThoroughInterval, steady_ms())
        self._saved_pos = self._synced_pos = -1
        self._next_save_s = 0.0
        self._saving = asyncio.Lock()
        self._save_asked = False
        self._save_errors = self._errors_of("save-progress")
        self._inherits = not recovered.clean
        self._inheriting = threading.Lock()
        self._inherited_sync: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._preallocator = preallocator
        self._cleaner = SegmentCleaner(settings, door, before_delete=self._before_delete)
        self._age_clock = AgeClock(self._newest_time_ms(), wall_ms(), elapsed_ms())
        self._distrust = False
        self._opened_ms = steady_ms()
        self.timers: Timers | None = None
        """The messages that wait for their time: their segments stay."""
        self._timers_pos = 0  # how far the log was read to know which segments have none
        self.min_pos = recovered.min_pos
        """Position of the first byte of the log that is not deleted."""

    def settings_changed(self) -> None:
        """Flushes and cleans by the present settings from now on."""
        self._thorough.thorough_interval_ms = self._settings.flushConsumeQueueThoroughInterval
        self._cleaner.settings_changed()

    def start(self, chores: tuple[Chore, ...], background: dict[str, Coroutine[Any, Any, None]]) -> None:
        """Starts the timers, those of the chores included, and the work in the background, by its name."""
        loop = asyncio.get_running_loop()
        chores = (
            Chore("save-progress", lambda: self._settings.flushIntervalConsumeQueue, self.save),
            Chore("clean", lambda: self._settings.cleanResourceInterval, self.clean),
            *chores,
            *(Chore(name, lambda: _MARK_INTERVAL_MS, self._on_thread(work)) for name, work in self._durability.chores),
        )
        self._tasks = [loop.create_task(self._keep(chore), name=chore.name) for chore in chores]
        self._tasks += [loop.create_task(work, name=name) for name, work in background.items()]
        self._cleaner.look()
        self._tasks.append(loop.create_task(self._save_at_start(), name="save-at-start"))
        self._preallocator.reach(self._log.written)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._inherited_sync is not None:  # its thread does not end with the task that waits for it
            await asyncio.gather(self._inherited_sync, return_exceptions=True)
        await self._preallocator.stop()

    def save_soon(self) -> None:
        """Queues were removed: a mark that still counts them would be useless after a kill."""
        self._saved_pos = -1
        if self._save_asked:
            return  # a save that has not begun yet includes this removal
        self._save_asked = True
        task = asyncio.get_running_loop().create_task(self._save_once_more(), name="save-progress-now")
        self._tasks.append(task)
        task.add_done_callback(self._tasks.remove)

    async def _save_once_more(self) -> None:
        self._save_asked = False
        await self._save_errors.attempt(lambda: self.save(thorough=True))

    async def save_now(self) -> None:
        """Saves the removal of queues, so that it survives a kill. A failure is logged; the next save retries."""
        self._saved_pos, self._next_save_s = -1, 0.0
        await self._save_errors.attempt(self.save)

    async def _save_at_start(self) -> None:
        """Until a mark names a synced point, a power loss would make the next start read everything again."""
        try:
            await self.sync_inherited()
        except OSError as error:
            _logger.error("files of a store that was killed cannot be synced, retrying: %s", error)
        await self._save_errors.attempt(lambda: self.save(thorough=True))

    async def sync_inherited(self) -> None:
        """Syncs what a killed process left. It does not run on the thread for derived files: many queues take
        seconds. All callers wait for the same thread."""
        if not self._inherits:
            return
        if self._inherited_sync is None or self._inherited_sync.done():
            on_thread = asyncio.to_thread(self._sync_inherited)
            self._inherited_sync = asyncio.get_running_loop().create_task(on_thread, name="sync-inherited")
        await asyncio.shield(self._inherited_sync)

    def _sync_inherited(self) -> None:
        with self._inheriting:  # one walk over all files, and not another one beside it when the store is closed
            if not self._inherits:
                return
            sync_files(self._door, self._settings.log_folder)
            if not self._sync_queues_at_once():
                sync_files(self._door, self._root / "consumequeue")
            for name in ("consumequeue_ext", "index"):
                sync_files(self._door, self._root / name)
            self._door.sync_dir(str(self._root))
            self._inherits = False

    def _sync_queues_at_once(self) -> bool:
        """Syncs the file system of very many queues without a walk over their files. False: nothing was done."""
        files, is_one_file_system = self._dispatch.loaded_files()
        if files <= self._door.most_single_syncs or not is_one_file_system:
            return False
        if not self._door.sync_fs(str(self._root / "consumequeue")):
            return False
        self._door.sync(str(self._root / abort.FILE_NAME))  # any file: see `sync_fs`
        return True

    async def save(self, *, thorough: bool = False) -> None:
        """Writes queues and index to their files and saves the mark; a thorough save also syncs the files.

        The point is taken before the files are synced, so the mark never claims more than is durable. Only taking the
        point stops dispatch. With very many queues even this takes long; then saves are less frequent.
        """
        async with self._saving:
            now_s = time.monotonic()
            thorough = self._thorough.due(steady_ms(), self._dispatch.position, -1) or thorough
            if not thorough and (self._dispatch.position == self._saved_pos or now_s < self._next_save_s):
                return
            # Write what can be written while dispatch continues, to stop it for a shorter time.
            await self._threads.run_upkeep(self._dispatch.write_out)
            begin_s = time.monotonic()
            taken = await self._threads.run_between_turns(lambda: self._take(with_table=thorough))
            end_s = time.monotonic()
            self._next_save_s = end_s + REST * (end_s - begin_s)
            if taken is not None:
                await self._threads.run_upkeep(lambda: self._save(*taken, thorough))

    def _take(self, *, with_table: bool) -> tuple[Point, bytes] | None:
        """The point for a mark. None while the index is rebuilt: dispatch is behind the queues' ends then, and the next
        start would take their units for units of records behind the mark. The previous mark stays valid."""
        return None if self._dispatch.rebuilds_index else self._progress.take_with_table(self._dispatch, with_table)

    def _save(self, point: Point, rows: bytes, thorough: bool) -> None:
        if thorough:
            self._sync_inherited()
            self._log.sync()
            sync_derived(self._door, self._checkpoint_path, self._dispatch, self._checkpoint, point)
        self._progress.save(point, point if thorough else None)
        self._saved_pos = point.pos
        if thorough:
            self._save_table(point, rows)  # after the mark, so that the table never describes more of the log
            self._synced_pos = point.pos

    def _save_table(self, point: Point, rows: bytes) -> None:
        sizes = self.min_pos, self._settings.queue_segment_bytes
        save_table(self._door, self._root, self._dispatch, point, rows, sizes)

    def _on_thread(self, work: Callable[[], None]) -> Callable[[], Awaitable[None]]:
        return lambda: self._threads.run_upkeep(work)

    def delete_expired_soon(self) -> None:
        """Deletes expired segments in the next runs of the cleaner, at any hour."""
        self._cleaner.ask()

    async def clean(self) -> None:
        """Checks the disk, and deletes old segments of the log and the units and entries that refer to them."""
        state = await self._threads.run_upkeep(self._cleaner.look)
        self._on_disk_checked()  # the disk may have filled, or have room again
        failed: OSError | None = None
        if state is not DiskState.OK:
            try:
                await self.save(thorough=True)  # the segments to delete may be young
            except OSError as error:  # perhaps the disk is full: the previous save still allows deletions
                failed = error
        deleted = await self._threads.run_upkeep(self._clean)
        if failed is not None:
            raise failed
        if deleted:
            await self.save(thorough=True)  # the table of queues' ends must not refer to deleted files

    def _clean(self) -> bool:
        timers = self.timers
        timers_from = None
        if timers is not None:
            timers_from, self._timers_pos = timers.keep_from(), timers.index.pos
        result = self._cleaner.run(
            now_ms=self.age_now_ms(),
            hour=time.localtime().tm_hour,
            open_s=(steady_ms() - self._opened_ms) / 1000,
            # A queue whose entries are lost with the power is made again from the log: not from what is deleted, and
            # what comes behind a gap would get the offsets of what was there.
            keep_from=min(
                self._log.flushed,
                self._synced_pos,
                self._durability.keep_from(),
            ),
            timers_from=timers_from,
        )
        if timers is not None:
            timers.wanted_pos = result.wanted_pos
        if result.deleted:
            self._dispatch.correct_min_offsets(self.min_pos)
            self._dispatch.delete_below(self.min_pos)
        return bool(result.deleted)

    def _newest_time_ms(self) -> int:
        """When the previous process was last alive, according to the files; 0 if unknown."""
        times = [
            segment.modified_ms
            for segment in list_segments(self._settings.log_folder, self._settings.mappedFileSizeCommitLog)
        ]
        for path in (self._checkpoint_path, self._root / PROGRESS_NAME):
            with contextlib.suppress(OSError):
                times.append(path.stat().st_mtime_ns // 1_000_000)
        now_ms = wall_ms()
        return max((time_ms for time_ms in times if time_ms <= now_ms), default=0)

    def age_now_ms(self) -> int:
        """The current time for ages of segments and messages. Logs once when it differs from the wall clock. Call it on
        the thread of the upkeep."""
        now_ms = self._age_clock.now_ms(wall_ms(), elapsed_ms())
        held_back_ms = self._age_clock.held_back_ms
        if bool(held_back_ms) is not self._distrust:
            self._distrust = bool(held_back_ms)
            if self._distrust:
                _logger.warning(
                    "the wall clock is unexpectedly %.1f h ahead: no segment is deleted and no message expires because"
                    " of its age until the clock is set back, or until the difference has lasted for %d h",
                    held_back_ms / 3_600_000,
                    PATIENCE_MS // 3_600_000,
                )
            else:
                _logger.info("the wall clock is accepted again for ages of segments and messages")
        return now_ms

    def _before_delete(self, start: int) -> None:
        if self.timers is not None and self._log.flushed < self._timers_pos:
            self._log.sync()  # what ended the timers of this segment must not be lost with the power
        self._preallocator.deleting(start)
        self._durability.release_before(start + self._settings.mappedFileSizeCommitLog)
        # From here on nothing reads the segment. Queues are updated when all chosen segments are deleted.
        self.min_pos = start + self._settings.mappedFileSizeCommitLog
        self._dispatch.forget_log_segment(start)

    def finish(self, orderly: bool) -> None:
        """Makes the last save, and removes `abort` after a clean shutdown. Blocks. Nothing is written afterwards."""
        try:
            taken = self._take(with_table=True)
            if taken is not None:
                self._save(*taken, thorough=True)
            self._preallocator.remove_unused(self._log.written)
            self._durability.close(orderly and taken is not None)
        except (OSError, SegmentError, DamageError) as error:
            _logger.error("the store was not closed cleanly, the next start recovers it: %s", error)
            return
        if orderly and self._dispatch.position >= self._durability.readable_end:
            try:
                abort.mark_closed(self._root, self._door)
            except OSError as error:
                _logger.error("the mark of an open store could not be removed, the next start recovers it: %s", error)

    async def _keep(self, chore: Chore) -> None:
        errors = self._errors_of(chore.name)
        while True:
            await self._pace.pause(chore.interval_ms())
            await errors.attempt(chore.work)
            self._on_disk_checked()  # the disk may have filled, or have room again

    @staticmethod
    def _errors_of(name: str) -> RepeatedError:
        message = f"periodic work of the store ({name}) failed, retrying"
        return RepeatedError(_logger, message, (OSError, SegmentError, DamageError))

    # -- disk ----------------------------------------------------------------------------------------------------------

    @property
    def disk_ratio(self) -> float:
        """The usage of the fuller disk of the store, 0 to 1; -1 if unknown."""
        parts = (used_part(self._settings.log_folder), used_part(self._root))
        return max((part for part in parts if part is not None), default=-1.0)

    @property
    def segments_deleted_early(self) -> int:
        """Segments of the log that were deleted before they expired, because the disk was too full."""
        return self._cleaner.deleted_early

    @property
    def free_bytes(self) -> int:
        """Free bytes on the disk of the log."""
        stat = os.statvfs(self._settings.log_folder)
        return stat.f_bavail * stat.f_frsize

    def refusal(self) -> str | None:
        """Why puts are refused because of the disk usage; None if they are not."""
        if self._cleaner.state is not DiskState.FULL:
            return None
        limit = self._settings.diskSpaceWarningLevelRatio
        return f"the disk is {self.disk_ratio:.1%} full, and the limit is {limit:.0%} (diskSpaceWarningLevelRatio)"
