"""Carries what is written in the log on to ConsumeQueues and index, and tells who waits that a queue grew.

RocketMQ's ReputMessageService turns each millisecond; so does this, but only while something is behind: the first
write after a quiet time arms one timer. A turn that is small runs on the loop (waking a thread would cost more than
the work); a large one runs on a thread, in slices, because reads of the queues share a lock with it. Reads that find
nothing may ask for the rest at once (`catch_up`), so that what was acknowledged can be read.

Units gathered in memory go to the queue files once a second, or when there is a megabyte of them: with many queues, one
write for each of them and message would be all that the machine does. With very many even that takes long (some 10 us
a file, and the first time far more); so it has a thread of its own, and works at most a tenth of the time.
Dispatch never passes the written end of the log.

Errors: what cannot be written now (a full disk, mostly) is tried again every second. Nothing is lost meanwhile, the log
has it all; but puts are refused before it gets too much: after RocketMQ's 3 tries for the index and 30 for the queues.
(RocketMQ then refuses them until a restart.) Bytes of the log that are no record end dispatch until a restart.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from tallystick.store._kernel import DamageError

if TYPE_CHECKING:
    from tallystick.store._kernel import Dispatch, RunResult

_logger = logging.getLogger("tallystick.store")

# One millisecond, as in RocketMQ: many messages a turn under load, no delay that a consumer could see.
TURN_MS = 1
# Up to here a turn runs on the loop: at half a microsecond a message, some tens of microseconds.
INLINE_BYTES = 128 * 1024
WRITE_OUT_MS = 1000
WRITE_OUT_BYTES = 1024 * 1024
LOOK_MS = 50
# A write-out that took a second is followed by nine without one.
REST = 9
MOST_REST_S = 10.0
RETRY_MS = 1000
MOST_RUN_ERRORS = 3
MOST_WRITE_ERRORS = 30


class Dispatcher:
    """Drives one kernel `Dispatch` up to the position that it was last told.

    `step_bytes`: the largest part of the log that one step dispatches (setting `dispatchMaxBytes`). It holds the
    lock of the queues meanwhile, about a millisecond for 1 MiB.

    `on_arrival(queues)`: watched (topic, queue) pairs that grew. `failure`: why dispatch stopped until a restart, if it
    did; reads of what was dispatched go on.
    """

    def __init__(
        self, dispatch: Dispatch, executor: Executor, write_executor: Executor, step_bytes: int = 1 << 20
    ) -> None:
        self.dispatch = dispatch
        self._step_bytes = step_bytes
        self.on_arrival: Callable[[list[tuple[str, int]]], None] | None = None
        self.failure: str | None = None
        self._run_errors = _Errors("queues or index cannot be extended", MOST_RUN_ERRORS)
        self._write_errors = _Errors("queue files cannot be written", MOST_WRITE_ERRORS)
        self._executor = executor
        self._write_executor = write_executor
        self._loop = asyncio.get_running_loop()
        self._target = dispatch.position
        self._armed: asyncio.TimerHandle | None = None
        self._running: asyncio.Task[None] | None = None
        self._writer: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._writer = self._loop.create_task(self._write_out_timer(), name="write-queues")

    async def close(self) -> None:
        """Dispatches the rest and writes it out. What cannot be is made again from the log at the next start."""
        if self._writer is not None:
            self._writer.cancel()
        if self._armed is not None:
            self._armed.cancel()
        if self._running is not None:
            await self._running
        if self.failure is None:
            await self._run_slices()
        if self._armed is not None:
            self._armed.cancel()
        try:
            await self._loop.run_in_executor(self._write_executor, self.dispatch.write_out)
        except (OSError, DamageError) as error:
            self._write_errors.add(error)

    @property
    def refusal(self) -> str | None:
        """Why puts should be refused: what they store could not be found for too long. None: no reason."""
        return self.failure or self._run_errors.refusal or self._write_errors.refusal

    @property
    def behind_bytes(self) -> int:
        return max(0, self._target - self.dispatch.position)

    def advance(self, written: int) -> None:
        """The log is written up to here."""
        self._target = written
        if self._armed is None and self._running is None and self.failure is None:
            self._armed = self._loop.call_later(TURN_MS / 1000, self._turn)

    def index_again(self) -> None:
        """A page of the index could not be read: makes its files again from there on. Blocks for the removal of files.

        OSError, DamageError: not now; it is tried again when dispatch goes on."""
        self.dispatch.index_again()

    def catch_up(self) -> bool:
        """Dispatches the rest at once if it is little; whether anything was dispatched."""
        if self._running is not None or self._armed_for_retry or not 0 < self.behind_bytes <= INLINE_BYTES:
            return False
        done = self._run(INLINE_BYTES)
        if done and self.behind_bytes:
            self.advance(self._target)  # it went back to make an index again that could not be read
        return done

    def finish(self) -> None:
        """Dispatches the rest at once, however much it is: for what must not find a record on its way."""
        while self.behind_bytes and self._run(self._step_bytes):
            pass

    def _run(self, size_bytes: int) -> bool:
        """One piece, on this thread; False: there is an error, and it was noted."""
        if self.failure is not None:
            return False
        try:
            self._take(self.dispatch.run(self._target, size_bytes))
        except (OSError, DamageError) as error:
            self._failed(error)
            return False
        return self.failure is None

    def _turn(self) -> None:
        self._armed = None
        if not self.catch_up() and self.behind_bytes and self.failure is None and self._armed is None:
            self._running = self._loop.create_task(self._run_slices(), name="dispatch")

    async def _run_slices(self) -> None:
        try:
            while self.behind_bytes and self.failure is None:
                before = self.dispatch.position
                result = await self._loop.run_in_executor(
                    self._executor, self.dispatch.run, self._target, self._step_bytes
                )
                self._take(result)
                if self.failure is None and self.behind_bytes and self.dispatch.position == before:
                    raise OSError(errno.EIO, f"the log has no file with byte {before}, which was written")
        except (OSError, DamageError) as error:
            self._failed(error)
        finally:
            self._running = None

    @property
    def _armed_for_retry(self) -> bool:
        return self._armed is not None and self._run_errors.count > 0

    def _failed(self, error: Exception) -> None:
        self._run_errors.add(error)
        if self._armed is not None:
            self._armed.cancel()
        self._armed = self._loop.call_later(RETRY_MS / 1000, self._turn)

    def _take(self, result: RunResult) -> None:
        self._run_errors.clear()
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
        done, due_s = self.dispatch.position, 0.0
        while True:
            await asyncio.sleep((RETRY_MS if self._write_errors.count else LOOK_MS) / 1000)
            position, begin_s = self.dispatch.position, self._loop.time()
            if position == done or (begin_s < due_s and self.dispatch.pending_bytes < WRITE_OUT_BYTES):
                continue
            try:
                await self._loop.run_in_executor(self._write_executor, self.dispatch.write_out)
            except (OSError, DamageError) as error:
                self._write_errors.add(error)  # the units stay in memory
            else:
                done = position
                self._write_errors.clear()
            took_s = self._loop.time() - begin_s
            await asyncio.sleep(min(took_s * REST, MOST_REST_S))
            due_s = self._loop.time() + WRITE_OUT_MS / 1000


class _Errors:
    """Errors of one kind of work in a row. The first one and the end of them are logged, not each try."""

    def __init__(self, what: str, most: int) -> None:
        self.count = 0
        self._what = what
        self._most = most
        self._last = ""
        self._kind: object = None

    @property
    def refusal(self) -> str | None:
        return f"{self._what}: {self._last}" if self.count >= self._most else None

    def add(self, error: Exception) -> None:
        self.count += 1
        # Not the text: it may name another file with each try, as a new index file is named by the time.
        kind = error.errno if isinstance(error, OSError) else str(error)
        if kind != self._kind or self.count == 1:
            _logger.error("%s, it is tried again: %s", self._what, error)
        self._last, self._kind = str(error), kind

    def clear(self) -> None:
        if self.count:
            _logger.warning("%s: that is over after %d tries", self._what, self.count)
            self.count = 0
