"""Delivers delayed messages when their time has come.

Each level is a queue of SCHEDULE_TOPIC_XXXX, sorted by time because all its messages wait equally long. A worker for
each level looks at the front of its queue, puts what is due into the real topics, and sleeps until the next one is due.
What the store refuses is tried again, the same message, after `RETRY_MS`: a full disk delays messages, it loses none.

    delayOffset.json   level -> first message not delivered yet

A crash delivers again what was delivered since the file was written, never the other way round: offsets are written
only when everything up to them is flushed (`DelayOffsets`). RocketMQ writes them at once, and can lose messages so.

A delayed record that the store finds illegal is tried `MAX_TRIES` times and then passed over, with an error reported:
it stays in the commit log, but the messages behind it must not wait for ever. One that is lost or damaged for good is
passed over at once. What is being compared with the log, or repaired, is waited for (`StoreView.usable_units`).

Source: ScheduleMessageService of RocketMQ 4.8.0; reference for what is kept on disk: the golden store `clean`.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tallystick.node.broker.delay import DelayError, DelayLevels, from_schedule
from tallystick.node.broker.saving import ReplicatedTable, TableFile
from tallystick.node.broker.topics import HALF_TOPIC, SCHEDULE_TOPIC
from tallystick.node.broker.transaction_check import QueueReader, read_record
from tallystick.store.fastjson import int_keys
from tallystick.store.message import Message, PutResult, PutStatus
from tallystick.store.record import Record
from tallystick.store.settings import StoreSettings

logger = logging.getLogger("tallystick.broker.schedule")

WINDOW = 32
"""Messages of a level that are put at once: one flush serves them all."""
RETRY_MS = 10_000
MAX_TRIES = 6
MAX_SLEEP_MS = 10_000
"""A worker looks at least so often: the wall clock may be set while it sleeps."""
CORRECTION_MS = 60_000
"""The kernel's bound (`log/tail.rs`): a clock that is set back by less does not set store times back."""
_TAGS_CODE_IS_ADDRESS = -(2**31)  # below: an address in ConsumeQueueExt, written by RocketMQ


class ScheduleStore(QueueReader, Protocol):
    """What the service needs of the store: see `context.StoreView`."""

    async def put(self, message: Message) -> PutResult: ...

    @property
    def settings(self) -> StoreSettings: ...

    @property
    def max_pos(self) -> int: ...

    @property
    def flushed_pos(self) -> int: ...


