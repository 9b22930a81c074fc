"""The file `tally-restoring` exists while a store is restored from a backup: a part of it may be missing.

A restore creates it first, durably, and removes it last. Nothing else opens such a store: an interrupted restore has to
be run again, in an empty folder.
"""

from __future__ import annotations

from pathlib import Path

from tallystick.store._kernel import Door

FILE_NAME = "tally-restoring"


class IncompleteStoreError(Exception):
    """The restore of the store has not finished."""

    def __init__(self, root: Path) -> None:
        super().__init__(
            f"the restore of {root} did not finish, and a part of the store may be missing: empty the folder and "
            f"restore it again ({root / FILE_NAME} marks it)"
        )
        self.root = root


def check_complete(root: Path) -> None:
    """Raises IncompleteStoreError if the store is being restored, or a restore was interrupted."""
    if (root / FILE_NAME).exists():
        raise IncompleteStoreError(root)


def mark_begun(root: Path, door: Door) -> None:
    """Creates the file, durably. OSError."""
    door.write_file(root / FILE_NAME, b"a restore from a backup has not finished\n")
    door.sync_dir(root)


def mark_complete(root: Path, door: Door) -> None:
    """Removes the file. Call this when everything else is durable. OSError."""
    door.remove(root / FILE_NAME)
    door.sync_dir(root)
