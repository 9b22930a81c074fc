"""How much more a member's log can take: what decides between OK and LOW, and when a full disk is tried again.

    data/   [ sealed ][ sealed ][ written ....| prepared ][ prepared ]      free blocks of the file system
                                              `--- the log's own room ---' + whole segments that fit there

Segments are made before they are needed, so a log goes on for a while when the file system has no block left. That rest
is kept for the group's own entries (terms, memberships, topics, offsets), and free blocks for what is made beside the
log (votes, tables, queues, index): messages stop before either is used up. With less than the rest a member is LOW, and
is OK again only with twice as much, so that it does not change its mind with every segment that is deleted.
"""

from __future__ import annotations

import os
from pathlib import Path

_MOST_FREE_PART = 20  # of a small file system, as a part of it: 64 MiB may be all that there is


class Room:
    """`folder`: of the ledger; `min_free_bytes`: what messages leave free (0: they may take everything)."""

    def __init__(self, folder: Path, segment_bytes: int, min_free_bytes: int) -> None:
        self._folder = folder
        self._data = folder / "data"
        self._segment_bytes = segment_bytes
        self._min_free_bytes = min_free_bytes
        self._reserve_bytes = min(min_free_bytes, segment_bytes // 2)

    def shortage(self, written: int, *, was_low: bool) -> str | None:
        """Why no more messages should be taken; None: there is room. A file system that does not answer has some."""
        if self._min_free_bytes == 0:
            return None
        factor = 2 if was_low else 1
        try:
            free, total = self._free()
            left = min(self._min_free_bytes, total // _MOST_FREE_PART)
            if free < factor * left:
                return f"{free >> 20} MiB are free, {left >> 20} MiB are kept for votes, tables and queues"
            log_room = self._log_room(written, free)
        except OSError:
            return None
        if log_room < factor * self._reserve_bytes:
            return (
                f"the log has {log_room >> 10} KiB left, {self._reserve_bytes >> 10} KiB are kept for its own entries"
            )
        return None

    def for_log(self, written: int) -> bool:
        """Whether a log that could not be written should be tried again: for half a segment at least."""
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
