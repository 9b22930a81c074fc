"""The log of a group that follows a master: takes the records of the master's log as entries.

    master's log ── append ──▶ entries ─▶ committed ─▶ dispatched          places say which record lies where

Each record has the same bytes in both logs, except for its own position and, if it ends a transaction, the position of
its half message. So all positions of this module are those of the master's log, unless a name says otherwise, and what
is here can be compared with the master's log (`FollowedComparison`).

Where this log ends in terms of the master's is found from the log itself (`locate`), at the beginning of each attempt.
"""

from __future__ import annotations

import asyncio
import zlib
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.node.broker.copying.half_positions import HalfPositions, Span
from tallystick.node.broker.copying.place_table import APART_BYTES, Place
from tallystick.node.broker.copying.protocol import ALL_FROM, CopyError, CopyProblem
from tallystick.node.broker.slaves.segment_reader import SegmentReader
from tallystick.store.engine.log_copy import CHECKED_AFTER_KILL_BYTES, CHECKED_AGAIN_BYTES, CHECKED_BYTES
from tallystick.store.formats.ledger_format import (
    ENTRY_HEADER_BYTES,
    FILLER_MAGIC,
    EntryHeader,
    EntryKind,
    LedgerFormatError,
)
from tallystick.store.formats.record import BLANK_MAGIC, without_positions
from tallystick.store.formats.segment_files import read_segment

if TYPE_CHECKING:
    from tallystick.node.broker.broker import Broker
    from tallystick.node.broker.copying.place_table import CopyTable
    from tallystick.node.broker.group.group_role import BrokerGroup

MOST_UNCOMMITTED_BYTES = 8 << 20
"""Nothing more is taken from the master while so much of the group's log is not committed."""
_CHUNK_BYTES = 1 << 20
_HEAD_BYTES = 8  # size and magic of a record
_FILLER = FILLER_MAGIC.to_bytes(4, signed=True)
_BLANK = BLANK_MAGIC.to_bytes(4, signed=True)


