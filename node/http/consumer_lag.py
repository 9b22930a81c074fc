"""How far consumer groups are behind, for `/metrics`: read from the tables of offsets, the ConsumeQueues and the log.

    committed          pulled                end of the queue
    │◀── in flight ───▶│◀────── ready ──────▶│
    │◀───────────────── lag ────────────────▶│

In flight is what pulls delivered and the group has not committed; ready is what waits for a pull. The age of the lag is
that of the first message that is not committed, the queueing time that of the first one that is not pulled.

One scrape reads all of it once, in steps: with thousands of groups it takes longer than other work should wait.
Store times come from the log; those of the last scrape are kept, so a group that does not move costs no read.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from tallystick.node.http.bounded_series import Sample

if TYPE_CHECKING:
    from tallystick.node.broker.broker import Broker

_PAIRS_A_STEP = 20


@dataclass(slots=True)
class GroupLag:
    """A consumer group in one topic: messages, and ages in ms."""

    topic: str
    group: str
    behind: int = 0
    in_flight: int = 0
    ready: int = 0
    behind_ms: int = 0
    ready_ms: int = 0


class ConsumerLags:
    """Reads the lags of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._times: dict[tuple[str, int, int], int] = {}
        """Store time (ms) by topic, queue and offset, of what the last scrape asked for."""

    def read(self) -> Generator[str, None, list[GroupLag]]:
        """Returns the lags of all groups in all topics in which they committed an offset. It yields between steps."""
        offsets, names = self._broker.offsets, self._broker.store.queues.names()
        yield ""
        topics = dict.fromkeys(topic for topic, _ in names)
        pairs = ((topic, group) for topic in topics for group in sorted(offsets.groups_of(topic)))
        found: list[GroupLag] = []
        times: dict[tuple[str, int, int], int] = {}
        now_ms = self._broker.now_ms()
        while step := list(islice(pairs, _PAIRS_A_STEP)):
            for topic, group in step:
                lag = GroupLag(topic, group)
                self._measure(lag, now_ms, times)
                found.append(lag)
            yield ""
        self._times = times
        return found

    def _measure(self, lag: GroupLag, now_ms: int, times: dict[tuple[str, int, int], int]) -> None:
        broker, topic = self._broker, lag.topic
        pulled = broker.pulled.queues(lag.group, topic)
        for queue_id, committed in broker.offsets.queues(lag.group, topic).items():
            end = broker.store.queues.max_offset(topic, queue_id)
            if committed >= end:
                continue  # also ahead of the queue, as after the topic was created again
            delivered = min(end, max(committed, pulled.get(queue_id, committed)))
            lag.behind += end - committed
            lag.in_flight += delivered - committed
            lag.ready += end - delivered
            first = broker.store.queues.min_offset(topic, queue_id)
            committed, delivered = max(first, committed), max(first, delivered)
            lag.behind_ms = max(lag.behind_ms, self._age_ms(topic, queue_id, committed, now_ms, times))
            if delivered < end:
                lag.ready_ms = max(lag.ready_ms, self._age_ms(topic, queue_id, delivered, now_ms, times))

    def _age_ms(
        self, topic: str, queue_id: int, offset: int, now_ms: int, times: dict[tuple[str, int, int], int]
    ) -> int:
        """Returns the age of a message; 0 if it cannot be read."""
        key = topic, queue_id, offset
        stored_ms = (
            times.get(key) or self._times.get(key) or self._broker.store.reads.stored_at(topic, queue_id, offset)
        )
        if stored_ms <= 0:
            return 0
        times[key] = stored_ms
        return max(0, now_ms - stored_ms)


def by_group(value: Callable[[GroupLag], int]) -> Callable[[list[GroupLag]], Iterator[Sample]]:
    """Returns what reads one figure of each lag, for a metric with the labels `topic` and `consumer_group`."""
    return lambda lags: (((lag.topic, lag.group), value(lag)) for lag in lags)
