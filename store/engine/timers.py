"""The pending timers of a store: messages of the timer topic that are not delivered yet.

    log --dispatched--> TimerIndex (kernel) --due--> the broker's timer service --delivery--> log

The log alone says what is pending: a message of the timer topic is, until the log has a record that names it in its
property TIMER_ORIGIN (its delivery, its recall, or its second copy). The index follows the dispatched end of the log on
every member of a group, and only the leader delivers. The files of the index, in `tally-timers`, spare a start from
reading the whole log; if they contradict the log, the index reads it from the oldest message of the timer topic on.

A store that RocketMQ 5 wrote has no such property. Its checkpoint says what it delivered (`delivered_by_rocketmq`); the
rest of its messages is delivered here.

The log keeps the segments of pending messages (`keep_from`). A message whose segment is to be deleted is stored again
before (`wanted_pos`), so one distant timer does not hold the log.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.store._kernel import DamageError, TimerIndex
from tallystick.store.findings import FindingKind

if TYPE_CHECKING:
    from tallystick.store._kernel import Dispatch, Door
    from tallystick.store.engine.threads import Threads
    from tallystick.store.finding_log import FindingLog
    from tallystick.store.settings import StoreSettings

_logger = logging.getLogger("tallystick.store.timers")

TOPIC = "rmq_sys_wheel_timer"
"""The topic of messages that wait for their time: RocketMQ 5's. They are in its queue 0."""
QUEUE_ID = 0
FOLDER = "tally-timers"
# A read up to this size executes on the event loop: it takes some 50 us.
INLINE_BYTES = 128 << 10
STEP_BYTES = 4 << 20
_UNUSED = {
    "damaged": (FindingKind.REBUILT, "a file of the index of timers was missing or damaged"),
    "other log": (FindingKind.MARK, "the log has other bytes than the index of timers had read"),
}
SAVE_S = 5.0
RETRY_S = 1.0


def delivered_by_rocketmq(root: Path) -> tuple[int, int]:
    """What RocketMQ 5 delivered from this store before: queue offset of the timer topic up to which its timer wheel
    has the messages, and the time (ms) up to which it delivered them; (0, 0) if it never had the store.

    Its checkpoint begins with four numbers: that time, a position of the wheel, that offset, the offset of a master.
    """
    try:
        data = (root / "config" / "timercheck").read_bytes()[:32]
    except FileNotFoundError:
        return 0, 0
    if len(data) < 32:
        return 0, 0
    time_ms, _, offset, _ = struct.unpack(">4q", data)
    return max(offset, 0), max(time_ms, 0)


