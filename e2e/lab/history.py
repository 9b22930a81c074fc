"""Records what concurrent clients did and which answers they got, and checks that one replicated log explains them.

Every attempt to send is recorded with the time before its first byte went out and the time at which its outcome was
known, by one monotonic clock. An outcome is one of three:

- OK: acknowledged, with a queue offset and a position in the log. The message is there in the end, exactly there, with
  exactly its body.
- REFUSED: said, or known because there was no link, to be not stored. It never appears.
- UNKNOWN: no answer, a link that broke, or an answer that says so. It appears once or not at all, at any time after it
  was sent.

A message that is sent again keeps its key. So a key may appear once for each OK, there, and at most once for each
UNKNOWN of its attempts, in the queue of that attempt; a client that continues after an UNKNOWN may make a duplicate, a
broker never does.

The final order of a queue is what every member returns at rest. It has no gap. Each earlier read of any member is a
part of it: what was read once stays, so a consumer sees the order of commits at every member. How *recent* a read is,
is not checked: pulls may lag (R4).

Appends are linearizable: the log is one object, and an append's result is its place, so the order of places is the only
order that can explain the results. It must agree with real time: an attempt that had ended before another one began
lies before it, in the same queue or not. `check` finds every pair that does not by one pass in the order of places. An
UNKNOWN never ended; of several of one key, the earliest ones explain what is found, which forbids least.

Messages that come later, delayed or when their producer has decided, are appended to a queue of the broker's first, and
that is the attempt that is looked at here. What comes of it is `deferred`'s part, and so are the queues to which it
comes. Halves of transactions are the one exception to "once": a broker that asks about one appends it again.
"""

from __future__ import annotations

import enum
import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from lab.ledger import HALF_TOPIC, Problems

if TYPE_CHECKING:
    from lab.deferred import Deferred, Unrest

Queue = tuple[str, int]
"""Topic and number."""


class Outcome(enum.Enum):
    OK = "ok"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Send:
    """One attempt. Times in seconds of one monotonic clock; `ended_s` of an UNKNOWN is when its client gave up."""

    client: str
    queue: Queue
    key: str
    digest: bytes
    invoked_s: float
    ended_s: float
    outcome: Outcome
    queue_offset: int = -1
    pos: int = -1
    broker: str = ""
    reason: str = ""


class Item(NamedTuple):
    """A message as it was read. `pos`: bytes into the log; `stored_ms`: by the wall clock of who led then."""

    queue_offset: int
    key: str
    digest: bytes
    pos: int
    stored_ms: int = 0


@dataclass(frozen=True, slots=True)
class Read:
    """One pull that was answered: `items` from offset `asked` on, and where the broker says that the next one begins.

    A `consumer` is one reader with a separate position in each queue, from which it continues.
    """

    consumer: str
    queue: Queue
    asked: int
    items: tuple[Item, ...]
    next_offset: int
    invoked_s: float
    ended_s: float
    broker: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """A whole queue as one member has it at rest, from its lowest offset."""

    first: int
    items: tuple[Item, ...]


@dataclass(slots=True)
class History:
    """All that was done to one group since its first message."""

    sends: list[Send] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    deferred: list[Deferred] = field(default_factory=list)
    unrest: list[Unrest] = field(default_factory=list)

    def acknowledged(self) -> list[Send]:
        return [send for send in self.sends if send.outcome is Outcome.OK]

    def queues(self) -> list[Queue]:
        """All queues that were written or read."""
        return sorted({send.queue for send in self.sends} | {read.queue for read in self.reads})

    def reasons(self) -> Counter[str]:
        """How often which refusal or doubt was met."""
        return Counter(f"{send.outcome.value}: {send.reason}" for send in self.sends if send.outcome is not Outcome.OK)


def check(history: History, final: Mapping[Queue, Reading], problems: Problems) -> None:
    """Adds everything in the history that `final`, what a member has at rest, cannot explain."""
    for queue, reading in final.items():
        _check_whole(queue, reading, problems)
    _check_acknowledged(history, final, problems)
    _check_appearances(history, final, problems)
    _check_real_time(history, final, problems)
    _check_reads(history, final, problems)


