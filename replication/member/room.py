"""How much space a member's log has left: this decides between OK and LOW, and when a full disk is tried again.

    data/   [ sealed ][ sealed ][ written ....| prepared ][ prepared ]      free blocks of the file system
                                              `--- the log's own room ---' + whole segments that fit there

Segments are created before they are needed, so the log can continue for a while when the file system has no free block.
This rest is reserved for the group's own entries (terms, memberships, topics, offsets). Free blocks are reserved for
files beside the log (votes, tables, queues, index). The leader stops accepting messages before either is used up. With
less than the reserve a member is LOW. It is OK again only with twice as much, so that its state does not change with
every deleted segment.
"""

from __future__ import annotations

import os
from pathlib import Path

_MOST_FREE_PART = 20  # limit for a small file system, which may have only 64 MiB


class Room:
    """`folder` is the ledger's; `min_free_bytes` is the space that messages must leave free (0: none)."""

    def __init__(self, folder: Path, segment_bytes: int, min_free_bytes: int) -> None:
        self._folder = folder
        self._data = folder / "data"
        self._segment_bytes = segment_bytes
        self._min_free_bytes = min_free_bytes
        self._reserve_bytes = min(min_free_bytes, segment_bytes // 2)
        self.reported: str | None = None
        """Why the store above the log accepts no more messages: its disk has too little space. None: it has enough."""

    def shortage(self, written: int, *, was_low: bool) -> str | None:
        """Why no more messages should be accepted; None if there is space, or if the file system does not answer."""
        if self.reported:
            return self.reported
        if self._min_free_bytes == 0:
            return None
        factor = 2 if was_low else 1
        try:
            free, total = self._free()
            left = min(self._min_free_bytes, total // _MOST_FREE_PART)
            if free < factor * left:
                return f"{free >> 20} MiB are free, {left >> 20} MiB are reserved for votes, tables and queues"
            log_room = self._log_room(written, free)
        except OSError:
            return None
        if log_room < factor * self._reserve_bytes:
            return (
                f"the log has {log_room >> 10} KiB left, {self._reserve_bytes >> 10} KiB are reserved for its entries"
            )
        return None

    def for_log(self, written: int) -> bool:
        """Whether a log that could not be written should be tried again: there is space for half a segment."""
        try:
            free, _ = self._free()
            return self._log_room(written, free) >= self._segment_bytes // 2
        except OSError:
            return False

    def _free(self) -> tuple[int, int]:
        disk = os.statvfs(self._folder)
        return disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize

    def _log_room(self, written: int, free: int) -> int:
        size = self._segment_bytes
        prepared_end = written - written % size
        starts = {int(path.name) for path in self._data.iterdir() if path.name.isdecimal()}
        while prepared_end in starts:
            prepared_end += size
        return max(0, prepared_end - written) + free // size * size
