"""The file `tally-queues`: the ends of all ConsumeQueues, and the index files, at one position of the log.

Recovery compares the queues with it. A queue that has fewer units than the file says has lost some, and is rebuilt
from the log. The log alone is not enough: if its beginning was deleted, a queue whose folder is lost may have no record
left. It would then assign offsets from 0 again, although they were used before. The file has its next offset.

The file is written with every thorough save of the progress mark, after the syncs: about once a minute, when queues are
removed, before segments of the log are deleted, and when the store is closed. So everything that it states is durable,
and it covers every segment that is deleted. Recovery uses it only if the modification time of the file `lock` has not
changed: otherwise another program opened the store in the meantime, and may have removed queues.

Layout, big-endian: "TALLYQT2", position in the log (8), modification time of `lock` in ns (8), first byte of the log
(8), bytes of a ConsumeQueue file (4), bytes of the names (4), the names of the index files with their last record's
position (JSON), the rows of the queues (see the kernel's `queue/repair.rs`), CRC-32 of everything before (4).
"""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tallystick.store.replace_file import replace_file

if TYPE_CHECKING:
    from tallystick.store._kernel import Door

FILE_NAME = "tally-queues"

_MAGIC = b"TALLYQT2"
_HEAD = struct.Struct(">8sqqqii")
_CRC = struct.Struct(">I")


class QueueTable(NamedTuple):
    """The content of the file. `pos`: the position in the log that it describes; `log_first`: where the log began;
    `index_files`: name and last position of each index file, oldest first; `rows`: for `Dispatch.compare_queues`."""

    pos: int
    lock_ns: int
    log_first: int
    queue_segment_bytes: int
    index_files: tuple[tuple[str, int], ...]
    rows: bytes

    def encode(self) -> bytes:
        names = json.dumps(self.index_files).encode()
        head = _HEAD.pack(_MAGIC, self.pos, self.lock_ns, self.log_first, self.queue_segment_bytes, len(names))
        data = head + names + self.rows
        return data + _CRC.pack(zlib.crc32(data))

    @classmethod
    def decode(cls, data: bytes) -> QueueTable | None:
        """The inverse of `encode`; None if the data is damaged or has another format."""
        if len(data) < _HEAD.size + _CRC.size or not data.startswith(_MAGIC):
            return None
        if _CRC.unpack(data[-_CRC.size :]) != (zlib.crc32(data[: -_CRC.size]),):
            return None
        _, pos, lock_ns, log_first, queue_segment_bytes, size = _HEAD.unpack_from(data)
        names = data[_HEAD.size : _HEAD.size + size]
        index = tuple((str(name), int(end)) for name, end in json.loads(names))
        return cls(pos, lock_ns, log_first, queue_segment_bytes, index, data[_HEAD.size + size : -_CRC.size])

    def save(self, door: Door, root: Path) -> None:
        """Durably replaces the file. Blocks. OSError: the previous file stays valid."""
        replace_file(door, root / FILE_NAME, self.encode())

    @classmethod
    def load(cls, root: Path) -> QueueTable | None:
        """The table in `root`; None if the file does not exist or is not valid."""
        try:
            return cls.decode((root / FILE_NAME).read_bytes())
        except OSError:
            return None
