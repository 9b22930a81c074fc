"""Finds where queues begin whose topics keep messages for a shorter time than the log, and lets them begin there.

The log keeps the records until their segments are deleted, and the ConsumeQueues keep their units as long: a queue that
begins later has fewer messages for readers, and the same files. Which queues, and what is recorded first, is decided by
the caller.

The search reads records of the log, so it runs on the thread of the upkeep, in turns: between two of them the thread
does other work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tallystick.store.clock import steady_ms

if TYPE_CHECKING:
    from tallystick.store._kernel import Dispatch, ExpiredEnd
    from tallystick.store.engine.threads import Threads

TURN_MS = 20
"""A turn takes no further queue after this time."""


class QueueCutoff(NamedTuple):
    """A queue, and the store time (ms) before which its messages have expired."""

    topic: str
    queue_id: int
    before_ms: int


class QueueBegin(NamedTuple):
    """A queue, its first offset, and the position of the last message before it."""

    topic: str
    queue_id: int
    offset: int
    last_pos: int


class Expiry:
    """The part of one store. All methods are called on the event loop."""

    def __init__(self, dispatch: Dispatch, threads: Threads, age_now_ms: Callable[[], int]) -> None:
        """`age_now_ms`: the time for ages (`AgeClock`); it is called on the thread of the upkeep."""
        self._dispatch = dispatch
        self._threads = threads
        self._age_now_ms = age_now_ms

    async def now_ms(self) -> int:
        """The time for ages: the wall clock, as far as it is believed."""
        return await self._threads.run_upkeep(self._age_now_ms)

    def extent(self, topic: str, queue_id: int) -> tuple[int, int]:
        """First offset of a queue, and the next one; (0, 0) if there is no such queue."""
        return self._dispatch.offsets(topic.encode(), queue_id)

    async def search(self, queues: Sequence[QueueCutoff]) -> list[ExpiredEnd]:
        """Where the expired messages of the first of these queues end: of as many as one turn takes, and of one at
        least. OSError, DamageError."""
        return await self._threads.run_upkeep(lambda: self._search(queues))

    def _search(self, queues: Sequence[QueueCutoff]) -> list[ExpiredEnd]:
        found: list[ExpiredEnd] = []
        begin_ms = steady_ms()
        for topic, queue_id, before_ms in queues:
            found.append(self._dispatch.expired_end(topic.encode(), queue_id, before_ms))
            if steady_ms() - begin_ms >= TURN_MS:
                break
        return found

    async def begin_at(self, begins: Sequence[QueueBegin]) -> list[bool]:
        """Lets the first of these queues begin there, as many as one turn takes; whether each does now. False: it has
        no such message there, or not yet. OSError, DamageError."""
        return await self._threads.run_upkeep(lambda: self._begin_at(begins))

    def begin_now(self, begin: QueueBegin) -> bool:
        """`begin_at` for one queue, on this thread. OSError, DamageError."""
        return self._dispatch.raise_floor(begin.topic.encode(), begin.queue_id, begin.offset, begin.last_pos)

    def _begin_at(self, begins: Sequence[QueueBegin]) -> list[bool]:
        done: list[bool] = []
        begin_ms = steady_ms()
        for begin in begins:
            done.append(self.begin_now(begin))
            if steady_ms() - begin_ms >= TURN_MS:
                break
        return done
