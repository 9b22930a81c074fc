"""What follows from damage of the log: readers wait before it, and what is readable again is derived again.

Reads ── a record that a group repairs ──▶ wait_for ─┐
member ── these bytes are sound again ──▶ take_repaired ──▶ queues and index; the waiting readers try again
Upkeep ── twice a second ──▶ look ──▶ MediaWatch ──▶ findings, repairs by the group, index files again
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from tallystick.store._kernel import DamageError
from tallystick.store.findings import FindingKind

if TYPE_CHECKING:
    from tallystick.store._kernel import Dispatch
    from tallystick.store.engine.dispatcher import Dispatcher
    from tallystick.store.engine.durability import Durability
    from tallystick.store.engine.media import MediaWatch
    from tallystick.store.engine.queue_repair import QueueRepair
    from tallystick.store.engine.threads import Threads
    from tallystick.store.finding_log import FindingLog
    from tallystick.store.settings import StoreSettings

_logger = logging.getLogger("tallystick.store")


class LogRepair:
    """Owns the queues whose readers wait for a repair, and the tasks that derive repaired bytes again.

    `is_open`: whether the store is not being closed. `on_derived(pos)` is called when bytes from this position on were
    derived again.
    """

    def __init__(
        self,
        settings: StoreSettings,
        dispatch: Dispatch,
        dispatcher: Dispatcher,
        durability: Durability,
        threads: Threads,
        media: MediaWatch,
        findings: FindingLog,
        queue_repair: QueueRepair,
        is_open: Callable[[], bool],
    ) -> None:
        self._settings = settings
        self._dispatch = dispatch
        self._dispatcher = dispatcher
        self._durability = durability
        self._threads = threads
        self._media = media
        self._findings = findings
        self._queue_repair = queue_repair
        self._is_open = is_open
        self.on_derived: Callable[[int], None] = lambda pos: None
        self._waits_for_repair: set[tuple[str, int]] = set()
        self._deriving: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Waits until repaired bytes are derived."""
        await asyncio.gather(*self._deriving, return_exceptions=True)

    def wait_for(self, topic: str, queue_id: int) -> None:
        """Readers of this queue wait for a repair: reports an arrival in it after the next one."""
        self._waits_for_repair.add((topic, queue_id))

    def take_repaired(self, pos: int, end: int) -> Awaitable[None]:
        """The bytes [pos, end) of the log were damaged and are sound now: reads them from the disk again, and adds
        missing records to queues and index. The result is done afterwards; errors are reported."""
        segment_bytes = self._settings.mappedFileSizeCommitLog
        for start in range(pos - pos % segment_bytes, end, segment_bytes):
            self._dispatch.forget_log_segment(start)
        task = asyncio.get_running_loop().create_task(self._derive_again(pos, end), name="derive-again")
        self._deriving.add(task)
        task.add_done_callback(self._deriving.discard)
        return task

    async def _derive_again(self, pos: int, end: int) -> None:
        try:
            if self._is_open() and pos < self._dispatch.position:
                await self._threads.run_between_turns(lambda: self._queue_repair.derive_again(pos, end))
        except (OSError, DamageError) as error:
            _logger.error("queues cannot be compared with repaired bytes %d to %d of the log: %s", pos, end, error)
        self.on_derived(pos)
        self._dispatcher.advance(self._durability.readable_end)
        waiting = list(self._waits_for_repair)
        self._waits_for_repair.clear()
        if waiting and self._dispatcher.on_arrival is not None:
            self._dispatcher.on_arrival(waiting)

    async def look(self) -> None:
        """Reports what reads could not get from the disk since the last call, and starts repairs where possible."""
        if not self._media.is_due:
            return
        ranges, index = await self._threads.run_upkeep(self._media.look)
        if index:
            await self._threads.run_between_turns(self._dispatcher.index_again)
            self._dispatcher.advance(self._durability.readable_end)
            self._findings.add(FindingKind.REBUILT, self._settings.root / "index", "a page of it could not be read")
        for pos, end in ranges:
            self._media.tell(pos, end)
