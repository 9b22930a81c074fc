"""Counters: their windows agree with a list of everything that was counted."""

from __future__ import annotations

from datetime import datetime

from hypothesis import given
from hypothesis import strategies as st

from tallystick.node.broker.services.stats import BrokerStats, Counter, Totals

START = int(datetime(2026, 11, 20, 12, 0, 0).timestamp() * 1000)
DAY = 24 * 3_600_000


class Clock:
    def __init__(self, now_ms: int = START) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


@given(st.lists(st.tuples(st.integers(0, 4_000_000), st.integers(0, 100)), max_size=60), st.integers(0, 4_000_000))
def test_a_window_holds_what_came_since_its_first_slot(adds: list[tuple[int, int]], later: int) -> None:
    now, seen, counter = START, [], Counter(START)
    for wait, value in adds:
        now += wait
        counter.add(now, value)
        seen.append((now, value))
    now += later
    for window, slot, slots in ((counter.minute, 10_000, 6), (counter.hour, 600_000, 6), (counter.day, 3_600_000, 24)):
        first = (now // slot - slots + 1) * slot
        inside = [value for when, value in seen if when >= first]
        assert window.since(now, counter.total, counter.times)[:2] == (sum(inside), len(inside))


def test_the_answer_has_rocketmqs_shape() -> None:
    clock = Clock()
    stats = BrokerStats("C", clock)
    stats.put("T", 600, 60_000)
    clock.now_ms += 50_000
    assert stats.view("TOPIC_PUT_NUMS", "T") == {
        "statsDay": {"avgpt": 600.0, "sum": 600, "tps": 12.0},
        "statsHour": {"avgpt": 600.0, "sum": 600, "tps": 12.0},
        "statsMinute": {"avgpt": 600.0, "sum": 600, "tps": 12.0},
    }
    assert stats.view("TOPIC_PUT_NUMS", "nothing") is None
    assert stats.view("no such name", "T") is None
    assert stats.view("BROKER_GET_NUMS", "C") is not None, "the cluster's counters are there from the beginning"


def test_rates_are_over_ten_sixty_and_six_hundred_seconds() -> None:
    counter = Counter(START)
    for second in range(1200):
        counter.add(START + second * 1000, 50 if second >= 1150 else 10)
    rates = [float(text) for text in counter.three_rates(START + 1_200_000).split(" ")]
    assert rates[0] == 50.0, "of the last 10 s"
    assert rates[1] == 50.0, "of the last 50 s: the slot that begins now is one of six"
    assert 13.0 < rates[2] < 14.0
    assert counter.three_rates(START + 3_000_000) == "0.0 0.0 0.0"


def test_totals_know_the_last_two_midnights() -> None:
    totals = Totals(START)
    totals.add(START, 5)
    totals.add(START + DAY, 7)
    assert (totals.yesterday_morning, totals.today_morning, totals.now) == (0, 5, 12)
    totals.add(START + 2 * DAY, 1)
    assert (totals.yesterday_morning, totals.today_morning, totals.now) == (5, 12, 13)
    totals.roll(START + 9 * DAY)
    assert (totals.yesterday_morning, totals.today_morning, totals.now) == (13, 13, 13), "nothing came for days"


def test_a_deleted_topics_counters_go() -> None:
    stats = BrokerStats("C", Clock())
    stats.put("T", 1, 1)
    stats.put("U", 1, 1)
    stats.get("g", "T", 1, 1)
    stats.get_latency("g", "T", 0, 3)
    stats.get("g", "U", 1, 1)
    stats.forget_topic("T")
    assert stats.view("TOPIC_PUT_NUMS", "T") is None
    assert stats.view("GROUP_GET_NUMS", "T@g") is None
    assert stats.view("GROUP_GET_LATENCY", "0@T@g") is None
    assert stats.view("GROUP_GET_NUMS", "U@g") is not None
    stats.forget_group("g")
    assert stats.view("GROUP_GET_NUMS", "U@g") is None
    assert stats.view("TOPIC_PUT_NUMS", "U") is not None
