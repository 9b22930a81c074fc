"""The checker of messages that come later notices what is missing, early, undone or there too often."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from lab.deferred import REPEATED_S, Deferred, Fate, Unrest, check_deferred, missing
from lab.history import History, Item, Outcome, Queue, Reading, Send, check
from lab.ledger import HALF_TOPIC, SCHEDULE_TOPIC, Problems, digest

LATER, OTHER = ("later", 0), ("later", 1)
SCHEDULE, HALF = (SCHEDULE_TOPIC, 0), (HALF_TOPIC, 0)
DELAYED = Deferred("a", digest(b"a"), LATER, SCHEDULE, Fate.DELAYED, 1_000)
COMMIT = Deferred("c", digest(b"c"), LATER, HALF, Fate.COMMIT)
ROLLBACK = Deferred("r", digest(b"r"), LATER, HALF, Fate.ROLLBACK)


def queue(*messages: tuple[str, int]) -> Reading:
    """(key, stored at this second), in the order of the queue."""
    return Reading(
        0,
        tuple(
            Item(offset, key, digest(key.encode()), second * 100 + offset, second * 1000)
            for offset, (key, second) in enumerate(messages)
        ),
    )


def problems_of(
    deferred: Iterable[Deferred], final: dict[Queue, Reading], unrest: Iterable[Unrest] = ()
) -> tuple[str, list[float]]:
    problems = Problems()
    ages = check_deferred(History(deferred=list(deferred), unrest=list(unrest)), final, problems)
    return "\n".join(problems.lines()), ages


def test_all_comes_as_it_should() -> None:
    final = {
        SCHEDULE: queue(("a", 10)),
        HALF: queue(("c", 10), ("r", 10), ("c", 14)),  # asked about once
        LATER: queue(("a", 11), ("c", 15)),
    }
    assert problems_of([DELAYED, COMMIT, ROLLBACK], final) == ("", [])
    assert missing([DELAYED, COMMIT, ROLLBACK], final) == []


@pytest.mark.parametrize("each", [DELAYED, COMMIT])
def test_what_is_stored_has_to_come(each: Deferred) -> None:
    final = {each.stored_in: queue((each.key, 10)), LATER: queue()}
    assert missing([each], final) == [each.key]
    assert problems_of([each], final)[0].endswith("NEVER DELIVERED")


@pytest.mark.parametrize("each", [DELAYED, COMMIT, ROLLBACK])
def test_what_was_never_stored_need_not_and_must_not_come(each: Deferred) -> None:
    assert problems_of([each], {each.stored_in: queue(), LATER: queue()}) == ("", [])
    found, _ = problems_of([each], {each.stored_in: queue(), LATER: queue((each.key, 10))})
    assert "never stored" in found or "ROLLED BACK" in found


def test_what_was_rolled_back_never_comes() -> None:
    found, _ = problems_of([ROLLBACK], {HALF: queue(("r", 10)), LATER: queue(("r", 11))})
    assert found == "r: ROLLED BACK, but delivered at [0] of ('later', 0)"


def test_nothing_comes_before_its_time() -> None:
    found, _ = problems_of([DELAYED], {SCHEDULE: queue(("a", 10)), LATER: queue(("a", 10))})
    assert found == "a: delivered 1000 ms too early"


def test_it_comes_where_it_was_sent_to_and_as_it_was_sent() -> None:
    final = {SCHEDULE: queue(("a", 10)), OTHER: queue(("a", 11)), LATER: queue()}
    elsewhere = Deferred("b", digest(b"b"), OTHER, SCHEDULE, Fate.DELAYED)
    assert "holds a, which was sent to ('later', 0)" in problems_of([DELAYED, elsewhere], final)[0]
    spoiled = Reading(0, (queue(("a", 11)).items[0]._replace(digest=digest(b"x")),))
    assert "NEVER SENT ('a')" in problems_of([DELAYED], {SCHEDULE: queue(("a", 10)), LATER: spoiled})[0]


@pytest.mark.parametrize(
    ("unrest", "expected"),
    [
        ([], "without a fault"),
        ([Unrest(1.0, 20.0)], "without a fault"),  # over when it came first
        ([Unrest(51.0, 60.0)], "without a fault"),  # begun when it had come twice
        ([Unrest(32.0, 40.0)], [1.0]),
        ([Unrest(25.0, 40.0)], [0.0]),  # came in the middle of it
        ([Unrest(1.0, 20.0), Unrest(32.0, 40.0)], [1.0]),
        ([Unrest(30.0, 33.0, guessed=True)], []),
        ([Unrest(30.0, 33.0, guessed=True), Unrest(32.0, 40.0)], [1.0]),
        ([Unrest(30.0, 33.0, guessed=True), Unrest(45.0, 48.0)], []),
        ([Unrest(31.0 + REPEATED_S + 1, 40.0)], f"first {REPEATED_S + 1:.3f} s before the fault"),
    ],
)
def test_it_comes_again_only_around_a_change_of_leaders(unrest: list[Unrest], expected: str | list[float]) -> None:
    final = {SCHEDULE: queue(("a", 30)), LATER: queue(("a", 31), ("a", 50))}
    found, ages = problems_of([DELAYED], final, unrest)
    if isinstance(expected, list):
        assert (found, ages) == ("", expected)
    else:
        assert expected in found and "AGAIN" in found


def test_every_repetition_has_its_own_reason() -> None:
    final = {SCHEDULE: queue(("a", 30)), LATER: queue(("a", 31), ("a", 35), ("a", 60))}
    found, ages = problems_of([DELAYED], final, [Unrest(32.0, 36.0)])
    assert ages == [1.0, 0.0] and not found, "the second came during it, and the third after"
    found, _ = problems_of([DELAYED], final, [Unrest(32.0, 33.0)])
    assert "without a fault" in found


def test_the_history_leaves_to_this_checker_what_is_its() -> None:
    sends = [
        Send("c", SCHEDULE, "a", digest(b"a"), 0.0, 1.0, Outcome.OK, 0, 1000),
        Send("c", HALF, "c", digest(b"c"), 0.0, 1.0, Outcome.OK, 0, 1000),
    ]
    final = {
        SCHEDULE: queue(("a", 10)),
        HALF: queue(("c", 10), ("c", 14)),
        LATER: queue(("a", 11), ("a", 12), ("c", 15)),
    }
    problems = Problems()
    check(History(sends, deferred=[DELAYED, COMMIT]), final, problems)
    assert problems.lines() == []
    final[SCHEDULE] = queue()
    check(History(sends, deferred=[DELAYED, COMMIT]), final, problems)
    assert "LOST" in problems.lines()[0], "that it is stored is the history's part"
