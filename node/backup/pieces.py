"""Reads the log of a running broker in pieces, without an effect on the broker's page cache, at a limited rate.

Sealed segments are read with O_DIRECT, as the scrub does: no page enters or leaves the page cache. The last segment is
read through the cache, where its pages are anyway. A file system without O_DIRECT is read through the cache as well.
"""

from __future__ import annotations

import errno
import mmap
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PIECE_BYTES = 16 << 20
"""Largest object: it is held in memory."""
HEAD_BYTES = 4096
_READ_BYTES = 1 << 20
_BLOCK = 4096


def pieces_of(begin: int, end: int, first_segment: int, segment_bytes: int) -> Iterator[tuple[int, int]]:
    """Splits [begin, end) of a log at the starts of segments, and within a segment at multiples of PIECE_BYTES.

    `first_segment`: the start of some segment.
    """
    while begin < end:
        in_segment = (begin - first_segment) % segment_bytes
        size = min(segment_bytes - in_segment, PIECE_BYTES - in_segment % PIECE_BYTES, end - begin)
        yield begin, begin + size
        begin += size


class Throttle:
    """Limits the average rate. `bytes_per_second`: 0: no limit."""

    def __init__(
        self,
        bytes_per_second: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate, self._clock, self._sleep = bytes_per_second, clock, sleep
        self._free_at = clock()

    def took(self, count: int) -> None:
        """Waits for as long as these bytes may take. Unused time is not saved up."""
        if self._rate <= 0:
            return
        now = self._clock()
        self._free_at = max(self._free_at, now) + count / self._rate
        if self._free_at > now:
            self._sleep(self._free_at - now)


class SegmentReader:
    """One open segment. It stays readable when the broker deletes the file. A context manager.

    `direct`: reads past the page cache. Raises OSError; FileNotFoundError: it does not exist.
    """

    def __init__(self, path: Path, *, direct: bool) -> None:
        self.path = path
        self._direct = direct and hasattr(os, "O_DIRECT")
        try:
            self._descriptor = os.open(path, os.O_RDONLY | (os.O_DIRECT if self._direct else 0))
        except OSError as error:
            if not self._direct or error.errno != errno.EINVAL:
                raise
            self._direct = False
            self._descriptor = os.open(path, os.O_RDONLY)

    def __enter__(self) -> SegmentReader:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def sync(self) -> None:
        """Makes what was written to the file durable, by whichever process. OSError."""
        os.fdatasync(self._descriptor)

    def read(self, offset: int, size: int, throttle: Throttle) -> bytes:
        """Returns bytes of the file. OSError: it cannot be read, or ends early."""
        parts = []
        with mmap.mmap(-1, _READ_BYTES + _BLOCK) as buffer:  # its address is a multiple of a page's size
            while size:
                begin = offset - offset % _BLOCK
                most = min(size, _READ_BYTES + begin - offset)
                wanted = -(-(offset + most - begin) // _BLOCK) * _BLOCK
                got = self._read_into(buffer, begin, wanted) - (offset - begin)
                if got <= 0:
                    raise OSError(errno.EIO, f"the file ends at byte {offset}", str(self.path))
                took = min(got, most)
                parts.append(buffer[offset - begin : offset - begin + took])
                throttle.took(took)
                offset, size = offset + took, size - took
        return b"".join(parts)

    def _read_into(self, buffer: mmap.mmap, begin: int, wanted: int) -> int:
        with memoryview(buffer) as view:
            try:
                return os.preadv(self._descriptor, [view[:wanted]], begin)
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(self.path)) from error
