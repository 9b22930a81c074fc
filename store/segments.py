"""The segment files of the log, as files: listed, made ahead of need, warmed, deleted.

A segment has its full length from its creation, with all blocks allocated: a write into it cannot find the disk full.
Making one (1 GiB) takes the disk a while, so the next one is made before the log reaches it (`prepare`). A creation
that fails leaves what there is: the log may be about to write into the very file, and a start removes an unfinished
one.

Warming (`warmMapedFileEnable`) brings a segment's pages into memory before the log gets there, and `mlock` keeps them.
RocketMQ stores one zero into each page, which would be fatal for a page that got a record meanwhile; asking the system
for writable pages (MADV_POPULATE_WRITE) does the same and changes no byte.

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
from tallystick.store.segment_files import segment_name, segment_start

PAGE_BYTES = 4096
_MADV_POPULATE_WRITE = 23  # Linux 5.14; Python 3.11 has no name for it

_logger = logging.getLogger("tallystick.store.segments")
_libc = ctypes.CDLL(None, use_errno=True)


class SegmentError(Exception):
    """A file of the log is not what it must be; `path` is the file."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} {reason}")
        self.path = path


class Segment(NamedTuple):
    """A segment file: `start` and `bytes` of the log, and when it was last changed (ms since 1970)."""

    start: int
    bytes: int
    modified_ms: int
    path: Path

    @property
    def end(self) -> int:
        return self.start + self.bytes


def list_segments(folder: Path, segment_bytes: int) -> list[Segment]:
    """The segments in `folder`, ascending; a folder that does not exist has none. Other files are passed over.

    SegmentError: a segment has another length (the last one may: it may be about to be made, and is left out), or one
    between two others is missing. OSError: the folder cannot be read.
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
            raise SegmentError(segment.path, f"follows on {segments[index - 1].path.name}: one between is missing")
    return segments


def prepare(door: Door, folder: Path, start: int, segment_bytes: int) -> bool:
    """Makes the segment that begins at `start`, durably, unless it is there. Blocks. True: it was made now.

    OSError: no; the disk may be full. An unfinished file stays, see the module's head.
    """
    path = folder / segment_name(start)
    if path.is_file() and path.stat().st_size == segment_bytes:
        return False
    door.create(path, segment_bytes, True)
    door.sync(path)
    door.sync_dir(folder)
    return True


def delete(door: Door, segment: Segment) -> None:
    """Removes the file, durably; who still maps it keeps what it maps. OSError: it is still there, or may come back."""
    door.remove(segment.path)
    door.sync_dir(segment.path.parent)


class WarmSegment:
    """A segment whose pages are in memory, and locked there if the system allows. `close` lets go of them.

    `locked` says whether they are: a process without the right (RLIMIT_MEMLOCK) goes on without, and logs it.
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
        """Brings every page into memory, ready to be written; no byte changes. Blocks.

        `sync_pages`: sync the file each time so many pages are there (0: never), not to flood the disk at once.
        OSError: the disk.
        """
        size = len(self._map)
        step = sync_pages * PAGE_BYTES if sync_pages else size
        for start in range(0, size, step):
            _populate(self._map, start, min(step, size - start))
            if sync_pages:
                door.sync(self.path)

    def lock(self) -> bool:
        """Keeps the pages in memory. False, and a line in the log: not allowed."""
        if not self.locked:
            self.locked = self._call(_libc.mlock)
            if not self.locked:
                number = ctypes.get_errno()
                _logger.warning("%s is not locked in memory: %s", self.path, os.strerror(number))
        self._map.madvise(mmap.MADV_WILLNEED)
        return self.locked

    def unlock(self) -> None:
        """The pages may go again."""
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
        # An older system: at least bring the pages in, by reading one byte of each.
        for at in range(start, start + size, PAGE_BYTES):
            mapped[at]
