"""Messages that come later: delayed ones, and transactions, over all changes of leaders.

A broker first stores such a message in a system topic (the schedule topic, the half topic) and acknowledges that;
`history.check` checks this record as any other. When its time has come, or its producer has decided, the broker stores
it again where consumers read. This module checks that:

- A delayed message that is in the schedule topic comes, and not before its time. What is not there never comes.
- A transaction that was to be committed comes if its half is stored: by its producer's word, or when it is asked
  (the check-back). One that was to be rolled back never comes, whatever became of that word.
- Each comes once, but for what a change of leaders makes come again. How far a level is delivered is an entry of the
  log, made every second: what was delivered since the last one is delivered again by the next leader. A commit whose
  leader ends before it has noted that down is asked about, and committed again. So of two that are the same the first
  is not older than `REPEATED_S` when unrest begins, and the second comes after that.

`Unrest` is the time of a fault, from its begin until the group is complete again. A change of the route without one is
unrest as well, for machines are slow at times; when it began is only guessed then. All times are wall clock, of one
machine.
"""

from __future__ import annotations

import enum
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lab.history import History, Item, Queue, Reading
from lab.ledger import Problems

REPEATED_S = 3.0
"""An entry is made every second, and of what was flushed when the one before was made; the rest is a slow machine's."""


class Fate(enum.Enum):
    """What is to become of a message that was stored."""

    DELAYED = "delayed"
    COMMIT = "to be committed"
    ROLLBACK = "to be rolled back"


@dataclass(frozen=True, slots=True)
class Deferred:
    """One message, sent once. `delay_ms`: of a delayed one. `queue`: where consumers read it."""

    key: str
    digest: bytes
    queue: Queue
    stored_in: Queue
    fate: Fate
    delay_ms: int = 0


@dataclass(frozen=True, slots=True)
class Unrest:
    """Seconds of the wall clock. `guessed`: its begin is unknown, so a fault is a better explanation."""

    begin_s: float
    end_s: float
    guessed: bool = False


def missing(deferred: Iterable[Deferred], final: Mapping[Queue, Reading]) -> list[str]:
    """Keys of those that are stored, should come, and have not."""
    stored, come = _found(deferred, final)
    return [each.key for each in deferred if each.fate is not Fate.ROLLBACK and stored[each.key] and not come[each.key]]


def check_deferred(history: History, final: Mapping[Queue, Reading], problems: Problems) -> list[float]:
    """Adds what is not as above; how old each message was, in seconds, at the unrest that made it come again."""
    deferred = history.deferred
    stored, come = _found(deferred, final)
    known = {each.key: each for each in deferred}
    _check_sent(known, final, problems)
    repeated: list[float] = []
    for each in deferred:
        places, items = stored[each.key], come[each.key]
        if items and each.fate is Fate.ROLLBACK:
            problems.add(f"{each.key}: ROLLED BACK, but delivered at {_offsets(items)} of {each.queue}")
        elif items and not places:
            problems.add(f"{each.key}: delivered at {_offsets(items)} of {each.queue}, but was never stored")
        elif places and not items and each.fate is not Fate.ROLLBACK:
            problems.add(
                f"{each.key}: {each.fate.value}, stored at {_offsets(places)} of {each.stored_in}, NEVER DELIVERED"
            )
        elif items:
            early_ms = places[0].stored_ms + each.delay_ms - items[0].stored_ms
            if early_ms > 0:
                problems.add(f"{each.key}: delivered {early_ms} ms too early")
            repeated += _check_repeated(each, items, history.unrest, problems)
    return repeated


def _check_sent(known: Mapping[str, Deferred], final: Mapping[Queue, Reading], problems: Problems) -> None:
    for queue in sorted({each.queue for each in known.values()}):
        for item in final.get(queue, Reading(0, ())).items:
            each = known.get(item.key)
            if each is None or each.digest != item.digest:
                problems.add(f"{queue} offset {item.queue_offset}: holds a body that was NEVER SENT ({item.key!r})")
            elif each.queue != queue:
                problems.add(f"{queue} offset {item.queue_offset}: holds {item.key}, which was sent to {each.queue}")


def _check_repeated(each: Deferred, items: list[Item], unrest: Iterable[Unrest], problems: Problems) -> list[float]:
    """Of every two that follow each other: the age of the first at the unrest between them."""
    ages = []
    for first, second in itertools.pairwise(items):
        between = [
            (when.guessed, max(0.0, when.begin_s - first.stored_ms / 1000))
            for when in unrest
            if first.stored_ms / 1000 <= when.end_s and when.begin_s <= second.stored_ms / 1000
        ]
        guessed, age_s = min(between, key=lambda each: (each[1] > REPEATED_S, *each), default=(True, None))
        if age_s is None:
            problems.add(
                f"{each.key}: {each.fate.value}, delivered AGAIN, at {_offsets(items)} of {each.queue}, without a fault"
            )
        elif age_s > REPEATED_S:
            problems.add(
                f"{each.key}: {each.fate.value}, delivered AGAIN, although first {age_s:.3f} s before the fault"
            )
        elif not guessed:
            ages.append(age_s)
    return ages


def _found(
    deferred: Iterable[Deferred], final: Mapping[Queue, Reading]
) -> tuple[Mapping[str, list[Item]], Mapping[str, list[Item]]]:
    """By key, in the order of the log: where it was stored to come, where it came."""
    stored: dict[str, list[Item]] = defaultdict(list)
    come: dict[str, list[Item]] = defaultdict(list)
    deferred = list(deferred)
    for found, queues in (
        (stored, {each.stored_in for each in deferred}),
        (come, {each.queue for each in deferred}),
    ):
        for item in sorted(
            (item for queue in queues for item in final.get(queue, Reading(0, ())).items), key=lambda item: item.pos
        ):
            found[item.key].append(item)
    return stored, come


def _offsets(items: list[Item]) -> list[int]:
    return [item.queue_offset for item in items]
