"""The faults of a run, their order and their times, all from one seed.

Each kind of fault happens once before any is repeated; then frequent kinds happen as often as `DECK` says, and the deck
begins again. A *stretch* is the life of one group: it is created, gets its faults under load, and is checked as a whole
at rest. Faults of full disks have separate stretches, on small file systems, and so has a group that grows and shrinks.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Iterable
from dataclasses import dataclass


class Sort(enum.Enum):
    """What a stretch's group stands on."""

    PLAIN = "three members"
    SMALL_DISKS = "three members, on small disks"
    GROWING = "one member, and places for more"


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
OWN_SORTS = {
    "full-follower": Sort.SMALL_DISKS,
    "full-leader": Sort.SMALL_DISKS,
    "full-all": Sort.SMALL_DISKS,
    "grow": Sort.GROWING,
}
"""Kinds that need a group of their own; each comes once in a deck."""
KINDS = (*DECK, *OWN_SORTS)
STRETCH_FAULTS = {Sort.PLAIN: 6, Sort.SMALL_DISKS: 6, Sort.GROWING: 1}
"""How many at most."""

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
    sort: Sort


def plan(seed: int, rounds: int, kinds: Iterable[str] = KINDS) -> list[Stretch]:
    """So many faults of these kinds, in stretches. ValueError: there is no such kind."""
    wanted = set(kinds)
    if unknown := wanted - set(KINDS):
        raise ValueError(f"unknown kind of fault: {', '.join(sorted(unknown))}")
    if not wanted:
        raise ValueError("all kinds of faults are left out")
    rng = random.Random(seed)
    drawn: list[str] = []
    while len(drawn) < rounds:
        each = [kind for kind in DECK if kind in wanted]
        again = [kind for kind in each for _ in range(DECK[kind] - 1)]
        rng.shuffle(each)
        rng.shuffle(again)
        drawn += [*each, *(kind for kind in OWN_SORTS if kind in wanted), *again]
    stretches: list[Stretch] = []
    for kind in drawn[:rounds]:
        fault = Fault(kind, rng.uniform(*_AFTER_S), rng.uniform(*_DOWN_S), rng.getrandbits(30))
        sort = OWN_SORTS.get(kind, Sort.PLAIN)
        last = stretches[-1] if stretches else None
        if last is not None and last.sort is sort and len(last.faults) < STRETCH_FAULTS[sort]:
            stretches[-1] = Stretch((*last.faults, fault), sort)
        else:
            stretches.append(Stretch((fault,), sort))
    return stretches
