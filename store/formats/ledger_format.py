"""The format of a log in dledger's layout: entries in `data/`, one unit of fixed size per entry in `index/`.

Entry, big-endian; its body is one CommitLog record whose PHYSICALOFFSET is `pos + 48`:

offset  size  field
     0     4  magic      1
     4     4  size       of the whole entry: 48 + body_bytes
     8     8  index      from 0, without holes
    16     8  term
    24     8  pos        byte position of this entry in the log
    32     4  channel    what kind of entry: `EntryKind`; dledger 0.2.2 writes 0
    36     4  chain_crc  CRC-32 of this header in which the field holds the chain CRC of the entry before; never 0
    40     4  body_crc   CRC-32 of the body
    44     4  body_bytes

dledger 0.2.2 writes 0 into both CRCs: such an entry has no CRCs, and only its record is checked. All entries behind one
with CRCs must have them. The chain begins with 0 (before the first entry, and behind an entry without CRCs), and a
computed CRC of 0 is written as 1. So one chain CRC verifies the whole log up to its entry.

Index unit, at byte `index * 32` of the index files: magic int, pos long, size int, index long, term long.
An entry that does not fit a segment (with 8 bytes to spare) goes to the next one; the rest is a filler: magic -1,
then the bytes left (the CommitLog's filler has its size first). Source: dledger 0.2.2, DLedgerEntryCoder and
DLedgerMmapFileStore.
"""

from __future__ import annotations

import enum
import struct
import zlib
from typing import NamedTuple

ENTRY_MAGIC = 1  # fixed: it is on disks
FILLER_MAGIC = -1  # fixed: it is on disks

_ENTRY = struct.Struct(">iiqqqiIIi")
_UNIT = struct.Struct(">iqiqq")
assert (_ENTRY.size, _UNIT.size) == (48, 32), "fixed by every file already on disk"

ENTRY_HEADER_BYTES = _ENTRY.size
UNIT_BYTES = _UNIT.size


class EntryKind(enum.IntEnum):
    """The kind of an entry, in the field that dledger reserves as `channel`. The values are fixed: they are on disks.

    The body of every kind is a CommitLog record, so that RocketMQ can read the log. For all kinds but MESSAGE it is a
    record of the topic `GROUP_LOG_TOPIC`.
    """

    MESSAGE = 0
    NO_OP = 1
    MEMBERSHIP = 2
    METADATA = 3


GROUP_LOG_TOPIC = "TALLY_SYS_GROUP_LOG"


def chain_crc(header: bytes, previous: int) -> int:
    """The chain CRC for an encoded header, behind an entry with the chain CRC `previous`."""
    return zlib.crc32(header[:36] + previous.to_bytes(4, "big") + header[40:48]) or 1


class LedgerFormatError(ValueError):
    """The bytes are not an entry header or index unit. `offset`: where, in bytes from the start of the buffer."""

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
        """Raises LedgerFormatError if the header is torn, the magic is unknown, or the sizes contradict each other."""
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
        """Raises LedgerFormatError if the unit is torn or its magic is unknown."""
        if len(buffer) - offset < _UNIT.size:
            raise LedgerFormatError("torn index unit", offset)
        unit = cls._make(_UNIT.unpack_from(buffer, offset))
        if unit.magic != ENTRY_MAGIC:
            raise LedgerFormatError(f"index unit magic {unit.magic}", offset)
        return unit

    @classmethod
    def of(cls, header: EntryHeader) -> IndexUnit:
        """The index unit of an entry."""
        return cls(header.magic, header.pos, header.size, header.log_index, header.term)
