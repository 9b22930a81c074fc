"""What follows from damage of the log: readers wait before it, and what is readable again is derived again.

Reads ── a record that a group repairs ──▶ wait_for ─┐
member ── these bytes are sound again ──▶ take_repaired ──▶ queues and index; the waiting readers try again
Upkeep ── twice a second ──▶ look ──▶ MediaWatch ──▶ findings, repairs by the group, index files again
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from tallystick.store._kernel import DamageError
from tallystick.store.findings import FindingKind

if TYPE_CHECKING:
    from tallystick.store._kernel import Dispatch
    from tallystick.store.engine.message_store import MessageStore

_logger = logging.getLogger("tallystick.store")


class LogRepair:
    """Owns the queues whose readers wait for a repair, and the tasks that derive repaired bytes again."""

    def __init__(self, store: MessageStore, dispatch: Dispatch) -> None:
        self._store = store
        self._dispatch = dispatch
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
        segment_bytes = self._store.settings.mappedFileSizeCommitLog
        for start in range(pos - pos % segment_bytes, end, segment_bytes):
            self._dispatch.forget_log_segment(start)
        task = asyncio.get_running_loop().create_task(self._derive_again(pos, end), name="derive-again")
        self._deriving.add(task)
        task.add_done_callback(self._deriving.discard)
        return task

    async def _derive_again(self, pos: int, end: int) -> None:
        store = self._store
        try:
            if store.admission.is_open and pos < self._dispatch.position:
                await store.threads.run_between_turns(lambda: store.queue_repair.derive_again(pos, end))
        except (OSError, DamageError) as error:
            _logger.error("queues cannot be compared with repaired bytes %d to %d of the log: %s", pos, end, error)
        store.dispatcher.advance(store.readable_end)
        waiting = list(self._waits_for_repair)
        self._waits_for_repair.clear()
        if waiting and store.dispatcher.on_arrival is not None:
            store.dispatcher.on_arrival(waiting)

    async def look(self) -> None:
        """Reports what reads could not get from the disk since the last call, and starts repairs where possible."""
        store = self._store
        if not store.media.is_due:
            return
        ranges, index = await store.threads.run_upkeep(store.media.look)
        if index:
            await store.threads.run_between_turns(store.dispatcher.index_again)
            store.dispatcher.advance(store.readable_end)
            store.findings.add(FindingKind.REBUILT, store.root / "index", "a page of it could not be read")
        for pos, end in ranges:
            store.media.tell(pos, end)