def check_same(
    name: str, final: Mapping[Queue, Reading], other: str, theirs: Mapping[Queue, Reading], problems: Problems
) -> None:
    """Two members read the same, queue by queue."""
    for queue in sorted(final.keys() | theirs.keys()):
        ours, read = final.get(queue, Reading(0, ())), theirs.get(queue, Reading(0, ()))
        if ours != read:
            pairs = enumerate(zip(ours.items, read.items, strict=False))
            at = next((number for number, (a, b) in pairs if a != b), min(len(ours.items), len(read.items)))
            problems.add(
                f"{_at(queue)}: {name} has {len(ours.items)} messages from {ours.first}, {other} {len(read.items)} "
                f"from {read.first}; they differ at offset {ours.first + at}"
            )


def _at(queue: Queue) -> str:
    return f"{queue[0]} queue {queue[1]}"


def _check_whole(queue: Queue, reading: Reading, problems: Problems) -> None:
    """Without a gap, from the first message that there ever was, and in the order of the log."""
    if reading.first != 0:
        problems.add(f"{_at(queue)}: begins at {reading.first}; earlier messages are missing")
    before = -1
    for offset, item in enumerate(reading.items, reading.first):
        if item.queue_offset != offset:
            problems.add(f"{_at(queue)}: GAP, at {offset} the message has the queue offset {item.queue_offset}")
        if item.pos <= before:
            problems.add(f"{_at(queue)} offset {offset}: is at {item.pos} in the log, the previous one at {before}")
        before = item.pos


def _check_acknowledged(history: History, final: Mapping[Queue, Reading], problems: Problems) -> None:
    """Every acknowledged message is where it was said to be, and no place was given away twice."""
    places: dict[tuple[Queue, int], Send] = {}
    for send in history.acknowledged():
        other = places.setdefault((send.queue, send.queue_offset), send)
        where = f"{_at(send.queue)} offset {send.queue_offset}"
        if other is not send:
            problems.add(f"{where}: acknowledged TWICE, for {other.key} by {other.broker}, {send.key} by {send.broker}")
        found = _item(final, send.queue, send.queue_offset)
        if found is None:
            problems.add(f"{send.key}: acknowledged by {send.broker} at {where}, LOST")
        elif found.key != send.key:
            problems.add(f"{send.key}: acknowledged by {send.broker} at {where}, LOST: {found.key} is there")
        elif found.pos != send.pos:
            problems.add(f"{send.key}: acknowledged at position {send.pos}, found at {found.pos}")


def _item(final: Mapping[Queue, Reading], queue: Queue, offset: int) -> Item | None:
    reading = final.get(queue)
    if reading is None or not 0 <= offset - reading.first < len(reading.items):
        return None
    return reading.items[offset - reading.first]


def _check_appearances(history: History, final: Mapping[Queue, Reading], problems: Problems) -> None:
    """Nothing is there that was not sent, nothing that was refused, and nothing more often than it may."""
    attempts: dict[str, list[Send]] = defaultdict(list)
    for send in history.sends:
        attempts[send.key].append(send)
    found: dict[tuple[str, Queue], list[int]] = defaultdict(list)
    later = {each.queue for each in history.deferred}
    for queue, reading in final.items():
        for item in reading.items if queue not in later else ():
            found[item.key, queue].append(item.queue_offset)
            tries = attempts.get(item.key)
            where = f"{_at(queue)} offset {item.queue_offset}"
            if tries is None or all(send.digest != item.digest for send in tries):
                problems.add(f"{where}: holds a body that was NEVER SENT ({item.key!r})")
            elif all(send.queue != queue for send in tries):
                problems.add(f"{where}: holds {item.key}, which was sent to {_at(tries[0].queue)}")
    for (key, queue), offsets in found.items():
        outcomes = Counter(send.outcome for send in attempts.get(key, ()) if send.queue == queue)
        if not outcomes:
            continue  # reported above
        allowed = outcomes[Outcome.OK] + outcomes[Outcome.UNKNOWN]
        if len(offsets) > allowed and not (allowed and queue[0] == HALF_TOPIC):
            what = "was REFUSED" if not allowed else f"may be there {allowed} times"
            problems.add(f"{key}: {what}, but is at {offsets} of {_at(queue)}")


