"""Reads raw bytes of the log, for slaves and for comparisons with a master."""

from __future__ import annotations

import os
from pathlib import Path

_NAME_DIGITS = 20


class SegmentReader:
    """Reads one segment of the log at a time, and keeps it open. Calls must not overlap."""

    def __init__(self, folder: Path, segment_bytes: int) -> None:
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._file = -1
        self._begin = -1

    def read(self, pos: int, size: int) -> bytes:
        """Returns `size` bytes from `pos` on, which are in one segment. OSError: the disk cannot read them, or the
        segment is shorter."""
        begin = pos - pos % self._segment_bytes
        if begin != self._begin:
            self.close()
            path = self._folder / f"{begin:0{_NAME_DIGITS}}"
            self._file, self._begin = os.open(path, os.O_RDONLY | os.O_CLOEXEC), begin
        data = os.pread(self._file, size, pos - begin)
        if len(data) != size:
            raise OSError(f"segment {begin} has only {len(data)} of the {size} bytes at {pos}")
        return data

    def close(self) -> None:
        """Closes the file; the next read opens one."""
        if self._file >= 0:
            os.close(self._file)
        self._file = self._begin = -1
