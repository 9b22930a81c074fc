"""The checker of histories notices what it is there to notice, and accepts whatever one log could have done."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable
from dataclasses import replace

import pytest
from lab.history import History, Item, Outcome, Queue, Read, Reading, Send, check, check_same
from lab.ledger import Problems, digest

Q, P = ("T", 0), ("T", 1)
OK, REFUSED, UNKNOWN = Outcome.OK, Outcome.REFUSED, Outcome.UNKNOWN


def send(key: str, outcome: Outcome, offset: int = -1, at: float = 0.0, end: float = 1.0, queue: Queue = Q) -> Send:
    pos = 100 * offset if outcome is OK else -1
    return Send("c", queue, key, digest(key.encode()), at, end, outcome, offset, pos, "n0")


def items(*keys: str, first: int = 0) -> tuple[Item, ...]:
    return tuple(Item(offset, key, digest(key.encode()), offset * 100) for offset, key in enumerate(keys, first))


def problems_of(
    sends: Iterable[Send], final: tuple[Item, ...], reads: Iterable[Read] = (), *, first: int = 0, queue: Queue = Q
) -> str:
    problems = Problems()
    check(History(list(sends), list(reads)), {queue: Reading(first, final)}, problems)
    return "\n".join(problems.lines())


THREE = [send("a", OK, 0), send("b", UNKNOWN), send("c", OK, 2)]


def test_all_is_there() -> None:
    assert problems_of(THREE, items("a", "b", "c")) == ""


def test_a_lost_end_is_a_loss() -> None:
    assert problems_of(THREE, items("a", "b")) == "c: acknowledged by n0 at T queue 0 offset 2, LOST"


def test_another_place_is_a_loss() -> None:
    assert "c: acknowledged by n0 at T queue 0 offset 2, LOST: b is there" in problems_of(THREE, items("a", "c", "b"))


def test_a_queue_that_no_member_has_is_a_loss() -> None:
    assert "a: acknowledged by n0 at T queue 0 offset 0, LOST" in problems_of(THREE, (), queue=P)


def test_another_position_in_the_log_is_noticed() -> None:
    moved = (*items("a", "b"), Item(2, "c", digest(b"c"), 201))
    assert problems_of(THREE, moved) == "c: acknowledged at position 200, found at 201"


def test_one_place_given_twice_is_noticed() -> None:
    found = problems_of([send("a", OK, 0), replace(send("b", OK, 0), broker="n1")], items("a"))
    assert "T queue 0 offset 0: acknowledged TWICE, for a by n0, b by n1" in found


def test_another_body_is_noticed() -> None:
    spoiled = (items("a")[0]._replace(digest=digest(b"x")), *items("b", "c", first=1))
    assert "T queue 0 offset 0: holds a body that was NEVER SENT ('a')" in problems_of(THREE, spoiled)


def test_a_message_without_a_sender_is_noticed() -> None:
    assert "offset 3: holds a body that was NEVER SENT ('x')" in problems_of(THREE, items("a", "b", "c", "x"))


def test_a_message_in_another_queue_is_noticed() -> None:
    sends = [*THREE, send("d", UNKNOWN, queue=P)]
    assert "T queue 0 offset 3: holds d, which was sent to T queue 1" in problems_of(sends, items("a", "b", "c", "d"))


def test_what_was_refused_never_appears() -> None:
    assert problems_of([send("a", REFUSED)], ()) == ""
    assert problems_of([send("a", REFUSED)], items("a")) == "a: was REFUSED, but is at [0] of T queue 0"


def test_a_key_appears_once_for_each_answer_and_at_most_once_for_each_doubt() -> None:
    twice = [send("a", UNKNOWN), send("a", OK, 1)]
    assert problems_of(twice, items("a", "a")) == ""
    assert problems_of([send("a", REFUSED), send("a", OK, 0)], items("a")) == ""
    assert "a: may be there 2 times, but is at [0, 1, 2]" in problems_of(twice, items("a", "a", "a"))
    assert "a: may be there 1 times, but is at [0, 1]" in problems_of([send("a", OK, 0)], items("a", "a"))


def test_a_gap_is_noticed() -> None:
    gap = (*items("a"), *items("c", first=2))
    assert "T queue 0: GAP, at 1 the message has the queue offset 2" in problems_of(THREE, gap)


def test_a_missing_begin_is_noticed() -> None:
    found = problems_of([send("b", OK, 1)], items("b", first=1), first=1)
    assert found == "T queue 0: begins at 1; earlier messages are missing"


def test_a_queue_that_is_not_in_the_order_of_the_log_is_noticed() -> None:
    sends = [send("a", UNKNOWN), send("b", UNKNOWN)]
    turned = (items("a")[0]._replace(pos=500), *items("b", first=1))
    assert problems_of(sends, turned) == "T queue 0 offset 1: is at 100 in the log, the previous one at 500"


def test_an_acknowledged_message_does_not_lie_behind_a_later_one() -> None:
    sends = [send("late", OK, 1, 0.0, 1.0), send("early", OK, 0, 2.0, 3.0)]
    found = problems_of(sends, items("early", "late"))
    assert found.startswith("REORDERED: late was acknowledged 1.000000 s before early was sent")
    assert problems_of([replace(sends[0], ended_s=2.5), sends[1]], items("early", "late")) == "", "they overlap"


def test_order_in_real_time_holds_across_queues() -> None:
    sends = [send("late", OK, 0, 0.0, 1.0, P), send("early", OK, 0, 2.0, 3.0)]
    sends[0] = replace(sends[0], pos=700)
    final = {Q: Reading(0, items("early")), P: Reading(0, (Item(0, "late", digest(b"late"), 700),))}
    problems = Problems()
    check(History(sends), final, problems)
    assert "REORDERED: late was acknowledged" in problems.lines()[0]


def test_a_doubtful_message_may_come_later_but_not_before_it_was_sent() -> None:
    sends = [send("doubt", UNKNOWN, at=0.0, end=1.0), send("a", OK, 0, 5.0, 6.0)]
    assert problems_of(sends, items("a", "doubt")) == "", "a leader may still have had it"
    sends = [send("doubt", UNKNOWN, at=7.0, end=8.0), send("a", OK, 1, 5.0, 6.0)]
    assert "REORDERED: a was acknowledged 1.000000 s before doubt was sent" in problems_of(sends, items("doubt", "a"))


def test_the_earliest_doubt_explains_what_is_there() -> None:
    sends = [send("d", UNKNOWN, at=0.0), send("d", UNKNOWN, at=9.0), send("a", OK, 1, 5.0, 6.0)]
    assert problems_of(sends, items("d", "a")) == ""
    sends[2] = replace(sends[2], queue_offset=2, pos=200)
    assert "REORDERED" in problems_of(sends, items("d", "d", "a"))


def read(*keys: str, asked: int = 0, next_offset: int | None = None, end: float = 9.0, consumer: str = "r") -> Read:
    following = asked + len(keys) if next_offset is None else next_offset
    return Read(consumer, Q, asked, items(*keys, first=asked), following, 8.0, end, "n1")


@pytest.mark.parametrize(
    ("reads", "expected"),
    [
        ([read("a", "b"), read("c", asked=2), read(asked=3)], ""),
        ([read("a"), read("a", "b", consumer="other"), read("b", asked=1)], ""),
        ([read("a", "c")], "r of n1, T queue 0: READ c at 1, position 100; at the end b at position 100"),
        ([read("a", "b", "c", "b")], "READ b at 3, position 300; at the end no message is there"),
        ([read("a"), read("c", asked=2)], "r of n1, T queue 0: continued at 2, not at 1"),
        ([read("a", "b"), read("b", asked=1)], "r of n1, T queue 0: continued at 1, not at 2"),
        ([read("a", next_offset=0)], "r of n1: read 1 of T queue 0 from 0, and was SENT to 0"),
        ([read(asked=0, next_offset=3)], "r of n1: read 0 of T queue 0 from 0, and was SENT to 3"),
        ([read(next_offset=3), read(next_offset=3)], "was SENT to 3, and 1 times more"),
        ([replace(read("a"), items=items("b", first=1))], "read a message of offset 1 instead of 0"),
        ([read("a", end=-1.0)], "r of n1, T queue 0: read a before it was sent"),
    ],
)
def test_reads_are_pieces_of_the_final_order(reads: list[Read], expected: str) -> None:
    found = problems_of(THREE, items("a", "b", "c"), reads)
    assert (found == "") if not expected else (expected in found)


def test_members_that_differ_are_noticed() -> None:
    problems = Problems()
    final = {Q: Reading(0, items("a", "b"))}
    check_same("n0", final, "n1", dict(final), problems)
    assert not problems.count
    check_same("n0", final, "n1", {Q: Reading(0, items("a", "c"))}, problems)
    check_same("n0", final, "n2", {Q: Reading(0, items("a"))}, problems)
    assert problems.lines() == [
        "T queue 0: n0 has 2 messages from 0, n1 2 from 0; they differ at offset 1",
        "T queue 0: n0 has 2 messages from 0, n2 1 from 0; they differ at offset 1",
    ]


# -- from seeds --------------------------------------------------------------------------------------------------------


def lived(rng: random.Random, sends: int) -> tuple[History, dict[Queue, Reading]]:
    """A history that one log has made: every attempt took effect, or not, at a moment between its begin and its end."""
    effects: list[tuple[float, Send]] = []
    attempts: list[Send] = []
    for number in range(sends):
        key, queue = f"k{number}", (Q, P)[rng.randrange(2)]
        at = rng.uniform(0, 10)
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            end = at + rng.expovariate(2)
            outcome = rng.choices((OK, UNKNOWN, REFUSED), (6, 3, 1))[0]
            attempt = Send("c", queue, key, digest(key.encode()), at, end, outcome, broker="n0")
            attempts.append(attempt)
            if outcome is OK:
                effects.append((rng.uniform(at, end), attempt))
            elif outcome is UNKNOWN and rng.random() < 0.5:
                effects.append((at + rng.expovariate(0.5), attempt))
            at = end + rng.uniform(0, 1)
            if outcome is OK:
                break
    queues: dict[Queue, list[Item]] = {Q: [], P: []}
    answers: dict[Send, Send] = {}
    visible: list[tuple[float, Queue, int]] = []
    for number, (moment, attempt) in enumerate(sorted(effects, key=lambda effect: effect[0])):
        place = queues[attempt.queue]
        if attempt.outcome is OK:
            answers[attempt] = replace(attempt, queue_offset=len(place), pos=number * 100)
        visible.append((moment, attempt.queue, len(place)))
        place.append(Item(len(place), attempt.key, attempt.digest, number * 100))
    reads = []
    for consumer in ("x", "y"):
        at_offset, now = {Q: 0, P: 0}, 0.0
        for _ in range(20):
            now += rng.uniform(0, 1)
            queue = (Q, P)[rng.randrange(2)]
            lag = rng.choice((0.0, 0.0, 2.0))  # a follower's
            end = max(
                (offset + 1 for moment, where, offset in visible if where == queue and moment < now - lag), default=0
            )
            piece = tuple(queues[queue][at_offset[queue] : max(end, at_offset[queue])][: rng.randint(1, 5)])
            following = at_offset[queue] + len(piece)
            reads.append(Read(consumer, queue, at_offset[queue], piece, following, now, now, "n2"))
            at_offset[queue] = following
    final = {queue: Reading(0, tuple(found)) for queue, found in queues.items()}
    return History([answers.get(attempt, attempt) for attempt in attempts], reads), final


@pytest.mark.parametrize("seed", range(200))
def test_what_one_log_has_done_is_accepted(seed: int) -> None:
    history, final = lived(random.Random(seed), 30)
    problems = Problems()
    check(history, final, problems)
    assert problems.lines() == []


def obviously_linearizable(sends: list[Send], final: tuple[Item, ...]) -> bool:
    """The slow twin: tries every choice of attempts for the messages, and looks at every pair."""
    for chosen in itertools.permutations(sends, len(final)):
        fits = all(
            attempt.key == item.key
            and attempt.outcome is not REFUSED
            and (attempt.outcome is UNKNOWN or attempt.queue_offset == item.queue_offset)
            for attempt, item in zip(chosen, final, strict=True)
        )
        unused = [attempt for attempt in sends if attempt not in chosen and attempt.outcome is OK]
        ends = [attempt.ended_s if attempt.outcome is OK else math.inf for attempt in chosen]
        ordered = all(
            not ends[later] < chosen[earlier].invoked_s for later in range(len(chosen)) for earlier in range(later)
        )
        if fits and ordered and not unused:
            return True
    return False


def test_the_checker_agrees_with_trying_everything() -> None:
    rng = random.Random(4)
    verdicts = []
    for number in range(3000):
        keys = rng.choices("ab", k=rng.randint(1, 4))
        sends = []
        for place, key in enumerate(keys):
            at = float(rng.randint(0, 5))
            outcome = rng.choices((OK, UNKNOWN, REFUSED), (3, 3, 1))[0]
            sends.append(replace(send(key, outcome, place, at, at + rng.randint(0, 3)), client=str(place)))
        order = [attempt for attempt in sends if rng.random() < 0.85]
        if rng.random() < 0.3:
            rng.shuffle(order)
        final = items(*(attempt.key for attempt in order))
        sends = [  # mostly answered with the place that it has, else with some other
            replace(attempt, queue_offset=where, pos=where * 100)
            if attempt.outcome is OK and (where := order.index(attempt) if attempt in order else number % 3) >= 0
            else attempt
            for attempt in sends
        ]
        rng.shuffle(sends)
        expected = obviously_linearizable(sends, final)
        assert (problems_of(sends, final) == "") is expected, (sends, final)
        verdicts.append(expected)
    assert 500 < sum(verdicts) < 2500, "both happen often"
