"""Deletes the log's old segments and watches the disk usage. `cleaning.py` makes the decisions.

`run` is called every `cleanResourceInterval`, on a thread that may wait for the disk; times are arguments. The caller
updates queues and index according to the result.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tallystick.store._kernel import Door
from tallystick.store.engine import segments as files
from tallystick.store.engine.cleaning import GRACE_S, Choice, CleaningRules, DiskState, used_part
from tallystick.store.engine.segments import Segment
from tallystick.store.settings import StoreSettings

# The request of an administrator to delete now is valid for this number of calls of `run`, as in RocketMQ.
RUNS_WHEN_ASKED = 20

_logger = logging.getLogger("tallystick.store")


@dataclass(slots=True)
class CleanResult:
    """`deleted`: starts of the deleted segments. `error`: why it stopped before all chosen ones were deleted."""

    state: DiskState
    deleted: list[int] = field(default_factory=list)
    error: OSError | None = None
    wanted_pos: int = 0
    """End of the segments that are kept only because messages in them wait for their time; 0: there are none."""


class SegmentCleaner:
    """The cleaner of one store. `state`: as of the last call; any thread may read it. Call methods from one thread at a
    time.

    `before_delete` gets each segment's start just before its deletion (to release maps). `used` returns the usage of
    the disk with a folder, from 0 to 1, None if unknown.
    """

    def __init__(
        self,
        settings: StoreSettings,
        door: Door,
        *,
        before_delete: Callable[[int], None] = lambda start: None,
        used: Callable[..., float | None] = used_part,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.state = DiskState.OK
        self._settings = settings
        self.settings_changed()
        self._door = door
        self._before_delete = before_delete
        self._used = used
        self._pause = pause
        self._asked_runs = 0
        self._hanged_until_ms = 0
        self.deleted_early = 0
        """Segments that were deleted before they expired, since the start."""

    def settings_changed(self) -> None:
        """Decides by the present settings from now on. A run in progress takes all of them or none."""
        self._rules = CleaningRules.of(self._settings)

    def ask(self) -> None:
        """Deletes expired segments in the next calls of `run`, at any hour."""
        self._asked_runs = RUNS_WHEN_ASKED

    def look(self) -> DiskState:
        """Only checks the disk usage: cheap, and enough to refuse puts or accept them again."""
        before = self.state
        self.state = self._rules.disk_state(before, self._used_parts())
        if (before is DiskState.FULL) != (self.state is DiskState.FULL):
            _logger.warning(
                "the disk is %s: puts are %s",
                *(("full", "refused") if self.state is DiskState.FULL else ("no longer full", "accepted again")),
            )
        return self.state

    def run(
        self, *, now_ms: int, hour: int, keep_from: int, timers_from: int | None = None, open_s: float = GRACE_S
    ) -> CleanResult:
        """Checks the disk usage and deletes segments. Blocks, also for the pauses between files.

        `now_ms`: the time for ages (`AgeClock`). `hour`: of the local day. `keep_from`: no byte at or behind this
        position of the log is deleted. `timers_from`: as `keep_from`, because messages wait for their time there: the
        result says which segments would be deleted otherwise. `open_s`: how long the store has been open. Raises
        SegmentError if files of the log are wrong. The result contains an OSError: the deletion is retried after
        `redeleteHangedFileInterval`.
        """
        result = CleanResult(self.look())
        rules = self._rules
        asked = self._asked_runs > 0
        self._asked_runs -= asked
        chosen = rules.choose(
            files.list_segments(self._settings.log_folder, self._settings.mappedFileSizeCommitLog),
            now_ms=now_ms,
            hour=hour,
            used=self._used_parts(),
            state=self.state,
            keep_from=keep_from,
            asked=asked,
            may_force=open_s >= GRACE_S,
        )
        if timers_from is not None:
            result.wanted_pos = max((each.segment.end for each in chosen if each.segment.end > timers_from), default=0)
            chosen = [each for each in chosen if each.segment.end <= timers_from]
        # The clock may be set back meanwhile: never wait longer than the interval.
        if not 0 < self._hanged_until_ms - now_ms <= self._settings.redeleteHangedFileInterval:
            self._delete(chosen, now_ms, result)
        return result

    def _delete(self, chosen: list[Choice], now_ms: int, result: CleanResult) -> None:
        for number, (segment, expired) in enumerate(chosen):
            if number:
                self._pause(self._settings.deleteCommitLogFilesInterval / 1000)
            self._before_delete(segment.start)
            try:
                files.delete(self._door, segment)
            except OSError as error:
                _logger.error("an old segment cannot be deleted: %s", error)
                self._hanged_until_ms = now_ms + self._settings.redeleteHangedFileInterval
                result.error = error
                return
            self._report(segment, expired, now_ms)
            result.deleted.append(segment.start)

    def _report(self, segment: Segment, expired: bool, now_ms: int) -> None:
        age_h = (now_ms - segment.modified_ms) / 3_600_000
        if expired:
            _logger.info("deleted %s, last changed %.1f h ago", segment.path, age_h)
            return
        self.deleted_early += 1
        used = max((part for part in self._used_parts() if part is not None), default=0.0)
        _logger.warning(
            "deleted %s before its time: it changed %.1f h ago, and fileReservedTime is %d h. The disk is %.1f%% full"
            " now, and the limit is %.1f%% (diskSpaceCleanForciblyRatio). Consumers that had not read it lose messages",
            segment.path,
            age_h,
            self._settings.fileReservedTime,
            100 * used,
            100 * self._settings.diskSpaceCleanForciblyRatio,
        )

    def _used_parts(self) -> list[float | None]:
        return [self._used(self._settings.log_folder), self._used(self._settings.root)]
