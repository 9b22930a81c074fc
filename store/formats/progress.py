"""The file `tally-progress`: how far the log and the files derived from it had got, so that a restart need not look.

RocketMQ finds the end of its log by reading whole segments. After a kill it builds queues and index again from the
position that the times of its checkpoint allow. With 1 GiB segments this takes minutes. The mark contains a log
position below which all files are known to be complete. Recovery reads only the log behind it: about one second of
writes.

The mark has two positions. `written`: the queues' files had all units of records below it, perhaps only in the page
cache; this is valid until the machine is restarted, so also after `kill -9`. `flushed`: log, queues and index were
synced up to it; this is valid after a power loss too.

The mark is used only if all of these conditions hold. Otherwise recovery only takes longer.
- The file `lock` has the modification time in the mark: RocketMQ writes to it at each start. So tallystick must not
  write to a `lock` that already has its content, and notes its time in each mark.
- The sizes of files are those of the mark, and the log has the same bytes before the position.
- After the queues are truncated at the position, the numbers of queues and messages are those of the mark.

Layout: two slots of 512 bytes, at 0 and at 4096, written in turn, so that a torn write leaves the other one. A slot,
big-endian:

offset  size  field
     0     8  "TALLYPM1"
     8     8  sequence, from 1; the slot with the greater one counts
    16    16  boot id of the machine
    32     8  device number of the root's file system
    40     8  modification time of `lock`, ns; 0: there is none
    48     8  bytes of a log segment
    56     4  bytes of a ConsumeQueue segment
    60     4  slots of an index file
    64     4  entries of an index file
    68     4  bytes before each record (48: dledger's layout)
    72    72  point `written`
   144    72  point `flushed`
   216     4  CRC-32 of the bytes before
A point:
     0     8  pos            position in the log; -1: nothing is known
     8     8  store time (ms) of the last record below it, 0: not known
    16     4  anchor bytes   how many bytes before pos the next field covers
    20     4  CRC-32 of them
    24     4  queues         how many there were
    28     8  units          sum of their max offsets
    36    32  name of the newest index file, zeros behind it
    68     4  next entry number of that file; 0: there was no index file
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tallystick.store._kernel import Dispatch, Door

FILE_NAME = "tally-progress"
ANCHOR_BYTES = (
    4096  # more than any record's head with topic and properties usually has; a larger body is covered in part
)

_MAGIC = b"TALLYPM1"
_SLOT_PITCH = 4096
_FILE_BYTES = 2 * _SLOT_PITCH
_HEAD = struct.Struct(">8sq16sqqqiiii")
_POINT = struct.Struct(">qqiIiq32si")
_CRC = struct.Struct(">I")
_SLOT_BYTES = _HEAD.size + 2 * _POINT.size + _CRC.size
assert (_HEAD.size, _POINT.size) == (72, 72), "fixed by every mark already on disk"
assert _SLOT_BYTES <= 512, "one disk sector, so that a slot is whole or not at all on most disks"


class Geometry(NamedTuple):
    """The file sizes when the mark was made. A mark does not apply to files of other sizes."""

    log_segment_bytes: int
    queue_segment_bytes: int
    index_slots: int
    index_entries: int
    entry_header_bytes: int = 0


class Point(NamedTuple):
    """A log position and the state of the files there; see the docstring of the module."""

    pos: int = -1
    """-1 if nothing is known."""
    store_timestamp_ms: int = 0
    anchor_bytes: int = 0
    anchor_crc: int = 0
    queues: int = 0
    units: int = 0
    index_name: str = ""
    index_count: int = 0

    def anchored(self, read: Callable[[int, int], bytes | None]) -> bool:
        """Whether the log has the same bytes before `pos` as when the mark was made."""
        if self.anchor_bytes == 0:
            return self.pos == 0
        tail = read(self.pos - self.anchor_bytes, self.anchor_bytes)
        return tail is not None and zlib.crc32(tail) == self.anchor_crc

    def _pack(self) -> bytes:
        return _POINT.pack(*self._replace(index_name=self.index_name.encode()))  # type: ignore[arg-type]

    @classmethod
    def _unpack(cls, data: bytes) -> Point:
        pos, store_timestamp_ms, anchor_bytes, anchor_crc, queues, units, name, count = _POINT.unpack(data)
        index_name = name.rstrip(b"\0").decode("ascii", "replace")
        return cls(pos, store_timestamp_ms, anchor_bytes, anchor_crc, queues, units, index_name, count)


class Judgement(NamedTuple):
    """`reason`: why the mark is not used; if empty, continue from `point`. `cache_lost`: only synced data counts."""

    point: Point = Point()
    cache_lost: bool = True
    reason: str = ""


def anchor_size(pos: int, log_segment_bytes: int) -> int:
    """The number of bytes before `pos` that an anchor covers; all are in the segment with the byte before `pos`."""
    return min(ANCHOR_BYTES, pos % log_segment_bytes or min(pos, log_segment_bytes))


@dataclass(frozen=True, slots=True)
class ProgressMark:
    """The content of the file. `sequence` counts the marks of this store."""

    sequence: int
    boot_id: bytes
    device: int
    lock_ns: int
    geometry: Geometry
    written: Point
    flushed: Point

    @classmethod
    def load(cls, root: Path) -> ProgressMark | None:
        """The newer sound slot of the file in `root`; None without a file or a sound slot."""
        try:
            data = (root / FILE_NAME).read_bytes()
        except OSError:
            return None  # recovery then takes the long procedure
        return cls.newest(data)

    @classmethod
    def newest(cls, data: bytes) -> ProgressMark | None:
        """The newer sound slot in the bytes of a file; None without a sound slot."""
        marks = [mark for at in (0, _SLOT_PITCH) if (mark := cls.decode(data[at : at + _SLOT_BYTES])) is not None]
        return max(marks, key=lambda mark: mark.sequence, default=None)

    def save(self, door: Door, root: Path, *, durable: bool = True) -> None:
        """Writes the next slot. Without `durable` the mark is valid after a kill, but not after a power loss.

        Blocks for a sync: do not call it on the event loop. OSError: it failed; the previous mark is still valid.
        """
        path = root / FILE_NAME
        new = not path.exists()
        if new:
            door.create(str(path), _FILE_BYTES, True)
        door.write(str(path), self.sequence % 2 * _SLOT_PITCH, self.encode())
        if durable:
            door.sync(str(path))
            if new:
                door.sync_dir(str(root))

    def next(self, written: Point, flushed: Point, lock_ns: int) -> ProgressMark:
        """The mark that follows this one."""
        return replace(self, sequence=self.sequence + 1, written=written, flushed=flushed, lock_ns=lock_ns)

    def encode(self) -> bytes:
        head = _HEAD.pack(_MAGIC, self.sequence, self.boot_id, self.device, self.lock_ns, *self.geometry)
        data = head + self.written._pack() + self.flushed._pack()
        return data + _CRC.pack(zlib.crc32(data))

    @classmethod
    def decode(cls, data: bytes) -> ProgressMark | None:
        """Decodes one slot; None if it is not sound."""
        if len(data) < _SLOT_BYTES or not data.startswith(_MAGIC):
            return None
        at = _SLOT_BYTES - _CRC.size
        if _CRC.unpack_from(data, at) != (zlib.crc32(data[:at]),):
            return None
        _, sequence, boot_id, device, lock_ns, *geometry = _HEAD.unpack_from(data)
        points = [Point._unpack(data[start : start + _POINT.size]) for start in (_HEAD.size, _HEAD.size + _POINT.size)]
        return cls(sequence, boot_id, device, lock_ns, Geometry(*geometry), *points)

    def judge(self, root: Path, geometry: Geometry, read: Callable[[int, int], bytes | None]) -> Judgement:
        """Whether recovery can continue from this mark, and where. `read(pos, size)`: bytes of the log, or None."""
        if self.geometry != geometry:
            return Judgement(reason="the sizes of the files differ from those in the mark")
        if self.lock_ns != lock_time_ns(root):
            return Judgement(reason="another program has used this store since the mark was written")
        cache_lost = self._cache_lost(root)
        point = self.flushed if cache_lost else self.written
        if point.pos < 0:
            return Judgement(reason="the machine was restarted, and it is unknown what was synced")
        if not point.anchored(read):
            return Judgement(reason=f"the log differs from the log of the mark before byte {point.pos}")
        return Judgement(point, cache_lost)

    def reached(self, root: Path) -> int:
        """Position up to which the log was written when the mark was made, unless a later stop can have lost data; -1
        if unknown. Also valid for a mark that recovery does not use."""
        if self.lock_ns != lock_time_ns(root):
            return -1
        return (self.flushed if self._cache_lost(root) else self.written).pos

    def without_anchors(self) -> ProgressMark:
        """A mark with the same positions from which no recovery continues. It replaces this one."""
        written, flushed = (point._replace(anchor_bytes=0, anchor_crc=0) for point in (self.written, self.flushed))
        return replace(self, sequence=self.sequence + 1, written=written, flushed=flushed)

    def _cache_lost(self, root: Path) -> bool:
        """Whether the machine was restarted since, or the files were copied to another disk."""
        return not (self.boot_id == boot_id() != NO_BOOT_ID and self.device == root.stat().st_dev)


class ProgressKeeper:
    """Saves the marks of an open store. Its methods block: do not call them on the event loop.

    After a recovery the first mark contains nothing until `save` is called: call it soon.
    """

    def __init__(self, door: Door, root: Path, geometry: Geometry, store_timestamp_ms: int = 0) -> None:
        """`store_timestamp_ms`: of the log's last record, as recovery found it."""
        self._door = door
        self._root = root
        self._mark = first_mark(root, geometry)
        self._store_timestamp_ms = store_timestamp_ms

    def take(self, dispatch: Dispatch) -> Point:
        """Writes the queues' units to the files. Returns the point that the files have reached then."""
        return self.take_with_table(dispatch, with_table=False)[0]

    def take_with_table(self, dispatch: Dispatch, with_table: bool = True) -> tuple[Point, bytes]:
        """Like `take`; also returns the rows of the queues' ends at that point (see `queue_table`)."""
        point = dispatch.written_point(with_table)
        size = anchor_size(point.pos, self._mark.geometry.log_segment_bytes)
        tail = dispatch.log_bytes(point.pos - size, size) if size else None
        taken = Point(
            point.pos,
            point.store_ms or self._store_timestamp_ms,
            0 if tail is None else size,
            0 if tail is None else zlib.crc32(tail),
            point.queues,
            point.units,
            point.index_name,
            point.index_count,
        )
        return taken, point.table

    def save(self, written: Point, flushed: Point | None = None) -> None:
        """Durably saves the next mark. OSError: it failed; the previous mark is still valid.

        `flushed`: a point that was taken before log, queues and index were synced, the log at least up to the point's
        position; None keeps the one of the previous mark. Call this about once a second, after the removal of queues,
        and when the store is closed.
        """
        mark = self._mark.next(written, flushed or self._mark.flushed, lock_time_ns(self._root))
        mark.save(self._door, self._root)
        self._mark = mark


NO_BOOT_ID = bytes(16)


def first_mark(root: Path, geometry: Geometry) -> ProgressMark:
    """A new mark of this machine and store, with the next sequence if there is a mark on disk.

    Its points are empty: nothing is copied from the old mark.
    """
    old = ProgressMark.load(root)
    return ProgressMark(
        sequence=old.sequence if old else 0,
        boot_id=boot_id(),
        device=root.stat().st_dev,
        lock_ns=lock_time_ns(root),
        geometry=geometry,
        written=Point(),
        flushed=Point(),
    )


def boot_id() -> bytes:
    """16 bytes that differ after each start of the machine; `NO_BOOT_ID` if the system has no boot id."""
    try:
        return bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""))
    except (OSError, ValueError):
        return NO_BOOT_ID


def lock_time_ns(root: Path) -> int:
    """Modification time of the store's file `lock`; 0 if it does not exist."""
    try:
        return (root / "lock").stat().st_mtime_ns
    except FileNotFoundError:
        return 0
