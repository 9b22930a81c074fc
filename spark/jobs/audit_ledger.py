"""Proves that the entries of a log in dledger's layout are sound: their order, CRCs, records, and index units.

The kernel checks the entries; the index units that it derives are compared with those of the index as bytes. A broker
serves no index of entries over HTTP, so a store that is not mounted is compared without it.
"""

from __future__ import annotations

from pathlib import Path

from tallystick.spark.presence import Segments, bring
from tallystick.spark.splits import Split
from tallystick.store import _kernel
from tallystick.store._kernel import DamageError
from tallystick.store.formats.ledger_format import (
    ENTRY_HEADER_BYTES,
    UNIT_BYTES,
    EntryHeader,
    IndexUnit,
    LedgerFormatError,
    chain_crc,
)
from tallystick.store.formats.segment_files import SegmentFiles

_ENTRIES = 16384


Ends = tuple[EntryHeader, EntryHeader]
"""The first and the last entry of a range of the log."""


def sound_ends(split: Split) -> Ends | None:
    """Returns the first and the last entry of the split if all its entries are sound; else None.
    FileNotFoundError, OSError."""
    path = Path(split.path)
    bring(path, split.begin - split.file_start, split.end - split.file_start)
    with Segments(path.parent) as log, Segments(path.parent.parent / "index") as index:
        first = _header(log, split.begin)
        if first is None:
            return None
        pos, next_index, term, chain, last = split.begin, first.log_index, first.term, None, b""
        while pos < split.end:
            try:
                walked = _kernel.walk_entries(
                    path.parent, log.segment_bytes, pos, next_index, term, chain, max_entries=_ENTRIES
                )
            except DamageError:
                return None
            units = _units_before(walked.units, split.end)
            if index.starts and not _are_in(index, next_index, units):
                return None
            if walked.pos == pos or (walked.stopped is not None and walked.pos < split.end):
                return None
            last = units[-UNIT_BYTES:] or last
            pos, next_index, term, chain = walked.pos, walked.next_index, walked.last_term, walked.last_chain
        end = _header(log, IndexUnit.decode(last).pos) if last else None
    return None if end is None else (first, end)


def follows(before: EntryHeader, entry: EntryHeader) -> bool:
    """Whether the index, term and chain of an entry continue those of the one before it."""
    if entry.log_index != before.log_index + 1 or entry.term < before.term:
        return False
    if entry.chain_crc == 0:
        return before.chain_crc == 0
    return chain_crc(entry.encode(), before.chain_crc) == entry.chain_crc


def _units_before(units: bytes, end: int) -> bytes:
    """The units of entries before a position. A walk may pass it."""
    count = len(units) // UNIT_BYTES
    while count and IndexUnit.decode(units, (count - 1) * UNIT_BYTES).pos >= end:
        count -= 1
    return units[: count * UNIT_BYTES]


def _are_in(index: SegmentFiles, first: int, units: bytes) -> bool:
    at = first * UNIT_BYTES
    while units:
        start = index.start_of(at)
        if start is None:
            return False
        size = min(len(units), start + index.segment_bytes - at)
        if index.read(at, size) != units[:size]:
            return False
        at, units = at + size, units[size:]
    return True


def _header(log: SegmentFiles, pos: int) -> EntryHeader | None:
    data = log.read(pos, ENTRY_HEADER_BYTES)
    try:
        header = None if data is None else EntryHeader.decode(data)
    except LedgerFormatError:
        return None
    return header if header is not None and header.pos == pos else None
