"""The figures of GET_BROKER_RUNTIME_INFO that describe puts and gets: what was counted, by RocketMQ's rules."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pytest
from engine_lab import HOST, PEER, send_frame

from tallystick.node.remoting.request_times import LIMITS_MS
from tallystick.store._kernel import Door, Log
from tallystick.store.engine.put_times import CLASSES, GetCounts, PutTimes

NOW_MS = 1_700_000_000_000


def make_log(folder: Path) -> Log:
    log = Log(
        Door(), str(folder), segment_bytes=1 << 20, max_message_bytes=4 << 20, store_host=HOST.encode(), suffix=b"",
        region="R",
    )  # fmt: skip
    log.start(0, 0)
    log.set_hot(True)
    log.set_topic(b"T", 4)
    return log


def counts(text: str) -> dict[str, int]:
    """The distribution in a text of RocketMQ's form."""
    assert re.fullmatch(r"(\[[^]]+\]:[0-9]+ ){13}", text)
    return {name: int(count) for name, count in re.findall(r"\[([^]]+)\]:([0-9]+) ", text)}


def times(kernel: tuple[list[int], int] = ([0] * 13, 0)) -> PutTimes:
    return PutTimes(lambda: kernel, lambda: ([0] * 13, 0, 0), 0)


@pytest.mark.parametrize(
    ("ms", "name"),
    [
        (-3, "<=0ms"), (0, "<=0ms"), (1, "0~10ms"), (9, "0~10ms"), (10, "10~50ms"), (49, "10~50ms"), (50, "50~100ms"),
        (100, "100~200ms"), (200, "200~500ms"), (499, "200~500ms"), (500, "500ms~1s"), (1000, "1~2s"),
        (2000, "2~3s"), (3000, "3~4s"), (4999, "4~5s"), (5000, "5~10s"), (10_000, "10s~"), (10**9, "10s~"),
    ],
)  # fmt: skip
def test_a_put_counts_in_its_class(ms: int, name: str) -> None:
    puts = times()
    puts.add(ms)
    assert {key: count for key, count in counts(puts.distribution()).items() if count} == {name: 1}
    assert puts.longest_ms == max(0, ms)


def test_the_kernel_counts_as_python_does(tmp_path: Path) -> None:
    """Sends of all durations at once: the kernel's classes are those of the twin in Python."""
    random = Random(7)
    log = make_log(tmp_path / "log")
    connection = log.connect(PEER.encode())
    twin = times()
    waits = sorted((int(10 ** random.uniform(-1, 4.5)) for _ in range(300)), reverse=True)
    for number, ms in enumerate(waits):
        assert log.feed(connection, send_frame(b"x", opaque=number), NOW_MS - ms)[0] == 1
        twin.add(ms)
    for _ in range(5):
        assert log.feed(connection, send_frame(b"x", flag=2), NOW_MS)[0] == 1
        twin.add(0)  # oneway: nobody waits
    half = log.staged // 2
    log.write_out()
    log.release(half, NOW_MS)
    log.expire(1 << 62, 10, NOW_MS)
    taken, longest_ms = log.take_put_times()
    assert dict(zip(CLASSES, taken, strict=True)) == counts(twin.distribution())
    assert longest_ms == twin.longest_ms == waits[0]
    assert log.take_put_times() == ([0] * 13, 0), "taken once"


def test_refused_sends_take_their_time_too(tmp_path: Path) -> None:
    log = make_log(tmp_path / "log")
    connection = log.connect(PEER.encode())
    log.feed(connection, send_frame(b"x"), NOW_MS - 60)
    log.abandon(1, "no room", NOW_MS)
    assert log.take_put_times() == ([0, 0, 0, 1, *[0] * 9], 60)


