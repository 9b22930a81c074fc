"""Datagrams in a scripted history: each takes a millisecond, unless the script has other plans with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field
from typing import Any

from simulator.clock import EventQueue

DELAY_SECONDS = 0.001


@dataclass(frozen=True, slots=True)
class Packet:
    """`kind`: "vote", "vote reply", "append" or "append reply"; our core has a few more, which no script holds back
    by name: "pre-vote", "heartbeat" and their replies."""

    source: int
    target: int
    kind: str
    body: Any


@dataclass(slots=True)
class Held:
    """Packets that the script keeps, of one `kind` or any, of one link or any."""

    post: Post
    kind: str | None
    source: int | None
    target: int | None
    copies: bool
    packets: list[Packet] = field(default_factory=list)

    def wants(self, packet: Packet) -> bool:
        return (
            self.kind in (None, packet.kind)
            and self.source in (None, packet.source)
            and self.target in (None, packet.target)
        )

    def stop(self) -> None:
        """From now on nothing more is held; what was is kept."""
        if self in self.post.holds:
            self.post.holds.remove(self)

    def release(self, *, times: int = 1) -> None:
        """Stops, and delivers what was held, `times` times."""
        self.stop()
        for packet in self.packets * times:
            self.post.carry(packet)


class Post:
    def __init__(self, queue: EventQueue, deliver: Callable[[Packet], None]) -> None:
        self.holds: list[Held] = []
        self.carried: Counter[tuple[str, int]] = Counter()
        """Packets on their way or delivered, by kind and target."""
        self._queue = queue
        self._deliver = deliver
        self._blocked: set[tuple[Hashable, Hashable]] = set()

    def send(self, packet: Packet) -> None:
        for held in list(self.holds):
            if held.wants(packet):
                held.packets.append(packet)
                if not held.copies:
                    return
        if (packet.source, packet.target) not in self._blocked:
            self.carry(packet)

    def carry(self, packet: Packet) -> None:
        self.carried[packet.kind, packet.target] += 1
        self._queue.after(DELAY_SECONDS, self._deliver, packet)

    def hold(
        self, kind: str | None = None, *, source: int | None = None, target: int | None = None, copies: bool = False
    ) -> Held:
        """`copies`: the network doubles such packets and keeps the double; else it keeps the packet itself."""
        held = Held(self, kind, source, target, copies)
        self.holds.append(held)
        return held

    def cut(self, one: Collection[int], other: Collection[int]) -> None:
        """Drops everything between `one` and `other` from now on."""
        self._blocked.update((a, b) for a in one for b in other)
        self._blocked.update((b, a) for a in one for b in other)

    def heal(self) -> None:
        self._blocked.clear()
