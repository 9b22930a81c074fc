"""Delivers delayed messages when they are due.

Each level is a queue of SCHEDULE_TOPIC_XXXX, sorted by time because all its messages wait equally long. A worker for
each level checks the front of its queue, puts due messages into their real topics, and sleeps until the next one is
due. If the store refuses a message, the worker retries it after `RETRY_MS`: a full disk delays messages, and loses
none.

    delayOffset.json   level -> first message not delivered yet

After a crash, messages that were delivered since the file was written are delivered again, and none is skipped: offsets
are written only when everything up to them is flushed (`DelayOffsets`). RocketMQ writes them at once, and can therefore
lose messages.

A delayed record that the store finds illegal is tried `MAX_TRIES` times and then skipped, and the error is reported: it
stays in the commit log, but must not block the messages behind it forever. A record that is lost or damaged for good
is skipped at once. The worker waits while a record is compared with the log or repaired (`ReadsView.usable_units`).

Source: ScheduleMessageService of RocketMQ 4.8.0; reference for what is kept on disk: the golden store `clean`.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from tallystick.node.broker.services.delay import DelayError, DelayLevels, from_schedule
from tallystick.node.broker.services.transaction_check import QueueReader, read_record
from tallystick.node.broker.tables.saving import ReplicatedTable, TableFile
from tallystick.node.broker.tables.topics import HALF_TOPIC, SCHEDULE_TOPIC
from tallystick.store.fastjson import int_keys
from tallystick.store.formats.message import PutStatus
from tallystick.store.formats.record import Record
from tallystick.store.limited_log import RepeatedError
from tallystick.store.settings import StoreSettings

if TYPE_CHECKING:
    from tallystick.node.broker.context import WritesView

_logger = logging.getLogger("tallystick.broker.schedule")

WINDOW = 32
"""How many messages of a level are put at once: one flush covers all of them."""
RETRY_MS = 10_000
MAX_TRIES = 6
MAX_SLEEP_MS = 10_000
"""The longest sleep of a worker, because the wall clock may be set meanwhile."""
CORRECTION_MS = 60_000
"""The kernel's limit (`log/tail.rs`): a smaller step back of the clock does not set store times back."""
_TAGS_CODE_IS_ADDRESS = -(2**31)  # below: an address in ConsumeQueueExt, written by RocketMQ


class ScheduleStore(QueueReader, Protocol):
    """What the service needs from the store: see `context.StoreView`."""

    @property
    def writes(self) -> WritesView: ...

    @property
    def settings(self) -> StoreSettings: ...

    @property
    def max_pos(self) -> int: ...

    @property
    def flushed_pos(self) -> int: ...


