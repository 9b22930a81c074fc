"""A little room kept back on the disk, so that a full one can still take a vote.

Term and vote are saved by writing a new file beside the old one, which needs a block or two; so are the index of the
newest membership, a doubt and its end, and the log's origin. On a disk that is full an election would end the member
for want of them, just when the leader's disk is full and an election is due.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tallystick.store._kernel import Door

FILE_NAME = "tally-reserve"
RESERVE_BYTES = 64 << 10
_LEAST_BYTES = 8 << 10
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class Reserve:
    """One file in the member's folder, without content."""

    def __init__(self, door: Door, folder: Path) -> None:
        self._door = door
        self._path = folder / FILE_NAME

    def keep(self) -> None:
        """Takes the room, if it is not taken. A disk that has none has none: the next call tries again."""
        size = RESERVE_BYTES
        while size >= _LEAST_BYTES and not self._path.exists():
            try:
                self._door.create(self._path, size, True)
            except OSError:
                self._path.unlink(missing_ok=True)
                size //= 2

    def use(self, save: Callable[[], None]) -> None:
        """Calls `save`, and once more with the reserve given up if there was no room. OSError."""
        try:
            save()
        except OSError as error:
            if error.errno not in NO_ROOM or not self._path.exists():
                raise
            self._door.remove(self._path)
            save()
            self.keep()  # what was replaced gave its blocks back: the next record needs as many
