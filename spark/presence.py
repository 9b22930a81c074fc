"""What is about to be read is there: a store on this machine always is, one behind HTTP is fetched first.

All reading of stores in this part says here which bytes of which file it is going to look at. Usually that does
nothing. Where a task reads a store that is not mounted, its files are holes of the right length under the right names
(`cluster/mirror.py`), and the bytes are brought before the one who asked goes on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Protocol

from tallystick.store.mapped import ReadMap
from tallystick.store.segment_files import SegmentFiles


class Bringer(Protocol):
    def bring(self, path: Path, begin: int, end: int) -> None:
        """Makes bytes [begin, end) of the file readable, as far as it has them.

        FileNotFoundError: it was removed where it came from, and is now here too. OSError: it cannot be fetched.
        """
        ...

    def release(self, path: Path, begin: int, end: int) -> None:
        """These bytes are not needed any more, unless they are brought again."""
        ...


_bringer: ContextVar[Bringer | None] = ContextVar("bringer", default=None)


@contextmanager
def bringing(by: Bringer) -> Iterator[None]:
    """Within it, in this thread, what is read is brought by `by`."""
    token = _bringer.set(by)
    try:
        yield
    finally:
        _bringer.reset(token)


def bring(path: Path | str, begin: int = 0, end: int = 1 << 62) -> None:
    """Before bytes [begin, end) of a store's file are read. FileNotFoundError, OSError: see `Bringer`."""
    if (by := _bringer.get()) is not None:
        by.bring(Path(path), begin, end)


def bring_folder(folder: Path) -> None:
    """Before all files below a folder are read. One that was removed meanwhile is passed over."""
    if _bringer.get() is not None:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            try:
                bring(path)
            except FileNotFoundError:
                continue


def release(path: Path | str, begin: int, end: int) -> None:
    """After they were read, by what goes over more than should be held at a time."""
    if (by := _bringer.get()) is not None:
        by.release(Path(path), begin, end)


class Segments(SegmentFiles):
    """Segments that are brought before they are looked at: the part that is read, or what is mapped whole."""

    def buffer(self, start: int) -> ReadMap:
        if start in self.starts:
            bring(self.path(start))
        return super().buffer(start)

    def read(self, pos: int, size: int) -> bytes | None:
        """Bytes [pos, pos + size); None unless one segment has them all, and has not expired meanwhile."""
        start = self.start_of(pos)
        if start is None or size < 0 or pos + size > start + self.segment_bytes:
            return None
        offset = pos - start
        try:
            bring(self.path(start), offset, offset + size)
            return super().buffer(start)[offset : offset + size]
        except FileNotFoundError:
            return None
