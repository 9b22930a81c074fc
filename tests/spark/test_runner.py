"""A job's items, one after the other or on Spark: all at once, or as a stream that holds little."""

from __future__ import annotations

import os
import random
from collections import Counter
from typing import Any

import pytest

from tallystick.spark.runner import AHEAD, inline, interleaved, on_spark, startable


def test_a_stream_starts_what_a_host_can_do_now_and_nothing_far_ahead() -> None:
    hosts = ["a", "a", "a", "b", "b", "c"]
    assert startable(hosts, 0, [], Counter(), 1) == [0, 3, 5], "one a host, the asked one first"
    assert startable(hosts, 1, [3, 5], Counter(), 1) == [1, 4], "b has ended with 3, which waits to be asked for"
    assert startable(hosts, 1, [3, 5], Counter({"b": 1, "c": 1}), 1) == [1]
    assert startable(["a"] * 99, 5, [], Counter(), 2) == [5, 6]
    assert startable([None] * 99, 0, [], Counter(), 99) == list(range(AHEAD))


@pytest.mark.parametrize("seed", range(50))
def test_a_stream_holds_no_more_than_it_says(seed: int) -> None:
    dice = random.Random(seed)
    hosts = [dice.choice("abc") for _ in range(60)]
    running: set[int] = set()
    held: set[int] = set()
    for number in range(len(hosts)):
        started = startable(hosts, number, sorted(held), Counter(hosts[each] for each in running), 1)
        held |= set(started)
        running |= set(started)
        assert number in held and len(held) <= AHEAD and max(held) < number + AHEAD
        assert max(Counter(hosts[each] for each in running if each != number).values(), default=0) <= 1
        running -= {number, *(each for each in running if dice.random() < 0.5)}
        held.remove(number)


def test_items_of_different_kinds_take_turns() -> None:
    assert interleaved(["a1", "a2", "a3", "b1", "c1", "c2"], lambda item: item[0]) == [
        "a1",
        "b1",
        "c1",
        "a2",
        "c2",
        "a3",
    ]


def test_a_stream_here_does_one_thing_at_a_time() -> None:
    done: list[int] = []
    stream = inline.stream(lambda item: done.append(item) or item, [1, 2, 3])  # type: ignore[func-returns-value]
    assert done == [] and next(stream) == 1 and done == [1]


def many_bytes(number: int) -> tuple[int, int, bytes]:
    return number, os.getpid(), bytes([number]) * (9 << 20)


def fails_at_two(number: int) -> int:
    if number == 2:
        raise ValueError("the third one")
    return number


@pytest.mark.parametrize("host_of", [None, lambda item: "elsewhere"])
def test_a_stream_on_spark_is_in_order_and_ends_when_closed(spark: Any, host_of: Any) -> None:
    runner = on_spark(spark.sparkContext, host_of)
    numbers = []
    for number, process, data in runner.stream(many_bytes, range(5)):
        assert data == bytes([number]) * (9 << 20) and process != os.getpid()
        numbers.append(number)
    assert numbers == list(range(5))
    assert list(runner.stream(many_bytes, [])) == []
    stream = runner.stream(many_bytes, range(100))
    assert next(stream)[0] == 0
    stream.close()  # type: ignore[attr-defined]  # it is a generator
    stream = runner.stream(fails_at_two, range(9))  # type: ignore[arg-type]
    assert [next(stream), next(stream)] == [0, 1]
    with pytest.raises(Exception, match="the third one"):
        next(stream)
    assert runner(fails_at_two, [0, 1]) == [0, 1]
