"""Operations on the segment files of the log: list, create in advance, warm, delete.

A segment has its full length from its creation, with all blocks allocated, so a write into it cannot fail because the
disk is full. To create one (1 GiB) takes some time, so the next one is created before the log reaches it (`prepare`).
If a creation fails, the unfinished file stays: the log may be about to write into this file. A start removes it.

Warming (`warmMapedFileEnable`) loads a segment's pages into memory before the log gets there, and `mlock` keeps them.
RocketMQ writes one zero into each page, which would damage a record that was written there meanwhile. To request
writable pages from the system (MADV_POPULATE_WRITE) has the same effect and changes no byte.

Source: AllocateMappedFileService and MappedFile.warmMappedFile of RocketMQ 4.8.0; madvise(2).
"""

from __future__ import annotations

import ctypes
import errno
import logging
import mmap
import os
from pathlib import Path
from typing import NamedTuple

from tallystick.store._kernel import Door
from tallystick.store.formats.segment_files import segment_name, segment_start

PAGE_BYTES = 4096
_MADV_POPULATE_WRITE = 23  # Linux 5.14; Python 3.11 has no name for it

_logger = logging.getLogger("tallystick.store")
_libc = ctypes.CDLL(None, use_errno=True)


class SegmentError(Exception):
    """A file of the log has a wrong length, or a file is missing. `path`: the file."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} {reason}")
        self.path = path


class Segment(NamedTuple):
    """A segment file: its first position in the log, its size, and its modification time (ms since 1970)."""

    start: int
    bytes: int
    modified_ms: int
    path: Path

    @property
    def end(self) -> int:
        return self.start + self.bytes


def list_segments(folder: Path, segment_bytes: int) -> list[Segment]:
    """The segments in `folder`, ascending. A missing folder has no segments. Other files are ignored.

    Raises SegmentError if a segment has another length, or one between two others is missing. A short last segment is
    skipped, because it may be in creation. Raises OSError if the folder cannot be read.
    """
    segments = []
    for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
        start = segment_start(entry.name)
        if start is not None and entry.is_file():
            data = entry.stat()
            segments.append(Segment(start, data.st_size, data.st_mtime_ns // 1_000_000, entry))
    if segments and segments[-1].bytes != segment_bytes:
        segments.pop()
    for index, segment in enumerate(segments):
        if segment.bytes != segment_bytes:
            raise SegmentError(segment.path, f"has {segment.bytes} bytes instead of {segment_bytes}")
        if index and segment.start != segments[index - 1].end:
            raise SegmentError(
                segment.path, f"follows {segments[index - 1].path.name}: a segment in between is missing"
            )
    return segments


def prepare(door: Door, folder: Path, start: int, segment_bytes: int) -> bool:
    """Durably creates the segment that begins at `start`, unless it exists. Blocks. Returns whether it was created.

    Raises OSError, mostly because the disk is full. An unfinished file stays, see the docstring of the module.
    """
    path = folder / segment_name(start)
    if path.is_file() and path.stat().st_size == segment_bytes:
        return False
    door.create(path, segment_bytes, True)
    door.sync(path)
    door.sync_dir(folder)
    return True


def delete(door: Door, segment: Segment) -> None:
    """Durably removes the file. Existing maps of it stay valid. OSError: it still exists, or may exist after a
    crash."""
    door.remove(segment.path)
    door.sync_dir(segment.path.parent)


class WarmSegment:
    """A segment whose pages are in memory, and locked there if the system allows it. `close` releases them.

    `locked` tells whether they are locked: a process without permission (RLIMIT_MEMLOCK) logs this and continues.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.locked = False
        descriptor = os.open(path, os.O_RDWR)
        try:
            self._map = mmap.mmap(descriptor, 0, access=mmap.ACCESS_WRITE)
        finally:
            os.close(descriptor)

    def warm(self, door: Door, *, sync_pages: int = 0) -> None:
        """Loads every page into memory, writable, without changing a byte. Blocks.

        `sync_pages`: sync the file after each such number of pages (0: never), to spread the load on the disk.
        Raises OSError.
        """
        size = len(self._map)
        step = sync_pages * PAGE_BYTES if sync_pages else size
        for start in range(0, size, step):
            _populate(self._map, start, min(step, size - start))
            if sync_pages:
                door.sync(self.path)

    def lock(self) -> bool:
        """Locks the pages in memory. Returns False and logs a line if that is not allowed."""
        if not self.locked:
            self.locked = self._call(_libc.mlock)
            if not self.locked:
                number = ctypes.get_errno()
                _logger.warning("%s is not locked in memory: %s", self.path, os.strerror(number))
        self._map.madvise(mmap.MADV_WILLNEED)
        return self.locked

    def unlock(self) -> None:
        """Unlocks the pages."""
        if self.locked:
            self._call(_libc.munlock)
            self.locked = False

    def close(self) -> None:
        """Unlocks and unmaps. A second call does nothing."""
        if not self._map.closed:
            self.unlock()
            self._map.close()

    def _call(self, function: ctypes._NamedFuncPointer) -> bool:
        view = ctypes.c_char.from_buffer(self._map)
        result: int = function(ctypes.c_void_p(ctypes.addressof(view)), ctypes.c_size_t(len(self._map)))
        del view  # else the map cannot be closed
        return result == 0


def _populate(mapped: mmap.mmap, start: int, size: int) -> None:
    try:
        mapped.madvise(_MADV_POPULATE_WRITE, start, size)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # An older system: at least load the pages, by reading one byte of each.
        for at in range(start, start + size, PAGE_BYTES):
            mapped[at]