class Timers:
    """Owns the index of one store, and the task that reads the log into it.

    `on_change()` is called on the event loop after the index changed.
    """

    def __init__(
        self,
        settings: StoreSettings,
        door: Door,
        dispatch: Dispatch,
        threads: Threads,
        findings: FindingLog,
        min_pos: Callable[[], int],
    ) -> None:
        """`min_pos`: where the log begins."""
        self._settings = settings
        self._findings = findings
        self._dispatch = dispatch
        self._executor = threads.timers
        self._min_pos = min_pos
        self.index = TimerIndex(
            door, settings.root / FOLDER, settings.timerPrecisionMs, delivered_by_rocketmq(settings.root)
        )
        self.on_change: Callable[[], None] = lambda: None
        self.wanted_pos = 0
        """Segments up to this position would be deleted if they had no pending messages."""
        self._wake = asyncio.Event()
        self._reached: list[tuple[int, asyncio.Future[None]]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._is_behind = True  # it reads a part of the log that others have read
        self._again = False  # ... from the begin of the timer topic on
        self._error = ""
        self._save_failed = False

    def open(self) -> None:
        """Loads the files, or begins to read the log, and reports it if files were there. Blocks. Raises OSError,
        DamageError: the log itself cannot be read."""
        try:
            unused = self.index.load(self._dispatch, self._dispatch.position)
        except (OSError, DamageError) as error:  # an unreadable file of the index; if it is the log, `_clear` raises
            unused = "damaged"
            _logger.error("the index of timers cannot be read: %s", error)
        if unused is None:
            return
        first, end = self._dispatch.offsets(TOPIC.encode(), QUEUE_ID)
        if unused in _UNUSED and end > first:
            kind, reason = _UNUSED[unused]
            self._findings.add(kind, self._settings.root / FOLDER, reason)
        self._clear()

    def start(self) -> None:
        """Begins to follow the log."""
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._follow(), name="read-timers"),
            loop.create_task(self._save_forever(), name="save-timers"),
        ]
        self._wake.set()

    async def stop(self) -> None:
        """Ends the tasks, and saves the index. Dispatch has ended."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for _, future in self._reached:
            future.cancel()
        await self._save()

    def dispatched(self) -> None:
        """The log was dispatched further."""
        # The usual case, of a store without timers, costs one call.
        if self._is_behind or self._reached or not self.index.skip(self._dispatch, self._dispatch.position):
            self._wake.set()

    def derived_again(self, pos: int) -> None:
        """Bytes of the log from `pos` on are readable again."""
        if pos < self.index.pos:
            self.read_again()

    def read_again(self) -> None:
        """Reads the log from the oldest message of the timer topic on: bytes of it were not readable before."""
        self._is_behind = self._again = True
        self._wake.set()

    def _clear(self) -> None:
        """Lets the index begin at the oldest message of the timer topic. Blocks while the index is saved."""
        first, end = self._dispatch.offsets(TOPIC.encode(), QUEUE_ID)
        units = self._dispatch.units(TOPIC.encode(), QUEUE_ID, first, 1) if end > first else []
        if units:
            # From the begin of the segment: what lies before the record depends on the layout.
            size = self._settings.mappedFileSizeCommitLog
            pos = max(units[0][0] - units[0][0] % size, self._min_pos())
        else:
            pos = self._dispatch.position
        self.index.clear(pos)

    @property
    def is_current(self) -> bool:
        """Whether the index was complete up to a position that was dispatched since it was opened or read again."""
        return not self._is_behind

    async def reached(self, pos: int) -> None:
        """Returns when the index reflects the log up to `pos`."""
        if self.index.pos >= pos and not self._is_behind:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reached.append((pos, future))
        self._wake.set()
        await future

    def take_before(self, end: int, most: int) -> tuple[list[tuple[int, int, int]], list[int]]:
        """See `TimerIndex.take_before`."""
        return self.index.take_before(self._dispatch, end, most)

    def keep_from(self) -> int:
        """No byte of the log at or behind this position may be deleted. Any thread."""
        if self._is_behind:
            return 0  # it is not known yet what pends
        first, end = self._dispatch.offsets(TOPIC.encode(), QUEUE_ID)
        pos = self.index.pos
        pending = self.index.first_pending()
        if pending is None:
            return pos
        if pending < first:
            lost = self.index.forget_below(first)
            _logger.error("%d messages that waited for their time are lost: their part of the log is gone", lost)
            return self.keep_from()
        units = self._dispatch.units(TOPIC.encode(), QUEUE_ID, pending, 1) if pending < end else []
        # A placeholder names no record.
        return min(units[0][0], pos) if units and units[0][0] > 0 else 0

    async def _follow(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._read()
            except (OSError, DamageError) as error:
                self._report(str(error))
                await asyncio.sleep(RETRY_S)
                self._wake.set()

    async def _read(self) -> None:
        while True:
            if self._again:
                await self._begin_again()
                continue
            before, end = self.index.pos, self._dispatch.position
            if end <= before:
                break
            pos, changed = await self._advance(end)
            if pos == before:
                self._report(f"the log cannot be read at byte {pos}")
                self._settle()
                return
            if changed and not self._is_behind:
                self.on_change()
        self._error = ""
        if self._is_behind:
            self._is_behind = False
            self.on_change()
        self._settle()

    async def _begin_again(self) -> None:
        self._again = False
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._clear)
        except BaseException:
            self._again = True
            raise

    async def _advance(self, end: int) -> tuple[int, bool]:
        if end - self.index.pos <= INLINE_BYTES:
            return self.index.advance(self._dispatch, end, INLINE_BYTES)
        loop = asyncio.get_running_loop()
        pos, changed = await loop.run_in_executor(self._executor, self.index.advance, self._dispatch, end, STEP_BYTES)
        if changed:
            await self._spill()
        return pos, changed

    def _settle(self) -> None:
        """Wakes those whose position is reached."""
        reached, self._reached = self._reached, []
        for pos, future in reached:
            if self.index.pos >= pos and not self._is_behind:
                if not future.done():
                    future.set_result(None)
            else:
                self._reached.append((pos, future))

    async def _spill(self) -> None:
        """On a full disk the entries stay in memory: the index must become complete all the same."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, self.index.spill)
        except OSError as error:
            if not self._save_failed:
                _logger.error("the index of timers cannot be written, its entries stay in memory: %s", error)
            self._save_failed = True

    def _report(self, error: str) -> None:
        if error != self._error:
            _logger.error("the index of timers cannot follow the log, retrying: %s", error)
        self._error = error

    async def _save_forever(self) -> None:
        while True:
            await asyncio.sleep(SAVE_S)
            await self._save()

    async def _save(self) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, self.index.save, self._dispatch)
        except (OSError, DamageError) as error:
            if not self._save_failed:
                _logger.error("the index of timers cannot be saved, retrying; a start reads more of the log: %s", error)
            self._save_failed = True
        else:
            self._save_failed = False
