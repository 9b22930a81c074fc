"""Expiry by topic: queues of topics with `retention.hours` begin behind the messages that are older.

    topic's retention ─▶ search (store times) ─▶ firstOffset.json, or the group's log ─▶ the queue begins there
                                                        └─▶ followers ─▶ the queue begins there

A message has expired when it was stored more than `retention.hours` ago, and all messages before it in its queue have
expired. The leader of a group decides, by the time for ages (`age_clock.py`), which a jump of the wall clock does not
move. What it decides is durable before any reader sees it, so a queue never begins earlier again: not after a kill, not
under another leader, not after a clock was set back or the retention was raised or removed.

A pass looks at the queues whose first message may have expired: it remembers the store time of each first message. The
cutoff is a whole minute, so a queue with steady traffic begins later once a minute, and not with every pass.

System topics keep their messages: a delayed message or half message counts from its delivery to its own topic.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

from tallystick.node.broker.services.schedule import pause
from tallystick.node.broker.tables.first_offsets import First, FirstOffsets
from tallystick.node.broker.tables.saving import FollowsError, NotReplicatedError
from tallystick.store._kernel import DamageError
from tallystick.store.engine.expiry import QueueBegin, QueueCutoff
from tallystick.store.limited_log import RepeatedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tallystick.node.broker.tables.topics import TopicTable
    from tallystick.store._kernel import ExpiredEnd
    from tallystick.store.settings import StoreSettings

_logger = logging.getLogger("tallystick.broker.expiry")

HOUR_MS, STEP_MS = 3_600_000, 60_000
LOOK = 500
"""Queues that are looked at without a pause."""
AT_ONCE = 64
"""Begins that a member takes over without giving up the event loop: a few microseconds each."""
RECORDED = 5_000
"""Queues whose begins are recorded together."""


class ExpiryPart(Protocol):
    """See `store.engine.expiry.Expiry`."""

    async def now_ms(self) -> int: ...

    def extent(self, topic: str, queue_id: int) -> tuple[int, int]: ...

    async def search(self, queues: Sequence[QueueCutoff]) -> list[ExpiredEnd]: ...

    async def begin_at(self, begins: Sequence[QueueBegin]) -> list[bool]: ...

    def begin_now(self, begin: QueueBegin) -> bool: ...


class ExpiryStore(Protocol):
    """What the service needs from the store."""

    @property
    def settings(self) -> StoreSettings: ...

    @property
    def expiry(self) -> ExpiryPart: ...


class ExpiryBroker(Protocol):
    """What the service needs from the broker."""

    @property
    def store(self) -> ExpiryStore: ...

    @property
    def topics(self) -> TopicTable: ...


def cutoff(now_ms: int, hours: int) -> int:
    """Messages that were stored before this time have expired: a whole minute, so never too early."""
    before_ms = now_ms - hours * HOUR_MS
    return before_ms - before_ms % STEP_MS


class ExpiryService:
    """Decides while it runs; only a leader runs it. What is decided takes effect on every member."""

    def __init__(self, broker: ExpiryBroker, offsets: FirstOffsets) -> None:
        self.offsets = offsets
        self.offsets.on_taken = self._taken
        self.expired = 0
        """Messages that expired on this broker since its start."""
        self._broker = broker
        self._next: dict[str, dict[int, tuple[int, int]]] = {}
        # By topic and queue, the first offset that was found, and the store time of that message.
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._applying = asyncio.Lock()
        self._waiting: dict[tuple[str, int], First] = {}
        self._kicked: asyncio.Task[None] | None = None
        self._errors = RepeatedError(
            _logger, "messages cannot expire by the retention of their topics, retrying", (OSError, DamageError)
        )

    # -- a leader decides ----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begins to decide."""
        self._stopping.clear()
        self._next.clear()
        self._task = asyncio.create_task(self._work(), name="expiry")

    def halt(self) -> None:
        """Records nothing more from now on; `stop` waits for what is in progress."""
        self._stopping.set()

    async def stop(self) -> None:
        """Returns when the pass in progress has ended."""
        self._stopping.set()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _work(self) -> None:
        while not await pause(self._stopping, self._broker.store.settings.cleanResourceInterval):
            await self._errors.attempt(self.step)

    async def step(self) -> None:
        """One pass over all queues. OSError, DamageError: it ended early."""
        try:
            await self._pass()
        except (NotReplicatedError, FollowsError):
            pass  # leadership is lost: the next leader decides

    async def _pass(self) -> None:
        topics, expiry = self._broker.topics, self._broker.store.expiry
        if gone := [topic for topic in self.offsets.row_names() if topic not in topics]:
            self.offsets.remove(*gone)
            await self.offsets.saved()
        kept = {name: topic for name, topic in topics.items() if topic.retention_hours and not topics.is_system(name)}
        self._next = {name: self._next.get(name, {}) for name in kept}
        if not kept:
            return
        now_ms = await expiry.now_ms()
        due: list[QueueCutoff] = []
        for looked, (name, queue_id) in enumerate(_queues(self._broker.topics, kept)):
            if looked % LOOK == LOOK - 1:
                await asyncio.sleep(0)
            before_ms = cutoff(now_ms, kept[name].retention_hours)
            if self._is_due(name, queue_id, before_ms):
                due.append(QueueCutoff(name, queue_id, before_ms))
        while due and not self._stopping.is_set():
            part, due = due[:RECORDED], due[RECORDED:]
            await self._record(await self._search(part))

    def _is_due(self, topic: str, queue_id: int, before_ms: int) -> bool:
        low, high = self._broker.store.expiry.extent(topic, queue_id)
        if low == high:
            return False
        first, time_ms = self._next[topic].get(queue_id, (-1, -1))
        return first != low or time_ms < before_ms

    async def _search(self, queues: Sequence[QueueCutoff]) -> list[QueueBegin]:
        found: list[QueueBegin] = []
        at = 0
        while at < len(queues) and not self._stopping.is_set():
            for (topic, queue_id, _), end in zip(
                queues[at:], await self._broker.store.expiry.search(queues[at:]), strict=False
            ):
                at += 1
                self._next[topic][queue_id] = (end.offset, end.next_ms)
                if end.last_pos >= 0:
                    found.append(QueueBegin(topic, queue_id, end.offset, end.last_pos))
        return found

    async def _record(self, found: Sequence[QueueBegin]) -> None:
        """Makes the begins durable, and lets the queues begin there."""
        begins: dict[str, dict[int, First]] = {}
        for topic, queue_id, offset, last_pos in found:
            if topic in self._broker.topics:  # not deleted meanwhile
                begins.setdefault(topic, {})[queue_id] = First(offset, last_pos)
        if not begins or self._stopping.is_set():
            return
        self.offsets.note(begins)
        await self.offsets.saved()
        for topic, queues in begins.items():
            self._waiting.update({(topic, queue_id): first for queue_id, first in queues.items()})
        await self._apply_waiting()

    # -- every member follows ------------------------------------------------------------------------------------------

    async def apply(self) -> None:
        """At a start: lets all queues begin where the table says. Queues that do not have these messages yet are tried
        again by `apply_rest`. OSError, DamageError."""
        for topic in list(self.offsets.row_names()):
            for queue_id, first in self.offsets.queues(topic).items():
                self._waiting[topic, queue_id] = first
        await self._apply_waiting()
        self.expired = 0  # an earlier process counted them

    async def apply_rest(self) -> None:
        """Once a second: lets queues begin where they could not begin yet."""
        if self._waiting:
            await self._errors.attempt(self._apply_waiting)

    def _taken(self, topic: str, queues: Mapping[int, First]) -> None:
        """The group committed these begins. A few take effect before anything that is committed later, so that this
        member, if it leads next, does not begin earlier than the last leader did; many must not stop the event loop."""
        self._waiting.update({(topic, queue_id): first for queue_id, first in queues.items()})
        if len(queues) > AT_ONCE:
            if self._kicked is None or self._kicked.done():
                self._kicked = asyncio.get_running_loop().create_task(self.apply_rest(), name="expiry-apply")
            return
        for queue_id, first in queues.items():
            row = QueueBegin(topic, queue_id, *first)
            low = self._broker.store.expiry.extent(topic, queue_id)[0]
            try:
                self._settle(row, low, self._broker.store.expiry.begin_now(row))
            except (OSError, DamageError) as error:
                self._errors.failed(error)

    async def _apply_waiting(self) -> None:
        expiry = self._broker.store.expiry
        async with self._applying:
            rows = [QueueBegin(topic, queue_id, *first) for (topic, queue_id), first in self._waiting.items()]
            at = 0
            while at < len(rows):
                before = [expiry.extent(row.topic, row.queue_id)[0] for row in rows[at : at + LOOK]]
                done = await expiry.begin_at(rows[at : at + LOOK])
                for row, low, begins_there in zip(rows[at:], before, done, strict=False):
                    self._settle(row, low, begins_there)
                at += len(done)

    def _settle(self, row: QueueBegin, low: int, begins_there: bool) -> None:
        key = row.topic, row.queue_id
        if begins_there:
            self.expired += max(0, row.offset - low)
        # A queue of an earlier topic with this name: the row is gone, or will be.
        wanted = self.offsets.get(*key)
        if self._waiting.get(key) == (row.offset, row.last_pos) and (begins_there or wanted is None):
            del self._waiting[key]


def _queues(topics: TopicTable, names: Iterable[str]) -> Iterator[tuple[str, int]]:
    """The queues of these topics. A topic that is deleted meanwhile has none."""
    for name in names:
        config = topics.get(name)
        if config is not None:
            for queue_id in range(max(config.read_queue_nums, config.write_queue_nums)):
                yield name, queue_id
