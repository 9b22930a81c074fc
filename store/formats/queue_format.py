"""Units of a ConsumeQueue and of its extension, and the header and entries of an index file. All big-endian.

ConsumeQueue unit, 20 bytes: position of the record in the log (long), its size (int), tags code (long). A queue whose
first record has an offset above 0 has blank units before it: position 0, size 2^31 - 1, tags code 0.

Index file: header of 40 bytes, then `slots` ints (number of the newest entry of each chain; 0 if the chain is empty),
then entries of 20 bytes: key hash (int), position (long), seconds since the first time in the file (int), previous
entry of the chain (int). Entry 0 is never used.

Source: ConsumeQueue, IndexHeader and IndexFile of RocketMQ 4.8.0.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from typing import NamedTuple

UNIT = struct.Struct(">qiq")
INDEX_HEADER = struct.Struct(">qqqqii")
INDEX_SLOT = struct.Struct(">i")
INDEX_ENTRY = struct.Struct(">iqii")
assert (UNIT.size, INDEX_HEADER.size, INDEX_ENTRY.size) == (20, 40, 20), "fixed by every file already on disk"

_USUAL_SLOTS, _USUAL_ENTRIES = 5_000_000, 20_000_000
"""The defaults of `maxHashSlotNum` and `maxIndexNum`."""
_LOOKED_AT = 16
"""The number of slots is determined from this many of the newest entries of an index file."""
_SIGNS = 3
_MOST_KEYS = 1000
"""Entries of one record that are looked at."""
_PIECE_BYTES = 1 << 20
_ZEROS = bytes(_PIECE_BYTES)

BLANK_UNIT_SIZE = 2**31 - 1
# Below the range of tags hashes (32 bits): the unit's tags code is the address of an extension unit.
MAX_EXT_ADDRESS = -(2**31) - 1


def units_written(data: mmap.mmap) -> int:
    """Number of units in a queue's file. They are written without gaps, so a binary search finds the first empty
    one."""
    low, high = 0, len(data) // UNIT.size
    while low < high:
        middle = (low + high) // 2
        if UNIT.unpack_from(data, middle * UNIT.size)[1] > 0:
            low = middle + 1
        else:
            high = middle
    return low


class IndexHeader(NamedTuple):
    begin_timestamp_ms: int
    end_timestamp_ms: int
    begin_pos: int
    end_pos: int
    slot_count: int
    """Slots in use: a counter that no reader depends on."""
    next_entry: int
    """Number of the next entry; 1 in a new file."""


class IndexEntry(NamedTuple):
    key_hash: int
    pos: int
    seconds: int
    previous: int


def _places_of_last_entry(data: mmap.mmap, header: IndexHeader) -> Iterator[int]:
    """Yields where the last entry of an index file may begin: it has the position of the last record."""
    if header.end_pos == 0:  # the only record: zeros anywhere look like its position
        end = _last_not_zero(data, INDEX_HEADER.size, len(data))
        if end is not None:  # in the last entry, or in one before it if the hash of its key is 0
            newest = INDEX_ENTRY.size * min(header.next_entry - 1, _MOST_KEYS)
            yield from range(max(INDEX_HEADER.size, end - INDEX_ENTRY.size + 1), end + newest)
        return
    wanted = struct.pack(">q", header.end_pos)
    at = INDEX_HEADER.size + INDEX_ENTRY.size * (header.next_entry - 1)
    while (at := data.find(wanted, at)) >= 0:
        yield at - 4
        at += 1


def _last_not_zero(data: mmap.mmap, begin: int, end: int) -> int | None:
    """Returns the place of the last byte in [begin, end) that is not 0. The range may go beyond the file."""
    end = min(end, len(data))
    while end > begin:
        piece = data[max(begin, end - _PIECE_BYTES) : end]
        if piece != (_ZEROS if len(piece) == _PIECE_BYTES else bytes(len(piece))):
            return end - len(piece) + len(piece.rstrip(b"\0")) - 1
        end -= len(piece)
    return None


class IndexGeometry(NamedTuple):
    """How many slots and entries the files of a store have. The files do not say it: only their sum is seen."""

    slots: int
    entries: int

    @property
    def file_bytes(self) -> int:
        return INDEX_HEADER.size + INDEX_SLOT.size * self.slots + INDEX_ENTRY.size * self.entries

    def entry_at(self, number: int) -> int:
        """Byte of an entry in its file."""
        return INDEX_HEADER.size + INDEX_SLOT.size * self.slots + INDEX_ENTRY.size * number

    def slot_at(self, slot: int) -> int:
        """Byte of a slot in its file."""
        return INDEX_HEADER.size + INDEX_SLOT.size * slot

    @classmethod
    def of_file(cls, data: mmap.mmap) -> IndexGeometry | None:
        """Found by looking at a file; None: it has no entry, or its header and entries do not fit each other.

        Wherever a file has the position of its last record, that may be the last entry. The slots tell which one is:
        each of the newest entries is reached from its slot. One alone may fit by chance: a record has several
        entries, and with fewer slots than there are, an earlier one of them gets the last number. With few entries all
        of them may fit by chance; then it decides what stands before the first entry and behind the last one.
        """
        header = IndexHeader(*INDEX_HEADER.unpack_from(data))
        last = header.next_entry - 1
        usual = cls(_USUAL_SLOTS, _USUAL_ENTRIES)
        if usual.file_bytes == len(data) and 0 < last < usual.entries and usual._is_certain(data, header):
            return usual
        numbers = range(max(1, last - _LOOKED_AT + 1), last + 1)
        most, best = (len(numbers) // 2, _SIGNS), None
        for entry_at in _places_of_last_entry(data, header):
            if most >= (len(numbers), _SIGNS):
                break
            slots, rest = divmod(entry_at - INDEX_ENTRY.size * last - INDEX_HEADER.size, INDEX_SLOT.size)
            entries, more = divmod(len(data) - INDEX_HEADER.size - INDEX_SLOT.size * slots, INDEX_ENTRY.size)
            if slots > 0 and rest == more == 0 and entry_at + INDEX_ENTRY.size <= len(data):
                geometry = cls(slots, entries)
                reached = sum(geometry._reaches(data, number) for number in numbers)
                if reached >= most[0] and (found := (reached, geometry._fits(data, header))) > most:
                    most, best = found, geometry
        return best

    def _is_certain(self, data: mmap.mmap, header: IndexHeader) -> bool:
        """Whether all signs speak for this geometry. It looks at a few pages, so no others are read from the disk."""
        last = header.next_entry - 1
        data.madvise(mmap.MADV_RANDOM)
        try:
            return self._fits(data, header) == _SIGNS and all(
                self._reaches(data, number) for number in range(max(1, last - _LOOKED_AT + 1), last + 1)
            )
        finally:
            data.madvise(mmap.MADV_NORMAL)

    def _fits(self, data: mmap.mmap, header: IndexHeader) -> int:
        """How many signs there are that the entries are where this geometry has them: entry 0 is unused, the first one
        has the first record's position, and nothing follows the last one."""
        unused, first, behind = (self.entry_at(number) for number in (0, 1, header.next_entry))
        # Zeros anywhere look like an entry of a record at position 0.
        end = behind + INDEX_ENTRY.size if header.end_pos else len(data)
        ranges = ((unused, unused + INDEX_ENTRY.size), (behind, end))
        signs = [_last_not_zero(data, begin, stop) is None for begin, stop in ranges]
        return sum(signs) + (IndexEntry(*INDEX_ENTRY.unpack_from(data, first)).pos == header.begin_pos)

    def _reaches(self, data: mmap.mmap, number: int) -> bool:
        """Whether its slot's chain leads to this entry, one of the newest: so it stands near the chain's head."""
        (key_hash, *_) = INDEX_ENTRY.unpack_from(data, self.entry_at(number))
        (found,) = INDEX_SLOT.unpack_from(data, self.slot_at(key_hash % self.slots))
        for _ in range(2 * _LOOKED_AT):
            if not number < found < self.entries:
                break
            *_, found = INDEX_ENTRY.unpack_from(data, self.entry_at(found))
        return bool(found == number)
