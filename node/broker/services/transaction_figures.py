"""What is counted of transactions: the half messages that are open, and how those that ended have ended.

Open half messages are known from the time when this broker stored them. After a start or a change of leader, the search
for copies (`transaction_check.CopySearch`) names those that are in the half queue, ended ones as well; the first round
that reads the notes of their ends removes these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import takewhile

from tallystick.store.engine.distribution import Tally

MAX_OPEN = 100_000
"""Open half messages that are known one by one; above, the oldest ones are no longer counted."""
_FINISH_LIMITS_S = (5, 60, 600, 3600, 12 * 3600, 24 * 3600)  # as in RocketMQ 5


class TransactionFigures:
    """Counters since the start, and the open half messages. Offsets are those of the half queue."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[str, int]] = {}  # topic, and when its producer made it (ms)
        self._of_topic: Counter[str] = Counter()
        self.committed: Counter[str] = Counter()
        """Committed messages by topic."""
        self.rolled_back: Counter[str] = Counter()
        """Rolled back messages by topic."""
        self.finished = Tally(_FINISH_LIMITS_S)
        """Time between a half message and its end, in s."""

    def opened(self, offset: int, topic: str, born_ms: int) -> None:
        """A half message for `topic` is stored. A second call for the same one changes nothing."""
        if offset in self._open:
            return
        if len(self._open) >= MAX_OPEN:
            self.closed(next(iter(self._open)))
        self._open[offset] = topic, born_ms
        self._of_topic[topic] += 1

    def closed(self, offset: int) -> None:
        """The half message is ended, given up, or replaced by a copy."""
        topic, _ = self._open.pop(offset, ("", 0))
        if topic:
            self._of_topic[topic] -= 1
            if not self._of_topic[topic]:
                del self._of_topic[topic]

    def ended(self, topic: str, age_ms: int, *, commit: bool) -> None:
        """A producer committed a half message, or rolled it back. `age_ms`: since it made the message."""
        (self.committed if commit else self.rolled_back)[topic] += 1
        self.finished.add(age_ms / 1000)

    def open_counts(self) -> Mapping[str, int]:
        """Open half messages by topic. A topic without one is not in it."""
        return self._of_topic

    def open_before(self, offset: int) -> list[int]:
        """The open half messages at the begin of the queue, up to the first one at `offset` or behind it."""
        return list(takewhile(lambda each: each < offset, self._open))

    def oldest_ms(self) -> int | None:
        """When the producer made the oldest open half message; None: there is none."""
        return min((born_ms for _, born_ms in self._open.values()), default=None)

    def remove_topic(self, topic: str) -> None:
        """The topic was deleted: its counters end. Its open half messages still wait for their end."""
        self.committed.pop(topic, None)
        self.rolled_back.pop(topic, None)

    def forget_open(self) -> None:
        """Another broker of the group handles the half queue."""
        self._open.clear()
        self._of_topic.clear()