@dataclass(slots=True)
class _Placed:
    """An attempt that took effect at `pos`."""

    pos: int
    send: Send

    @property
    def ended_s(self) -> float:
        return self.send.ended_s if self.send.outcome is Outcome.OK else math.inf


def explained(history: History, final: Mapping[Queue, Reading]) -> list[_Placed]:
    """Which attempt made each message that is there, in the order of the log; what no attempt explains is left out."""
    acknowledged = {(send.queue, send.queue_offset, send.key): send for send in history.acknowledged()}
    unknown: dict[tuple[str, Queue], list[Send]] = defaultdict(list)
    for send in sorted(history.sends, key=lambda send: send.invoked_s, reverse=True):
        if send.outcome is Outcome.UNKNOWN:
            unknown[send.key, send.queue].append(send)
    placed = []
    for pos, queue, item in sorted((item.pos, queue, item) for queue, read in final.items() for item in read.items):
        answered, doubtful = acknowledged.get((queue, item.queue_offset, item.key)), unknown[item.key, queue]
        if answered is not None:
            placed.append(_Placed(pos, answered))
        elif doubtful:
            placed.append(_Placed(pos, doubtful.pop()))  # the earliest one that is left
    return placed


def _check_real_time(history: History, final: Mapping[Queue, Reading], problems: Problems) -> None:
    """No message lies behind one that was sent only after the former's acknowledgement."""
    latest: _Placed | None = None  # of all before, the one that was invoked last
    for placed in explained(history, final):
        if latest is not None and placed.ended_s < latest.send.invoked_s:
            late_s = latest.send.invoked_s - placed.ended_s
            problems.add(
                f"REORDERED: {placed.send.key} was acknowledged {late_s:.6f} s before {latest.send.key} was sent, "
                f"but is after it in the log ({placed.pos} > {latest.pos})"
            )
        if latest is None or placed.send.invoked_s > latest.send.invoked_s:
            latest = placed


def _check_reads(history: History, final: Mapping[Queue, Reading], problems: Problems) -> None:
    """Every read is a piece of the final order, continues at the requested offset, and shows no unsent message."""
    first_invoked: dict[str, float] = {}
    for send in history.sends:
        first_invoked[send.key] = min(send.invoked_s, first_invoked.get(send.key, math.inf))
    at: dict[tuple[str, Queue], int] = {}
    astray: dict[tuple[str, str], list[str]] = defaultdict(list)
    for read in history.reads:
        who = f"{read.consumer} of {read.broker}, {_at(read.queue)}"
        expected = at.get((read.consumer, read.queue), read.asked)
        if read.asked != expected:
            problems.add(f"{who}: continued at {read.asked}, not at {expected}")
        for offset, item in enumerate(read.items, read.asked):
            if item.queue_offset != offset:
                problems.add(f"{who}: read a message of offset {item.queue_offset} instead of {offset}")
            kept = _item(final, read.queue, item.queue_offset)
            if kept != item:
                there = "no message is there" if kept is None else f"{kept.key} at position {kept.pos}"
                problems.add(f"{who}: READ {item.key} at {item.queue_offset}, position {item.pos}; at the end {there}")
            if read.ended_s < first_invoked.get(item.key, math.inf):
                problems.add(f"{who}: read {item.key} before it was sent")
        end = read.asked + len(read.items)
        if read.next_offset != end:
            told = f"read {len(read.items)} of {_at(read.queue)} from {read.asked}, and was SENT to {read.next_offset}"
            astray[read.consumer, read.broker].append(told)
        at[read.consumer, read.queue] = end
    for (consumer, broker), texts in astray.items():
        more = f", and {len(texts) - 1} times more" if len(texts) > 1 else ""
        problems.add(f"{consumer} of {broker}: {texts[0]}{more}")
