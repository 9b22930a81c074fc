"""Transactions: handles their ends, and checks those that were never ended.

`end` is called for END_TRANSACTION: it stores the committed message, then the op record; a crash between the two leaves
a half that is checked again. `check` is one round over the half queue (`transaction_check.py` decides, this module
acts); a timer calls it every `transactionCheckInterval`.

The offsets of half and op queue are those of the group CID_RMQ_SYS_TRANS in consumerOffset.json. They are committed
only when everything that a round relies on is flushed. Otherwise a power loss could lose a commit and its op record,
while the note that the half is done remains.

Source: TransactionalMessageServiceImpl, TransactionalMessageCheckService of RocketMQ 4.8.0.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from tallystick.node.broker.services.delay import DelayError, again, to_schedule
from tallystick.node.broker.services.half import GROUP, check_request, to_commit, to_discard, to_op
from tallystick.node.broker.services.timer_messages import TimerError, to_timer
from tallystick.node.broker.services.transaction_check import (
    QUEUE_ID,
    ROUND_LIMIT_MS,
    Ask,
    CheckRound,
    CheckRules,
    CopySearch,
    Discard,
    HalfLinks,
    Keep,
    Pause,
)
from tallystick.node.broker.services.transaction_figures import TransactionFigures
from tallystick.node.broker.tables.topics import CHECK_MAX_TOPIC, HALF_TOPIC, OPERATION_TOPIC, TIMER_TOPIC
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import FLAG_ONEWAY, Command, ResponseError
from tallystick.store.engine.age_clock import AgeClock
from tallystick.store.engine.pace import Pace
from tallystick.store.formats import properties
from tallystick.store.formats.record import Record
from tallystick.store.limited_log import RepeatedError

if TYPE_CHECKING:
    from tallystick.node.broker.context import BrokerContext

_logger = logging.getLogger("tallystick.broker.transactions")

_HOUR_MS = 3_600_000


class TransactionService:
    """Ends and checks transactions."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        self._pace = Pace()
        self._age_clock = AgeClock(0, broker.now_ms(), broker.steady_ms())
        self.figures = TransactionFigures()
        self._forget()
        self._timer: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self.asked = self.discarded = self.without_producer = 0

    @property
    def handles_halves(self) -> bool:
        """Whether this broker checks transactions, so that it knows which half messages are open."""
        return self._timer is not None

    def opened(self, offset: int, topic: str, born_ms: int) -> None:
        """The half message of a message for `topic` is stored at this offset of the half queue."""
        self.figures.opened(self._links.first(offset), topic, born_ms)

    def _forget(self) -> None:
        """Drops what was found in the half queue, after another broker of the group has handled the queue."""
        self._links = HalfLinks()
        self.figures.forget_open()
        self._unnoted: dict[int, None] = {}  # ended halves whose op record could not be stored
        self._offsets: tuple[int, int] | None = None  # half, op: where the next round begins
        self._search: CopySearch | None = None  # of copies from before a restart, while it is not complete
        self._settled: tuple[int, int, int] | None = None  # log position to be flushed first, half, op

    async def start(self) -> None:
        """Creates the half topic and starts to check."""
        if self._stopping.is_set():  # it ran before
            self._forget()
        self._broker.topics.create_on_send_back(HALF_TOPIC, 1)
        self._stopping.clear()
        self._timer = asyncio.create_task(self._check_forever(), name="transaction check")

    def wake(self) -> None:
        """Begins a round now: a setting has changed."""
        self._pace.wake()

    def halt(self) -> None:
        """Begins no step from now on; `stop` waits for the one in progress."""
        self._stopping.set()
        self._pace.wake()

    async def stop(self) -> None:
        """Ends the timer after its present step. Call `settle` once more when the store is flushed."""
        self.halt()
        if self._timer is not None:
            await self._timer
            self._timer = None
        self.settle()
        self.figures.forget_open()

    async def end(self, half: Record, *, commit: bool) -> None:
        """Commits or rolls back. A second end of the same half, or of a copy, changes nothing: the first one is valid.

        ResponseError 1: the committed message could not be stored; the transaction is still open.
        """
        offset = half.queue_offset
        if not self._links.begin(offset):
            return
        stored = False
        try:
            if commit:
                await self._commit(half)
            stored = True
        finally:
            self._links.settle(offset, stored)
        topic = half.property_table().get(properties.REAL_TOPIC, "")
        self.figures.closed(self._links.first(offset))
        self.figures.ended(topic, self._broker.now_ms() - half.born_timestamp_ms, commit=commit)
        for each in {offset, self._links.newest(offset)}:
            await self._note(each)

    async def _commit(self, half: Record) -> None:
        try:
            message = to_timer(to_commit(half), self._broker.store.settings, self._broker.now_ms())
            if message.topic != TIMER_TOPIC:
                message = to_schedule(message, self._broker.schedule.levels)
        except (DelayError, TimerError) as error:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, str(error)) from error
        result = await self._broker.store.writes.put(message)
        if not result.status.stored:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, f"{result.status.name} {result.detail}".strip())

    async def _note(self, offset: int) -> bool:
        """Stores the op record of an ended half; a failure is retried before the next round."""
        self._unnoted[offset] = None
        op = to_op(QUEUE_ID, offset, self._broker.host, self._broker.now_ms())
        result = await self._broker.store.writes.put(op)
        if result.status.stored:
            self._unnoted.pop(offset, None)
        return result.status.stored

    async def check(self, now_ms: int) -> None:
        """One round, started at `now_ms`."""
        broker, settings = self._broker, self._broker.settings
        begin_ms = broker.steady_ms()
        for offset in tuple(self._unnoted):
            if not await self._note(offset):
                return  # the store accepts nothing now
        begin = await self._begin()
        if begin is None:
            return  # the next round continues the search
        half_offset, op_offset = begin
        rules = CheckRules(
            now_ms,
            settings.transactionTimeOut,
            settings.transactionCheckMax,
            broker.store.settings.fileReservedTime * _HOUR_MS,
            self._age_clock.now_ms(now_ms, broker.steady_ms()),
        )
        current = CheckRound(broker.store, half_offset, op_offset, rules, self._links)
        for step in current.steps():
            if self._stopping.is_set() or broker.steady_ms() - begin_ms > ROUND_LIMIT_MS:
                break
            if isinstance(step, Pause):
                await asyncio.sleep(0)
            elif not await self._act(step):
                break
        if current.unreadable:
            _logger.warning("%d half messages could not be read and were skipped", current.unreadable)
        self._offsets = current.half_offset, current.op_offset
        self._count_ended(current)
        self.settle()

    def _count_ended(self, current: CheckRound) -> None:
        """Halves that ended before this process stored or found them, and halves that cannot be read, are not open."""
        for offset in current.ended:
            self.figures.closed(self._links.first(offset))
        for first in self.figures.open_before(current.half_offset):
            if self._links.newest(first) < current.half_offset:
                self.figures.closed(first)

    def _found(self, offset: int, half: Record) -> None:
        self.opened(offset, half.property_table().get(properties.REAL_TOPIC, ""), half.born_timestamp_ms)

    async def _begin(self) -> tuple[int, int] | None:
        """Where the round begins; the first round searches copies that were made before a restart. None: that search is
        not complete, because a half cannot be read for the moment."""
        if self._offsets is None:
            offsets = self._broker.offsets
            half_offset = max(0, offsets.query(GROUP, HALF_TOPIC, QUEUE_ID))
            op_offset = max(0, offsets.query(GROUP, OPERATION_TOPIC, QUEUE_ID))
            search = self._search or CopySearch(self._broker.store, half_offset, self._links, self._found)
            for _ in search.steps():
                await asyncio.sleep(0)
            self._search = None if search.is_complete else search
            if self._search is not None:
                return None
            self._offsets = half_offset, op_offset
        return self._offsets

    def settle(self) -> None:
        """Commits the offsets of the last round if what it relies on is flushed, or of an earlier one."""
        self._commit_settled()
        if self._settled is None and self._offsets is not None:
            self._settled = self._broker.store.max_pos, *self._offsets
            self._commit_settled()

    def _commit_settled(self) -> None:
        if self._settled is not None and self._broker.store.flushed_pos >= self._settled[0]:
            _, half_offset, op_offset = self._settled
            self._settled = None
            self._broker.offsets.commit(GROUP, HALF_TOPIC, QUEUE_ID, half_offset)
            self._broker.offsets.commit(GROUP, OPERATION_TOPIC, QUEUE_ID, op_offset)

    async def _act(self, step: Ask | Keep | Discard) -> bool:
        """Does one step. False if the store accepted nothing."""
        if isinstance(step, Discard):
            return await self._discard(step)
        result = await self._broker.store.writes.put(again(step.copy, HALF_TOPIC, QUEUE_ID))
        if not result.status.stored:
            return False
        self._links.replace(step.offset, result.queue_offset)
        if self._links.is_ended(step.offset):  # it was ended while the copy was stored
            return await self._note(result.queue_offset)
        if isinstance(step, Ask):
            self._ask(step.copy, result.queue_offset, result.pos, result.message_id)
        return True

    def _ask(self, half: Record, queue_offset: int, pos: int, message_id: str) -> None:
        request = check_request(half, queue_offset=queue_offset, pos=pos, message_id=message_id)
        channel = self._broker.producers.pick(request.group)
        if channel is None:
            self.without_producer += 1  # asked again in the next round
            return
        self.asked += 1
        channel.oneway(
            Command(RequestCode.CHECK_TRANSACTION_STATE, flag=FLAG_ONEWAY, ext=request.ext, body=request.body)
        )

    async def _discard(self, step: Discard) -> bool:
        self._broker.topics.create_on_send_back(CHECK_MAX_TOPIC, 1)
        try:
            await self._broker.topics.gate.passed(CHECK_MAX_TOPIC)
        except OSError as error:
            _logger.error("half message %d cannot be moved yet: cannot save its topic: %s", step.offset, error)
            return False
        result = await self._broker.store.writes.put(to_discard(step.half))
        if result.status.stored:
            self.discarded += 1
            self.figures.closed(self._links.first(step.offset))
            _logger.warning(
                "half message %d was given up (%s) and moved to %s", step.offset, step.reason, CHECK_MAX_TOPIC
            )
        return result.status.stored

    async def _check_forever(self) -> None:
        # After any error the offsets stay where the last successful step left them: the next round retries.
        errors = RepeatedError(_logger, "a round of transaction checks failed, retrying")
        while not self._stopping.is_set():
            await self._pace.pause(self._broker.settings.transactionCheckInterval)
            if not self._stopping.is_set():
                await errors.attempt(lambda: self.check(self._broker.now_ms()))
