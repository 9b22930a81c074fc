"""How one log lies on disk in dledger's layout: entries in `data/`, one fixed unit per entry in `index/`.

Entry, big-endian; its body is one CommitLog record whose PHYSICALOFFSET is `pos + 48`:

offset  size  field
     0     4  magic      1
     4     4  size       of the whole entry: 48 + body_bytes
     8     8  index      from 0, without holes
    16     8  term
    24     8  pos        byte position of this entry in the log
    32     4  channel    0
    36     4  chain_crc  0 in files that dledger 0.2.2 wrote
    40     4  body_crc   0 in files that dledger 0.2.2 wrote
    44     4  body_bytes

Index unit, at byte `index * 32` of the index files: magic int, pos long, size int, index long, term long.
An entry that does not fit a segment (with 8 bytes to spare) goes to the next one; the rest is a filler: magic -1,
then the bytes left (the CommitLog's filler has its size first). Source: dledger 0.2.2, DLedgerEntryCoder and
DLedgerMmapFileStore.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

ENTRY_MAGIC = 1  # fixed: it is on disks
FILLER_MAGIC = -1  # fixed: it is on disks

_ENTRY = struct.Struct(">iiqqqiiii")
_UNIT = struct.Struct(">iqiqq")
assert (_ENTRY.size, _UNIT.size) == (48, 32), "fixed by every file already on disk"

ENTRY_HEADER_BYTES = _ENTRY.size
UNIT_BYTES = _UNIT.size


class LedgerFormatError(ValueError):
    """The bytes are no entry header or index unit; `offset` (bytes into the buffer) says where."""

    def __init__(self, reason: str, offset: int) -> None:
        super().__init__(f"{reason} at byte {offset}")
        self.reason = reason
        self.offset = offset


class EntryHeader(NamedTuple):
    magic: int
    size: int
    log_index: int
    term: int
    pos: int
    channel: int
    chain_crc: int
    body_crc: int
    body_bytes: int

    def encode(self) -> bytes:
        return _ENTRY.pack(*self)

    @classmethod
    def decode(cls, buffer: bytes | memoryview, offset: int = 0) -> EntryHeader:
        """LedgerFormatError: torn, an unknown magic, or two sizes that contradict each other."""
        if len(buffer) - offset < _ENTRY.size:
            raise LedgerFormatError("torn entry header", offset)
        header = cls._make(_ENTRY.unpack_from(buffer, offset))
        if header.magic != ENTRY_MAGIC:
            raise LedgerFormatError(f"entry magic {header.magic}", offset)
        if header.body_bytes < 0 or header.size != _ENTRY.size + header.body_bytes:
            raise LedgerFormatError(f"entry size {header.size} with a body of {header.body_bytes} bytes", offset)
        return header


class IndexUnit(NamedTuple):
    magic: int
    pos: int
    size: int
    log_index: int
    term: int

    def encode(self) -> bytes:
        return _UNIT.pack(*self)

    @classmethod
    def decode(cls, buffer: bytes | memoryview, offset: int = 0) -> IndexUnit:
        """LedgerFormatError: torn, or an unknown magic."""
        if len(buffer) - offset < _UNIT.size:
            raise LedgerFormatError("torn index unit", offset)
        unit = cls._make(_UNIT.unpack_from(buffer, offset))
        if unit.magic != ENTRY_MAGIC:
            raise LedgerFormatError(f"index unit magic {unit.magic}", offset)
        return unit

    @classmethod
    def of(cls, header: EntryHeader) -> IndexUnit:
        """The unit that belongs to an entry."""
        return cls(header.magic, header.pos, header.size, header.log_index, header.term)
