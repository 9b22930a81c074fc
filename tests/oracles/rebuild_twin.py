"""What a rebuild must make of a log with damaged records: the slow twin knows each record before the damage.

Four statements hold for any damage, see `complaints`. One thing cannot be known: if a damaged record claims the place
of a sound one in the same queue, the log has two records with one place, and a unit names either of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

Queue = tuple[bytes, int]
BLANK = (0, 0x7FFFFFFF, 0)


class Place(NamedTuple):
    """A queue and an offset in it."""

    topic: bytes
    queue: int
    offset: int


class Laid(NamedTuple):
    """A record of the log. `place`: where it was put; `claim`: what its bytes say now (None: they cannot be read)."""

    pos: int
    size: int
    place: Place
    claim: Place | None

    @property
    def sound(self) -> bool:
        return self.claim == self.place


class Held(NamedTuple):
    """A queue after the rebuild: its first offset and its units."""

    first: int
    units: list[tuple[int, int, int]]

    @property
    def end(self) -> int:
        return self.first + len(self.units)


def complaints(log: Iterable[Laid], queues: Mapping[Queue, Held], ends: Mapping[Queue, int], exact: bool) -> list[str]:
    """What is wrong with the queues. `ends`: the least next offset of each queue; `exact`: it is the next offset.

    1. Unit n of a queue is a placeholder, or names a record of the log that claims place n of this queue. The unit of a
       damaged record may have been there before: that queue was not rebuilt, and the record is not served.
    2. Each sound record whose place no other record claims is named by the unit there.
    3. No queue ends below its least next offset.
    4. If the ends are exact, no queue ends above it either.
    """
    laid = list(log)
    claims: dict[Place, list[Laid]] = {}
    for record in laid:
        if record.claim is not None:
            claims.setdefault(record.claim, []).append(record)
    found = []
    for (topic, queue), held in queues.items():
        for offset, unit in enumerate(held.units, held.first):
            place = Place(topic, queue, offset)
            named = [each.pos for each in laid if place in (each.claim, each.place)]
            if unit != BLANK and unit[0] not in named:
                found.append(f"unit {offset} of {topic!r}/{queue} names {unit[0]}, of that place are {named}")
    for record in laid:
        topic, queue, offset = record.place
        if not record.sound or len(claims[record.place]) > 1:
            continue
        held = queues.get((topic, queue), Held(0, []))
        if not held.first <= offset < held.end or held.units[offset - held.first][0] != record.pos:
            found.append(f"no unit {offset} of {topic!r}/{queue} names the record at {record.pos}")
    for (topic, queue), end in ends.items():
        got = queues.get((topic, queue), Held(0, [])).end
        if got < end or (exact and got > end):
            found.append(f"{topic!r}/{queue} ends at {got}, not at {end}")
    return found
