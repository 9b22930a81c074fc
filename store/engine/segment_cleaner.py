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
from tallystick.store.engine.cleaning import CleaningRules, DiskState, used_part
from tallystick.store.engine.segments import Segment
from tallystick.store.settings import StoreSettings

# The request of an administrator to delete now is valid for this number of calls of `run`, as in RocketMQ.
RUNS_WHEN_ASKED = 20

_logger = logging.getLogger("tallystick.store.engine.cleaning")


@dataclass(slots=True)
class CleanResult:
    """`deleted`: starts of the deleted segments. `error`: why it stopped before all chosen ones were deleted."""

    state: DiskState
    deleted: list[int] = field(default_factory=list)
    error: OSError | None = None


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
        self._rules = CleaningRules.of(settings)
        self._door = door
        self._before_delete = before_delete
        self._used = used
        self._pause = pause
        self._asked_runs = 0
        self._hanged_until_ms = 0

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
                *(("full", "refused") if self.state is DiskState.FULL else ("no longer full", "taken again")),
            )
        return self.state

    def run(self, *, now_ms: int, hour: int, keep_from: int) -> CleanResult:
        """Checks the disk usage and deletes segments. Blocks, also for the pauses between files.

        `now_ms`: the time for ages (`AgeClock`). `hour`: of the local day. `keep_from`: no byte at or behind this
        position of the log is deleted. Raises SegmentError if files of the log are wrong. The result contains an
        OSError: the deletion is retried after `redeleteHangedFileInterval`.
        """
        result = CleanResult(self.look())
        asked = self._asked_runs > 0
        self._asked_runs -= asked
        chosen = self._rules.choose(
            files.list_segments(self._settings.log_folder, self._settings.mappedFileSizeCommitLog),
            now_ms=now_ms,
            hour=hour,
            used=self._used_parts(),
            state=self.state,
            keep_from=keep_from,
            asked=asked,
        )
        # The clock may be set back meanwhile: never wait longer than the interval.
        if not 0 < self._hanged_until_ms - now_ms <= self._settings.redeleteHangedFileInterval:
            self._delete(chosen, now_ms, result)
        return result

    def _delete(self, chosen: list[Segment], now_ms: int, result: CleanResult) -> None:
        for number, segment in enumerate(chosen):
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
            _logger.info("deleted %s, last changed at %d ms", segment.path, segment.modified_ms)
            result.deleted.append(segment.start)

    def _used_parts(self) -> list[float | None]:
        return [self._used(self._settings.log_folder), self._used(self._settings.root)]