class FollowedLog:
    """The log of one leadership of `group`. Create another one for the next leadership."""

    def __init__(self, broker: Broker, group: BrokerGroup, table: CopyTable) -> None:
        self._broker, self._group, self._table = broker, group, table
        self._log = group.member.log
        self._term = group.term
        self._end: int | None = None
        self._begin_at = 0
        self._marks: deque[tuple[int, int]] = deque()  # (here, master): ends of what was taken, rising
        self._halves = HalfPositions(self._spans, self.read_own)
        self._finding: asyncio.Task[None] | None = None
        self._not_found: CopyError | OSError | None = None  # why the last one failed
        self.on_room: Callable[[], None] = lambda: None
        """Called when a half message was found, for which `append` took nothing more."""
        settings = broker.store.settings
        self.reader = SegmentReader(settings.log_folder, settings.mappedFileSizeCommitLog)
        """Of `comparison`. Close it when the comparison has ended."""
        self.segment_bytes = broker.store.settings.mappedFileSizeCommitLog
        """Of the master's log."""
        self._clean = broker.store.recovered.clean

    # -- what is here --------------------------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        """Position where the log ends, with what is not committed yet. 0 before `locate`."""
        return self._end or 0

    @property
    def is_located(self) -> bool:
        """Whether it is known where this log ends in terms of the master's."""
        return self._end is not None

    @property
    def safe_end(self) -> int:
        """The group has committed the log up to here. This is reported to the master."""
        return self._upto(self._group.member.committed_pos)

    @property
    def dispatched_end(self) -> int:
        """Everything before is in the queues of this member."""
        return self._upto(min(self._group.member.committed_pos, self._broker.store.dispatched_pos))

    @property
    def is_empty(self) -> bool:
        """Whether there is no record."""
        return not self._table.places()

    @property
    def is_settled(self) -> bool:
        """Whether everything that was taken is committed and dispatched."""
        return self._end is not None and self.dispatched_end == self._end

    def _upto(self, own: int) -> int:
        while len(self._marks) > 1 and self._marks[1][0] <= min(own, self._broker.store.dispatched_pos):
            self._marks.popleft()
        found = [master for here, master in self._marks if here <= own]
        return found[-1] if found else 0

    # -- where this log ends -------------------------------------------------------------------------------------------

    def locate(self) -> None:
        """Finds where this log ends in terms of the master's. Blocks, for `APART_BYTES` or a little more.

        OSError; CopyError: a place or a record of this log is wrong."""
        end = self._log.written
        places = self._table.places()
        found = places[-1].master if places else self._begin_at
        for span in self._spans(places, len(places) - 1, end):
            found = span.master + span.size
        self._end = found
        self._marks = deque([(end, found)])

    def begin_at(self, pos: int) -> None:
        """The empty log begins at `pos`."""
        self._begin_at = self._end = pos

    def _spans(self, places: Sequence[Place], number: int, end: int) -> Iterator[Span]:
        """The records from place `number` on, up to `end` here."""
        if not 0 <= number < len(places):
            return
        master, at = places[number]
        following = number + 1
        settings = self._broker.store.settings
        for own, size in records(settings.log_folder, settings.mappedFileSizeCommitLog, at, end):
            while following < len(places) and own > places[following].own:
                if not 0 <= places[following].master - master < self.segment_bytes:
                    text = f"the log has records up to {master} before the place of {places[following].master}"
                    raise CopyError(CopyProblem.DIVERGED, text)
                master, following = places[following].master, following + 1
            yield Span(master, own, size)
            master += size

    def comparison(self, *, again: bool) -> FollowedComparison:
        """What the master's log is compared with first: as `LogCopy.compare_from`. Blocks. OSError, CopyError."""
        wanted = CHECKED_AGAIN_BYTES if again else CHECKED_BYTES if self._clean else CHECKED_AFTER_KILL_BYTES
        places, end = self._table.places(), self._log.written
        number = max(0, bisect_right(places, self.end - wanted, key=lambda place: place.master) - 1)
        spans = list(self._spans(places, number, end))
        first = max(0, bisect_right(spans, self.end - wanted, key=lambda span: span.master) - 1)
        return FollowedComparison(spans[first:], self.end, self.segment_bytes, self._read_sound)

    def _read_sound(self, pos: int, size: int) -> bytes:
        """A record of this log. CopyError: it is damaged, and is fetched from another member; OSError."""
        data = self.reader.read(pos - ENTRY_HEADER_BYTES, ENTRY_HEADER_BYTES + size)
        body = data[ENTRY_HEADER_BYTES:]
        entry = EntryHeader.decode(data)  # `records` has read it
        if (entry.chain_crc or entry.body_crc) and zlib.crc32(body) != entry.body_crc:
            self._broker.store.media.met(pos, size)
            raise CopyError(CopyProblem.DISK, f"the log of this member is damaged at {pos}")
        return body

    def read_own(self, pos: int, size: int) -> bytes:
        """Written bytes at a position of this log. OSError."""
        settings = self._broker.store.settings
        return read_segment(settings.log_folder, settings.mappedFileSizeCommitLog, pos, size)

    # -- what is added -------------------------------------------------------------------------------------------------

    def append(self, data: bytes) -> tuple[int, int, str | None]:
        """See `LogCopy.append`. Takes nothing while `is_full`. CopyError: this member does not lead any longer, or its
        log is damaged."""
        assert self._end is not None, "`locate` was called"
        taken = 0
        if not self._group.leads or self._group.term != self._term:
            raise CopyError(CopyProblem.UNREACHABLE, "the leadership for which this copy was made is over")
        if (failure := self._not_found) is not None:
            self._not_found = None
            raise failure
        try:
            while True:
                if len(data) - taken < _HEAD_BYTES:
                    return taken, _HEAD_BYTES, None
                if self.is_full or not self._place_is_noted():
                    return taken, 0, None
                rest, mapped = data[taken:], None
                found = self._log.append_followed(rest, self._end, self.segment_bytes)
                if found.reference is not None and not found.taken:
                    if (mapped := self._halves.known(found.reference)) is None:
                        self._find(found.reference)
                        return taken, 0, None
                    found = self._log.append_followed(rest, self._end, self.segment_bytes, mapped)
                step, wanted, flaw, _, halves = found
                self._note(step, halves)
                taken += step
                if flaw is not None or not step:
                    return taken, wanted, flaw
        finally:
            if taken:
                self._group.member.staged()

    @property
    def is_full(self) -> bool:
        """Whether nothing is taken now: too much is not committed, the group accepts nothing, or a thread looks for a
        half message."""
        member = self._group.member
        return (
            self._finding is not None
            or self._log.staged - member.committed_pos > MOST_UNCOMMITTED_BYTES
            or not member.accepting
        )

    def _place_is_noted(self) -> bool:
        """The next record may follow: its place is in the log, if it needs one."""
        assert self._end is not None
        last = max(self._places_end(), -1)
        begins_segment = self._end % self.segment_bytes == 0 and last < self._end
        if last >= 0 and not begins_segment and self._end < last + APART_BYTES:
            return True
        return self._table.add_place(Place(self._end, self._log.staged))

    def _places_end(self) -> int:
        places = self._table.places()
        return places[-1].master if places else -1

    def _note(self, step: int, halves: list[tuple[int, int]]) -> None:
        assert self._end is not None
        self._end += step
        self._marks.append((self._log.staged, self._end))
        self._halves.note(halves)

    def _find(self, reference: int) -> None:
        """Finds the half message at `reference`, which an earlier leader took, in a thread."""
        places, end = tuple(self._table.places()), self._log.written

        async def find() -> None:
            try:
                self._halves.note([(reference, await asyncio.to_thread(self._halves.find, reference, places, end))])
            except (CopyError, OSError) as error:
                self._not_found = error
            finally:
                self._finding = None
            self.on_room()

        self._finding = asyncio.get_running_loop().create_task(find(), name="find half message")

    async def close(self) -> None:
        """Returns when nothing reads this log any longer."""
        self.reader.close()
        if self._finding is not None:
            await asyncio.wait([self._finding])

    def write(self) -> None:
        """Writes what is staged, also after a write that failed."""
        self._broker.store.appender.write()

    def trouble(self) -> str | None:
        """Why nothing can be stored; None if it can be."""
        store = self._broker.store
        if (failure := store.admission.failure()) is not None:
            return failure
        return self._group.member.message_refusal() or store.admission.no_room()

    def keep_from(self, pos: int) -> None:
        """The master has deleted everything before `pos`. A group that follows deletes nothing."""


