"""A small reserve of disk space, so that a member can save a vote on a full disk.

Term and vote are saved in a new file beside the old one, which needs a block or two. The same applies to the index of
the newest membership, to the note of a possible loss, and to the log's origin. Without the reserve, an election on a
full disk would stop the member, just when the leader's disk is full and an election is due.
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
    """One preallocated file in the member's folder, without content."""

    def __init__(self, door: Door, folder: Path) -> None:
        self._door = door
        self._path = folder / FILE_NAME

    def keep(self) -> None:
        """Creates the file if it does not exist. If the disk has no space for it, the next call tries again."""
        size = RESERVE_BYTES
        while size >= _LEAST_BYTES and not self._path.exists():
            try:
                self._door.create(self._path, size, True)
            except OSError:
                self._path.unlink(missing_ok=True)
                size //= 2

    def use(self, save: Callable[[], None]) -> None:
        """Calls `save`. If there is no space, removes the reserve and calls it again. Raises OSError."""
        try:
            save()
        except OSError as error:
            if error.errno not in NO_ROOM or not self._path.exists():
                raise
            self._door.remove(self._path)
            save()
            self.keep()  # the replaced file freed its blocks: the next record needs as many
