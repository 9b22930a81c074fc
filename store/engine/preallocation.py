"""Creates the log's next segments in advance, so that no put waits until a gigabyte is reserved.

Two segments are kept ready, as in RocketMQ's AllocateMappedFileService. On a small disk this would be a large part of
it: RocketMQ's files have holes, these have their blocks. There the next segment is created only when the log is in the
second half of the one before it. If the creation fails, the segment is created when the log reaches it; only then a
failure affects puts. With `warmMapedFileEnable` every page of a new segment is touched, and the segment is locked in
memory if the system allows it. Unused segments are deleted when the store is closed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from typing import TYPE_CHECKING

from tallystick.store.engine import segments
from tallystick.store.formats.segment_files import segment_name
from tallystick.store.settings import FlushDiskType

if TYPE_CHECKING:
    from tallystick.store._kernel import Door
    from tallystick.store.settings import StoreSettings

_logger = logging.getLogger("tallystick.store")

AHEAD = 2
# Segments that are created in advance must not fill the disk: there must be room for this many more.
_SPARE = 1
# With less free space than this many segments, a disk counts as small.
SMALL_DISK = 32


class Preallocator:
    """Keeps `AHEAD` segments ready behind the current one."""

    def __init__(self, door: Door, settings: StoreSettings, end_pos: int) -> None:
        self._door = door
        self._folder = settings.log_folder
        self._segment_bytes = settings.mappedFileSizeCommitLog
        self._tried_up_to = -1
        self._again_at = -1  # on a small disk: the next segment is created when the log gets there
        self._written = end_pos
        self._creating = threading.Lock()
        self._deleted_end = 0  # end of the newest segment that was deleted
        self._task: asyncio.Task[None] | None = None
        self._stopped = False
        self._settings = settings
        self._warm: list[segments.WarmSegment] = []

    def reach(self, written: int) -> None:
        """The log is written up to here."""
        self._written = written
        first = -(-written // self._segment_bytes) * self._segment_bytes
        due = first > self._tried_up_to or written >= self._again_at >= 0
        if due and self._task is None and not self._stopped:
            self._again_at = -1
            self._task = asyncio.get_running_loop().create_task(self._make(first), name="preallocate")

    def deleting(self, start: int) -> None:
        """The segment that begins at `start` is deleted now, and so are all before it: they are never created again.
        Any thread. It waits while a segment is being created.

        A creation can begin late, after the log has created, filled and left the segment itself. A new file of zeros
        would then be the log's first segment at the next start.
        """
        with self._creating:
            self._deleted_end = max(self._deleted_end, start + self._segment_bytes)

    async def stop(self) -> None:
        """Waits for the segment that is being created."""
        self._stopped = True
        if self._task is not None:
            await self._task
        for warm in self._warm:
            warm.close()
        self._warm.clear()

    def remove_unused(self, written: int) -> None:
        """Deletes the segments behind the written end. Raises OSError."""
        start = written - written % self._segment_bytes + self._segment_bytes
        if written % self._segment_bytes == 0:
            start -= self._segment_bytes
        # Delete the last one first, each durably: a power loss must not leave a gap, or the store could not be opened.
        for path in sorted(self._folder.iterdir(), reverse=True):
            if path.name.isdigit() and int(path.name) >= start:
                self._door.remove(str(path))
                self._door.sync_dir(str(self._folder))

    async def _make(self, first: int) -> None:
        try:
            await asyncio.to_thread(self._make_files, first)
        except OSError as error:
            _logger.warning("could not create a segment in advance: %s", error)
        finally:
            # Also after a failure: the next attempt follows with the next segment, not with the next message.
            self._tried_up_to = first
            self._task = None
        self.reach(self._written)

    def _make_files(self, first: int) -> None:
        settings = self._settings
        # Always begin with the log's next segment. To skip one that failed before would leave a gap until the log gets
        # there, and a store that is killed meanwhile could not be opened.
        for start in range(first, first + AHEAD * self._segment_bytes, self._segment_bytes):
            stat = os.statvfs(self._folder)
            free = stat.f_bavail * stat.f_frsize
            if free < (1 + _SPARE) * self._segment_bytes:
                return
            half = start - self._segment_bytes // 2
            if free < SMALL_DISK * self._segment_bytes and self._written < half:
                self._again_at = half
                return
            with self._creating:
                if start < self._deleted_end:
                    continue
                made = segments.prepare(self._door, self._folder, start, self._segment_bytes)
            if made and settings.warmMapedFileEnable:
                warm = segments.WarmSegment(self._folder / segment_name(start))
                by_pages = settings.flushDiskType is FlushDiskType.SYNC_FLUSH
                warm.warm(self._door, sync_pages=settings.flushLeastPagesWhenWarmMapedFile if by_pages else 0)
                warm.lock()
                self._warm.append(warm)
        # A full segment does not need to stay in memory.
        while len(self._warm) > AHEAD + 1:
            self._warm.pop(0).close()
