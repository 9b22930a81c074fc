"""Up to where a log was written for certain, whatever it has there now.

The progress mark and the table of queues' ends each name a position that the log had reached. Bytes below it that are
no record are damage, not a write that did not finish. Without that knowledge the two look the same at a log's end.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.store.progress import ProgressMark, lock_time_ns

if TYPE_CHECKING:
    from tallystick.store.queue_table import QueueTable


def written_end(
    root: Path, segment_bytes: int, log_end: int, mark: ProgressMark | None, table: QueueTable | None
) -> int:
    """The position in a log of RocketMQ's layout; -1: not known. `log_end`: where its last file ends.

    A position behind all files says nothing: whole files were taken away. Nor does one from before another program
    started on the store: RocketMQ cuts logs.
    """
    reached = mark_end(root, segment_bytes, log_end, mark)
    if table is not None and table.lock_ns == lock_time_ns(root) and table.pos <= log_end:
        reached = max(reached, table.pos)
    return reached


def mark_end(root: Path, segment_bytes: int, log_end: int, mark: ProgressMark | None) -> int:
    """What the mark alone says."""
    if mark is None or mark.geometry.log_segment_bytes != segment_bytes or mark.geometry.entry_header_bytes:
        return -1
    pos = mark.reached(root)
    return pos if pos <= log_end else -1
