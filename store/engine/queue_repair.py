"""Repairs ConsumeQueues while the store is in use: compares what a reader or a scrub found wrong with the log.

    pull ── a unit or record that is wrong ──▶ look_at ──▶ the kernel reads the log between the sound units around it
    scrub ─ check_range ── records that no queue names ──┘        └──▶ units written again, in their place

A reader does not skip a wrong unit before it was compared with the log: the record may be sound. The comparison mostly
reads a few kilobytes of the log; it runs at once, and the reader gets the message. A longer one runs on a thread, and
the reader gets nothing at that offset until it has finished. Messages that are lost in the log itself are skipped from
then on.

Findings: DAMAGE for the wrong units, REBUILT for units that were written again. Damage of the log itself is reported
by `media`, and only when the log was compared: a unit that leads to a wrong place says nothing about the log.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from tallystick.store._kernel import DamageError
from tallystick.store.findings import FindingKind
from tallystick.store.formats.queue_format import UNIT
from tallystick.store.limited_log import LimitedLog

if TYPE_CHECKING:
    from tallystick.store._kernel import AuditResult, Dispatch
    from tallystick.store.engine.dispatcher import Dispatcher
    from tallystick.store.engine.media import MediaWatch
    from tallystick.store.finding_log import FindingLog
    from tallystick.store.settings import StoreSettings

_INLINE_BYTES = 4 << 20
"""A comparison reads at most so much of the log on the event loop: some milliseconds, once per wrong place."""
_EVERYTHING = 1 << 62
_RUN_BYTES = 64 << 20

_logger = logging.getLogger("tallystick.store")


class QueueRepair:
    """Repairs the queues of a store. `look_at` runs on the event loop, `check_range` and `repair` run on any thread.

    `min_pos`: returns the position of the first byte of the log that is not deleted.
    """

    def __init__(
        self,
        settings: StoreSettings,
        dispatch: Dispatch,
        dispatcher: Dispatcher,
        media: MediaWatch,
        findings: FindingLog,
        min_pos: Callable[[], int],
    ) -> None:
        self._queues = settings.root / "consumequeue"
        self._segment_bytes = settings.queue_segment_bytes
        self._dispatch = dispatch
        self._dispatcher = dispatcher
        self._media = media
        self._findings = findings
        self._min_pos = min_pos
        self._log = LimitedLog(_logger, time.monotonic)
        self._tasks: dict[tuple[bytes, int], asyncio.Task[None]] = {}
        self._going_back = self._closing = False

    async def close(self) -> None:
        """Ends comparisons soon, whatever they still have to read. The next reader finds again what they leave."""
        self._closing = True
        self._dispatch.end_checks()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def look_at(self, topic: bytes, queue: int, offset: int) -> bool:
        """A reader found a wrong unit or record. Returns whether it should retry at once; if not, a thread compares
        it."""
        if (topic, queue) in self._tasks:
            return False
        try:
            lost = self._repair(topic, queue, offset, _INLINE_BYTES)
            if lost is not None:
                self._tell_lost(lost)
                return True
        except (OSError, DamageError) as error:
            self._tell(topic, queue, error)
            return True  # a reader skips what cannot be compared
        task = asyncio.get_running_loop().create_task(self._repair_later(topic, queue, offset), name="repair-queue")
        self._tasks[topic, queue] = task
        task.add_done_callback(lambda _: self._tasks.pop((topic, queue), None))
        return False

    async def _repair_later(self, topic: bytes, queue: int, offset: int) -> None:
        try:
            lost = await asyncio.to_thread(self._repair, topic, queue, offset, _EVERYTHING)
        except (OSError, DamageError) as error:
            self._tell(topic, queue, error)
            return
        self._tell_lost(lost or [])
        if self._closing:
            return
        if self._dispatcher.on_arrival is not None:
            self._dispatcher.on_arrival([(topic.decode(), queue)])  # the waiting pulls retry

    def _tell(self, topic: bytes, queue: int, error: Exception) -> None:
        name = topic.decode(errors="replace")
        self._log.warning("compare", "cannot compare ConsumeQueue %s/%d with the log: %s", name, queue, error)

    def _tell_lost(self, lost: list[tuple[int, int, str]]) -> None:
        """Reports damage of the log that no unit refers to: no read would find it."""
        for pos, size, _ in lost:
            self._media.met(pos, size)

    def repair(self, topic: bytes, queue: int, offset: int, max_bytes: int = _EVERYTHING) -> bool:
        """Compares the unit at `offset`, and wrong ones around it, with the log, and writes them again. Blocks.

        Returns False if nothing was done: the queue has no such offset, or the comparison needs more than `max_bytes`
        of the log. Raises OSError, DamageError.
        """
        return self._repair(topic, queue, offset, max_bytes) is not None

    def _repair(self, topic: bytes, queue: int, offset: int, max_bytes: int) -> list[tuple[int, int, str]] | None:
        """Like `repair`: None for False, otherwise damage of the log (pos, size, reason) that placeholders replace
        now."""
        if self._going_back:
            return None
        found = self._dispatch.repair(topic, queue, offset, self._min_pos(), max_bytes)
        if found is None:
            return [] if self._closing else None
        first, last, written, blank, damage = found
        name = topic.decode(errors="surrogateescape")
        start = first * UNIT.size // self._segment_bytes * self._segment_bytes
        path = self._queues / name / str(queue) / f"{start:020d}"
        place = {"offset": first * UNIT.size - start, "size": (last - first + 1) * UNIT.size}
        if written > blank:
            reason = f"units {first} to {last} did not name their records in the log"
            self._findings.add(FindingKind.DAMAGE, path, reason, **place)
            self._findings.add(FindingKind.REBUILT, path, f"{written} of the units {first} to {last}", **place)
        if blank:
            lost = f"{blank} of the messages at offsets {first} to {last} are no longer in the log"
            self._findings.add(FindingKind.DAMAGE, path, lost, **place)
        return damage if blank else []

    def derive_again(self, first: int, end: int) -> None:
        """Adds missing records of the bytes [first, end) of the log, which are readable again, to queues and index.

        Blocks; nothing may be dispatched meanwhile. `first`: where an entry begins. Raises OSError, DamageError.
        """
        upto = min(end, self._dispatch.position)
        pos, lacked = first, 0
        while pos < upto:
            found = self._dispatch.audit(pos, upto, _INLINE_BYTES)
            lacked += len(found.wrong)
            for topic, queue, offset, at, _ in found.wrong:
                self._dispatch.begin_earlier(topic, queue, offset, at)
                self.repair(topic, queue, offset)
            if found.pos <= pos:
                break
            pos = found.pos
        # A queue may have had the units before the damage, while the index was rebuilt during it.
        not_indexed = self._dispatch.count_not_indexed(first, upto)
        if not lacked and not not_indexed:
            return
        # The position goes back so that the index is rebuilt. Until it has returned, units behind it would look
        # wrong to `repair`.
        self._going_back, reached = True, self._dispatch.position
        try:
            self._dispatch.redo(first, upto, True)
            while (pos := self._dispatch.position) < reached:
                if self._dispatch.run(reached, _RUN_BYTES).pos == pos:
                    break
        finally:
            self._going_back = False
        name = (
            f"records at bytes {first} to {upto} of the log, which were repaired: {lacked} of them were in no queue, "
            f"{not_indexed} not in the index"
        )
        self._findings.add(
            FindingKind.REBUILT, self._queues if lacked else self._queues.parent / "index", name, pos=first
        )

    def check_range(self, first: int, upto: int, max_bytes: int) -> AuditResult:
        """Compares about `max_bytes` of records from byte `first` of the log on, below `upto`, with their queues, and
        checks their CRCs. Blocks. `first`: where a segment begins, or `pos` of the previous result.

        The result lists damage of the log, which the caller reports. A wrong unit is repaired here if the queue has the
        offset. Otherwise (the queue lacks its end or its folder) it is reported, and the next start builds the queue
        again. Raises OSError, DamageError.
        """
        found = self._dispatch.audit(first, min(upto, self._dispatch.position), max_bytes)
        for topic, queue, offset, pos, reason in found.wrong:
            if not self.repair(topic, queue, offset):
                path = self._queues / topic.decode(errors="surrogateescape") / str(queue)
                text = f"{reason} at byte {pos} of the log, with queue offset {offset}"
                self._findings.add(FindingKind.DAMAGE, path, text)
        return found
