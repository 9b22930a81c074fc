"""Decides about half messages that were never ended: one round over the half queue.

    half queue   0 1 2 3 4 5 6        op queue   1 0 4 3
                     ^ half_offset                   ^ op_offset

All halves below `half_offset` are done; op records below `op_offset` concern only those. A round continues from there.
A half that an op record names is done. One that is too young ends the round: all later ones are younger. For any other
half the round returns a step, and continues only after that was done:

    Ask      append a copy with TRANSACTION_CHECK_TIMES incremented, then ask its producer; the old one is done
    Keep     append a copy, ask nothing: its producer set a longer time (CHECK_IMMUNITY_TIME_IN_SECONDS)
    Discard  asked too often, older than the log's retention, or without a topic: to the discard topic

Through copies, `half_offset` can pass a transaction that takes long. They cause duplicates in RocketMQ: the end of the
first copy does not end the second, which is then checked and committed again. `HalfLinks` remembers which copy replaced
which, and ends both; after a restart `CopySearch` finds them by UNIQ_KEY.

A round stores one number for each op record that it had to read. It reads them only as far as necessary: to the end if
there is a half without an end, so that memory grows with the transactions that ended since that one was sent.

Pure: it only reads the store; the time is an argument. Source: TransactionalMessageServiceImpl.check of RocketMQ 4.8.0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tallystick.node.broker.services.delay import DelayError, real_queue
from tallystick.node.broker.services.half import ended_offsets, with_properties
from tallystick.node.broker.tables.topics import HALF_TOPIC, OPERATION_TOPIC
from tallystick.store.formats import properties
from tallystick.store.formats.record import Record, RecordError

if TYPE_CHECKING:
    from tallystick.node.broker.context import QueuesView, ReadsView

QUEUE_ID = 0  # half and op topic have one queue
READ_COUNT = 64
"""Units read at once, and steps between two pauses."""


class QueueReader(Protocol):
    """What a round needs of the store: see `context.StoreView`."""

    @property
    def reads(self) -> ReadsView: ...

    @property
    def queues(self) -> QueuesView: ...


ROUND_LIMIT_MS = 60_000
"""A round stops after this time and continues with the next one."""


@dataclass(frozen=True, slots=True)
class CheckRules:
    """`now_ms`: the round's start; `timeout_ms`: younger halves are ignored; `reserved_ms`: older ones are given up.

    `aged_ms`: the clock for that (`AgeClock`): a clock that jumps gives up no transaction.
    """

    now_ms: int
    timeout_ms: int
    max_checks: int
    reserved_ms: int
    aged_ms: int


@dataclass(frozen=True, slots=True)
class Ask:
    """Append `copy` in place of the half with this queue offset, and ask the producer about it."""

    offset: int
    copy: Record


@dataclass(frozen=True, slots=True)
class Keep:
    """Append `copy` in place of the half with this queue offset."""

    offset: int
    copy: Record


@dataclass(frozen=True, slots=True)
class Discard:
    """Give up the half with this queue offset."""

    offset: int
    half: Record
    reason: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Some records were read; let other tasks run."""


Step = Ask | Keep | Discard | Pause


class HalfLinks:
    """What this process knows of halves that is not, or not yet, in the op queue. Offsets are those of the half queue.

    A half and all its copies are one transaction, named by its first offset. Only the newest `limit` of each kind are
    kept; for older ones RocketMQ's own behaviour remains.
    """

    def __init__(self, limit: int = 100_000) -> None:
        self._limit = limit
        self._first: dict[int, int] = {}  # of each copy
        self._newest: dict[int, int] = {}  # by first offset, of those that have copies
        self._ended: dict[int, None] = {}  # first offsets
        self._ending: set[int] = set()  # first offsets

    def first(self, offset: int) -> int:
        """The half that this one is a copy of, or itself."""
        return self._first.get(offset, offset)

    def newest(self, offset: int) -> int:
        """The last copy of the same half, or itself."""
        return self._newest.get(self.first(offset), offset)

    def begin(self, offset: int) -> bool:
        """Begins to end this half. False if it is ended, or being ended, already."""
        first = self.first(offset)
        if first in self._ended or first in self._ending:
            return False
        self._ending.add(first)
        return True

    def settle(self, offset: int, ended: bool) -> None:
        """The end that `begin` announced is stored, or failed."""
        self._ending.discard(self.first(offset))
        if ended:
            self.end(offset)

    def end(self, offset: int) -> None:
        """The half and each of its copies are ended."""
        self._ended[self.first(offset)] = None
        self._trim(self._ended)

    def replace(self, offset: int, copy_offset: int) -> None:
        """A copy replaced this half."""
        first = self.first(offset)
        self._first[copy_offset] = first
        self._newest[first] = copy_offset
        self._trim(self._first)
        self._trim(self._newest)

    def is_ended(self, offset: int) -> bool:
        return self.first(offset) in self._ended

    def is_ending(self, offset: int) -> bool:
        return self.first(offset) in self._ending

    def is_done(self, offset: int) -> bool:
        """Whether it is ended, or replaced by a copy that is handled later."""
        return self.is_ended(offset) or self.newest(offset) != offset

    def _trim(self, table: dict[int, int] | dict[int, None]) -> None:
        if len(table) > self._limit:
            del table[next(iter(table))]


