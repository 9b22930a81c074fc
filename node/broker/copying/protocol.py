"""The protocol between a master of RocketMQ 4.8 and its slave, as the slave sees it. No I/O, no clock.

    slave ──▶ master   8 bytes: position; the first one says where the transfer begins
    master ──▶ slave   12 bytes: position (8) and size (4), then that many bytes of the log; size 0 is a heartbeat

A slave that has nothing asks for position 1: to 0 a master answers with its newest segment only. The byte at 0 is 0 in
every log, because it is the highest byte of the size of the first record.

A slave that has something asks for a position *before* its end, and compares what it gets with what it has
(`Comparison`). The protocol has no name and no epoch of a log: only this shows that the master lost bytes that the
slave has, and has written others since. RocketMQ's slaves continue such a log at their end.

Parts cut records anywhere. They never cross a segment, and their positions are consecutive on one connection: whatever
else arrives is not from a master that reads its log in order.

Source: HAConnection and HAService of RocketMQ 4.8.0, and recorded connections to it.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable

HEADER = struct.Struct(">qi")
"""Position and size of a part: fixed by the protocol."""
MOST_PART_BYTES = (4 << 20) - HEADER.size
"""RocketMQ's slave has a read buffer of 4 MiB, so no master sends more."""
ALL_FROM = 1
"""What a slave without a log asks for."""


class CopyProblem(enum.Enum):
    """Why a slave does not copy; the values are words of GET /node and of a metric."""

    NO_MASTER = "no-master"
    """No name server knows the master, or it does not accept slaves."""
    UNREACHABLE = "unreachable"
    """The master does not answer, or the connection to it ended."""
    SILENT = "silent"
    """The master sent nothing for `haHousekeepingInterval`."""
    UNSUPPORTED = "unsupported"
    """The broker there is not a master that serves slaves."""
    SEGMENT_SIZE = "segment-size"
    """The master's segments have another size: its log cannot be stored here."""
    DELETED = "deleted"
    """The master has deleted what comes next in this log."""
    AHEAD = "ahead"
    """This log is longer than the master's."""
    DIVERGED = "diverged"
    """This log has other bytes than the master's at the same position."""
    WRONG_PART = "wrong-part"
    """The master sent bytes that do not belong where it says, or a part that cannot be one."""
    BAD_RECORD = "bad-record"
    """The master sent a record that is not sound."""
    DISK = "disk"
    """Nothing can be stored here: the disk is full, or fails."""


LASTING = frozenset(
    {
        CopyProblem.UNSUPPORTED,
        CopyProblem.SEGMENT_SIZE,
        CopyProblem.DELETED,
        CopyProblem.AHEAD,
        CopyProblem.DIVERGED,
        CopyProblem.WRONG_PART,
        CopyProblem.BAD_RECORD,
    }
)
"""Problems that do not pass by themselves."""


class CopyError(Exception):
    """The copy cannot continue. `problem`: a word for it; the text names the positions."""

    def __init__(self, problem: CopyProblem, text: str) -> None:
        super().__init__(text)
        self.problem = problem


class Parts:
    """What one connection received. Owns the position of the next byte, and an incomplete header."""

    def __init__(self, asked: int, segment_bytes: int) -> None:
        self.pos = asked
        """Position of the next byte of the log."""
        self._segment_bytes = segment_bytes
        self._head = b""
        self._left = 0  # bytes of the present part that have not arrived

    def receive(self, data: bytes) -> bytes:
        """The bytes of the log in `data`, which continue at the last `pos`. CopyError: they do not."""
        found: list[bytes] = []
        at = 0
        while at < len(data):
            if self._left:
                piece = data[at : at + self._left]
                found.append(piece)
                self._left -= len(piece)
                self.pos += len(piece)
                at += len(piece)
                continue
            missing = HEADER.size - len(self._head)
            self._head += data[at : at + missing]
            at += missing
            if len(self._head) == HEADER.size:
                self._begin(*HEADER.unpack(self._head))
                self._head = b""
        return b"".join(found)

    def _begin(self, pos: int, size: int) -> None:
        if not 0 <= size <= MOST_PART_BYTES:
            raise CopyError(CopyProblem.WRONG_PART, f"the master sent a part of {size} bytes at {pos}")
        if pos != self.pos:
            raise CopyError(CopyProblem.WRONG_PART, f"the master sent bytes at {pos}, and {self.pos} comes next")
        if pos % self._segment_bytes + size > self._segment_bytes:
            end = pos - pos % self._segment_bytes + self._segment_bytes
            text = f"the master sent {size} bytes at {pos}, beyond the end of its segment at {end}"
            raise CopyError(CopyProblem.WRONG_PART, text)
        self._left = size


class Comparison:
    """Compares received bytes with those of this log up to `end`. `read(pos, size)`: written bytes; may be fewer."""

    def __init__(self, begin: int, end: int, read: Callable[[int, int], bytes]) -> None:
        self.pos = begin
        """Everything before is equal."""
        self._end = end
        self._read = read

    @property
    def is_done(self) -> bool:
        """Whether all bytes are compared."""
        return self.pos >= self._end

    def take(self, data: bytes) -> bytes:
        """Compares the bytes at `pos`, and returns those that are behind the end. CopyError: a byte differs; OSError:
        this log cannot be read."""
        at = 0
        while at < len(data) and self.pos < self._end:
            own = self._read(self.pos, min(len(data) - at, self._end - self.pos))
            if not own:
                raise OSError(f"the log has no byte at {self.pos}")
            if data[at : at + len(own)] != own:
                pos = self.pos + next(n for n, (a, b) in enumerate(zip(own, data[at:], strict=False)) if a != b)
                text = f"this log ends at {self._end} and differs from the master's at {pos}: one of them lost messages"
                raise CopyError(CopyProblem.DIVERGED, text)
            self.pos += len(own)
            at += len(own)
        return data[at:]


class Records:
    """Gathers bytes until they are whole records, and stores these. Owns the bytes of an incomplete record.

    `append(data)`: see `LogCopy.append`. `end()`: position behind the stored records.
    """

    def __init__(self, append: Callable[[bytes], tuple[int, int, str | None]], end: Callable[[], int]) -> None:
        self._append = append
        self._end = end
        self._held = bytearray()
        self._wanted = 1

    def take(self, data: bytes) -> None:
        """Stores what became complete. CopyError: the master sent something else than records; OSError."""
        self._held += data
        if len(self._held) < self._wanted:
            return
        taken, self._wanted, flaw = self._append(bytes(self._held))
        del self._held[:taken]
        if flaw is not None:
            raise CopyError(
                CopyProblem.BAD_RECORD, f"what the master sent for {self._end()} is no sound record: {flaw}"
            )
