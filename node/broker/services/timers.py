"""Delivers timers: messages that wait for a time.

The store's index says which messages wait (`store/engine/timers.py`), and the log alone determines it. This service
takes those that are due, stores them in their topics, and recalls them. Only the leader of a group does so.

    take ──▶ put the delivery ──stored──▶ the index reads it in the log: the timer is finished
                     └──not stored, or its fate is unknown──▶ wait until the index has read the log's end of that
                                                              moment; if the timer still pends then, give it back

A timer that was taken is not taken again before that, so it cannot be delivered twice. A new leader begins when its
index has read everything up to the first entry of its own term: no entry of an earlier leader can appear later.

Times are those of the wall clock: if it is set forward, timers are delivered earlier, if it is set back, later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tallystick.node.broker.services.delay import DelayError
from tallystick.node.broker.services.schedule import pause
from tallystick.node.broker.services.timer_messages import delivered, is_rolled, recalled, rolled
from tallystick.node.broker.services.transaction_check import QueueReader, read_record
from tallystick.node.broker.tables.topics import TIMER_TOPIC
from tallystick.store.formats import properties
from tallystick.store.formats.message import Message, PutResult, PutStatus

if TYPE_CHECKING:
    from tallystick.node.broker.context import WritesView
    from tallystick.store.engine.timers import Timers
    from tallystick.store.formats.record import Record
    from tallystick.store.settings import StoreSettings

_logger = logging.getLogger("tallystick.broker.timers")

WINDOW = 256
"""How many timers are put at once: one flush covers all of them."""
RETRY_MS = 1000
ROLL_AGAIN_MS = 3_600_000
"""A timer is not stored again so soon after the last time: that makes no room on a disk that is full of timers."""
RECALL_S = 3.0
"""Longest time of a recall: the index reaches the log's end, then the flush. It usually takes milliseconds."""
MAX_SLEEP_MS = 1000
"""The longest sleep, because the wall clock may be set meanwhile."""


class TimerStore(QueueReader, Protocol):
    """What the service needs from the store: see `context.StoreView`."""

    @property
    def writes(self) -> WritesView: ...

    @property
    def settings(self) -> StoreSettings: ...

    @property
    def timers(self) -> Timers | None: ...

    @property
    def max_pos(self) -> int: ...

    @property
    def staged_pos(self) -> int: ...


class TimerBroker(Protocol):
    """What the service needs from the broker: see `context.BrokerContext`."""

    @property
    def store(self) -> TimerStore: ...

    def now_ms(self) -> int: ...


class RecallError(Exception):
    """A message cannot be recalled. `is_final`: trying again is useless."""

    def __init__(self, reason: str, *, is_final: bool) -> None:
        super().__init__(reason)
        self.is_final = is_final


class TimerFigures(NamedTuple):
    """Counts of timers: the first three now, the others since the start."""

    pending: int
    inDelivery: int  # noqa: N815  # as GET /node shows it
    unread: int
    """Stored, and not in the index yet."""
    delivered: int
    recalled: int
    rolled: int
    lost: int