class CheckRound:
    """One round. After any number of `steps`, `half_offset` and `op_offset` are where the next round begins."""

    def __init__(
        self, store: QueueReader, half_offset: int, op_offset: int, rules: CheckRules, links: HalfLinks
    ) -> None:
        self._store = store
        self._rules = rules
        self._links = links
        self.half_offset = max(half_offset, store.queues.min_offset(HALF_TOPIC, QUEUE_ID))
        self.op_offset = max(op_offset, store.queues.min_offset(OPERATION_TOPIC, QUEUE_ID))
        self._op_targets: deque[int] = deque()  # of op records read, from op_offset on: the highest half offset it ends
        self._ended: set[int] = set()
        self.unreadable = 0  # halves whose record is gone or damaged: nothing can be done about them

    def steps(self) -> Iterator[Step]:
        """What to do, in order. Continue only after a step is done; otherwise the next round begins with it again."""
        yield from self._walk()
        yield from self._follow()

    @property
    def ended(self) -> frozenset[int]:
        """The halves that end by the op records which this round has read."""
        return frozenset(self._ended)

    def _follow(self) -> Iterator[Pause]:
        """Moves `op_offset` over the records that concern only halves below `half_offset`."""
        while True:
            while self._op_targets and self._op_targets[0] < self.half_offset:
                self._op_targets.popleft()
                self.op_offset += 1
            if self._op_targets or not self._read_ops():
                return
            yield Pause()

    def _walk(self) -> Iterator[Step]:
        window: list[tuple[int, int, int]] = []
        window_begin = self.half_offset
        examined = 0
        while True:
            examined += 1
            if examined % READ_COUNT == 0:
                yield Pause()
            offset = self.half_offset
            if offset in self._ended or self._links.is_done(offset):
                self.half_offset += 1
                continue
            if not window_begin <= offset < window_begin + len(window):
                window = self._store.reads.usable_units(HALF_TOPIC, QUEUE_ID, offset, READ_COUNT)
                window_begin = offset
                if not window:
                    return
            half = self._record(window[offset - window_begin][0])
            if half is None:
                self.unreadable += 1
                self.half_offset += 1
                continue
            if self._links.is_ending(offset) or self._is_young(half):
                return
            if self._read_ops():
                continue  # perhaps one of them names this half
            if self._has_more_ops():
                return  # what ends it may be a record whose unit is compared with the log now
            step = self._decide(half)
            if step is not None:
                yield step
            self.half_offset += 1

    def _is_young(self, half: Record) -> bool:
        """Whether it is too young to judge, like all later ones. A longer time that the message sets does not count."""
        if 0 <= half.store_timestamp_ms - self._rules.now_ms < max(self._rules.timeout_ms, ROUND_LIMIT_MS):
            # Stored in this round: a copy of a half that was asked for. Or the clock was set back since, so ages are
            # unknown from here on.
            return True
        # A producer whose clock is ahead gives a negative age, which is not usable.
        age_ms = self._rules.now_ms - half.born_timestamp_ms
        return _immunity_ms(half) is None and 0 <= age_ms < self._rules.timeout_ms

    def _decide(self, half: Record) -> Step | None:
        """The step for a half that no op record ends; None if there is nothing to do."""
        names = half.property_table()
        checks = _number(names.get(properties.TRANSACTION_CHECK_TIMES)) or 0
        age_ms = self._rules.now_ms - half.born_timestamp_ms
        try:
            real_queue(names)
        except DelayError as error:
            return Discard(half.queue_offset, half, str(error))
        if checks >= self._rules.max_checks:
            return Discard(half.queue_offset, half, f"checked {checks} times")
        if self._rules.aged_ms - half.born_timestamp_ms > self._rules.reserved_ms:
            return Discard(half.queue_offset, half, "older than fileReservedTime")
        first = _number(names.get(properties.TRAN_PREPARED_QUEUE_OFFSET))
        if first is not None and (first in self._ended or self._links.is_ended(first)):
            return None
        immunity_ms = _immunity_ms(half)
        if immunity_ms is not None and age_ms < immunity_ms:
            first = half.queue_offset if first is None else first
            return Keep(half.queue_offset, with_properties(half, {properties.TRAN_PREPARED_QUEUE_OFFSET: str(first)}))
        copy = with_properties(half, {properties.TRANSACTION_CHECK_TIMES: str(checks + 1)})
        return Ask(half.queue_offset, copy)

    def _read_ops(self) -> bool:
        """Reads the next op records. False if there are no more."""
        begin = self.op_offset + len(self._op_targets)
        units = self._store.reads.usable_units(OPERATION_TOPIC, QUEUE_ID, begin, READ_COUNT)
        for pos, _, _ in units:
            op = self._record(pos)
            offsets = ended_offsets(op) if op is not None else []
            for offset in offsets:
                if (copy := self._links.newest(offset)) != offset:
                    # What ends a half ends its copies: copies that were found after a restart may have no own op
                    # record.
                    self._links.end(offset)
                    offsets = [*offsets, copy]
            self._ended.update(offsets)
            self._op_targets.append(max(offsets, default=-1))
        return bool(units)

    def _has_more_ops(self) -> bool:
        """Whether there are op records that cannot be read yet."""
        return self.op_offset + len(self._op_targets) < self._store.queues.max_offset(OPERATION_TOPIC, QUEUE_ID)

    def _record(self, pos: int) -> Record | None:
        return read_record(self._store, pos)


