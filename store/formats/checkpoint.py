"""The file `checkpoint`: how far log, ConsumeQueues and index were durable at the last save. 4096 bytes, big-endian.

offset  size  field
     0     8  physicMsgTimestamp   store time of the newest message that is durable in the log
     8     8  logicsMsgTimestamp   ... in the ConsumeQueues
    16     8  indexMsgTimestamp    ... in the index
    24     8  masterFlushedOffset  RocketMQ 5 only
    32     8  confirmPhyOffset     RocketMQ 5 only

The rest is zero. Recovery after a kill starts at a segment that is older than all three times. A time that is too low
only makes it start earlier, so missing bytes of the file count as zeros. All fields are in one disk sector, so a write
in place is never torn.

Source: StoreCheckpoint of RocketMQ 4.8.0.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from tallystick.store._kernel import Door

CHECKPOINT_BYTES = 4096
_LAYOUT = struct.Struct(">qqqqq")
assert _LAYOUT.size <= 512, "fixed by every store already on disk; one sector, so that a write is whole or not at all"

# RocketMQ subtracts this margin, because the three times are not taken at once.
_MARGIN_MS = 3_000


@dataclass(slots=True)
class StoreCheckpoint:
    """The times (ms) and, in RocketMQ 5, positions (bytes) in the file; see the docstring of the module."""

    physic_timestamp_ms: int = 0
    logics_timestamp_ms: int = 0
    index_timestamp_ms: int = 0
    master_flushed_pos: int = 0
    confirm_pos: int = 0

    @property
    def min_timestamp_ms(self) -> int:
        """Messages stored until then are durable in the log and in the ConsumeQueues."""
        return max(0, min(self.physic_timestamp_ms, self.logics_timestamp_ms) - _MARGIN_MS)

    @property
    def min_timestamp_index_ms(self) -> int:
        """Messages stored until then are durable in the index as well."""
        return min(self.min_timestamp_ms, self.index_timestamp_ms)

    def encode(self) -> bytes:
        """The bytes of the file."""
        fields = _LAYOUT.pack(
            self.physic_timestamp_ms,
            self.logics_timestamp_ms,
            self.index_timestamp_ms,
            self.master_flushed_pos,
            self.confirm_pos,
        )
        return fields.ljust(CHECKPOINT_BYTES, b"\0")

    @classmethod
    def decode(cls, data: bytes) -> StoreCheckpoint:
        """The inverse of `encode`. Accepts any number of bytes."""
        return cls(*_LAYOUT.unpack(data[: _LAYOUT.size].ljust(_LAYOUT.size, b"\0")))

    @classmethod
    def load(cls, path: Path) -> StoreCheckpoint:
        """The checkpoint at `path`; all zero if the file does not exist. Raises OSError if it cannot be read."""
        try:
            return cls.decode(path.read_bytes())
        except FileNotFoundError:
            return cls()

    def save(self, door: Door, path: Path) -> None:
        """Durably writes the file in place. Blocks for a sync: do not call it on the event loop. Raises OSError."""
        new = not path.exists()
        if new:
            door.create(str(path), CHECKPOINT_BYTES, True)
        door.write(str(path), 0, self.encode())
        door.sync(str(path))
        if new:
            door.sync_dir(str(path.parent))