class ScheduleBroker(Protocol):
    """What the service needs from the broker: see `context.BrokerContext`."""

    @property
    def store(self) -> ScheduleStore: ...

    def now_ms(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Due:
    """`count` messages at the front of a queue are due; the next one in `wait_ms` (-1: there is none)."""

    count: int
    wait_ms: int


def due(deliver_at_ms: Sequence[int], now_ms: int, delay_ms: int) -> Due:
    """Which messages of a queue are due, given their times of delivery in order.

    A time that is further away than the level's delay comes from a clock that was set back since: such a message is due
    now. Store times stand still after a small correction of the clock (`CORRECTION_MS`): these messages wait.
    """
    for index, at_ms in enumerate(deliver_at_ms):
        if now_ms < at_ms <= now_ms + delay_ms + CORRECTION_MS:
            return Due(index, at_ms - now_ms)
    return Due(len(deliver_at_ms), -1)


def idle_ms(delay_ms: int) -> int:
    """How long to sleep at an empty queue: a message that arrives meanwhile is not due before that."""
    return min(max(delay_ms // 10, 10), 1000)


async def pause(stopping: asyncio.Event, ms: int) -> bool:
    """Sleeps for `ms`, or until the stop; returns whether to stop."""
    try:
        async with asyncio.timeout(ms / 1000):
            await stopping.wait()
    except TimeoutError:
        return False
    return True


class DelayOffsets(ReplicatedTable):
    """By level, the first message that is not delivered yet: `config/delayOffset.json`.

    `offsets` is the present state. `to_json` writes an older picture, which `note` took and then confirmed when the log
    was flushed beyond its end at that time.
    """

    what = "delayOffset.json"
    rows_field = "offsetTable"

    def __init__(self, file: TableFile) -> None:
        """The content of `file`. Raises ValueError if it is not a table of offsets."""
        super().__init__(file)
        stored = (file.load() or {}).get("offsetTable") or {}
        self.offsets: dict[int, int] = {level: int(offset) for level, offset in int_keys(stored).items()}
        self._durable = dict(self.offsets)
        self._noted: tuple[int, dict[int, int]] | None = None

    def note(self, max_pos: int, flushed_pos: int) -> None:
        """The log ends at `max_pos` and is flushed to `flushed_pos`: confirms the last picture, or takes the first."""
        self._confirm(flushed_pos)
        if self._noted is None and self.offsets != self._durable:
            self._noted = max_pos, dict(self.offsets)
            self._confirm(flushed_pos)

    def _confirm(self, flushed_pos: int) -> None:
        if self._noted is not None and flushed_pos >= self._noted[0]:
            self._durable = self._noted[1]
            self._noted = None
            self.changed()

    def to_json(self) -> dict[str, Any]:
        return {"offsetTable": dict(self._durable)}

    def row_names(self) -> Collection[str]:
        return {str(level) for level in self._durable}

    def row_json(self, name: str) -> int | None:
        return self._durable.get(int(name))

    @staticmethod
    def file_form(picture: Mapping[str, Any]) -> dict[str, Any]:
        return {"offsetTable": int_keys(picture.get("offsetTable", {}))}

    def take_row(self, name: str, row: Any) -> None:
        level = int(name)
        for table in (self.offsets, self._durable):
            if row is None:
                table.pop(level, None)
            else:
                table[level] = int(row)

    def take_head(self, picture: Mapping[str, Any]) -> None:
        # Before the rows: the present leader delivers again what was delivered and not noted.
        self._noted = None
        self.offsets.clear()
        self.offsets.update(self._durable)


class _Outcome(enum.Enum):
    """The outcome of one delivery."""

    DONE = enum.auto()
    REFUSED = enum.auto()  # the store accepts nothing now
    HOPELESS = enum.auto()  # the store will never accept this one


class LevelQueue:
    """The worker of one level, without its timer."""

    def __init__(self, store: ScheduleStore, level: int, delay_ms: int, offsets: dict[int, int]) -> None:
        self._store = store
        self._queue_id = level - 1
        self.level = level
        self.delay_ms = delay_ms
        self._offsets = offsets
        self._ahead: set[int] = set()  # delivered, although one before them is not
        self._tries = 0  # of the message at the front
        self.delivered = self.passed_over = 0

    def begin(self) -> None:
        """Drops what was known of messages ahead of the offset: it is outdated."""
        self._ahead.clear()
        self._tries = 0

    @property
    def offset(self) -> int:
        return self._offsets.get(self.level, 0)

    async def step(self, now_ms: int) -> int:
        """Delivers due messages, at most `WINDOW`; returns the milliseconds until there is more to do."""
        store, queue_id = self._store, self._queue_id
        begin = max(self.offset, store.queues.min_offset(SCHEDULE_TOPIC, queue_id))
        units = store.reads.usable_units(SCHEDULE_TOPIC, queue_id, begin, WINDOW)
        if not units:
            return idle_ms(self.delay_ms)
        if begin != self.offset:
            self._offsets[self.level] = begin  # the messages before are deleted from the log
        result = due([self._deliver_at_ms(unit) for unit in units], now_ms, self.delay_ms)
        wanted = [begin + index for index in range(result.count) if begin + index not in self._ahead]
        # All are appended, in order, before the first one's flush is waited for.
        outcomes = await asyncio.gather(*(self._deliver(units[offset - begin][0]) for offset in wanted))
        self._ahead.update(offset for offset, outcome in zip(wanted, outcomes, strict=True) if outcome is _Outcome.DONE)
        while self.offset in self._ahead:
            self._ahead.remove(self.offset)
            self._advance()
        if self.offset < begin + result.count:
            return self._retry(units[self.offset - begin][0], outcomes[wanted.index(self.offset)])
        return 0 if result.wait_ms < 0 else result.wait_ms

    def _advance(self) -> None:
        self._offsets[self.level] = self.offset + 1
        self._tries = 0

    def _retry(self, pos: int, outcome: _Outcome) -> int:
        """The message at the front was not delivered; returns the milliseconds until it is tried again."""
        self._tries = self._tries + 1 if outcome is _Outcome.HOPELESS else 0
        if self._tries < MAX_TRIES:
            return RETRY_MS
        _logger.error("delayed message at %d of the log cannot be delivered: skipped", pos)
        self.passed_over += 1
        self._advance()
        return 0

    async def _deliver(self, pos: int) -> _Outcome:
        if pos < 0:
            _logger.error("a delayed message of level %d is lost from the log: skipped", self.level)
            self.passed_over += 1
            return _Outcome.DONE
        record = read_record(self._store, pos)
        if record is None:
            return _Outcome.HOPELESS
        try:
            message = from_schedule(record)
        except DelayError:
            message = None
        if message is None or message.topic == HALF_TOPIC:
            # RocketMQ leaves such records when a half message had a delay; they cannot be delivered.
            _logger.error("delayed message %s does not name its topic: skipped", record.message_id)
            self.passed_over += 1
            return _Outcome.DONE
        result = await self._store.writes.put(message)
        if result.status.stored:
            self.delivered += 1
            return _Outcome.DONE
        illegal = result.status in (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED)
        return _Outcome.HOPELESS if illegal else _Outcome.REFUSED

    def _deliver_at_ms(self, unit: tuple[int, int, int]) -> int:
        pos, _, tags_code = unit
        if tags_code >= _TAGS_CODE_IS_ADDRESS:
            return tags_code
        record: Record | None = read_record(self._store, pos)
        return 0 if record is None else record.store_timestamp_ms + self.delay_ms


class ScheduleService:
    """The workers of all levels and the file of their offsets."""

    def __init__(self, broker: ScheduleBroker, file: TableFile) -> None:
        """Levels and intervals are the store's settings. ValueError: `file` is not a table of offsets."""
        self._store = store = broker.store
        self._now_ms = broker.now_ms
        self.levels = levels = DelayLevels(store.settings.delay_levels_ms())
        self.offsets = DelayOffsets(file)
        self.queues = [
            LevelQueue(store, level, levels.delay_ms(level), self.offsets.offsets)
            for level in range(1, levels.max_level + 1)
        ]
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()

    async def start(self) -> None:
        """Starts to deliver, from the present offsets."""
        self._stopping.clear()
        for queue in self.queues:
            queue.begin()
        self._tasks = [
            asyncio.create_task(self._work(queue), name=f"delay level {queue.level}") for queue in self.queues
        ]
        self._tasks.append(asyncio.create_task(self._persist_forever(), name="delay offsets"))

    def halt(self) -> None:
        """Starts no delivery from now on; `stop` waits for those in progress."""
        self._stopping.set()

    async def stop(self) -> None:
        """Ends the workers, each after its present step: an interrupted one would be repeated after a start.

        Call `persist` once the store has flushed the last deliveries: the rest is delivered again.
        """
        self._stopping.set()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await self._save()

    def persist(self) -> None:
        """Writes the offsets of what is delivered and flushed, in this thread. Raises OSError."""
        self._note()
        self.offsets.persist()

    def runtime_info(self) -> dict[str, str]:
        """scheduleMessageOffset_<level> of GET_BROKER_RUNTIME_INFO: "delivered,stored"."""
        return {
            f"scheduleMessageOffset_{queue.level}": (
                f"{queue.offset},{self._store.queues.max_offset(SCHEDULE_TOPIC, queue.level - 1)}"
            )
            for queue in self.queues
            # Also of a level whose first message is not due yet.
            if queue.level in self.offsets.offsets or self._store.queues.max_offset(SCHEDULE_TOPIC, queue.level - 1)
        }

    async def _work(self, queue: LevelQueue) -> None:
        # After an error the offset is before the message: it is tried again, never skipped.
        errors = RepeatedError(_logger, f"delay level {queue.level}: a delivery failed, retrying")
        while not self._stopping.is_set():
            try:
                wait_ms = await queue.step(self._now_ms())
                errors.worked()
            except Exception as error:
                errors.failed(error)
                wait_ms = RETRY_MS
            await pause(self._stopping, min(wait_ms, MAX_SLEEP_MS))

    async def _persist_forever(self) -> None:
        while not await pause(self._stopping, self._store.settings.flushDelayOffsetInterval):
            await self._save()

    def _note(self) -> None:
        # In a group the offsets are an entry behind the deliveries: a member with the entry has the deliveries.
        flushed_pos = self._store.flushed_pos if self.offsets.replica is None else self._store.max_pos
        self.offsets.note(self._store.max_pos, flushed_pos)

    async def _save(self) -> None:
        self._note()
        await self.offsets.try_save()
