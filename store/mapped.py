"""A file mapped for reading that a bad sector does not end the process with.

A read of a mapped page that the disk cannot give is a signal, by default the end of the process. The kernel replaces
the page and remembers it (`store/kernel/src/guard.rs`). The reader then finds bytes there that are no record, unit or
entry, and learns from `spoils` or `unread` that they are not the file's.

The broker's own reads of the log are the kernel's, and guarded there. This is for tools, recovery and jobs.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Self

from tallystick.store._kernel import MapGuard

UNREADABLE = "cannot be read"
"""Why bytes are damaged that the disk does not give. The kernel uses the same words."""
_PAGE_BYTES = mmap.PAGESIZE


class ReadMap(mmap.mmap):
    """The whole file at `path`, which must not be empty. A context manager. OSError; ValueError: it is empty."""

    _guard: MapGuard | None

    def __new__(cls, path: Path) -> Self:
        with path.open("rb") as file:
            mapped = super().__new__(cls, file.fileno(), 0, access=mmap.ACCESS_READ)
        mapped._guard = MapGuard(mapped, path)
        return mapped

    def spoils(self, at: int, size: int) -> bool:
        """Whether one of `size` bytes from `at` on could not be read. Ask after they were read."""
        return self._guard is not None and self._guard.spoils(at, size)

    def unread(self) -> list[tuple[int, int]]:
        """Reads one byte of each page; the ranges (at, bytes) that cannot be read."""
        ranges: list[tuple[int, int]] = []
        size = len(self)
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
        self._guard = None  # first: the place of a closed map may be another map's at once
        super().close()

    def __exit__(self, kind: object, error: object, trace: object, /) -> None:
        self.close()
