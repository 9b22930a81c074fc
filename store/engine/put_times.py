"""How long puts and gets take, and how many gets find something: what RocketMQ's store counts about itself.

A put begins when its message arrives at the store and ends when its sender can be answered: with SYNC_FLUSH that
includes the flush, and in a replicated group the commit. The kernel counts the sends that it serves; other puts are
counted here.

Source: StoreStatsService of RocketMQ 4.8.0.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Callable, Sequence

from tallystick.store.engine.distribution import Distribution

CLASSES = (
    *("<=0ms", "0~10ms", "10~50ms", "50~100ms", "100~200ms", "200~500ms", "500ms~1s"),
    *("1~2s", "2~3s", "3~4s", "4~5s", "5~10s", "10s~"),
)
"""Names of the classes of durations."""
_LIMITS_MS = (1, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)  # exclusive, of all but the last class
_PERIOD_MS = 60_000
_WINDOWS_S = (10, 60, 600)
_SAMPLES = max(_WINDOWS_S) + 1


class PutTimes:
    """The durations of puts: their distribution in the present minute and since the start, and the longest one."""

    def __init__(
        self,
        take: Callable[[], tuple[Sequence[int], int]],
        totals: Callable[[], tuple[Sequence[int], int, int]],
        now_ms: int,
    ) -> None:
        """`take`: the kernel's counts since its last call, by class, and the longest time in ms. `totals`: the kernel's
        counts of acknowledged sends since the start, by class, their time in ms, and the number of failed ones.
        `now_ms`: steady."""
        self._take = take
        self._totals = totals
        self._begin_ms = now_ms
        self._counts = [0] * len(CLASSES)  # of the kernel, in the present minute
        self._own = [0] * len(CLASSES)  # since the start
        self._own_before = [0] * len(CLASSES)  # when the present minute began
        self._own_failed = [0] * len(CLASSES)
        self._own_ms = 0  # of acknowledged puts
        self._longest_ms = 0

    def add(self, ms: int, *, acknowledged: bool = True) -> None:
        """Counts a put that took `ms`."""
        number = bisect.bisect_right(_LIMITS_MS, ms)
        self._own[number] += 1
        if ms > self._longest_ms:
            self._longest_ms = ms
        if acknowledged:
            self._own_ms += ms
        else:
            self._own_failed[number] += 1

    def settle(self, now_ms: int) -> None:
        """Takes the kernel's counts. Called once a second: each minute the distribution starts again at 0."""
        counts, longest_ms = self._take()
        if now_ms - self._begin_ms >= _PERIOD_MS:
            self._begin_ms = now_ms
            self._counts = [0] * len(CLASSES)
            self._own_before = self._own[:]
        self._counts = [mine + new for mine, new in zip(self._counts, counts, strict=True)]
        self._longest_ms = max(self._longest_ms, longest_ms)

    @property
    def longest_ms(self) -> int:
        """The longest put since the start."""
        return self._longest_ms

    def distribution(self) -> str:
        """The counts of the present minute, in RocketMQ's form."""
        rows = zip(CLASSES, self._counts, self._own, self._own_before, strict=True)
        return "".join(f"[{name}]:{count + own - before} " for name, count, own, before in rows)

    def acknowledged(self) -> Distribution:
        """The durations of the puts that were acknowledged since the start."""
        counts, ms, _ = self._totals()
        rows = zip(counts, self._own, self._own_failed, strict=True)
        return Distribution(
            [limit / 1000 for limit in _LIMITS_MS],
            [count + own - failed for count, own, failed in rows],
            (ms + self._own_ms) / 1000,
        )

    @property
    def failed_in_kernel(self) -> int:
        """Number of sends since the start that the kernel took and that were answered with an error."""
        return self._totals()[2]


class GetCounts:
    """Reads of queues: how many found messages, how many did not, how many messages they brought, the longest one."""

    def __init__(self, now_ms: int) -> None:
        self.found = self.missed = self.messages = self.longest_ms = 0
        self._samples: deque[tuple[int, int, int, int]] = deque([(now_ms, 0, 0, 0)], _SAMPLES)

    def add(self, messages: int, ms: int) -> None:
        """Counts a read that brought so many messages and took `ms`."""
        if messages:
            self.found += 1
            self.messages += messages
        else:
            self.missed += 1
        if ms > self.longest_ms:
            self.longest_ms = ms

    def sample(self, now_ms: int) -> None:
        """Notes the counts. Called once a second."""
        self._samples.append((now_ms, self.found, self.missed, self.messages))

    def rates(self) -> dict[str, str]:
        """The keys of the runtime information: rates per second over 10, 60 and 600 s, or since the start."""
        found, missed, messages = (self._rates(column) for column in (1, 2, 3))
        total = [one + other for one, other in zip(found, missed, strict=True)]
        named = {"getFoundTps": found, "getMissTps": missed, "getTotalTps": total, "getTransferedTps": messages}
        named["getTransferredTps"] = messages  # as RocketMQ 5 spells it: `mqadmin exportMetrics` of 5.5 needs it
        return {name: " ".join(str(rate) for rate in rates) for name, rates in named.items()}

    def _rates(self, column: int) -> list[float]:
        last = self._samples[-1]
        rates = []
        for seconds in _WINDOWS_S:
            first = self._samples[max(0, len(self._samples) - 1 - seconds)]
            elapsed_ms = last[0] - first[0]
            rates.append((last[column] - first[column]) * 1000 / elapsed_ms if elapsed_ms > 0 else 0.0)
        return rates
