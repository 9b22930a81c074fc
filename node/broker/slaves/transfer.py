"""The protocol between a master and a slave of RocketMQ, as the master sees one slave. No I/O, no clock.

    slave ──▶ master   8 bytes: position where the slave's log ends; at the start, after each part, and as a heartbeat
    master ──▶ slave   12 bytes: position (8) and size (4), then that many bytes of the log; size 0 is a heartbeat

The first position decides where the transfer begins. A slave with an empty log sends 0 and gets the newest segment from
its beginning; every other position is continued as it is, also within a record. A part never crosses a segment.

RocketMQ continues at any position: it sends heartbeats without end to a slave whose position it does not have, and the
bytes of other messages to a slave whose log has become another one. Here the connection ends with a `Refusal`.

Source: HAConnection and HAService of RocketMQ 4.8.0, and recorded connections to it.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable
from dataclasses import dataclass

from tallystick.store.engine.copies import Copies

HEADER = struct.Struct(">qi")
"""Position and size of a part: fixed by the protocol."""
REPORT_BYTES = 8
MOST_PART_BYTES = (4 << 20) - HEADER.size
"""RocketMQ's slave has a read buffer of 4 MiB: a part that does not fit with its header is never stored."""


class Refusal(enum.Enum):
    """Why a slave was disconnected; the values are words of GET /node and of a metric."""

    AHEAD = "ahead"
    """It has bytes that this log does not have: another log, or a power loss of the master with ASYNC_FLUSH."""
    DELETED = "deleted"
    """It needs bytes that retention has deleted here."""
    INVALID = "invalid"
    """It sent what is not a position of this log: it is no slave."""
    SILENT = "silent"
    """It sent nothing for `haHousekeepingInterval`."""
    UNREADABLE = "unreadable"
    """The disk cannot read the next bytes of the log."""
    FOREIGN = "foreign"
    """`haAllowedAddresses` does not have its address."""
    TOO_MANY = "too-many"
    """There are enough connections."""


class SlaveRefusedError(Exception):
    """The connection has to be closed."""

    def __init__(self, refusal: Refusal, text: str) -> None:
        super().__init__(text)
        self.refusal = refusal


@dataclass(frozen=True, slots=True)
class Part:
    """The next bytes to send."""

    pos: int
    size: int

    @property
    def header(self) -> bytes:
        """What precedes the bytes."""
        return HEADER.pack(self.pos, self.size)


class Transfer:
    """The state of the transfer to one slave. Owns what was sent, what the slave reported, and incomplete reports.

    `min_pos()`: position of the first byte of the log that is not deleted.
    """

    def __init__(self, copies: Copies, min_pos: Callable[[], int], segment_bytes: int, part_bytes: int) -> None:
        self._copies = copies
        self._min_pos = min_pos
        self._segment_bytes = segment_bytes
        self._part_bytes = min(part_bytes, MOST_PART_BYTES)
        self._partial = b""
        self.asked: int | None = None
        """The first position that the slave sent; None: none yet."""
        self.next_pos = 0
        """Where the next part begins."""
        self.stored = 0
        """The slave has the log up to here."""

    def receive(self, data: bytes) -> bool:
        """Takes bytes of the slave. Returns whether there was a complete report. SlaveRefusedError."""
        data = self._partial + data
        whole = len(data) - len(data) % REPORT_BYTES
        self._partial = data[whole:]
        if not whole:
            return False
        if self.asked is None:
            self._begin(int.from_bytes(data[:REPORT_BYTES], signed=True))
        # RocketMQ too reads only the last of several reports.
        self._report(int.from_bytes(data[whole - REPORT_BYTES : whole], signed=True))
        return True

    def _begin(self, pos: int) -> None:
        # No log ends at 1, within its first record: who sends it has no log, and wants all of it. RocketMQ's masters
        # send it, too. The same holds for the position where this log begins.
        end, begin = self._copies.sendable, self._min_pos()
        if pos < 0:
            raise SlaveRefusedError(Refusal.INVALID, f"{pos} is not a position")
        if 0 < pos < begin:
            raise SlaveRefusedError(Refusal.DELETED, f"it needs the log from {pos}, and this log begins at {begin}")
        if pos > end or (self._copies.is_foreign(pos) and pos not in (1, begin)):
            text = f"its log ends at {pos}, and this log was not sent to it up to there (this log ends at {end})"
            raise SlaveRefusedError(Refusal.AHEAD, text)
        if pos == 0:
            self.next_pos = max(end - end % self._segment_bytes, begin)
        else:
            self.next_pos = pos
        self.asked = self.stored = pos

    def _report(self, pos: int) -> None:
        if not 0 <= pos <= self.next_pos:
            raise SlaveRefusedError(Refusal.INVALID, f"it reports {pos}, and was sent the log up to {self.next_pos}")
        self.stored = max(self.stored, pos)

    @property
    def behind(self) -> int:
        """Bytes that may be sent, and that the slave has not stored."""
        return max(0, self._copies.sendable - self.stored)

    def next_part(self) -> Part | None:
        """The part to read and send now; None: there is nothing to send. SlaveRefusedError: it is deleted."""
        end = self._copies.sendable
        if self.asked is None or self.next_pos >= end:
            return None
        begin = self._min_pos()
        if self.next_pos < begin:
            text = f"it needs the log from {self.next_pos}, and this log begins at {begin}"
            raise SlaveRefusedError(Refusal.DELETED, text)
        in_segment = self._segment_bytes - self.next_pos % self._segment_bytes
        return Part(self.next_pos, min(end - self.next_pos, in_segment, self._part_bytes))

    def sent(self, part: Part) -> None:
        """The part is on its way."""
        assert part.pos == self.next_pos, "parts are sent in order"
        self.next_pos = part.pos + part.size
        self._copies.sent = max(self._copies.sent, self.next_pos)

    def heartbeat(self) -> bytes:
        """What tells the slave that the master is there. RocketMQ's slave compares the position with its own."""
        return Part(self.next_pos, 0).header
