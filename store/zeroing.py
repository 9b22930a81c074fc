"""Cuts a file of a fixed length: zeros take the place of what stands behind a byte, and the length stays.

A file of a log or of a queue always has its full length, and a start refuses one that has not. So a cut never shortens
a file, not for a moment: a process can be killed and power can fail between any two calls.

Zeros are written from the end of the file to its front, and not over what is zero already. A killed cut leaves the
bytes that the next start has judged once, without some of the last ones. It judges the rest by the same rules.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.store.segment_files import data_ranges, has_data

if TYPE_CHECKING:
    from tallystick.store._kernel import Door

_PIECE_BYTES = 1 << 20
_ZEROS = bytes(_PIECE_BYTES)


def zero_behind(door: Door, path: Path, offset: int) -> None:
    """Zeroes the bytes of `path` from `offset` on, durably; the file keeps its length. What was never written is not
    read.

    OSError: some of the bytes may be zero by then.
    """
    for begin, end in reversed(list(data_ranges(path, offset))):
        for at in reversed(range(begin, end, _PIECE_BYTES)):
            size = min(_PIECE_BYTES, end - at)
            if has_data(path, at, size):
                door.write(path, at, _ZEROS[:size])
    door.sync(path)
