"""Pulls that found nothing yet: held until a message comes, the client's patience ends, or its connection closes.

A hold stands at an offset of one queue. When the store reports that the queue grew, the pull is tried again from there
(`retry`): it is answered, or it goes on standing, now behind what did not match, so that a message is tested once
for each hold. A hold that stepped over messages is answered within PROGRESS_MS even if nothing ever matches, so that
the client learns how far it is.

There are no timers: `scan(now_ms)` is called about once a second, ends holds whose time is over, and every CHECK_MS
compares offsets as well, in case a report was lost. The store reports only queues that are watched; the first hold of a
queue begins that, the last one ends it. A report may have been under way while a hold was added: `add` looks once more.

At the limit `add` refuses, and the pull is answered as the protocol answers a busy broker; clients wait 3 s then.

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
"""Holds of one broker; each takes about 1 KiB. RocketMQ's pullThreadPoolQueueCapacity has this default."""

CHECK_MS = 5_000
"""How often the offsets of queues with holds are compared, reports or not."""

PROGRESS_MS = 5_000
"""How long a hold that stepped over messages may keep that to itself."""


class Watched(Protocol):
    """What holds need of the store."""

    def watch(self, topic: str, queue_id: int) -> None: ...

    def unwatch(self, topic: str, queue_id: int) -> None: ...

    def max_offset(self, topic: str, queue_id: int) -> int: ...


@dataclass(slots=True, eq=False)
class Hold:
    """One pull that waits. `offset`: all below was tested; `first_offset`: where the client asked.

    `trying`: it is being tried. Reading a queue may dispatch what is new in it, and so report it in the midst of that.
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
"""`retry(hold, expired)`: answer the pull if there is something to say; false: it goes on waiting. An expired one is
answered in any case. It raises nothing."""


def _nobody(hold: Hold, expired: bool) -> bool:
    raise AssertionError("nobody answers held pulls")


class HoldTable:
    """All held pulls of a broker. `retry` is set by whoever answers them."""

    def __init__(self, store: Watched, *, limit: int = DEFAULT_LIMIT) -> None:
        self.limit = limit
        self.retry: Retry = _nobody
        self._store = store
        self._holds: dict[Hold, None] = {}  # dicts as sets that keep the order: the longest waiting is served first
        self._queues: dict[tuple[str, int], dict[Hold, None]] = {}
        self._connections: dict[Connection, dict[Hold, None]] = {}
        self._checked_ms = 0

    def __len__(self) -> int:
        return len(self._holds)

    def add(self, hold: Hold) -> bool:
        """Keep the pull. False: there are `limit` holds already."""
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
        """The store's report: these queues grew."""
        for key in queues:
            for hold in tuple(self._queues.get(key, ())):
                self._try(hold, expired=False)

    def scan(self, now_ms: int) -> None:
        """End the holds whose time is over; now and then look for messages nobody reported."""
        for hold in [hold for hold in self._holds if hold.deadline_ms <= now_ms]:
            self._try(hold, expired=True)
        if not 0 <= now_ms - self._checked_ms < CHECK_MS:
            self._checked_ms = now_ms
            for key, holds in tuple(self._queues.items()):
                end = self._store.max_offset(*key)
                for hold in [hold for hold in holds if hold.offset < end]:
                    self._try(hold, expired=False)

    def release(self, connection: Connection) -> None:
        """The connection is gone: so are its holds."""
        for hold in tuple(self._connections.get(connection, ())):
            self._remove(hold)

    def release_all(self) -> None:
        """Answer every hold as if its time were over: the broker stops."""
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
