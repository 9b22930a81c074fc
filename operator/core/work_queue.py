"""The work queue: it merges events of a key, runs one pass of a key at a time, and backs off after failures.

A key stays in the queue: it is due again after every pass, after the time that the pass returned, so that changes
without an event (a lagging node, a new leader) are seen. A pass returns None to remove its key.

`Schedule` is pure: it gets the time as an argument. `WorkQueue` waits and calls.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum

_logger = logging.getLogger(__name__)

MIN_GAP_SECONDS = 0.2
"""Minimum time between two passes of a key, because the writes of a pass cause events."""
FIRST_BACKOFF_SECONDS = 0.5
LONGEST_BACKOFF_SECONDS = 30.0


class Kind(Enum):
    """Kind of a key. Each kind has one function that runs a pass."""

    CLUSTER = "cluster"
    TOPICS = "topics"
    USERS = "users"
    JOB = "job"
    """A StoreJob; the key contains its name instead of the name of a cluster."""
    BACKUP = "backup"
    """A Backup; the key contains its name."""
    SCHEDULE = "schedule"
    """A ScheduledBackup; the key contains its name."""


@dataclass(frozen=True, slots=True)
class Key:
    """A cluster or its topics, or a job. Passes of different kinds of one cluster run concurrently."""

    namespace: str
    name: str
    kind: Kind = Kind.CLUSTER

    def __str__(self) -> str:
        return f"{self.kind.value} {self.namespace}/{self.name}"


@dataclass(slots=True)
class _Entry:
    due: float
    """Time of the next pass; during a pass, infinity until an event arrives."""
    running_since: float | None = None
    failures: int = 0
    not_before: float = 0.0


class Schedule:
    """The due times of keys, in seconds of a clock that never goes back."""

    def __init__(self) -> None:
        self._entries: dict[Key, _Entry] = {}

    def add(self, key: Key, now: float, delay: float = 0.0) -> None:
        """Makes `key` due in at most `delay` seconds. Several calls before a pass starts count as one."""
        entry = self._entries.get(key)
        if entry is None:
            self._entries[key] = _Entry(due=now + delay)
        else:
            entry.due = min(entry.due, max(now + delay, entry.not_before))

    def take(self, now: float) -> Key | None:
        """Returns the key that has been due for longest; None: no key is due. It runs until `done` or `failed`."""
        due = [
            (entry.due, str(key), key)
            for key, entry in self._entries.items()
            if entry.running_since is None and entry.due <= now
        ]
        if not due:
            return None
        key = min(due)[2]
        entry = self._entries[key]
        entry.running_since, entry.due = now, float("inf")
        return key

    def done(self, key: Key, now: float, again_seconds: float | None) -> None:
        """The pass succeeded. With None the key is removed, unless an event arrived during the pass."""
        entry = self._ended(key, now, MIN_GAP_SECONDS)
        entry.failures = 0
        if again_seconds is not None:
            entry.due = min(entry.due, now + again_seconds)
        elif entry.due == float("inf"):
            del self._entries[key]

    def failed(self, key: Key, now: float) -> float:
        """The pass failed. Returns the seconds until the retry; events do not shorten them."""
        backoff = min(FIRST_BACKOFF_SECONDS * 2.0 ** self._entries[key].failures, LONGEST_BACKOFF_SECONDS)
        entry = self._ended(key, now, backoff)
        entry.failures = min(entry.failures + 1, 16)
        entry.due = now + backoff
        return backoff

    def next_due(self) -> float:
        """Returns the earliest due time of all keys that are not running; infinity without such a key."""
        return min((e.due for e in self._entries.values() if e.running_since is None), default=float("inf"))

    def longest_wait(self, now: float) -> float:
        """Returns the longest time in seconds that a key has been due or running; 0 without such a key."""
        since = (e.due if e.running_since is None else e.running_since for e in self._entries.values())
        return max(0.0, *(now - moment for moment in since), 0.0)

    def namespaces(self) -> set[str]:
        """Returns the namespaces of all keys."""
        return {key.namespace for key in self._entries}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def _ended(self, key: Key, now: float, gap: float) -> _Entry:
        entry = self._entries[key]
        assert entry.running_since is not None, f"{key} ended twice"
        entry.running_since, entry.not_before = None, now + gap
        if entry.due != float("inf"):
            entry.due = max(entry.due, entry.not_before)
        return entry


class WorkQueue:
    """Calls `work(key)` for due keys, at most `workers` concurrently.

    `work` returns the seconds until the next pass, None: remove the key. An exception fails this pass only.
    `ended(key, seconds, error)` is called after each pass.
    """

    def __init__(
        self,
        work: Callable[[Key], Awaitable[float | None]],
        *,
        workers: int = 4,
        pass_seconds: float = 60.0,
        ended: Callable[[Key, float, BaseException | None], None] = lambda key, seconds, error: None,
    ) -> None:
        self.schedule = Schedule()
        self._work = work
        self._workers = workers
        self._pass_seconds = pass_seconds
        self._ended = ended
        self._news = asyncio.Event()
        self.last_pass_ended: float | None = None
        """End of the last pass by the clock of the event loop, also of a failed one; None: no pass has ended yet."""

    def add(self, key: Key, delay: float = 0.0) -> None:
        """Adds a key. It must be called in the thread of the event loop."""
        self.schedule.add(key, self._now(), delay)
        self._news.set()

    def longest_wait(self) -> float:
        """Seconds: see `Schedule.longest_wait`."""
        return self.schedule.longest_wait(self._now())

    async def run(self) -> None:
        """Runs until it is cancelled, which cancels running passes as well."""
        free = asyncio.Semaphore(self._workers)
        async with asyncio.TaskGroup() as passes:
            while True:
                await free.acquire()
                key = await self._next()
                task = passes.create_task(self._one(key), name=str(key))
                task.add_done_callback(lambda _: free.release())

    async def _next(self) -> Key:
        while True:
            self._news.clear()
            key = self.schedule.take(self._now())
            if key is not None:
                return key
            wait = self.schedule.next_due() - self._now()
            try:
                async with asyncio.timeout(None if wait == float("inf") else max(wait, 0.001)):
                    await self._news.wait()
            except TimeoutError:
                pass  # the next key is due

    async def _one(self, key: Key) -> None:
        began, error = self._now(), None
        try:
            async with asyncio.timeout(self._pass_seconds):
                again = await self._work(key)
        except Exception as failure:
            error = failure
            wait = self.schedule.failed(key, self._now())
            _logger.warning(
                "reconciliation failed: %s",
                failure or type(failure).__name__,
                extra={"key": str(key), "again_seconds": wait},
            )
        else:
            self.schedule.done(key, self._now(), again)
        self.last_pass_ended = self._now()
        self._ended(key, self.last_pass_ended - began, error)
        self._news.set()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
