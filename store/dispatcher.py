"""Carries what is written in the log on to ConsumeQueues and index, and tells who waits that a queue grew.

RocketMQ's ReputMessageService turns each millisecond; so does this, but only while something is behind: the first
write after a quiet time arms one timer. A turn that is small runs on the loop (waking a thread would cost more than
the work); a large one runs on a thread, in slices, because reads of the queues share a lock with it. Reads that find
nothing may ask for the rest at once (`catch_up`), so that what was acknowledged can be read.

Units gathered in memory go to the queue files every `WRITE_OUT_MS`: with many queues, one write for each of them and
message would be all that the machine does. Source: reference §13; dispatch never passes the written end of the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tallystick.store._kernel import Dispatch, RunResult

_logger = logging.getLogger("tallystick.store")

# One millisecond, as in RocketMQ: many messages a turn under load, no delay that a consumer could see.
TURN_MS = 1
# Up to here a turn runs on the loop: at half a microsecond a message, some tens of microseconds.
INLINE_BYTES = 128 * 1024
# A slice on the thread holds the queues' lock for about a millisecond.
SLICE_BYTES = 1024 * 1024
WRITE_OUT_MS = 100


class Dispatcher:
    """Drives one kernel `Dispatch` up to the position it was last told of.

    `on_arrival(queues)`: watched (topic, queue) pairs that grew. `failure`: why dispatch stopped, if it did; the log
    goes on without it, and whoever reads is told (an unreadable record is never skipped in silence).
    """

    def __init__(self, dispatch: Dispatch, executor: Executor) -> None:
        self.dispatch = dispatch
        self.on_arrival: Callable[[list[tuple[str, int]]], None] | None = None
        self.failure: str | None = None
        self._executor = executor
        self._loop = asyncio.get_running_loop()
        self._target = dispatch.position
        self._armed: asyncio.TimerHandle | None = None
        self._running: asyncio.Task[None] | None = None
        self._writer: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._writer = self._loop.create_task(self._write_out_timer(), name="write-queues")

    async def close(self) -> None:
        """Dispatches the rest and writes it out."""
        if self._writer is not None:
            self._writer.cancel()
        if self._armed is not None:
            self._armed.cancel()
        if self._running is not None:
            await self._running
        if self.failure is None:
            await self._run_slices()
        await self._loop.run_in_executor(self._executor, self.dispatch.write_out)

    @property
    def behind_bytes(self) -> int:
        return max(0, self._target - self.dispatch.position)

    def advance(self, written: int) -> None:
        """The log is written up to here."""
        self._target = written
        if self._armed is None and self._running is None and self.failure is None:
            self._armed = self._loop.call_later(TURN_MS / 1000, self._turn)

    def catch_up(self) -> bool:
        """Dispatches the rest at once if it is little; whether anything was dispatched."""
        if self._running is not None or self.failure is not None or not 0 < self.behind_bytes <= INLINE_BYTES:
            return False
        self._take(self.dispatch.run(self._target, INLINE_BYTES))
        return True

    def _turn(self) -> None:
        self._armed = None
        if not self.catch_up() and self.behind_bytes and self.failure is None:
            self._running = self._loop.create_task(self._run_slices(), name="dispatch")

    async def _run_slices(self) -> None:
        try:
            while self.behind_bytes and self.failure is None:
                result = await self._loop.run_in_executor(self._executor, self.dispatch.run, self._target, SLICE_BYTES)
                self._take(result)
        except OSError as error:
            self._stop(f"queues or index could not be written: {error}")
        finally:
            self._running = None

    def _take(self, result: RunResult) -> None:
        if result.stopped is not None and self.behind_bytes:
            self._stop(f"{result.stopped} at byte {result.pos} of the log")
        for pos, size, why in result.skipped:
            _logger.error("a damaged record of %d bytes at %d of the log is not served: %s", size, pos, why)
        if result.grew and self.on_arrival is not None:
            self.on_arrival([(topic.decode(), queue) for topic, queue in result.grew])

    def _stop(self, reason: str) -> None:
        self.failure = reason
        _logger.critical("dispatch stopped: %s", reason)

    async def _write_out_timer(self) -> None:
        done = self.dispatch.position
        while True:
            await asyncio.sleep(WRITE_OUT_MS / 1000)
            if self.dispatch.position == done:
                continue
            done = self.dispatch.position
            try:
                await self._loop.run_in_executor(self._executor, self.dispatch.write_out)
            except OSError as error:
                # The units stay in memory and are written with the next ones; they can be made from the log again.
                _logger.error("queue files could not be written: %s", error)
