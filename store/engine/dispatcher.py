"""Dispatches new records of the log to ConsumeQueues and index, and notifies waiting readers when a queue grows.

RocketMQ's ReputMessageService runs every millisecond. The dispatcher does so only while records are pending: the first
write after an idle time starts a timer. A small run executes on the event loop, because waking a thread would cost more
than the work. A large run executes on a thread, in slices, because readers of the queues need the same lock. A reader
that finds nothing can dispatch the rest at once (`catch_up`), so that acknowledged messages can be read.

Units are collected in memory. They are written to the queue files once a second, or when there is a megabyte of them:
with many queues, one write per message would exhaust the machine. With very many queues even this takes long (about
10 us per file, and far more the first time). Therefore a separate thread does it, at most a tenth of the time.
Dispatch never passes the written end of the log.

Errors: a failed write (mostly because the disk is full) is retried every second. Nothing is lost meanwhile, because the
log has all records. Puts are refused before the backlog becomes too large: after 3 tries for the index and 30 for the
queues, as in RocketMQ. (RocketMQ then refuses them until a restart.) If bytes of the log are not a record, dispatch
stops until a restart.
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

# One millisecond, as in RocketMQ: many messages per run under load, and no delay that a consumer would notice.
TURN_MS = 1
# A run up to this size executes on the event loop. At half a microsecond per message it takes some 10 us.
INLINE_BYTES = 128 * 1024
WRITE_OUT_MS = 1000
WRITE_OUT_BYTES = 1024 * 1024
LOOK_MS = 50
# After a write-out the writer pauses nine times as long as the write-out took.
REST = 9
MOST_REST_S = 10.0
RETRY_MS = 1000
MOST_RUN_ERRORS = 3
MOST_WRITE_ERRORS = 30


class Dispatcher:
    """Drives one kernel `Dispatch` up to the position of the last `advance`.

    `step_bytes`: the largest part of the log that one step dispatches (setting `dispatchMaxBytes`). The step
    holds the lock of the queues for about a millisecond per MiB.

    `on_arrival(queues)` gets the watched (topic, queue) pairs that grew;
    `on_progress()` is called after each step. `failure`: why dispatch stopped until a
    restart; None while it runs. Reads of dispatched messages continue in any case.
    """

    def __init__(
        self, dispatch: Dispatch, executor: Executor, write_executor: Executor, step_bytes: int = 1 << 20
    ) -> None:
        self.dispatch = dispatch
        self._step_bytes = step_bytes
        self.on_arrival: Callable[[list[tuple[str, int]]], None] | None = None
        self.on_progress: Callable[[], None] = lambda: None
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
        """Dispatches the rest and writes it out. If that fails, the next start derives it from the log again."""
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
        """Why puts should be refused: new messages could not be dispatched for too long. None if they can."""
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
        """Builds index files again, from the one with an unreadable page on. Blocks while it removes the files.

        OSError, DamageError: it failed; the next dispatch retries it."""
        self.dispatch.index_again()

    def catch_up(self) -> bool:
        """Dispatches the rest at once if it is small. Returns whether anything was dispatched."""
        if self._running is not None or self._armed_for_retry or not 0 < self.behind_bytes <= INLINE_BYTES:
            return False
        done = self._run(INLINE_BYTES)
        if done and self.behind_bytes:
            self.advance(self._target)  # it went back to build an unreadable index again
        return done

    def finish(self) -> None:
        """Dispatches the rest at once, whatever its size, for callers that need all records in the queues."""
        while self.behind_bytes and self._run(self._step_bytes):
            pass

    def _run(self, size_bytes: int) -> bool:
        """Runs one step on this thread. Returns False after an error, which was logged."""
        if self.failure is not None:
            return False
        before = self.dispatch.position
        try:
            self._take(self.dispatch.run(self._target, size_bytes), before)
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
                self._take(result, before)
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

    def _take(self, result: RunResult, before: int) -> None:
        """Takes what a step did that began at `before`. OSError: the step read nothing, although there is more."""
        if result.stopped is not None and self.behind_bytes:
            self._stop(f"{result.stopped} at byte {result.pos} of the log")
        if self.failure is None and self.behind_bytes and self.dispatch.position == before:
            raise OSError(errno.EIO, f"the log has no file with byte {before}, although it was written")
        self._run_errors.clear()
        for pos, size, why in result.skipped:
            _logger.error("a damaged record of %d bytes at %d of the log is not served: %s", size, pos, why)
        if result.grew and self.on_arrival is not None:
            self.on_arrival([(topic.decode(), queue) for topic, queue in result.grew])
        self.on_progress()

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
    """Consecutive errors of one kind of work. Logs the first error and the recovery, not each retry."""

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
        # Compare the number, not the text: each retry may name another file, because index files are named by time.
        kind = error.errno if isinstance(error, OSError) else str(error)
        if kind != self._kind or self.count == 1:
            _logger.error("%s, retrying: %s", self._what, error)
        self._last, self._kind = str(error), kind

    def clear(self) -> None:
        if self.count:
            _logger.warning("%s: recovered after %d tries", self._what, self.count)
            self.count = 0
