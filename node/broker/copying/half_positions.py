"""Where half messages of a master's log lie in a group's log: the ends of their transactions name these positions.

    this leader takes a half message ──────────────────────────▶ known ──▶ the end of its transaction is taken
    an earlier leader took it: a thread reads a range of the log ──▶ ▲

What earlier leaders took is read from the log, a range between two places at a time, while nothing else is taken.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tallystick.node.broker.tables.topics import HALF_TOPIC
from tallystick.store.formats.message import TRANSACTION_MASK, TRANSACTION_PREPARED
from tallystick.store.formats.record import Record, RecordError

if TYPE_CHECKING:
    from tallystick.node.broker.copying.place_table import Place

_MOST_KNOWN = 1 << 18
_MOST_RANGES = 4


class Span(NamedTuple):
    """A record: where it begins in the master's log and here, and its size."""

    master: int
    own: int
    size: int


class HalfPositions:
    """The positions of one leadership.

    `spans(places, number, end)`: the records from place `number` on, up to `end` here; `read(pos, size)`: bytes of this
    log. Both block.
    """

    def __init__(
        self, spans: Callable[[Sequence[Place], int, int], Iterable[Span]], read: Callable[[int, int], bytes]
    ) -> None:
        self._spans, self._read = spans, read
        self._known: dict[int, int] = {}
        self._ranges: dict[int, tuple[int, list[Span]]] = {}  # by first place here: end here, and the records

    def note(self, pairs: Iterable[tuple[int, int]]) -> None:
        """These half messages were taken: (position in the master's log, position here)."""
        self._known.update(pairs)
        while len(self._known) > _MOST_KNOWN:
            del self._known[next(iter(self._known))]

    def known(self, reference: int) -> int | None:
        """The position here of the half message at `reference` of the master's log; None: call `find` first."""
        return self._known.get(reference)

    def find(self, reference: int, places: Sequence[Place], end: int) -> int:
        """Returns the position here of the half message at `reference` of the master's log. Returns `reference` if this
        log does not have the message: the master deleted it, or another record is there. `places`: all; `end`: where
        the written log ends. Blocks. OSError, CopyError: the log cannot be read."""
        number = bisect_right(places, reference, key=lambda place: place.master) - 1
        if number < 0:
            return reference
        spans = self._range(places, number, places[number + 1].own if number + 1 < len(places) else end)
        at = bisect_right(spans, reference, key=lambda span: span.master) - 1
        if at < 0 or spans[at].master != reference:
            return reference
        return spans[at].own if is_half(self._read(spans[at].own, spans[at].size)) else reference

    def _range(self, places: Sequence[Place], number: int, end: int) -> list[Span]:
        own = places[number].own
        have = self._ranges.get(own)
        if have is not None and have[0] == end:
            return have[1]
        self._ranges.pop(own, None)  # the last range has grown since it was read
        while len(self._ranges) >= _MOST_RANGES:
            del self._ranges[next(iter(self._ranges))]
        self._ranges[own] = end, list(self._spans(places, number, end))
        return self._ranges[own][1]


def is_half(record: bytes) -> bool:
    """Whether these are the bytes of a half message. OSError: they are no record."""
    try:
        found = Record.decode(record, check_crc=False)
    except RecordError as error:
        raise OSError(f"this log has no record where a transaction begins: {error}") from error
    return found.topic == HALF_TOPIC or found.sys_flag & TRANSACTION_MASK == TRANSACTION_PREPARED
