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
)
from tallystick.store.formats.segment_files import SegmentFiles

_ENTRIES = 16384


def is_sound(split: Split) -> bool:
    """Whether all entries of the split are sound and follow those before it. FileNotFoundError, OSError."""
    path = Path(split.path)
    bring(path, split.begin - split.file_start, split.end - split.file_start)
    with Segments(path.parent) as log, Segments(path.parent.parent / "index") as index:
        first = _header(log, split.begin)
        if first is None:
            return False
        before = entry_before(split, first)
        pos, next_index = split.begin, first.log_index
        term, chain = first.term, None
        if before is not None:
            next_index, term, chain = before.log_index + 1, before.term, before.chain_crc
        while pos < split.end:
            try:
                walked = _kernel.walk_entries(
                    path.parent, log.segment_bytes, pos, next_index, term, chain, max_entries=_ENTRIES
                )
            except DamageError:
                return False
            if index.starts and not _are_in(index, next_index, walked.units):
                return False
            if walked.stopped is not None and walked.pos < split.end:
                return False
            if walked.pos == pos:
                break
            pos, next_index, term, chain = walked.pos, walked.next_index, walked.last_term, walked.last_chain
    return pos >= split.end


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


def entry_before(split: Split, first: EntryHeader | None = None) -> EntryHeader | None:
    """Returns the entry before the split, if the index names it; None: there is none, or it is damaged.

    `first`: the first entry of the split, if it is known.
    """
    path = Path(split.path)
    with Segments(path.parent) as log, Segments(path.parent.parent / "index") as index:
        first = first or _header(log, split.begin)
        if first is None or first.log_index <= 0:
            return None
        data = index.read((first.log_index - 1) * UNIT_BYTES, UNIT_BYTES)
        try:
            before = None if data is None else _header(log, IndexUnit.decode(data).pos)
        except LedgerFormatError:
            return None
    return before if before is not None and before.log_index == first.log_index - 1 else None


def _header(log: SegmentFiles, pos: int) -> EntryHeader | None:
    data = log.read(pos, ENTRY_HEADER_BYTES)
    try:
        header = None if data is None else EntryHeader.decode(data)
    except LedgerFormatError:
        return None
    return header if header is not None and header.pos == pos else None
