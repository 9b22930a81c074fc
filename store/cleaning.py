"""Which segments of the log go, and when: decisions over files, times and how full the disk is. Nothing is done here.

Segments go from the oldest on, so what is left is always one range; at most ten at a time; never the last one, and
never one that `keep_from` (a position: what is not yet flushed, dispatched or replicated) lies before or in.

* An expired segment (not changed for `fileReservedTime` hours) goes in the hours of `deleteWhen`, or when the disk is
  fuller than `diskMaxUsedSpaceRatio`, or when somebody asks. The times of files are those of a wall clock that may have
  been wrong when they were written: `changed` makes them agree with the order of the segments.
* Above `diskSpaceCleanForciblyRatio` the oldest go although they have not expired, if `cleanFileForciblyEnable`.
* Above `diskSpaceWarningLevelRatio` puts are refused too (FULL), until the disk is back at
  `diskSpaceCleanForciblyRatio`: the gap keeps a disk at the limit from flickering between the two.

The log and the queues may lie on two disks: the fuller one counts. (RocketMQ lets the second one it looks at win.)

Source: DefaultMessageStore.CleanCommitLogService and MappedFileQueue.deleteExpiredFileByTime of RocketMQ 4.8.0.
"""

from __future__ import annotations

import enum
import itertools
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tallystick.store.segments import Segment
from tallystick.store.settings import StoreSettings

MAX_FILES_A_RUN = 10
_HOUR_MS = 3_600_000


class DiskState(enum.IntEnum):
    """OK; CLEAN: segments go before they expire; FULL: and puts are refused. The larger is the worse."""

    OK = 0
    CLEAN = 1
    FULL = 2


@dataclass(frozen=True, slots=True)
class CleaningRules:
    """What of the settings decides, in the units of this module: ms, and parts of 1."""

    hours: frozenset[int]
    reserved_ms: int
    used_max: float
    used_clean: float
    used_full: float
    forcibly: bool

    @classmethod
    def of(cls, settings: StoreSettings) -> CleaningRules:
        return cls(
            hours=settings.delete_hours(),
            reserved_ms=settings.fileReservedTime * _HOUR_MS,
            used_max=min(max(settings.diskMaxUsedSpaceRatio, 10), 95) / 100,
            used_clean=settings.diskSpaceCleanForciblyRatio,
            used_full=settings.diskSpaceWarningLevelRatio,
            forcibly=settings.cleanFileForciblyEnable,
        )

    def disk_state(self, before: DiskState, used: Iterable[float | None]) -> DiskState:
        """The state after seeing the disks `used` that far (0 to 1; None: could not be found out, nothing changes)."""
        return max((self._one_disk(before, part) for part in used), default=before)

    def _one_disk(self, before: DiskState, used: float | None) -> DiskState:
        if used is None:
            return before
        if used > self.used_full:
            return DiskState.FULL
        if used > self.used_clean:
            return DiskState.FULL if before is DiskState.FULL else DiskState.CLEAN
        return DiskState.OK

    def is_due(self, hour: int, used: Iterable[float | None], asked: bool) -> bool:
        """Expired segments go now. `hour`: of the local day. A disk that cannot be asked counts as too full."""
        return asked or hour in self.hours or any(part is None or part > self.used_max for part in used)

    def choose(
        self,
        segments: Sequence[Segment],
        *,
        now_ms: int,
        hour: int,
        used: Sequence[float | None],
        state: DiskState,
        keep_from: int,
        asked: bool = False,
    ) -> list[Segment]:
        """The segments to delete now, in this order. `segments`: all of the log, ascending; `state`: as of now."""
        at_once = self.forcibly and state is not DiskState.OK
        if not at_once and not self.is_due(hour, used, asked):
            return []
        chosen: list[Segment] = []
        for segment, changed_ms in zip(segments[:-1], changed(segments, now_ms), strict=False):
            expired = now_ms >= changed_ms + self.reserved_ms
            if len(chosen) == MAX_FILES_A_RUN or segment.end > keep_from or not (expired or at_once):
                break
            chosen.append(segment)
        return chosen


def changed(segments: Sequence[Segment], now_ms: int) -> list[int]:
    """When each segment was last written, ms: never later than now, never before the segment in front of it.

    A segment is full before the next one begins. One with a time in the future was written while the clock was ahead:
    it takes the time of the next one behind it that can be believed, which is later than its own was. One with a time
    before that of the segment in front of it was written while the clock was behind: it is at least as young as that.
    """
    times = []
    later_ms = now_ms
    for segment in reversed(segments):
        if segment.modified_ms <= now_ms:
            later_ms = segment.modified_ms
        times.append(later_ms)
    times.reverse()
    return list(itertools.accumulate(times, max))


def used_part(folder: Path) -> float | None:
    """How full the disk under `folder` is for us, from 0 to 1, as `df` says; None: the system does not tell.

    Blocks kept for the superuser count as used: an ordinary process cannot have them.
    """
    try:
        disk = os.statvfs(folder)
    except OSError:
        return None
    used = disk.f_blocks - disk.f_bfree
    reachable = used + disk.f_bavail
    return used / reachable if reachable > 0 else None
