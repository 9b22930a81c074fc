"""Reads the log again, and replaces damaged entries by another member's bytes.

Entries with the same index and term have the same bytes and the same position at every member. A member that finds
damage fetches the damaged entries from a member that has them durably (`log_ranges`). The ledger checks them against
the entries around them and against the index, and writes them. A member of an older version sends only whole sealed
segments: then the segment is fetched, and the entries are taken from it.

`run` reads and repairs once. `repair_task` decides when, and when to retry.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.replication.ledger.ledger import Ledger
from tallystick.replication.ledger.mark import EntryPoint
from tallystick.replication.ledger.recovery import LedgerError
from tallystick.replication.member.errors import DiskError, NoCopyError, UnrepairableError
from tallystick.replication.member.log_ranges import RangeSource, entries_of, number_of
from tallystick.replication.member.special import LARGEST_ENTRY
from tallystick.replication.transport.shipping import (
    ShipmentError,
    ShipmentRefusedError,
    ShipmentSource,
    Shipping,
)
from tallystick.replication.transport.shipping_messages import ShippedFile
from tallystick.store._kernel import EntryError, find_entry, walk_entries
from tallystick.store.findings import FindingKind
from tallystick.store.formats.ledger_format import ENTRY_HEADER_BYTES, EntryHeader, LedgerFormatError
from tallystick.store.formats.segment_files import segment_name

if TYPE_CHECKING:
    from tallystick.store._kernel import Door

_FOLDER = "repair"
_ENTRIES_A_TURN = 8192
_PATIENCE_S = 10.0  # for a member's first answer; then it must send at least so many bytes a second
_SLOWEST_BYTES = 4 << 20


class _SegmentSource:
    """One sealed segment, as it is on the disk."""

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._size = size

    def files(self) -> Sequence[ShippedFile]:
        return [ShippedFile(f"data/{self._path.name}", self._size)]

    def read(self, file: ShippedFile, offset: int, size: int) -> bytes:
        with self._path.open("rb", buffering=0) as opened:
            return os.pread(opened.fileno(), size, offset)


class _FileTarget:
    """A separate file. An interrupted attempt starts again."""

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
        pass  # the caller reads and removes it

    def discard(self, file: ShippedFile) -> None:
        self._have = 0


@dataclass(frozen=True, slots=True)
class _Fault:
    """Entry `index`, at `pos`, is damaged. `sound_index`: the next sound one, or where the sealed part ends."""

    index: int
    pos: int
    sound_index: int
    reason: str


class Scrubber:
    """One member's offers, and its own reads. `repaired(pos, end)` is called when these bytes were written again."""

    def __init__(
        self,
        folder: Path,
        door: Door,
        ledger: Ledger,
        shipping: Shipping,
        repaired: Callable[[int, int], None] = lambda pos, end: None,
    ) -> None:
        self._repaired = repaired
        self._folder = folder
        self._door = door
        self._ledger = ledger
        self._shipping = shipping
        self._offered: list[int] = []
        self._lock = asyncio.Lock()
        shipping.on_demand = self._entries
        self.reset()

    def _entries(self, shipment: int) -> ShipmentSource | None:
        """The source of entries that another member requests. OSError: the index cannot be read."""
        entries = entries_of(shipment)
        try:
            return None if entries is None else RangeSource(self._ledger, *entries)
        except KeyError:
            return None

    def reset(self) -> None:
        """The log has another start: nothing that was offered exists any longer."""
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
        self, first: int, last_index: int, end_pos: int, peers: Sequence[int], bytes_per_second: float
    ) -> int:
        """Reads from entry `first` to before byte `end_pos`, no further than `last_index`, which is durable; returns
        how many entries were repaired.

        Raises DiskError if no member sent one of them; NoCopyError if all members answered and none has a sound copy;
        UnrepairableError if, in addition, each of them has the entry.
        """
        ledger, repaired = self._ledger, 0
        place = self._place_before(max(first, ledger.first_index))
        while place.pos < end_pos and place.index < min(last_index, ledger.last_index):
            begin = time.monotonic()
            if place.index < ledger.base.index:  # old segments were deleted meanwhile
                place = ledger.base
            begun = place
            place, done, _ = await asyncio.to_thread(self._walk, begun)
            await asyncio.sleep((place.pos - begun.pos) / bytes_per_second - (time.monotonic() - begin))
            if done and place.index == begun.index > ledger.base.index:
                # Either the next entry is damaged, or the chain of this one: the entries before it decide.
                place = self._place_before(place.index)
            elif done and place.pos < end_pos and place.index < last_index:
                async with self._lock:
                    repaired += await self._repair_at(place, last_index + 1, peers)
        return repaired

    def _place_before(self, first: int) -> EntryPoint:
        """The position at which a read of entry `first` begins. An entry with a damaged header cannot verify the next
        one, so the read begins before it. Raises LedgerError."""
        back = 1
        while True:
            try:
                return self._ledger.point(max(first - back, self._ledger.base.index))
            except LedgerError:
                if first - back <= self._ledger.base.index:
                    raise
                back *= 2

    async def _repair_at(self, place: EntryPoint, limit: int, peers: Sequence[int]) -> int:
        found, done, reason = await asyncio.to_thread(self._walk, place)
        if not done or found.index > place.index:
            return 0  # another task has repaired it meanwhile
        if place.index < self._ledger.base.index or place.index >= self._ledger.last_index:
            return 0  # the segment was deleted meanwhile, or the log truncated
        fault = await asyncio.to_thread(self._fault_at, place, limit, reason)
        self._report(FindingKind.DAMAGE, fault, 0, f"entry {fault.index} is damaged: {fault.reason}")
        last, end = await self._repair(fault, peers)
        self._offer_again(fault.pos)
        self._repaired(fault.pos, end)
        again, done, reason = await asyncio.to_thread(self._walk, place)
        if done and again.index == place.index and place.index + 1 < limit and place.index < self._ledger.last_index:
            raise DiskError(f"entry {fault.index} at byte {fault.pos} was replaced, but is still damaged: {reason}")
        return last + 1 - fault.index

    def _report(self, kind: FindingKind, fault: _Fault, size: int, reason: str) -> None:
        start = fault.pos - fault.pos % self._ledger.segment_bytes
        path = self._ledger.folder / "data" / segment_name(start)
        self._ledger.findings.add(kind, path, reason, offset=fault.pos - start, size=size, pos=fault.pos)

    def _offer_again(self, pos: int) -> None:
        """Renews the offer: a member that requested the segment while it was unreadable would get the old error
        again."""
        size = self._ledger.segment_bytes
        start = pos - pos % size
        if start in self._offered:
            self._shipping.withdraw(start)
            self._shipping.offer(start, _SegmentSource(self._ledger.folder / "data" / segment_name(start), size))

    def _walk(self, place: EntryPoint) -> tuple[EntryPoint, bool, str]:
        """Reads for one turn: returns where the next one begins, whether it ended there, and why."""
        ledger = self._ledger
        data = ledger.folder / "data"
        walked = walk_entries(
            data, ledger.segment_bytes, place.pos, place.index + 1, place.term, place.chain, _ENTRIES_A_TURN
        )
        found = EntryPoint(walked.next_index - 1, walked.last_term, walked.last_chain, walked.pos)
        return found, walked.done, walked.stopped or "the files end"

    def _fault_at(self, place: EntryPoint, limit: int, reason: str) -> _Fault:
        ledger, index = self._ledger, place.index + 1
        behind = find_entry(ledger.folder / "data", ledger.segment_bytes, place.pos, index + 1, LARGEST_ENTRY)
        return _Fault(index, place.pos, limit if behind is None else min(behind[1], limit), reason)

    async def _repair(self, fault: _Fault, peers: Sequence[int]) -> tuple[int, int]:
        """Repairs; returns the last entry that was written, and the position behind the written bytes."""
        ledger, pos = self._ledger, fault.pos
        segment_end = pos - pos % ledger.segment_bytes + ledger.segment_bytes
        if ledger.pos_of(fault.index) == segment_end:  # the segment's filler is damaged; the entry is behind it
            ledger.rewrite_filler(pos)
            self._report(FindingKind.REPAIRED, fault, segment_end - pos, "the filler was rewritten")
            return fault.index - 1, segment_end
        errors, damaged, lacking = [], 0, 0
        for peer in peers:
            try:
                async with asyncio.timeout(_PATIENCE_S + (segment_end - pos) / _SLOWEST_BYTES):
                    data, last = await self._fetch_and_put(peer, fault)
                reason = f"entries {fault.index} to {last} were replaced with those of n{peer}"
                self._report(FindingKind.REPAIRED, fault, len(data), reason)
                return last, pos + len(data)
            except TimeoutError:
                errors.append(f"n{peer} did not answer")
            except (EntryError, LedgerFormatError, LedgerError, ValueError) as error:
                damaged += 1
                errors.append(f"n{peer} has no sound copy: {error}")
            except ShipmentRefusedError as error:
                lacking += 1
                errors.append(f"n{peer} does not have it: {error}")
            except (ShipmentError, KeyError, OSError) as error:
                errors.append(f"n{peer}: {error}")
        reason = f"entry {fault.index} at byte {pos} is damaged and not repaired: {'; '.join(errors) or 'no members'}"
        if damaged == len(peers):
            raise UnrepairableError(reason)
        raise NoCopyError(reason) if damaged + lacking == len(peers) else DiskError(reason)

    async def _fetch_and_put(self, peer: int, fault: _Fault) -> tuple[bytes, int]:
        """The bytes that replaced the damaged entries, and the last one's index."""
        while True:
            data, last = await self._fetch(peer, fault)
            try:
                self._put(data, fault, last)
            except EntryError as error:
                follows = error.index == last + 1 == fault.sound_index <= self._ledger.synced_index
                if not follows:
                    raise
                # The entry behind was believed sound although nothing verified its header: it is damaged, too.
                fault = replace(fault, sound_index=fault.sound_index + 1)
            else:
                return data, last

    async def _fetch(self, peer: int, fault: _Fault) -> tuple[bytes, int]:
        """The damaged entries from another member, and the last one's index."""
        size = self._ledger.segment_bytes
        start = fault.pos - fault.pos % size
        target = _FileTarget(self._door, self._folder / _FOLDER / segment_name(start))
        last = fault.sound_index - 1
        number = number_of(fault.index, last)
        try:
            if number is not None:
                try:
                    (file,) = await self._shipping.fetch(peer, number, target)
                    return await asyncio.to_thread(target.read, file, 0, file.size), last
                except ShipmentRefusedError:
                    target.discard(ShippedFile("", 0))
            (file,) = await self._shipping.fetch(peer, start, target)
            return await asyncio.to_thread(_entries_of, target, file, fault, start)
        finally:
            target.discard(ShippedFile("", 0))
            if target.path.exists():
                self._door.remove(target.path)

    def _put(self, data: bytes, fault: _Fault, last: int) -> None:
        """Writes a member's bytes over damaged ones. Raises EntryError, LedgerError or ValueError if they do not
        fit."""
        ledger = self._ledger
        unit = ledger.log.unit(last) if last <= ledger.last_index else None
        if unit is None:
            raise OSError(f"the log was truncated before entry {last} meanwhile")
        header = EntryHeader.decode(data[unit[0] - fault.pos : unit[0] - fault.pos + ENTRY_HEADER_BYTES])
        if (header.log_index, header.term) != (last, unit[2]):
            # Both entries continue the chain: both are of a leader, and one of them was never committed.
            raise ValueError(f"its entry {header.log_index} has term {header.term}, this log's has {unit[2]}")
        ledger.rewrite(data)


def _entries_of(target: _FileTarget, file: ShippedFile, fault: _Fault, start: int) -> tuple[bytes, int]:
    """The entries from the damaged one to the next sound one or the segment's end, and the last one's index."""
    at, index = fault.pos - start, fault.index - 1
    while index + 1 < fault.sound_index and at + ENTRY_HEADER_BYTES <= file.size:
        head = target.read(file, at, ENTRY_HEADER_BYTES)
        if head[:4] == b"\xff\xff\xff\xff":
            break  # the filler
        header = EntryHeader.decode(head)
        at, index = at + header.size, header.log_index
    if index < fault.index:
        raise ValueError(f"it does not have entry {fault.index} there either")
    return target.read(file, fault.pos - start, at - (fault.pos - start)), index
