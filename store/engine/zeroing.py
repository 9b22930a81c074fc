"""Truncates the content of a file of fixed length: overwrites everything behind a byte with zeros.

A file of a log or of a queue always has its full length, and a start refuses a shorter one. So a truncation never
shortens the file, not even for a moment: the process can be killed, or power can fail, between any two calls.

Zeros are written from the end of the file towards its front, and not over bytes that are zero already. After a kill the
file still has the bytes that the next start judged before, without some of the last ones. The same rules apply to the
rest.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tallystick.store.formats.segment_files import data_ranges, has_data

if TYPE_CHECKING:
    from tallystick.store._kernel import Door

_PIECE_BYTES = 1 << 20
_ZEROS = bytes(_PIECE_BYTES)


def zero_behind(door: Door, path: Path, offset: int) -> None:
    """Durably zeroes the bytes of `path` from `offset` on; the file keeps its length. Does not read what was never
    written.

    Raises OSError; some of the bytes may be zero then.
    """
    for begin, end in reversed(list(data_ranges(path, offset))):
        for at in reversed(range(begin, end, _PIECE_BYTES)):
            size = min(_PIECE_BYTES, end - at)
            if has_data(path, at, size):
                door.write(path, at, _ZEROS[:size])
    door.sync(path)