class TimerService:
    """Delivers and recalls the timers of one broker."""

    def __init__(self, broker: TimerBroker) -> None:
        self._store = broker.store
        self._timers = broker.store.timers
        self._now_ms = broker.now_ms
        self._stopping = asyncio.Event()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._returns: set[asyncio.Task[None]] = set()
        self._running = False
        self._run = 0
        """Counts starts: what was taken in an earlier run was given back at the start, and may be taken again since."""
        self._refused = False
        self.skipped = 0
        """Timers that could not be delivered and never will."""
        if self._timers is not None:
            self._timers.on_change = self._wake.set

    # -- life ----------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Starts to deliver."""
        self._stopping.clear()
        if self._timers is not None:
            self._task = asyncio.create_task(self._work(self._timers), name="timers")

    def halt(self) -> None:
        """Begins no delivery and no recall from now on; `stop` waits for those in progress."""
        self._stopping.set()
        self._running = False
        self._wake.set()

    async def stop(self) -> None:
        """Ends after the present step."""
        self.halt()
        tasks = [*self._returns, *([self._task] if self._task is not None else [])]
        for task in self._returns:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._task = None

    async def _work(self, timers: Timers) -> None:
        reached = asyncio.ensure_future(timers.reached(self._store.max_pos))
        stopping = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait((reached, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if self._stopping.is_set():
            reached.cancel()
            return
        timers.index.give_all_back()
        self._run += 1
        self._running = True
        while not self._stopping.is_set():
            self._wake.clear()
            try:
                wait_ms = await self.step(timers)
            except Exception:
                # What was taken is given back below, when the log says what became of it.
                _logger.exception("a delivery of timers failed")
                wait_ms = RETRY_MS
            await self._sleep(wait_ms)

    async def _sleep(self, ms: int) -> None:
        if ms <= 0 or self._stopping.is_set():
            await asyncio.sleep(0)
            return
        if self._refused:
            await pause(self._stopping, ms)
            return
        try:
            async with asyncio.timeout(ms / 1000):
                await self._wake.wait()
        except TimeoutError:
            pass

    # -- deliveries ----------------------------------------------------------------------------------------------------

    async def step(self, timers: Timers) -> int:
        """Delivers timers that are due, at most `WINDOW`, then stores as many again to make room. Returns the
        milliseconds until there is more to do."""
        if not timers.is_current:
            return 10
        now_ms = self._now_ms()
        rows = timers.index.take_due(now_ms, WINDOW)
        if rows:
            await self._finish(timers, rows, makes_room=False)
        rolled_some = bool(timers.wanted_pos) and await self._roll(timers, timers.wanted_pos)
        if rows or rolled_some:
            return RETRY_MS if self._refused else 0
        next_ms = timers.index.next_due()
        return MAX_SLEEP_MS if next_ms is None else min(max(next_ms - now_ms, 1), MAX_SLEEP_MS)

    async def _roll(self, timers: Timers, end: int) -> bool:
        """Stores timers again that are before `end` of the log. Returns whether there were any."""
        rows, unreadable = await asyncio.to_thread(timers.take_before, end, WINDOW)
        for offset in unreadable:
            units = self._store.reads.usable_units(TIMER_TOPIC, 0, offset, 1)
            if units and units[0][0] < 0:
                self._lose(timers, offset)
        if not rows or not await self._finish(timers, rows, makes_room=True):
            timers.wanted_pos = 0  # until the store asks again
            return False
        return True

    async def _finish(self, timers: Timers, rows: Sequence[tuple[int, int, int]], *, makes_room: bool) -> bool:
        """Puts a delivery (or a second copy, to make room) for each timer. All of them are taken. Returns whether it
        put anything."""
        run, taken = self._run, dict.fromkeys(offset for offset, *_ in rows)
        messages: list[Message] = []
        try:
            for offset, pos, _ in rows:
                message = self._ending(timers, offset, pos, makes_room=makes_room)
                if message is None:
                    del taken[offset]
                else:
                    messages.append(message)
            if not messages:
                return False
            results = await self._store.writes.put_all(messages, makes_room=makes_room)
        except (Exception, asyncio.CancelledError):
            self._return(timers, list(taken), run)
            raise
        self._refused = False
        failed = [
            offset
            for offset, result in zip(taken, results, strict=True)
            if not result.status.stored and not await self._skip_illegal(offset, result)
        ]
        self._return(timers, failed, run)
        return True

    def _ending(self, timers: Timers, offset: int, pos: int, *, makes_room: bool) -> Message | None:
        """The record that ends a timer that was taken. None: it must not be ended now, and is given back or lost."""
        record = self._record(timers, offset, pos)
        if record is None:
            return None
        now_ms = self._now_ms()
        if makes_room and is_rolled(record) and now_ms - record.store_timestamp_ms < ROLL_AGAIN_MS:
            timers.index.give_back(offset)
            return None
        try:
            return rolled(record) if makes_room else delivered(record, now_ms)
        except DelayError:
            return self._passed_over(record, "does not name its topic")

    async def _skip_illegal(self, offset: int, result: PutResult) -> bool:
        """Ends a timer whose delivery the store never accepts. False: it has to be tried again."""
        illegal = result.status in (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED)
        self._refused = self._refused or not illegal
        if not illegal or (record := self._record_of(offset)) is None:
            return False
        passed = self._passed_over(record, f"is not accepted by the store: {result.detail}")
        (result,) = await self._store.writes.put_all([passed])
        return result.status.stored

    def _passed_over(self, record: Record, why: str) -> Message:
        """The record that ends a timer which can never be delivered."""
        _logger.error("timer %s %s: skipped", record.message_id, why)
        self.skipped += 1
        return recalled(record, {})

    def _record(self, timers: Timers, offset: int, pos: int) -> Record | None:
        """The record of a timer that was taken. None: it cannot be read, and what follows from that is done."""
        record = read_record(self._store, pos) if pos else None
        if record is not None and record.topic == TIMER_TOPIC and record.queue_offset == offset:
            return record
        units = self._store.reads.usable_units(TIMER_TOPIC, 0, offset, 1)
        if not units:
            self._return(timers, [offset], self._run)  # it is being compared with the log, or repaired
            return None
        record = read_record(self._store, units[0][0]) if units[0][0] >= 0 else None
        if record is None:
            self._lose(timers, offset)
        return record

    @staticmethod
    def _lose(timers: Timers, offset: int) -> None:
        _logger.error("timer %d of %s is lost from the log: skipped", offset, TIMER_TOPIC)
        timers.index.forget(offset)

    def _record_of(self, offset: int) -> Record | None:
        units = self._store.reads.usable_units(TIMER_TOPIC, 0, offset, 1)
        return read_record(self._store, units[0][0]) if units else None

    def _return(self, timers: Timers, offsets: Sequence[int], run: int) -> None:
        """Gives timers back that were taken in this run, when the log says that they were not finished."""
        if offsets:
            returning = self._give_back(timers, offsets, self._store.staged_pos, run)
            task = asyncio.create_task(returning, name="return timers")
            self._returns.add(task)
            task.add_done_callback(self._returns.discard)

    async def _give_back(self, timers: Timers, offsets: Sequence[int], end: int, run: int) -> None:
        while not await pause(self._stopping, RETRY_MS) and run == self._run:
            # A failed write drops what was staged. The log can then end before `end` until the next message comes.
            if timers.is_current and timers.index.pos >= min(end, self._store.staged_pos):
                for offset in offsets:
                    timers.index.give_back(offset)
                self._wake.set()
                return

    # -- recalls -------------------------------------------------------------------------------------------------------

    async def recall(self, topic: str, unique_key: str, at_ms: int, extra: Mapping[str, str]) -> PutResult:
        """Ends a timer without a delivery, durably. `at_ms`: TIMER_OUT_MS + 1. Returns the result of the put that did
        it. RecallError: it was not recalled, or that is not known."""
        try:
            async with asyncio.timeout(RECALL_S):
                return await self._recall(topic, unique_key, at_ms, extra)
        except TimeoutError as error:
            raise RecallError("its outcome is unknown", is_final=False) from error

    async def _recall(self, topic: str, unique_key: str, at_ms: int, extra: Mapping[str, str]) -> PutResult:
        timers = self._timers
        if timers is None:
            raise RecallError("timerWheelEnable is false", is_final=True)
        if not self._running:
            raise RecallError("timers are not delivered here now", is_final=False)
        await timers.reached(self._store.max_pos)
        records = self._take_all(timers, topic, unique_key, at_ms)
        run, offsets = self._run, [record.queue_offset for record in records]
        try:
            results = await self._store.writes.put_all([recalled(record, extra) for record in records])
        except (Exception, asyncio.CancelledError):
            self._return(timers, offsets, run)
            raise
        worst = next((result for result in results if result.status is not PutStatus.PUT_OK), results[0])
        if worst.status is not PutStatus.PUT_OK:
            failed = [offset for offset, result in zip(offsets, results, strict=True) if not result.status.stored]
            self._return(timers, failed, run)
            raise RecallError(f"{worst.status.name} {worst.detail}".strip(), is_final=False)
        return worst

    def _take_all(self, timers: Timers, topic: str, unique_key: str, at_ms: int) -> list[Record]:
        """Takes the timers of a message: a producer that repeated a send without an answer stored it twice.
        RecallError: there are none, or one is in delivery."""
        window_ms = max(self._store.settings.timerPrecisionMs, 1000)
        taken: list[Record] = []
        for offset, pos, due, key in timers.index.find(unique_key.encode(), at_ms, at_ms - 1 + window_ms):
            record = read_record(self._store, pos)
            names = {} if record is None else properties.decode(record.properties)
            if names.get(properties.UNIQ_KEY) != unique_key or names.get(properties.REAL_TOPIC) != topic:
                continue
            assert record is not None, "only a record has properties"
            if not self._running or not timers.index.take(offset, pos, due, key):
                for other in taken:
                    timers.index.give_back(other.queue_offset)
                raise RecallError("the message is being delivered", is_final=True)
            taken.append(record)
        if not taken:
            raise RecallError("no such message waits: it was delivered, recalled, or never stored", is_final=True)
        return taken

    # -- figures -------------------------------------------------------------------------------------------------------

    def figures(self) -> TimerFigures:
        """The figures at this moment."""
        if self._timers is None:
            return TimerFigures(0, 0, 0, 0, 0, 0, 0)
        index = self._timers.index
        pending, taken, done, gone, again, lost = index.counts()
        unread = max(0, self._store.queues.max_offset(TIMER_TOPIC, 0) - index.next_offset)
        return TimerFigures(pending, taken, unread, done, gone, again, lost + self.skipped)

    def late_ms(self) -> int:
        """How late the first timer is that is not delivered yet; 0 if none is late."""
        first = None if self._timers is None else self._timers.index.first_due()
        return 0 if first is None else max(0, self._now_ms() - first)

    def to_json(self) -> dict[str, Any] | None:
        """For GET /node; None: timers are switched off."""
        if self._timers is None:
            return None
        memory, files = self._timers.index.sizes()
        return {
            **self.figures()._asdict(),
            "lateMs": self.late_ms(),
            "nextMs": self._timers.index.first_due(),
            "readPos": self._timers.index.pos,
            "memoryBytes": memory,
            "fileBytes": files,
        }

    def runtime_info(self) -> dict[str, str]:
        """The timers' keys of GET_BROKER_RUNTIME_INFO, if there were any."""
        if self._timers is None or not self._timers.index.next_offset:
            return {}
        figures = self.figures()
        return {
            "timerPending": str(figures.pending),
            "timerInDelivery": str(figures.inDelivery),
            "timerDelivered": str(figures.delivered),
            "timerRecalled": str(figures.recalled),
            "timerRolled": str(figures.rolled),
            "timerLost": str(figures.lost),
            "timerReadBehind": str(self.late_ms() // 1000),
            "timerOffsetBehind": str(figures.unread),
        }
