"""The network between members: every packet takes its own way, so that any two may overtake each other.

What the real transport excludes (reordering within a connection, duplicates) is allowed here all the same: the core has
to be safe without it, and a new connection beside a dying old one brings both back. A packet may also outlive the
process that sent it, and arrive at a successor of the process that it was sent to.

A link is directed. `blocked` links lose everything: a full partition blocks both directions between two sets, a one-way
one only one, and in a bridge two halves see each other only through one member.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tallystick.replication.messages import BULK, Message

from .clock import EventQueue


@dataclass(frozen=True, slots=True)
class Weather:
    """What the links do to packets. Probabilities are per packet, times in virtual seconds."""

    loss: float = 0.0
    duplicate: float = 0.0
    delay: float = 0.003
    late: float = 0.0
    """A packet of this share is late by up to `late_seconds`: most reordering comes from here."""
    late_seconds: float = 1.0


CALM = Weather()


class Network:
    """Carries messages to `deliver`; counts in `faults` what it did to them."""

    def __init__(
        self, queue: EventQueue, dice: random.Random, faults: Counter[str], deliver: Callable[[Message], None]
    ) -> None:
        self.weather = CALM
        self.blocked: Counter[tuple[int, int]] = Counter()
        self.bulk_blocked: Counter[tuple[int, int]] = Counter()
        """Links whose bulk lane is stuck, while heartbeats and votes pass (L9)."""
        self.lag: dict[tuple[int, int], float] = {}
        """Links on which packets queue up: each is late by up to so many seconds."""
        self._queue = queue
        self._random = dice.random
        self._faults = faults
        self._deliver = deliver

    def send(self, message: Message) -> None:
        weather, roll = self.weather, self._random
        if self.blocked and self.blocked[message.source, message.target] > 0:
            self._faults["packet blocked"] += 1
            return
        if self.bulk_blocked and type(message) in BULK and self.bulk_blocked[message.source, message.target] > 0:
            self._faults["packet blocked"] += 1
            return
        if weather.loss and roll() < weather.loss:
            self._faults["packet lost"] += 1
            return
        copies = 1
        if weather.duplicate and roll() < weather.duplicate:
            self._faults["packet duplicated"] += 1
            copies = 2
        for _ in range(copies):
            seconds = weather.delay * (0.5 + roll())
            if weather.late and roll() < weather.late:
                self._faults["packet late"] += 1
                seconds += weather.late_seconds * roll()
            if self.lag:
                seconds += self.lag.get((message.source, message.target), 0.0) * roll()
            self._queue.after(seconds, self._deliver, message)

    def block(self, links: Iterable[tuple[int, int]], *, bulk_only: bool = False) -> None:
        """Each block is taken back by its own `unblock`: overlapping partitions add up."""
        (self.bulk_blocked if bulk_only else self.blocked).update(links)

    def unblock(self, links: Iterable[tuple[int, int]], *, bulk_only: bool = False) -> None:
        blocked = self.bulk_blocked if bulk_only else self.blocked
        blocked.subtract(links)
        for link in [link for link, times in blocked.items() if times <= 0]:
            del blocked[link]  # an empty counter is the fast path

    def clear_up(self) -> None:
        """All links work as they should."""
        self.weather = CALM
        self.blocked.clear()
        self.bulk_blocked.clear()
        self.lag.clear()
