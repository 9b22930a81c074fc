"""Which key is to be worked when: one pass for any number of events, one pass of a key at a time, later after failures.

A key that was once added stays: it comes up again after every pass, so that what no event tells of (a node that fell
behind, a leader that changed) is seen within the time that the pass asked for. A pass that finds nothing to look after
any more says so, and its key is forgotten.

`Schedule` decides and knows no clock; `WorkQueue` waits and calls.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum

logger = logging.getLogger(__name__)

MIN_GAP_SECONDS = 0.2
"""Between the end of a pass and the next of the same key: a pass sees its own writes as events."""
FIRST_BACKOFF_SECONDS = 0.5
LONGEST_BACKOFF_SECONDS = 30.0


class Kind(Enum):
    """What is looked at. Each kind has one function that does a pass."""

    CLUSTER = "cluster"
    TOPICS = "topics"
    JOB = "job"
    """Of a StoreJob, whose name stands in the key in place of a cluster's."""


@dataclass(frozen=True, slots=True)
class Key:
    """A cluster, as one concern sees it, or a job: two kinds of one cluster are worked side by side."""

    namespace: str
    name: str
    kind: Kind = Kind.CLUSTER

    def __str__(self) -> str:
        return f"{self.kind.value} {self.namespace}/{self.name}"


@dataclass(slots=True)
class _Entry:
    due: float
    """When it is to be worked; while it runs: when again, infinity if nobody asked."""
    running_since: float | None = None
    failures: int = 0
    not_before: float = 0.0


class Schedule:
    """Times are seconds of any clock that does not go back."""

    def __init__(self) -> None:
        self._entries: dict[Key, _Entry] = {}

    def add(self, key: Key, now: float, delay: float = 0.0) -> None:
        """Look at `key`, no later than in `delay` seconds. Many calls before a pass begins are one."""
        entry = self._entries.get(key)
        if entry is None:
            self._entries[key] = _Entry(due=now + delay)
        else:
            entry.due = min(entry.due, max(now + delay, entry.not_before))

    def take(self, now: float) -> Key | None:
        """A key whose time has come; it is running until `done`. The one that waits longest comes first."""
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
        """The pass ended well. None: there is nothing to look after, unless an event came meanwhile."""
        entry = self._ended(key, now, MIN_GAP_SECONDS)
        entry.failures = 0
        if again_seconds is not None:
            entry.due = min(entry.due, now + again_seconds)
        elif entry.due == float("inf"):
            del self._entries[key]

    def failed(self, key: Key, now: float) -> float:
        """The pass failed; events do not hurry the next one. Returns the seconds until it."""
        backoff = min(FIRST_BACKOFF_SECONDS * 2.0 ** self._entries[key].failures, LONGEST_BACKOFF_SECONDS)
        entry = self._ended(key, now, backoff)
        entry.failures = min(entry.failures + 1, 16)
        entry.due = now + backoff
        return backoff

    def next_due(self) -> float:
        """When the first key that is not running is due; infinity: none is."""
        return min((e.due for e in self._entries.values() if e.running_since is None), default=float("inf"))

    def longest_wait(self, now: float) -> float:
        """Seconds that the key waits, or runs, which does so longest. 0: nothing is due."""
        since = (e.due if e.running_since is None else e.running_since for e in self._entries.values())
        return max(0.0, *(now - moment for moment in since), 0.0)

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
    """Calls `work(key)` for what is due, `workers` keys at a time.

    `work` returns the seconds until the key is looked at again, None: never. What it raises is a failure of this pass
    alone; `failed(key, error, seconds)` is told. `ended(key, seconds, error)` hears of each pass.
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
        """Of the loop's clock, None: none did yet. Failed ones count: they ended."""

    def add(self, key: Key, delay: float = 0.0) -> None:
        """From the loop's thread only."""
        self.schedule.add(key, self._now(), delay)
        self._news.set()

    def longest_wait(self) -> float:
        """Seconds: see `Schedule.longest_wait`."""
        return self.schedule.longest_wait(self._now())

    async def run(self) -> None:
        """Works until it is cancelled; passes under way are cancelled with it."""
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
                pass  # the next one is due

    async def _one(self, key: Key) -> None:
        began, error = self._now(), None
        try:
            async with asyncio.timeout(self._pass_seconds):
                again = await self._work(key)
        except Exception as failure:
            error = failure
            wait = self.schedule.failed(key, self._now())
            logger.warning(
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
