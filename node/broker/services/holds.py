"""Held pulls: pulls that found nothing yet wait until a message comes, their time is over, or the connection closes.

A hold has an offset of one queue. When the store reports that the queue grew, the pull is tried again from there
(`retry`). It is answered, or it continues to wait behind the messages that did not match, so a message is tested once
for each hold. A hold that skipped messages is answered within PROGRESS_MS even if nothing matches, so that the client
learns its progress.

There are no timers. `scan(now_ms)` is called about once a second. It ends holds whose time is over, and every CHECK_MS
it also compares offsets, in case a report was lost. The store reports only queues that are watched: the first hold of a
queue starts that, the last one ends it. A report may be in progress while a hold is added: `add` checks once more.

At the limit `add` refuses, and the pull gets the protocol's busy answer; clients then wait 3 s.

Everything runs on the event loop's thread. Source: PullRequestHoldService of RocketMQ 4.8.0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tallystick.node.remoting.command import Command
    from tallystick.node.remoting.server import Connection

DEFAULT_LIMIT = 100_000
"""Limit of one broker; each hold takes about 1 KiB. RocketMQ's pullThreadPoolQueueCapacity has this default."""

CHECK_MS = 5_000
"""How often the offsets of queues with holds are compared, even without reports."""

PROGRESS_MS = 5_000
"""The time after which a hold that skipped messages must be answered."""


class Watched(Protocol):
    """What holds need from the store."""

    def watch(self, topic: str, queue_id: int) -> None: ...

    def unwatch(self, topic: str, queue_id: int) -> None: ...

    def max_offset(self, topic: str, queue_id: int) -> int: ...


@dataclass(slots=True, eq=False)
class Hold:
    """One waiting pull. `offset`: everything below was tested; `first_offset`: the client's offset.

    `trying`: a try is in progress. Reading a queue can dispatch new records of it, and report the queue meanwhile.
    """

    connection: Connection
    command: Command
    topic: str
    queue_id: int
    offset: int
    deadline_ms: int
    first_offset: int = -1
    trying: bool = False

    def __post_init__(self) -> None:
        if self.first_offset < 0:
            self.first_offset = self.offset

    def step(self, offset: int, now_ms: int) -> None:
        """Nothing below `offset` matched."""
        if offset > self.offset:
            if self.offset == self.first_offset:
                self.deadline_ms = min(self.deadline_ms, now_ms + PROGRESS_MS)
            self.offset = offset


Retry = Callable[[Hold, bool], bool]
"""`retry(hold, expired)`: answers the pull if there is a result; False if it continues to wait. An expired pull is
answered in any case. It must not raise."""


def _nobody(hold: Hold, expired: bool) -> bool:
    raise AssertionError("no function answers held pulls")


class HoldTable:
    """All held pulls of a broker. The module that answers them sets `retry`."""

    def __init__(self, store: Watched, *, limit: int = DEFAULT_LIMIT) -> None:
        self.limit = limit
        self.retry: Retry = _nobody
        self._store = store
        self._holds: dict[Hold, None] = {}  # dicts as ordered sets: the longest waiting is served first
        self._queues: dict[tuple[str, int], dict[Hold, None]] = {}
        self._connections: dict[Connection, dict[Hold, None]] = {}
        self._checked_ms = 0

    def __len__(self) -> int:
        return len(self._holds)

    def add(self, hold: Hold) -> bool:
        """Adds the pull. False if there are `limit` holds already."""
        if len(self._holds) >= self.limit:
            return False
        key = hold.topic, hold.queue_id
        self._holds[hold] = None
        self._connections.setdefault(hold.connection, {})[hold] = None
        holds = self._queues.get(key)
        if holds is None:
            holds = self._queues[key] = {}
            self._store.watch(*key)
        holds[hold] = None
        if self._store.max_offset(*key) > hold.offset:
            self._try(hold, expired=False)
        return True

    def on_arrival(self, queues: list[tuple[str, int]]) -> None:
        """The store's report that these queues grew."""
        for key in queues:
            for hold in tuple(self._queues.get(key, ())):
                self._try(hold, expired=False)

    def scan(self, now_ms: int) -> None:
        """Ends the holds whose time is over; every CHECK_MS looks for messages that were not reported."""
        for hold in [hold for hold in self._holds if hold.deadline_ms <= now_ms]:
            self._try(hold, expired=True)
        if not 0 <= now_ms - self._checked_ms < CHECK_MS:
            self._checked_ms = now_ms
            for key, holds in tuple(self._queues.items()):
                end = self._store.max_offset(*key)
                for hold in [hold for hold in holds if hold.offset < end]:
                    self._try(hold, expired=False)

    def release(self, connection: Connection) -> None:
        """The connection is closed: drops its holds."""
        for hold in tuple(self._connections.get(connection, ())):
            self._remove(hold)

    def release_all(self) -> None:
        """Answers every hold as if its time were over, because the broker stops."""
        for hold in tuple(self._holds):
            self._try(hold, expired=True)

    def _try(self, hold: Hold, *, expired: bool) -> None:
        if hold.trying or hold not in self._holds:
            return  # in the second case an answer before this one closed its connection
        hold.trying = True
        answered = self.retry(hold, expired)
        hold.trying = False
        if answered or expired:
            self._remove(hold)

    def _remove(self, hold: Hold) -> None:
        if hold not in self._holds:
            return  # its connection closed while it was answered
        del self._holds[hold]
        key = hold.topic, hold.queue_id
        holds = self._queues[key]
        del holds[hold]
        if not holds:
            del self._queues[key]
            self._store.unwatch(*key)
        mine = self._connections[hold.connection]
        del mine[hold]
        if not mine:
            del self._connections[hold.connection]
