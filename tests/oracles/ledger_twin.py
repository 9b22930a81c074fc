"""The slow, obvious twin of a log in dledger's layout: a list of entries, and the bytes that they are on disk."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field

from tallystick.store.formats.ledger_format import (
    ENTRY_HEADER_BYTES,
    ENTRY_MAGIC,
    FILLER_MAGIC,
    EntryHeader,
    IndexUnit,
    chain_crc,
)
from tallystick.store.formats.record import Record


@dataclass
class TwinLedger:
    """`append` places entries; `data()` and `index()` are all bytes of the files, from byte 0 on."""

    segment_bytes: int
    entries: list[tuple[EntryHeader, bytes]] = field(default_factory=list)
    offsets: dict[tuple[str, int], int] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """Behind the last entry, before any filler."""
        return self.entries[-1][0].pos + self.entries[-1][0].size if self.entries else 0

    @property
    def last_index(self) -> int:
        return len(self.entries) - 1

    @property
    def last_term(self) -> int:
        return self.entries[-1][0].term if self.entries else -1

    @property
    def last_chain(self) -> int:
        return self.entries[-1][0].chain_crc if self.entries else 0

    def append(self, records: list[Record], term: int, kind: int = 0, *, crc: bool = True) -> None:
        """The records of one call: they go into one segment."""
        pos = self.end
        total = sum(ENTRY_HEADER_BYTES + record.size for record in records)
        left = self.segment_bytes - pos % self.segment_bytes
        if total + 8 > left:
            pos += left
        for record in records:
            body = record._replace(pos=pos + ENTRY_HEADER_BYTES).encode()
            size = ENTRY_HEADER_BYTES + len(body)
            header = EntryHeader(ENTRY_MAGIC, size, len(self.entries), term, pos, kind, 0, 0, len(body))
            if crc:
                header = header._replace(body_crc=zlib.crc32(body))
                header = header._replace(chain_crc=chain_crc(header.encode(), self.last_chain))
            self.entries.append((header, body))
            pos += size

    def cut(self, last_kept: int) -> None:
        del self.entries[last_kept + 1 :]

    def data(self) -> bytes:
        """All segments up to the last entry's, each of full length."""
        out = bytearray()
        for header, body in self.entries:
            if header.pos != len(out):
                left = self.segment_bytes - len(out) % self.segment_bytes
                out += struct.pack(">ii", FILLER_MAGIC, left).ljust(left, b"\0")
            assert header.pos == len(out)
            out += header.encode() + body
        return bytes(out.ljust(-(-len(out) // self.segment_bytes) * self.segment_bytes, b"\0"))

    def span(self, first: int, last: int) -> bytes:
        begin, end = self.entries[first][0].pos, self.entries[last][0].pos + self.entries[last][0].size
        return self.data()[begin:end]

    def index(self) -> bytes:
        return b"".join(IndexUnit.of(header).encode() for header, _ in self.entries)
