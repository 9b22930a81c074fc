"""The statistics of a broker: counters by topic, by group and in total, over a minute, an hour and a day.

A counter has a running sum. For each of its windows it also keeps the sum at the begin of each slot (10 s, 10 min, 1 h)
in which something was counted. The value of a window is the running sum minus the sum at the window's begin, exact to
one slot. There is no timer: a counter without changes costs nothing, and one call counts a whole batch.

RocketMQ samples all counters every 10 s instead. Names, keys and the form of the answers are RocketMQ's.
Source: BrokerStatsManager, StatsItem, BrokerStats of RocketMQ 4.8.0.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

TOPIC_PUT_NUMS, TOPIC_PUT_SIZE = "TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE"
GROUP_GET_NUMS, GROUP_GET_SIZE = "GROUP_GET_NUMS", "GROUP_GET_SIZE"
SNDBCK_PUT_NUMS, DLQ_PUT_NUMS = "SNDBCK_PUT_NUMS", "DLQ_PUT_NUMS"
BROKER_PUT_NUMS, BROKER_GET_NUMS = "BROKER_PUT_NUMS", "BROKER_GET_NUMS"
GROUP_GET_LATENCY = "GROUP_GET_LATENCY"
GROUP_GET_FALL_SIZE, GROUP_GET_FALL_TIME = "GROUP_GET_FALL_SIZE", "GROUP_GET_FALL_TIME"

_NAMES = (
    TOPIC_PUT_NUMS,
    TOPIC_PUT_SIZE,
    GROUP_GET_NUMS,
    GROUP_GET_SIZE,
    SNDBCK_PUT_NUMS,
    DLQ_PUT_NUMS,
    BROKER_PUT_NUMS,
    BROKER_GET_NUMS,
    GROUP_GET_LATENCY,
    GROUP_GET_FALL_SIZE,
    GROUP_GET_FALL_TIME,
)

_MINUTE, _HOUR, _DAY = (10_000, 6), (600_000, 6), (3_600_000, 24)  # slot in ms, slots in a window


class Window:
    """The last `slots` slots of a running sum: the sum at the begin of each slot in which something was added."""

    __slots__ = ("_marks", "_slot_ms", "_slots")

    def __init__(self, slot_ms: int, slots: int) -> None:
        self._slot_ms = slot_ms
        self._slots = slots
        self._marks: list[tuple[int, int, int]] = []  # slot number, sum and times when it began

    def before_add(self, now_ms: int, total: int, times: int) -> None:
        """Records the sums before something is added to them."""
        slot = now_ms // self._slot_ms
        if not self._marks or self._marks[-1][0] < slot:
            self._marks.append((slot, total, times))
            if len(self._marks) > self._slots + 1:
                del self._marks[0]

    def since(self, now_ms: int, total: int, times: int, slots: int | None = None) -> tuple[int, int, int]:
        """Returns what was added to the sums in the last `slots` slots (None: all), and when the first one began.

        The present slot is one of them.
        """
        first = now_ms // self._slot_ms - (slots or self._slots) + 1
        at = bisect.bisect_left(self._marks, (first,))
        if at == len(self._marks):
            return 0, 0, first * self._slot_ms
        return total - self._marks[at][1], times - self._marks[at][2], first * self._slot_ms


class Counter:
    """A running sum of values, and the number of calls that added them."""

    __slots__ = ("_born_ms", "day", "hour", "minute", "times", "total")

    def __init__(self, now_ms: int) -> None:
        self._born_ms = now_ms
        self.total = 0
        self.times = 0
        self.minute, self.hour, self.day = Window(*_MINUTE), Window(*_HOUR), Window(*_DAY)

    def add(self, now_ms: int, value: int, times: int = 1) -> None:
        """Adds `value`, which `times` calls contributed."""
        for window in (self.minute, self.hour, self.day):
            window.before_add(now_ms, self.total, self.times)
        self.total += value
        self.times += times

    def snapshot(self, window: Window, now_ms: int) -> dict[str, Any]:
        """Returns `sum`, `tps` (sum per second) and `avgpt` (sum per call) of one window."""
        total, times, _ = window.since(now_ms, self.total, self.times)
        rate = self.rate(window, now_ms)
        return {"avgpt": total / times if times else 0.0, "sum": total, "tps": rate}

    def rate(self, window: Window, now_ms: int, slots: int | None = None) -> float:
        """Returns the sum per second over the last slots of a window."""
        total, _, begin_ms = window.since(now_ms, self.total, self.times, slots)
        # A new counter is divided by its age, but by at least 10 s.
        return total * 1000 / max(10_000, now_ms - max(begin_ms, self._born_ms))

    def three_rates(self, now_ms: int) -> str:
        """Returns the rates of about 10 s, 60 s and 600 s, for the runtime information. The first and the last use two
        slots, because the present slot may have just begun."""
        rates = (
            self.rate(self.minute, now_ms, 2),
            self.rate(self.minute, now_ms),
            self.rate(self.hour, now_ms, 2),
        )
        return " ".join(str(rate) for rate in rates)

    def to_json(self, now_ms: int) -> dict[str, Any]:
        """Returns the answer to VIEW_BROKER_STATS_DATA."""
        return {
            "statsDay": self.snapshot(self.day, now_ms),
            "statsHour": self.snapshot(self.hour, now_ms),
            "statsMinute": self.snapshot(self.minute, now_ms),
        }


class Totals:
    """A running sum, and its values at the last two midnights, for the figures of yesterday and today."""

    def __init__(self, now_ms: int) -> None:
        self.now = 0
        self.today_morning = 0
        self.yesterday_morning = 0
        self._midnight_ms = _next_midnight_ms(now_ms)

    def roll(self, now_ms: int) -> None:
        """Records midnights that have passed."""
        if now_ms < self._midnight_ms:
            return
        following = _next_midnight_ms(self._midnight_ms)
        self.yesterday_morning = self.today_morning if now_ms < following else self.now
        self.today_morning = self.now
        self._midnight_ms = _next_midnight_ms(now_ms)

    def add(self, now_ms: int, count: int) -> None:
        self.roll(now_ms)
        self.now += count


def _next_midnight_ms(now_ms: int) -> int:
    today = datetime.fromtimestamp(now_ms / 1000).replace(hour=0, minute=0, second=0, microsecond=0)
    return int((today + timedelta(days=1)).timestamp() * 1000)


class BrokerStats:
    """All counters of one broker. Each method counts a batch. The keys are those of VIEW_BROKER_STATS_DATA."""

    def __init__(self, cluster: str, now_ms: Callable[[], int]) -> None:
        self._cluster = cluster
        self._now_ms = now_ms
        self._tables: dict[str, dict[str, Counter]] = {name: {} for name in _NAMES}
        self._gets: dict[tuple[str, str], list[int]] = {}
        start = now_ms()
        self.boot_ms = start
        self.put_totals, self.get_totals = Totals(start), Totals(start)
        self.put_bytes = 0
        """Bytes of all records that were stored since the start."""
        self.send_failures = 0
        """Sends that failed because of the broker, without those that the kernel took."""
        for name in (BROKER_PUT_NUMS, BROKER_GET_NUMS):
            self._tables[name][cluster] = Counter(start)

    def _add(self, name: str, key: str, now_ms: int, value: int, times: int = 1) -> None:
        table = self._tables[name]
        counter = table.get(key)
        if counter is None:
            counter = table[key] = Counter(now_ms)
        counter.add(now_ms, value, times)

    def put(self, topic: str, messages: int, size_bytes: int) -> None:
        """Counts `messages` of a topic that were stored in `size_bytes` of the log."""
        now_ms = self._now_ms()
        self._add(TOPIC_PUT_NUMS, topic, now_ms, messages)
        self._add(TOPIC_PUT_SIZE, topic, now_ms, size_bytes)
        self._add(BROKER_PUT_NUMS, self._cluster, now_ms, messages)
        self.put_totals.add(now_ms, messages)
        self.put_bytes += size_bytes

    def get(self, group: str, topic: str, messages: int, size_bytes: int) -> None:
        """Counts `messages` of a topic that were delivered to a group, with `size_bytes` of records."""
        # Updating seven windows takes too long for a pull: `settle` does it once a second.
        waiting = self._gets.get((topic, group))
        if waiting is None:
            waiting = self._gets[topic, group] = [0, 0, 0]
        waiting[0] += 1
        waiting[1] += messages
        waiting[2] += size_bytes

    def settle(self) -> None:
        """Adds waiting gets to the counters. It is called once a second, and before counters are read."""
        if not self._gets:
            return
        now_ms = self._now_ms()
        for (topic, group), (times, messages, size_bytes) in self._gets.items():
            key = f"{topic}@{group}"
            self._add(GROUP_GET_NUMS, key, now_ms, messages, times)
            self._add(GROUP_GET_SIZE, key, now_ms, size_bytes, times)
            self._add(BROKER_GET_NUMS, self._cluster, now_ms, messages, times)
            self.get_totals.add(now_ms, messages)
        self._gets.clear()

    def send_back(self, group: str, topic: str, messages: int = 1) -> None:
        """Counts `messages` that a group could not process and sent back."""
        now_ms, key = self._now_ms(), f"{topic}@{group}"
        self._add(SNDBCK_PUT_NUMS, key, now_ms, messages)
        self._add(DLQ_PUT_NUMS, key, now_ms, 0, 0)  # seen before the first dead letter, which is then an increase

    def dead_letter(self, group: str, topic: str) -> None:
        """Counts a message that was stored as a dead letter of a group. `topic`: the one that it was first sent to."""
        self._add(DLQ_PUT_NUMS, f"{topic}@{group}", self._now_ms(), 1)

    def get_latency(self, group: str, topic: str, queue_id: int, elapsed_ms: int) -> None:
        """Counts a pull that found messages and took `elapsed_ms` in the store."""
        self._add(GROUP_GET_LATENCY, f"{queue_id}@{topic}@{group}", self._now_ms(), elapsed_ms)

    def fall_behind(self, group: str, topic: str, queue_id: int, size_bytes: int | None, age_ms: int) -> None:
        """Counts how far behind the log's end a pull began (None: not counted), and the age of its first message."""
        now_ms = self._now_ms()
        key = f"{queue_id}@{topic}@{group}"
        if size_bytes is not None:
            self._add(GROUP_GET_FALL_SIZE, key, now_ms, size_bytes)
        self._add(GROUP_GET_FALL_TIME, key, now_ms, age_ms)

    def counter(self, name: str, key: str) -> Counter | None:
        """Returns a counter; None: nothing was counted under this name and key."""
        self.settle()
        return self._tables.get(name, {}).get(key)

    def view(self, name: str, key: str) -> dict[str, Any] | None:
        """Returns the answer to VIEW_BROKER_STATS_DATA; None: nothing was counted."""
        counter = self.counter(name, key)
        return None if counter is None else counter.to_json(self._now_ms())

    def rate(self, name: str, key: str) -> float:
        """Returns the sum per second over the last minute; 0.0 if nothing was counted."""
        counter = self.counter(name, key)
        return 0.0 if counter is None else counter.rate(counter.minute, self._now_ms())

    def table(self, name: str) -> dict[str, Counter]:
        """Returns all counters of one name, by key, for the metrics."""
        self.settle()
        return self._tables[name]

    def forget_topic(self, topic: str) -> None:
        """Deletes the counters of a deleted topic."""
        self.settle()
        for table in self._tables.values():
            for key in [key for key in table if key == topic or topic in _topic_and_group(key)[:1]]:
                del table[key]

    def forget_group(self, group: str) -> None:
        """Deletes the counters of a deleted group."""
        self.settle()
        for table in self._tables.values():
            for key in [key for key in table if group in _topic_and_group(key)[1:]]:
                del table[key]

    def runtime_info(self) -> dict[str, str]:
        """Returns the keys of GET_BROKER_RUNTIME_INFO that come from counters."""
        self.settle()
        now_ms = self._now_ms()
        puts = self._tables[BROKER_PUT_NUMS][self._cluster].three_rates(now_ms)
        info = {"putTps": puts}
        for word, totals in (("Put", self.put_totals), ("Get", self.get_totals)):
            totals.roll(now_ms)
            info[f"msg{word}TotalYesterdayMorning"] = str(totals.yesterday_morning)
            info[f"msg{word}TotalTodayMorning"] = str(totals.today_morning)
            info[f"msg{word}TotalTodayNow"] = str(totals.now)
        return info


def _topic_and_group(key: str) -> list[str]:
    """Returns topic and group of the key `topic@group` or `queue@topic@group`; an empty list for other keys."""
    parts = key.split("@")
    return parts[-2:] if len(parts) > 1 else []