def test_totals_separate_what_was_acknowledged_from_what_failed(tmp_path: Path) -> None:
    """The sums since the start stay when the counts are taken. An answer with any code but 0 is a failure."""
    log = make_log(tmp_path / "log")
    connection = log.connect(PEER.encode())
    for opaque, ms in enumerate((0, 9, 10, 700)):
        log.feed(connection, send_frame(b"x", opaque=opaque), NOW_MS - ms)
    log.write_out()
    log.release(log.written, NOW_MS)
    log.feed(connection, send_frame(b"x", opaque=4), NOW_MS - 20_000)
    log.abandon(1, "no room", NOW_MS)
    log.feed(connection, send_frame(b"x", opaque=5), NOW_MS - 6000)
    log.expire(1 << 62, 10, NOW_MS)
    log.feed(connection, send_frame(b"x", flag=2), NOW_MS)  # oneway: nobody waits
    taken, _ = log.take_put_times()
    assert sum(taken) == 7
    kernel = [2, 1, 1, 0, 0, 0, 1, *[0] * 6]
    assert log.put_totals() == (kernel, 719, 2)
    limits, answers = log.answer_totals()
    assert limits == list(LIMITS_MS)
    assert answers == {
        0: ([1, 0, 0, 0, 2, 0, 1, 0, 0, 0], 719),
        1: ([0] * 9 + [1], 20_000),
        10: ([0] * 9 + [1], 6000),
    }, "a oneway send has no answer"
    puts = PutTimes(log.take_put_times, log.put_totals, 0)
    puts.add(11)
    puts.add(4000, acknowledged=False)
    found = puts.acknowledged()
    assert found.counts == [2, 1, 2, 0, 0, 0, 1, *[0] * 6]
    assert found.total == pytest.approx(0.73) and puts.failed_in_kernel == 2
    assert found.limits[:4] == [0.001, 0.01, 0.05, 0.1] and len(found.limits) == len(CLASSES) - 1
    puts.settle(70_000)
    assert puts.acknowledged() == found, "a new minute changes no total"


def test_each_sync_of_the_log_is_timed(tmp_path: Path) -> None:
    log = make_log(tmp_path / "log")
    connection = log.connect(PEER.encode())
    limits, counts, seconds = log.sync_totals()
    assert limits == sorted(limits) and len(counts) == len(limits) + 1
    assert (sum(counts), seconds) == (0, 0.0)
    for number in range(1, 4):
        log.feed(connection, send_frame(b"x", opaque=number), NOW_MS)
        log.write_out()
        log.sync()
        log.sync()  # nothing was written since: no call to the disk
        _, counts, total = log.sync_totals()
        assert sum(counts) == number and total > seconds
        seconds = total


def test_the_distribution_begins_again_each_minute_and_the_longest_stays() -> None:
    kernel = [([0, 4, *[0] * 11], 9), ([2, *[0] * 12], 0), ([1, *[0] * 12], 0)]
    puts = PutTimes(lambda: kernel.pop(0), lambda: ([0] * 13, 0, 0), 0)
    puts.add(1500)
    puts.settle(30_000)
    assert counts(puts.distribution()) == dict.fromkeys(CLASSES, 0) | {"0~10ms": 4, "1~2s": 1}
    puts.settle(59_999)
    assert counts(puts.distribution())["<=0ms"] == 2
    puts.settle(60_000)
    assert counts(puts.distribution()) == dict.fromkeys(CLASSES, 0) | {"<=0ms": 1}
    assert puts.longest_ms == 1500


def test_rates_of_gets_are_those_of_three_windows() -> None:
    gets = GetCounts(0)
    assert gets.rates()["getTotalTps"] == "0.0 0.0 0.0"
    for second in range(1, 101):
        if second <= 40:
            gets.add(8, 3)
        else:
            gets.add(8, 1)
            gets.add(0, 0)
        gets.sample(second * 1000)
    # The last 10 s, the last 60 s, and all 100 s since the start.
    assert gets.rates() == {
        "getFoundTps": "1.0 1.0 1.0",
        "getMissTps": "1.0 1.0 0.6",
        "getTotalTps": "2.0 2.0 1.6",
        "getTransferedTps": "8.0 8.0 8.0",
        "getTransferredTps": "8.0 8.0 8.0",
    }
    assert (gets.found, gets.missed, gets.messages, gets.longest_ms) == (100, 60, 800, 3)
    for second in range(101, 1000):
        gets.sample(second * 1000)
    assert gets.rates()["getFoundTps"] == "0.0 0.0 0.0", "it was longer ago than 600 s"
