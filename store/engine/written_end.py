"""Finds a position up to which a log was certainly written, whatever the files contain there now.

The progress mark and the table of queues' ends each contain a position that the log had reached. Bytes below it that
are not a record are damage, not an unfinished write. Without this position the two cases look the same at a log's end.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.store.formats.progress import ProgressMark, lock_time_ns

if TYPE_CHECKING:
    from tallystick.store.formats.queue_table import QueueTable


def written_end(
    root: Path, segment_bytes: int, log_end: int, mark: ProgressMark | None, table: QueueTable | None
) -> int:
    """The position in a log of RocketMQ's layout; -1 if unknown. `log_end`: where its last file ends.

    A position behind all files is ignored: whole files were removed. A position from before another program opened the
    store is ignored too: RocketMQ truncates logs.
    """
    reached = mark_end(root, segment_bytes, log_end, mark)
    if table is not None and table.lock_ns == lock_time_ns(root) and table.pos <= log_end:
        reached = max(reached, table.pos)
    return reached


def mark_end(root: Path, segment_bytes: int, log_end: int, mark: ProgressMark | None) -> int:
    """The position in the mark alone; -1 if unknown."""
    if mark is None or mark.geometry.log_segment_bytes != segment_bytes or mark.geometry.entry_header_bytes:
        return -1
    pos = mark.reached(root)
    return pos if pos <= log_end else -1
