"""A file that is mapped for reading. A bad sector does not kill the process.

If the disk cannot read a mapped page, the process gets a signal, which kills it by default. The Rust kernel replaces
the page and remembers it (`store/kernel/src/guard.rs`). The reader then finds bytes that are not a record, unit or
entry, and `spoils` or `unread` tell it that they are not the file's bytes.

The broker reads the log in the kernel, which guards these reads too. This module is for tools, recovery and jobs.
"""

from __future__ import annotations

import errno
import mmap
from pathlib import Path
from typing import Self

from tallystick.store._kernel import MapGuard

UNREADABLE = "cannot be read"
"""The reason text for bytes that the disk cannot read. The kernel uses the same text."""
_PAGE_BYTES = mmap.PAGESIZE


class ReadMap(mmap.mmap):
    """Maps the whole file at `path`. A context manager. Raises OSError; ValueError if the file is empty."""

    _guard: MapGuard | None

    def __new__(cls, path: Path) -> Self:
        with path.open("rb") as file:
            mapped = super().__new__(cls, file.fileno(), 0, access=mmap.ACCESS_READ)
        mapped._guard = MapGuard(mapped, path)
        return mapped

    def spoils(self, at: int, size: int) -> bool:
        """Whether one of `size` bytes from `at` on could not be read. Call this after reading them."""
        return self._guard is not None and self._guard.spoils(at, size)

    def unread(self) -> list[tuple[int, int]]:
        """Reads one byte of each page. Returns the ranges (at, bytes) that cannot be read."""
        ranges: list[tuple[int, int]] = []
        size = len(self)
        self[::_PAGE_BYTES]
        if not self.spoils(0, size):
            return ranges
        for at in range(0, size, _PAGE_BYTES):
            self[at]
            if self.spoils(at, 1):
                part = min(_PAGE_BYTES, size - at)
                if ranges and sum(ranges[-1]) == at:
                    ranges[-1] = (ranges[-1][0], ranges[-1][1] + part)
                else:
                    ranges.append((at, part))
        return ranges

    def close(self) -> None:
        """Unmaps. A second call does nothing."""
        self._guard = None  # first: another map may take the address of a closed map at once
        super().close()

    def __exit__(self, kind: object, error: object, trace: object, /) -> None:
        self.close()


def unread_ranges(data: ReadMap) -> list[tuple[int, int]]:
    """As `ReadMap.unread`; a file of which nothing can be read is the range (0, 0). Raises OSError for other errors."""
    try:
        return data.unread()
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return [(0, 0)]
