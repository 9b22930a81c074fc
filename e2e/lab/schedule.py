"""Which faults a run inflicts, in which order, at which moments: all from one seed.

Every kind comes before one comes again, except those that come often. A *stretch* is the life of one group: it is made,
lives through its faults under load, and is looked at as a whole when it came to rest. Faults of full disks have
stretches of their own, on small file systems.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

# How often each kind comes in one deck. Leaders change by the first four, and their times are what is measured.
DECK = {
    "kill-leader": 4,
    "pause-leader": 1,
    "stop-leader": 1,
    "transfer": 4,
    "kill-follower": 1,
    "pause-follower": 1,
    "kill-all": 2,
    "lose-leader": 1,
    "empty-follower": 1,
    "empty-leader": 1,
    "flip-follower": 1,
    "flip-leader": 1,
}
SMALL_DISK_DECK = {"full-follower": 1, "full-leader": 1}
KINDS = (*DECK, *SMALL_DISK_DECK)
STRETCH_FAULTS = 6

_AFTER_S = (0.3, 1.5)
_DOWN_S = (0.0, 2.5)


@dataclass(frozen=True, slots=True)
class Fault:
    """`after_s`: load before it. `down_s`: how long a member that was ended stays so. `draw`: what else is chosen."""

    kind: str
    after_s: float
    down_s: float
    draw: int


@dataclass(frozen=True, slots=True)
class Stretch:
    faults: tuple[Fault, ...]
    small_disks: bool


def plan(seed: int, rounds: int, kinds: Iterable[str] = KINDS) -> list[Stretch]:
    """So many faults of these kinds, in stretches. ValueError: there is no such kind."""
    wanted = set(kinds)
    if unknown := wanted - set(KINDS):
        raise ValueError(f"no such kind of fault: {', '.join(sorted(unknown))}")
    if not wanted:
        raise ValueError("no kind of fault is wanted")
    rng = random.Random(seed)
    drawn: list[str] = []
    while len(drawn) < rounds:
        deck = [kind for kind, count in DECK.items() for _ in range(count) if kind in wanted]
        rng.shuffle(deck)
        drawn += deck + [kind for kind in SMALL_DISK_DECK if kind in wanted]
    stretches: list[Stretch] = []
    for kind in drawn[:rounds]:
        fault = Fault(kind, rng.uniform(*_AFTER_S), rng.uniform(*_DOWN_S), rng.getrandbits(30))
        small = kind in SMALL_DISK_DECK
        last = stretches[-1] if stretches else None
        if last is not None and last.small_disks is small and len(last.faults) < STRETCH_FAULTS:
            stretches[-1] = Stretch((*last.faults, fault), small)
        else:
            stretches.append(Stretch((fault,), small))
    return stretches
