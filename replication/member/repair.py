"""Mends what a disk has damaged since: sealed segments are read again, and what is not sound comes from another member.

Segments that are full and committed are the same bytes at every member. Each member offers its own for shipment, under
the position at which it begins; one that finds damage fetches the segment, takes the entries that it lacks, and has the
ledger put them in their place, which checks them against the entries around. The segment that is still written to is
read by the next start.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.replication.ledger.ledger import Ledger
from tallystick.replication.ledger.mark import EntryPoint
from tallystick.replication.member.errors import DiskError
from tallystick.replication.transport.shipping import ShipmentError, Shipping
from tallystick.replication.transport.shipping_messages import ShippedFile
from tallystick.store._kernel import find_entry, walk_entries
from tallystick.store.ledger_format import ENTRY_HEADER_BYTES, EntryHeader, LedgerFormatError
from tallystick.store.segment_files import segment_name

if TYPE_CHECKING:
    from tallystick.store._kernel import Door

_FOLDER = "repair"
_LARGEST_ENTRY = 16 << 20
_ENTRIES_A_TURN = 8192
_PATIENCE_S = 30.0  # for a member to answer at all; and so many bytes a second at least from there on
_SLOWEST_BYTES = 4 << 20

_logger = logging.getLogger("tallystick.replication")


class _SegmentSource:
    """One sealed segment, as it lies on the disk."""

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._size = size

    def files(self) -> Sequence[ShippedFile]:
        return [ShippedFile(f"data/{self._path.name}", self._size)]

    def read(self, file: ShippedFile, offset: int, size: int) -> bytes:
        with self._path.open("rb", buffering=0) as opened:
            return os.pread(opened.fileno(), size, offset)


class _FileTarget:
    """A file of its own; an attempt that was broken off begins again."""

    def __init__(self, door: Door, path: Path) -> None:
        self._door = door
        self.path = path
        self._have = 0

    def received(self, file: ShippedFile) -> int:
        if self._have == 0:
            self._door.create(self.path, file.size, False)
        return self._have

    def write(self, file: ShippedFile, offset: int, data: memoryview) -> None:
        self._door.write(self.path, offset, bytes(data))
        self._have = offset + len(data)

    def read(self, file: ShippedFile, offset: int, size: int) -> bytes:
        with self.path.open("rb", buffering=0) as opened:
            return os.pread(opened.fileno(), size, offset)

    def finish(self, file: ShippedFile) -> None:
        pass  # it is read and removed

    def discard(self, file: ShippedFile) -> None:
        self._have = 0


@dataclass(frozen=True, slots=True)
class _Fault:
    """Entry `index`, at `pos`, is not sound; `sound_index`: the next one that is, or where the sealed part ends."""

    index: int
    pos: int
    sound_index: int
    reason: str


class Scrubber:
    """One member's offers, and its own reading."""

    def __init__(self, folder: Path, door: Door, ledger: Ledger, shipping: Shipping) -> None:
        self._folder = folder
        self._door = door
        self._ledger = ledger
        self._shipping = shipping
        self._offered: list[int] = []
        self._mending = asyncio.Lock()
        self.begin_anew()

    def begin_anew(self) -> None:
        """The log begins elsewhere: nothing of what was offered is there any more."""
        for start in self._offered:
            self._shipping.withdraw(start)
        self._offered.clear()
        self._seal_at = self._ledger.base.pos + self._ledger.segment_bytes

    def committed(self, pos: int) -> None:
        """The log is committed up to here: segments that end before are the same everywhere."""
        while pos >= self._seal_at:
            size = self._ledger.segment_bytes
            start = self._seal_at - size
            path = self._ledger.folder / "data" / segment_name(start)
            self._shipping.offer(start, _SegmentSource(path, size))
            self._offered.append(start)
            self._seal_at += size

    async def run(
        self, first: int, committed_index: int, end_pos: int, peers: Sequence[int], bytes_per_second: float
    ) -> int:
        """Reads sealed segments from entry `first` up to `end_pos`, which is committed; how many entries were mended.

        DiskError: nobody had one of them sound.
        """
        ledger, mended = self._ledger, 0
        sealed = end_pos - end_pos % ledger.segment_bytes
        place = ledger.point(max(first, ledger.first_index) - 1)
        while place.pos < sealed and place.index < committed_index:
            begin = time.monotonic()
            if place.index < ledger.base.index:  # old segments were deleted meanwhile
                place = ledger.base
            found, done, _ = await asyncio.to_thread(self._walk, place)
            await asyncio.sleep((found.pos - place.pos) / bytes_per_second - (time.monotonic() - begin))
            place = found
            if done and place.pos < sealed and place.index < committed_index:
                async with self._mending:
                    mended += await self._mend_at(place, committed_index + 1, peers)
        return mended

    async def _mend_at(self, place: EntryPoint, limit: int, peers: Sequence[int]) -> int:
        found, done, reason = await asyncio.to_thread(self._walk, place)
        if not done or found.index > place.index:
            return 0  # somebody else has mended it meanwhile
        if place.index < self._ledger.base.index:
            return 0  # the segment was deleted meanwhile; that the log begins later was known before
        fault = await asyncio.to_thread(self._fault_at, place, limit, reason)
        _logger.error("entry %d at byte %d is damaged: %s", fault.index, fault.pos, fault.reason)
        return await self._mend(fault, peers) + 1 - fault.index

    def _walk(self, place: EntryPoint) -> tuple[EntryPoint, bool, str]:
        """One turn: where the next one begins, whether it came to an end there, and why."""
        ledger = self._ledger
        data = ledger.folder / "data"
        walked = walk_entries(
            data, ledger.segment_bytes, place.pos, place.index + 1, place.term, place.chain, _ENTRIES_A_TURN
        )
        found = EntryPoint(walked.next_index - 1, walked.last_term, walked.last_chain, walked.pos)
        return found, walked.done, walked.stopped or "the files end"

    def _fault_at(self, place: EntryPoint, limit: int, reason: str) -> _Fault:
        ledger, index = self._ledger, place.index + 1
        behind = find_entry(ledger.folder / "data", ledger.segment_bytes, place.pos, index + 1, _LARGEST_ENTRY)
        return _Fault(index, place.pos, limit if behind is None else min(behind[1], limit), reason)

    async def _mend(self, fault: _Fault, peers: Sequence[int]) -> int:
        """The last entry that was put in its place."""
        ledger = self._ledger
        size = ledger.segment_bytes
        start = fault.pos - fault.pos % size
        errors = []
        target = _FileTarget(self._door, self._folder / _FOLDER / segment_name(start))
        for peer in peers:
            try:
                async with asyncio.timeout(_PATIENCE_S + size / _SLOWEST_BYTES):
                    (file,) = await self._shipping.fetch(peer, start, target)
                data, last = await asyncio.to_thread(_entries_of, target, file, fault, start)
                ledger.rewrite(data)
                _logger.warning("entries %d to %d were mended with what n%d has", fault.index, last, peer)
                return last
            except TimeoutError:
                errors.append(f"n{peer} did not answer")
            except (ShipmentError, LedgerFormatError, ValueError, OSError) as error:
                errors.append(f"n{peer}: {error}")
            finally:
                target.discard(ShippedFile("", 0))
                if target.path.exists():
                    self._door.remove(target.path)
        raise DiskError(f"entry {fault.index} at byte {fault.pos} is damaged, and not mended: {'; '.join(errors)}")


def _entries_of(target: _FileTarget, file: ShippedFile, fault: _Fault, start: int) -> tuple[bytes, int]:
    """The entries from the damaged one to the next sound one, or to the segment's end, and the last one's index."""
    at, index = fault.pos - start, fault.index - 1
    while index + 1 < fault.sound_index and at + ENTRY_HEADER_BYTES <= file.size:
        head = target.read(file, at, ENTRY_HEADER_BYTES)
        if head[:4] == b"\xff\xff\xff\xff":
            break  # the filler
        header = EntryHeader.decode(head)
        at, index = at + header.size, header.log_index
    if index < fault.index:
        raise ValueError(f"it has no entry {fault.index} there either")
    return target.read(file, fault.pos - start, at - (fault.pos - start)), index