class FollowedComparison:
    """Compares the records of `spans` with those of the master, which are received from `begin` on. See `Comparison`.

    `read(pos, size)`: a record of this log. CopyError: it is damaged; OSError.
    """

    def __init__(self, spans: list[Span], end: int, segment_bytes: int, read: Callable[[int, int], bytes]) -> None:
        self._spans = deque(spans)
        self.begin = spans[0].master if spans else end
        self.pos = self.begin
        """Everything before is equal."""
        self._end, self._segment_bytes, self._read = end, segment_bytes, read
        # To 0 a master answers with its newest segment: the byte there is 0.
        self._held = bytes(ALL_FROM) if self.begin == 0 else b""

    @property
    def is_done(self) -> bool:
        """Whether all records are compared."""
        return self.pos >= self._end

    def take(self, data: bytes) -> bytes:
        """Compares the records in `data`, which continues what was received, and returns the bytes behind the end.
        CopyError: a record differs, or is damaged here; OSError: this log cannot be read."""
        if self.is_done:
            return data
        held, at = self._held + data, 0
        while self.pos < self._end:
            span = self._spans[0] if self._spans else None
            upto = self._end if span is None else span.master
            if self.pos < upto:  # a filler
                size = upto - self.pos
                if len(held) - at < min(size, 8):
                    break
                if upto % self._segment_bytes or held[at + 4 : at + 8] != _BLANK[: max(0, size - 4)]:
                    raise self._differs()
            else:
                assert span is not None
                size = span.size
            if len(held) - at < size:
                break
            if span is not None and self.pos == span.master:
                if without_positions(held[at : at + size]) != without_positions(self._read(span.own, size)):
                    raise self._differs()
                self._spans.popleft()
            self.pos += size
            at += size
        if self.is_done:
            self._held = b""
            return held[at:]
        self._held = held[at:]
        return b""

    def _differs(self) -> CopyError:
        text = f"this log ends at {self._end} of the master's and differs from it at {self.pos}: one lost messages"
        return CopyError(CopyProblem.DIVERGED, text)


def records(folder: Path, segment_bytes: int, pos: int, end: int) -> Iterator[tuple[int, int]]:
    """Position and size of each message in the entries from `pos` to `end`. CopyError: what lies there is no entry."""
    chunk, begin = b"", pos
    while pos < end:
        left = segment_bytes - pos % segment_bytes
        if pos + min(left, ENTRY_HEADER_BYTES) > begin + len(chunk) or pos < begin:
            begin, chunk = pos, read_segment(folder, segment_bytes, pos, min(_CHUNK_BYTES, left))
        head = chunk[pos - begin : pos - begin + ENTRY_HEADER_BYTES]
        if head[:4] == _FILLER:
            pos += left
            continue
        try:
            entry = EntryHeader.decode(head)
            if entry.pos != pos:
                raise LedgerFormatError(f"the entry of {entry.pos}", 0)
        except LedgerFormatError as error:
            raise CopyError(CopyProblem.DISK, f"the group's log has no entry at {pos}: it is damaged") from error
        if entry.channel == EntryKind.MESSAGE and entry.body_bytes:
            yield pos + ENTRY_HEADER_BYTES, entry.body_bytes
        pos += entry.size