class ScheduleBroker(Protocol):
    """What the service needs of the broker: see `context.BrokerContext`."""

    @property
    def store(self) -> ScheduleStore: ...

    def now_ms(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Due:
    """`count` messages at the front of a queue are due; the next one is in `wait_ms` (-1: there is none)."""

    count: int
    wait_ms: int


def due(deliver_at_ms: Sequence[int], now_ms: int, delay_ms: int) -> Due:
    """What is due of a queue whose messages, in order, want to be delivered at these times.

    A time further away than the level's delay comes from a clock that was set back since: such a message is due now.
    Store times stand still while a small correction of the clock is made up for (`CORRECTION_MS`): these wait.
    """
    for index, at_ms in enumerate(deliver_at_ms):
        if now_ms < at_ms <= now_ms + delay_ms + CORRECTION_MS:
            return Due(index, at_ms - now_ms)
    return Due(len(deliver_at_ms), -1)


def idle_ms(delay_ms: int) -> int:
    """How long to look away from an empty queue: whatever comes meanwhile is not due before that."""
    return min(max(delay_ms // 10, 10), 1000)


async def pause(stopping: asyncio.Event, ms: int) -> bool:
    """Sleep for `ms`, or until it is time to stop: then true."""
    try:
        async with asyncio.timeout(ms / 1000):
            await stopping.wait()
    except TimeoutError:
        return False
    return True


class DelayOffsets(ReplicatedTable):
    """Per level, the first message not delivered yet: `config/delayOffset.json`.

    `offsets` is the truth now; what `to_json` writes is an older picture, taken by `note` and confirmed when the log
    was flushed beyond where it ended then.
    """

    what = "delayOffset.json"
    rows_field = "offsetTable"

    def __init__(self, file: TableFile) -> None:
        """What `file` holds. ValueError: it holds no table of offsets."""
        super().__init__(file)
        stored = (file.load() or {}).get("offsetTable") or {}
        self.offsets: dict[int, int] = {level: int(offset) for level, offset in int_keys(stored).items()}
        self._durable = dict(self.offsets)
        self._noted: tuple[int, dict[int, int]] | None = None

    def note(self, max_pos: int, flushed_pos: int) -> None:
        """The log ends at `max_pos` and is flushed to `flushed_pos`: confirm the last picture, or take the first."""
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

    def file_form(self, picture: Mapping[str, Any]) -> dict[str, Any]:
        return {"offsetTable": int_keys(picture.get("offsetTable", {}))}

    def take_row(self, name: str, row: Any) -> None:
        level = int(name)
        for table in (self.offsets, self._durable):
            if row is None:
                table.pop(level, None)
            else:
                table[level] = int(row)

    def take_head(self, picture: Mapping[str, Any]) -> None:
        # Before the rows: what was delivered and not noted is delivered again by whoever leads now.
        self._noted = None
        self.offsets.clear()
        self.offsets.update(self._durable)


class _Outcome(enum.Enum):
    """What became of one delivery."""

    DONE = enum.auto()
    REFUSED = enum.auto()  # the store takes nothing now
    HOPELESS = enum.auto()  # nor will it take this one later


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
        """What was known of messages ahead of the offset is of an earlier time."""
        self._ahead.clear()
        self._tries = 0

    @property
    def offset(self) -> int:
        return self._offsets.get(self.level, 0)

    async def step(self, now_ms: int) -> int:
        """Deliver what is due, at most `WINDOW` messages; milliseconds until there is something to do again."""
        store, queue_id = self._store, self._queue_id
        begin = max(self.offset, store.min_offset(SCHEDULE_TOPIC, queue_id))
        units = store.usable_units(SCHEDULE_TOPIC, queue_id, begin, WINDOW)
        if not units:
            return idle_ms(self.delay_ms)
        if begin != self.offset:
            self._offsets[self.level] = begin  # the messages before are gone from the log
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
        """The message at the front was not delivered; milliseconds until it is tried again."""
        self._tries = self._tries + 1 if outcome is _Outcome.HOPELESS else 0
        if self._tries < MAX_TRIES:
            return RETRY_MS
        logger.error("delayed message at %d of the log cannot be delivered: passed over", pos)
        self.passed_over += 1
        self._advance()
        return 0

    async def _deliver(self, pos: int) -> _Outcome:
        if pos < 0:
            logger.error("a delayed message of level %d is lost from the log: passed over", self.level)
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
            # RocketMQ leaves such ones behind when a half message had a delay; there is no way back for them.
            logger.error("delayed message %s has no topic to go to: passed over", record.message_id)
            self.passed_over += 1
            return _Outcome.DONE
        result = await self._store.put(message)
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
        """Levels and intervals are the store's settings. ValueError: `file` holds no table of offsets."""
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
        """Begin to deliver, from the offsets as they are."""
        self._stopping.clear()
        for queue in self.queues:
            queue.begin()
        self._tasks = [
            asyncio.create_task(self._work(queue), name=f"delay level {queue.level}") for queue in self.queues
        ]
        self._tasks.append(asyncio.create_task(self._persist_forever(), name="delay offsets"))

    def halt(self) -> None:
        """Begin no delivery from now on; `stop` waits for those under way."""
        self._stopping.set()

    async def stop(self) -> None:
        """End the workers, each after what it is doing: one that is cut off would deliver the same again after a start.

        Call `persist` once the store has flushed what they delivered last: the rest is delivered again, too.
        """
        self._stopping.set()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await self._save()

    def persist(self) -> None:
        """Write the offsets of what is delivered and flushed, in this thread. OSError: as the file system says."""
        self._note()
        self.offsets.persist()

    def runtime_info(self) -> dict[str, str]:
        """scheduleMessageOffset_<level> of GET_BROKER_RUNTIME_INFO: "delivered,stored"."""
        return {
            f"scheduleMessageOffset_{queue.level}": (
                f"{queue.offset},{self._store.max_offset(SCHEDULE_TOPIC, queue.level - 1)}"
            )
            for queue in self.queues
            # Also of a level whose first message is not due yet.
            if queue.level in self.offsets.offsets or self._store.max_offset(SCHEDULE_TOPIC, queue.level - 1)
        }

    async def _work(self, queue: LevelQueue) -> None:
        while not self._stopping.is_set():
            try:
                wait_ms = await queue.step(self._now_ms())
            except Exception:
                # The offset stands before the message: it is tried again, never skipped.
                logger.exception("delay level %d: a delivery failed", queue.level)
                wait_ms = RETRY_MS
            await pause(self._stopping, min(wait_ms, MAX_SLEEP_MS))

    async def _persist_forever(self) -> None:
        while not await pause(self._stopping, self._store.settings.flushDelayOffsetInterval):
            await self._save()

    def _note(self) -> None:
        # In a group the offsets are an entry behind what was delivered: whatever has the one has the other.
        flushed_pos = self._store.flushed_pos if self.offsets.replica is None else self._store.max_pos
        self.offsets.note(self._store.max_pos, flushed_pos)

    async def _save(self) -> None:
        self._note()
        try:
            await self.offsets.saved()
        except OSError as error:
            # It stays dirty: the next turn tries again.
            logger.error("cannot save %s: %s", self.offsets.what, error)
