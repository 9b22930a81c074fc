"""The file `tally-ledger`: where a log begins, how far data and index are durable, and which change is in progress.

A start reads only what is behind the synced point. The point is taken before the index is synced and saved afterwards,
so it is never too far. Recovery believes it only if the entry at its end is the one that it names (the chain CRC of
this entry covers all before it). A mark that is not believed only costs the time to read the whole log.

The file also contains what the log itself cannot show: the entry before the first kept one (S5), and a change that a
crash may interrupt. A truncation and a reset are noted before they begin, and the next start finishes them. Without the
note, durable entries behind a hole would look like damage (D4, D8).

The layout has two slots of 512 bytes, at 0 and at 4096. They are written in turn, so that a torn write leaves the other
one. A slot, big-endian:

offset  size  field
     0     8  "TALLYLM1"
     8     8  sequence, from 1; the slot with the higher one is valid
    16    16  store id: the same as in the vote file
    32    16  boot id of the machine
    48     4  flags: 1 clean stop, 2 a truncation to the synced point is in progress, 4 a reset to the base is in
    progress,
              8 the index is not reliable and must be rebuilt
    52     8  bytes of a data segment
    60     8  bytes of an index segment
    68    36  base: the entry before the first kept one, and the position of that one
   104    36  synced: the last durable entry, and where the log continued
   140    32  indexes of the newest four membership entries, newest first; -1: none
   172     4  CRC-32 of the bytes before
A point:
     0     8  index    of the entry; -1: there is none
     8     8  term     of the entry; -1: not known
    16     4  chain    CRC of the entry; 0: it has none
    20     8  pos      behind the entry
    28     8  store time (ms) of a record shortly before, 0: not known
"""

from __future__ import annotations

import enum
import struct
import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tallystick.store._kernel import Door

FILE_NAME = "tally-ledger"
MEMBERSHIPS_KEPT = 4

_MAGIC = b"TALLYLM1"
_SLOT_PITCH = 4096
_HEAD = struct.Struct(">8sq16s16siqq")
_POINT = struct.Struct(">qqIqq")
_MEMBERSHIPS = struct.Struct(f">{MEMBERSHIPS_KEPT}q")
_CRC = struct.Struct(">I")
_SLOT_BYTES = _HEAD.size + 2 * _POINT.size + _MEMBERSHIPS.size + _CRC.size
assert (_HEAD.size, _POINT.size, _SLOT_BYTES) == (68, 36, 176), "fixed by every mark already on disk"


class Flags(enum.IntFlag):
    """The values are on disks: do not change them."""

    NONE = 0
    CLEAN = 1
    CUTTING = 2
    RESETTING = 4
    REINDEX = 8


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """A place between two entries; see the module's docstring."""

    index: int = -1
    term: int = -1
    chain: int = 0
    pos: int = 0
    store_timestamp_ms: int = 0

    def _pack(self) -> bytes:
        return _POINT.pack(self.index, self.term, self.chain, self.pos, self.store_timestamp_ms)


@dataclass(frozen=True, slots=True)
class LedgerMark:
    """The content of the file. `sequence` counts the marks of this log; 0 before the first one is saved."""

    segment_bytes: int
    index_segment_bytes: int
    store_id: bytes = bytes(16)
    boot_id: bytes = bytes(16)
    flags: Flags = Flags.NONE
    base: EntryPoint = field(default_factory=EntryPoint)
    synced: EntryPoint = field(default_factory=EntryPoint)
    memberships: tuple[int, ...] = ()
    sequence: int = 0

    @classmethod
    def load(cls, folder: Path) -> LedgerMark | None:
        """The newer valid slot of the file in `folder`; None if there is no file or no valid slot. Raises OSError."""
        try:
            data = (folder / FILE_NAME).read_bytes()
        except FileNotFoundError:
            return None
        marks = [mark for at in (0, _SLOT_PITCH) if (mark := cls.decode(data[at : at + _SLOT_BYTES])) is not None]
        return max(marks, key=lambda mark: mark.sequence, default=None)

    def save(self, door: Door, folder: Path, **changes: object) -> LedgerMark:
        """Durably writes the next mark with these changes and returns it. OSError: the previous one stays valid."""
        mark = replace(self, sequence=self.sequence + 1, **changes)  # type: ignore[arg-type]
        path = folder / FILE_NAME
        new = not path.exists()
        if new:
            door.create(path, 2 * _SLOT_PITCH, True)
        door.write(path, mark.sequence % 2 * _SLOT_PITCH, mark.encode())
        door.sync(path)
        if new:
            door.sync_dir(folder)
        return mark

    def encode(self) -> bytes:
        memberships = (self.memberships + (-1,) * MEMBERSHIPS_KEPT)[:MEMBERSHIPS_KEPT]
        data = _HEAD.pack(
            _MAGIC,
            self.sequence,
            self.store_id,
            self.boot_id,
            self.flags,
            self.segment_bytes,
            self.index_segment_bytes,
        )
        data += self.base._pack() + self.synced._pack() + _MEMBERSHIPS.pack(*memberships)
        return data + _CRC.pack(zlib.crc32(data))

    @classmethod
    def decode(cls, data: bytes) -> LedgerMark | None:
        """One slot; None if it is damaged."""
        if len(data) < _SLOT_BYTES or not data.startswith(_MAGIC):
            return None
        at = _SLOT_BYTES - _CRC.size
        if _CRC.unpack_from(data, at) != (zlib.crc32(data[:at]),):
            return None
        _, sequence, store_id, boot_id, flags, segment_bytes, index_segment_bytes = _HEAD.unpack_from(data)
        base = EntryPoint(*_POINT.unpack_from(data, _HEAD.size))
        synced = EntryPoint(*_POINT.unpack_from(data, _HEAD.size + _POINT.size))
        memberships = _MEMBERSHIPS.unpack_from(data, _HEAD.size + 2 * _POINT.size)
        kept = tuple(index for index in memberships if index >= 0)
        return cls(segment_bytes, index_segment_bytes, store_id, boot_id, Flags(flags), base, synced, kept, sequence)


def newest_memberships(known: tuple[int, ...], more: list[int]) -> tuple[int, ...]:
    """The newest ones of both, newest first."""
    return tuple(sorted({*known, *more}, reverse=True)[:MEMBERSHIPS_KEPT])
