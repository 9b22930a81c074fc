"""Ranges of entries that members send each other to repair their logs: bytes of the log as they are on the disk.

The number of a shipment of entries encodes which entries are requested. No offer is needed beforehand, so a member can
request every durable entry, also of the segment that is still being written:

    bit 62    a snapshot (`snapshot_transfer`)
    bit 61    entries: 44 bits of the first index, 17 bits of the number of entries after it
    neither   a whole sealed segment, by its position (`repair`)

The requesting member checks what it receives (`Ledger.rewrite`): the sender's bytes can be damaged as well.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tallystick.replication.ledger.ledger import Ledger
from tallystick.replication.transport.shipping_messages import ShippedFile
from tallystick.store.formats.segment_files import segment_name

_FLAG = 1 << 61
_BASE = 1 << 62
_COUNT_BITS = 17
_INDEX_BITS = 44


def number_of(first: int, last: int) -> int | None:
    """The number of the shipment of these entries; None if they are too many or too far on for such a number."""
    following = last - first
    if not (0 <= following < 1 << _COUNT_BITS and 0 <= first < 1 << _INDEX_BITS):
        return None
    return _FLAG | first << _COUNT_BITS | following


def entries_of(number: int) -> tuple[int, int] | None:
    """First and last entry of a shipment; None if it is of another kind."""
    if number < 0 or number & _BASE or not number & _FLAG:
        return None
    first = (number ^ _FLAG) >> _COUNT_BITS
    return first, first + (number & ((1 << _COUNT_BITS) - 1))


class RangeSource:
    """Durable entries [first, last] of this member's log."""

    def __init__(self, ledger: Ledger, first: int, last: int) -> None:
        """Raises KeyError if the log does not have them durably."""
        if not ledger.first_index <= first <= last <= ledger.synced_index:
            raise KeyError(first)
        self._folder: Path = ledger.folder / "data"
        self._segment_bytes = ledger.segment_bytes
        self._pos = ledger.pos_of(first)
        self._size = ledger.end_of(last) - self._pos

    def files(self) -> Sequence[ShippedFile]:
        return [ShippedFile(f"data/{self._pos:020d}", self._size)]

    def read(self, file: ShippedFile, offset: int, size: int) -> bytes:
        pos, end, parts = self._pos + offset, self._pos + offset + size, []
        while pos < end:
            start = pos - pos % self._segment_bytes
            with (self._folder / segment_name(start)).open("rb", buffering=0) as opened:
                part = os.pread(opened.fileno(), min(end, start + self._segment_bytes) - pos, pos - start)
            if not part:
                break
            parts.append(part)
            pos += len(part)
        return b"".join(parts)
