"""Fetches bytes before they are read, if a store is not mounted but behind HTTP.

All code of `spark` calls these functions before it reads bytes of a file of a store. Usually they do nothing. If a
task reads a store that is not mounted, its files are holes of the right length under the right names
(`mirror.py`), and these functions fetch the bytes before they return.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import closing, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Protocol

from tallystick.spark.store_client import RemoteQueues
from tallystick.store._kernel import QueueFile
from tallystick.store.formats.mapped import ReadMap
from tallystick.store.formats.segment_files import Bring, SegmentFiles

_MANY_BYTES = 64 << 10
"""A read of so many bytes may be one of a whole file, piece by piece."""


class Bringer(Protocol):
    def bring(self, path: Path, begin: int, end: int) -> None:
        """Makes bytes [begin, end) of the file readable, as far as the file has them.

        FileNotFoundError: the file was removed at its broker, and now also here. OSError: it cannot be fetched.
        """
        ...

    def release(self, path: Path, begin: int, end: int) -> None:
        """Releases these bytes. They must be brought again before they are read again."""
        ...

    def queues(self) -> RemoteQueues | None:
        """Returns where the ConsumeQueues end, as the store's broker tells; None: it does not tell."""
        ...


_bringer: ContextVar[Bringer | None] = ContextVar("bringer", default=None)


@contextmanager
def bringing(by: Bringer) -> Iterator[None]:
    """Within this context, `by` fetches what this thread reads."""
    token = _bringer.set(by)
    try:
        yield
    finally:
        _bringer.reset(token)


def bring(path: Path | str, begin: int = 0, end: int = 1 << 62) -> None:
    """Fetches bytes [begin, end) of a file, before they are read. FileNotFoundError, OSError: see `Bringer`."""
    if (by := _bringer.get()) is not None:
        by.bring(Path(path), begin, end)


def told_queues() -> RemoteQueues | None:
    """Returns where the ConsumeQueues end, if the store is elsewhere and its broker tells. It saves to fetch them."""
    return None if (by := _bringer.get()) is None else by.queues()


def bring_folder(folder: Path) -> None:
    """Fetches all files below a folder, before they are read. It skips files that were removed meanwhile."""
    if _bringer.get() is not None:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            try:
                bring(path)
            except FileNotFoundError:
                continue


def bringer() -> Bring | None:
    """`bring` for the kernel, if bytes must be fetched at all."""
    return None if _bringer.get() is None else bring


def release(path: Path | str, begin: int, end: int) -> None:
    """Releases bytes that were read. Code that reads a lot calls it, to limit the space."""
    if (by := _bringer.get()) is not None:
        by.release(Path(path), begin, end)


class Segments(SegmentFiles):
    """Segments whose bytes are fetched before they are read: the read part, or a mapped file."""

    def buffer(self, start: int, needed: int = 1 << 62) -> ReadMap:
        """Maps a file. Its first `needed` bytes are fetched; the others are zeros if it is elsewhere."""
        if start in self.starts:
            bring(self.path(start), 0, needed)
        return super().buffer(start)

    def units(self, start: int) -> closing[QueueFile]:
        bring(self.path(start))
        return super().units(start)

    def for_kernel(self) -> tuple[Path, int, list[int], Bring | None]:
        return self.folder, self.segment_bytes, self.starts, bringer()

    def read(self, pos: int, size: int) -> bytes | None:
        """Returns bytes [pos, pos + size). None: no single segment has all of them, or the segment has expired."""
        start = self.start_of(pos)
        if start is None or size < 0 or pos + size > start + self.segment_bytes:
            return None
        offset = pos - start
        try:
            bring(self.path(start), offset, offset + size)
            mapped = super().buffer(start)
            # For one record, the system would read megabytes around it from the disk.
            mapped.madvise(mmap.MADV_RANDOM if size < _MANY_BYTES else mmap.MADV_NORMAL)
            return mapped[offset : offset + size]
        except FileNotFoundError:
            return None