def read_record(store: QueueReader, pos: int) -> Record | None:
    """The record at `pos`; None if it is deleted or damaged."""
    data = store.reads.message_at(pos)
    if data is None:
        return None
    try:
        return Record.decode(data)
    except RecordError:
        return None  # the store's scrubber reports damage; here it counts as deleted


class CopySearch:
    """Records in `links` which halves from `half_offset` on have a later copy: same key, same real queue.

    Two such halves can also be one send that a producer repeated; it ends only the second one, so the first can be
    dropped.

    The store gives no unit behind one that it is comparing with the log, or whose record a group repairs. A search that
    ended there would miss the copies behind it, and halves that have one would be checked and committed twice. So a
    search is complete only at the end of the queue: until then call `steps` again later, it continues.
    """

    def __init__(
        self,
        store: QueueReader,
        half_offset: int,
        links: HalfLinks,
        on_half: Callable[[int, Record], None] = lambda offset, half: None,
    ) -> None:
        """`on_half`: gets each half that can be read, with its queue offset, when `links` knows its copies."""
        self._store = store
        self._links = links
        self._on_half = on_half
        self._newest: dict[tuple[str, str], int] = {}
        self._offset = max(half_offset, store.queues.min_offset(HALF_TOPIC, QUEUE_ID))

    def steps(self) -> Iterator[Pause]:
        """Reads all that can be read now."""
        while units := self._store.reads.usable_units(HALF_TOPIC, QUEUE_ID, self._offset, READ_COUNT):
            for pos, _, _ in units:
                self._look_at(read_record(self._store, pos))
                self._offset += 1
            yield Pause()

    @property
    def is_complete(self) -> bool:
        """Whether all halves that the queue has now were read."""
        return self._offset >= self._store.queues.max_offset(HALF_TOPIC, QUEUE_ID)

    def _look_at(self, half: Record | None) -> None:
        names = half.property_table() if half is not None else {}
        key = names.get(properties.UNIQ_KEY)
        if key:
            identity = (key, names.get(properties.REAL_TOPIC, ""))
            if identity in self._newest:
                self._links.replace(self._newest[identity], self._offset)
            self._newest[identity] = self._offset
        if half is not None:
            self._on_half(self._offset, half)


def _immunity_ms(half: Record) -> int | None:
    """The time that the producer set for its own message; None if it is missing or not a number."""
    seconds = _number(half.property_table().get(properties.CHECK_IMMUNITY_TIME_IN_SECONDS))
    return None if seconds is None else seconds * 1000


def _number(text: str | None) -> int | None:
    """A non-negative decimal number; None if the text is not one."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 19 else None
