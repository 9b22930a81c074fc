"""Decides which segments of the log to delete, and when, from files, times and disk usage. It deletes nothing itself.

The oldest segments are deleted first, so the rest is always one range; at most ten at a time. The last segment is never
deleted, nor is a segment that ends behind the position `keep_from`, where unflushed, undispatched or unreplicated data
begins.

* An expired segment (not changed for `fileReservedTime` hours) is deleted in the hours of `deleteWhen`, or when the
  disk is fuller than `diskMaxUsedSpaceRatio`, or on request. Modification times come from a wall clock that may have
  been wrong: `changed` makes them agree with the order of the segments.
* Above `diskSpaceCleanForciblyRatio` the oldest segments are deleted even if they have not expired, if
  `cleanFileForciblyEnable` is set. In the first minute after a start this does not happen: an operator who starts a
  broker on a disk that is too full can still stop it.
* Above `diskSpaceWarningLevelRatio` puts are refused as well (FULL), until the usage is back at
  `diskSpaceCleanForciblyRatio`. The distance between the two limits prevents frequent changes of the state.

If log and queues are on two disks, the fuller one counts. (In RocketMQ the one that is checked last counts.)

Source: DefaultMessageStore.CleanCommitLogService and MappedFileQueue.deleteExpiredFileByTime of RocketMQ 4.8.0.
"""

from __future__ import annotations

import enum
import itertools
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tallystick.store.engine.segments import Segment
from tallystick.store.settings import StoreSettings

MAX_FILES_A_RUN = 10
_HOUR_MS = 3_600_000


GRACE_S = 60.0
"""Time after a start in which only expired segments are deleted. RocketMQ deletes nothing in this time."""


class DiskState(enum.IntEnum):
    """OK; CLEAN: segments are deleted before they expire; FULL: puts are refused as well. A larger value is worse."""

    OK = 0
    CLEAN = 1
    FULL = 2


class Choice(NamedTuple):
    """A segment to delete."""

    segment: Segment
    expired: bool
    """False: it is deleted before `fileReservedTime`, to make room on the disk."""


@dataclass(frozen=True, slots=True)
class CleaningRules:
    """The settings for the decisions, in the units of this module: ms, and ratios from 0 to 1."""

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
        """The next state for the usage `used` of the disks (0 to 1; None: unknown, the state does not change)."""
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
        """Whether to delete expired segments now. `hour`: of the local day. A disk with unknown usage counts as too
        full."""
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
        may_force: bool = True,
    ) -> list[Choice]:
        """The segments to delete now, in this order. `segments`: all segments, ascending; `state`: the current
        state; `may_force`: the store has been open for longer than `GRACE_S`."""
        at_once = self.forcibly and may_force and state is not DiskState.OK
        if not at_once and not self.is_due(hour, used, asked):
            return []
        chosen: list[Choice] = []
        for segment, changed_ms in zip(segments[:-1], changed(segments, now_ms), strict=False):
            expired = now_ms >= changed_ms + self.reserved_ms
            if len(chosen) == MAX_FILES_A_RUN or segment.end > keep_from or not (expired or at_once):
                break
            chosen.append(Choice(segment, expired))
        return chosen


def changed(segments: Sequence[Segment], now_ms: int) -> list[int]:
    """When each segment was last written (ms): never later than now, and never before its predecessor.

    A segment is full before the next one begins. A segment with a time in the future was written while the clock was
    ahead: it gets the time of the next segment with a valid time, which is later than its real one. A segment with a
    time before that of its predecessor was written while the clock was behind: it gets the predecessor's time.
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
    """The usage of the disk with `folder`, from 0 to 1, as `df` shows it; None if the system does not tell.

    Blocks that are reserved for the superuser count neither as used nor as free.
    """
    try:
        disk = os.statvfs(folder)
    except OSError:
        return None
    used = disk.f_blocks - disk.f_bfree
    reachable = used + disk.f_bavail
    return used / reachable if reachable > 0 else None
