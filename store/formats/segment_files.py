"""Reads files of one fixed size that form one range of bytes: a log, a ConsumeQueue, an index of entries.

The name of a file is the position of its first byte, 20 decimal digits. Every file has its full size from its creation;
bytes that were not written yet are zeros. Tools and recovery use this module; the broker reads in the kernel. Source:
RocketMQ 4.8.0, MappedFileQueue.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Self

from tallystick.store._kernel import QueueFile
from tallystick.store.formats.mapped import ReadMap

Bring = Callable[[Path, int, int], None]
"""Makes bytes [begin, end) of a file readable."""
NAME_DIGITS = 20
_ZEROS = bytes(1 << 16)
_MAX_MAPS = 16  # a map costs address space and a descriptor; a few at a time are enough


def segment_name(start: int) -> str:
    """The file name of the segment that begins at byte `start`."""
    return f"{start:0{NAME_DIGITS}d}"


def read_segment(folder: Path, segment_bytes: int, pos: int, size: int) -> bytes:
    """Bytes of a log of segments of one size, fewer than `size` where a segment ends. OSError."""
    begin = pos - pos % segment_bytes
    file = os.open(folder / segment_name(begin), os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(file, size, pos - begin)
    finally:
        os.close(file)


def segment_start(name: str) -> int | None:
    """The inverse of `segment_name`; None if it is not the name of a segment."""
    return int(name) if len(name) == NAME_DIGITS and name.isascii() and name.isdigit() else None


def is_of_log(parts: tuple[str, ...]) -> bool:
    """Whether a file of a store belongs to the log (commitlog/*, dledger-*/data/*). `parts`: of its relative path."""
    return parts[0] == "commitlog" or (parts[0].startswith("dledger-") and parts[1:2] == ("data",))


class SegmentFiles:
    """The segments of one folder. A context manager: its exit unmaps the files.

    `segment_bytes`: given, or the length that most files have; 0 without files.
    `starts`: first positions of the files that have the right name and length, ascending.
    `strange`: other entries of the folder, with the reason.
    `gaps`: starts whose predecessor does not end where they begin.
    A missing folder counts as empty. Raises OSError if the folder cannot be read.
    """

    def __init__(self, folder: Path, segment_bytes: int | None = None) -> None:
        self.folder = folder
        self.strange: list[tuple[Path, str]] = []
        self._maps: dict[int, ReadMap] = {}
        named: dict[int, int] = {}
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            start = segment_start(path.name)
            if start is None or not path.is_file():
                self.strange.append((path, "is no segment"))
            else:
                named[start] = path.stat().st_size
        if segment_bytes is None:
            lengths = Counter(length for length in named.values() if length)
            segment_bytes = lengths.most_common(1)[0][0] if lengths else 0
        self.segment_bytes = segment_bytes
        for start, length in named.items():
            if not length:  # the process died before it allocated the blocks
                self.strange.append((self.path(start), "is empty"))
            elif length != segment_bytes:
                self.strange.append((self.path(start), f"has {length} bytes instead of {segment_bytes}"))
        self.starts = [start for start in sorted(named) if named[start] == segment_bytes > 0]
        self.gaps = [
            start
            for before, start in zip(self.starts, self.starts[1:], strict=False)
            if start != before + segment_bytes
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for mapped in self._maps.values():
            mapped.close()
        self._maps.clear()

    @property
    def first(self) -> int:
        """Position of the first byte; 0 when there is no file."""
        return self.starts[0] if self.starts else 0

    @property
    def end(self) -> int:
        """Position behind the last byte of the last file, written or not; 0 when there is no file."""
        return self.starts[-1] + self.segment_bytes if self.starts else 0

    def path(self, start: int) -> Path:
        return self.folder / segment_name(start)

    def start_of(self, pos: int) -> int | None:
        """The start of the segment with byte `pos`; None if no file has it."""
        if not self.starts or pos < 0:
            return None
        # Files need not begin at a multiple of their size: dledger's first one begins where an older log ended.
        start = self.starts[0] + (pos - self.starts[0]) // self.segment_bytes * self.segment_bytes
        if start in self._maps or start in self.starts:
            return start
        return next((start for start in self.starts if start <= pos < start + self.segment_bytes), None)

    def buffer(self, start: int) -> ReadMap:
        """The whole segment, mapped for reading. Raises KeyError if it does not exist."""
        mapped = self._maps.get(start)
        if mapped is None:
            if start not in self.starts:
                raise KeyError(start)
            while len(self._maps) >= _MAX_MAPS:
                self._maps.pop(next(iter(self._maps))).close()
            mapped = ReadMap(self.path(start))
            self._maps[start] = mapped
        return mapped

    def units(self, start: int) -> closing[QueueFile]:
        """Opens a file of a ConsumeQueue, to read units of it without a map. A context manager. OSError."""
        return closing(QueueFile(self.path(start)))

    def read(self, pos: int, size: int) -> bytes | None:
        """Bytes [pos, pos + size); None unless one segment has them all."""
        start = self.start_of(pos)
        if start is None or size < 0 or pos + size > start + self.segment_bytes:
            return None
        offset = pos - start
        return self.buffer(start)[offset : offset + size]

    def unreadable(self, pos: int, size: int) -> bool:
        """Whether one of these bytes could not be read from the disk. Call this after reading them."""
        start = self.start_of(pos)
        mapped = None if start is None else self._maps.get(start)
        return mapped is not None and start is not None and mapped.spoils(pos - start, size)

    def for_kernel(self) -> tuple[Path, int, list[int], Bring | None]:
        """Folder, bytes of a segment, first positions, and what makes bytes readable (None: all are)."""
        return self.folder, self.segment_bytes, self.starts, None

    def __iter__(self) -> Iterator[int]:
        return iter(self.starts)

    def __len__(self) -> int:
        return len(self.starts)


def has_data(path: Path, offset: int, limit: int) -> bool:
    """Whether one of `limit` bytes from `offset` on is not zero, or cannot be read. Holes are not read."""
    with path.open("rb") as file:
        end = min(os.fstat(file.fileno()).st_size, offset + limit)
        while offset < end:
            try:
                offset = os.lseek(file.fileno(), offset, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    return False  # only a hole is left
                if error.errno != errno.EINVAL:
                    raise
                # This file system does not report holes: read them.
            try:
                block = os.pread(file.fileno(), len(_ZEROS), offset)
            except OSError as error:
                if error.errno == errno.EIO:
                    return True  # a bad sector is not zeros
                raise
            if block != _ZEROS[: len(block)]:
                return True
            offset += len(block)
    return False


def data_ranges(path: Path, offset: int) -> Iterator[tuple[int, int]]:
    """Yields the written parts of a file from `offset` on as (begin, end), without blocks that are only allocated. If
    the file system does not report holes, this is the whole file."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        while offset < size:
            try:
                begin = os.lseek(file.fileno(), offset, os.SEEK_DATA)
                end = os.lseek(file.fileno(), begin, os.SEEK_HOLE)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    return
                if error.errno != errno.EINVAL:
                    raise
                begin, end = offset, size
            yield begin, end
            offset = end
