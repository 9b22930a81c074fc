"""Whether a folder has a whole store: a restore from a backup, or a conversion, may not have finished in it.

The file `tally-restoring` exists while a store is restored: a part of it may be missing. A restore creates it first,
durably, and removes it last. An interrupted restore has to be run again, in an empty folder. A conversion has its state
in the folder (`formats/conversion.py`), and continues.
"""

from __future__ import annotations

from pathlib import Path

from tallystick.store._kernel import Door
from tallystick.store.formats.conversion import FILE_NAME as CONVERSION_NAME

FILE_NAME = "tally-restoring"


class IncompleteStoreError(Exception):
    """A restore or a conversion into the folder has not finished; the text says which, and what to do."""


def why_incomplete(root: Path) -> str | None:
    """Why a part of the store may be missing; None: nothing says so."""
    if (root / FILE_NAME).exists():
        return (
            f"the restore of {root} did not finish, and a part of the store may be missing: empty the folder and "
            f"restore it again ({root / FILE_NAME} marks it)"
        )
    if (root / CONVERSION_NAME).exists():
        return f"{root} is an unfinished conversion: run tally store convert again ({root / CONVERSION_NAME} marks it)"
    return None


def check_complete(root: Path) -> None:
    """Raises IncompleteStoreError if a restore or a conversion into the folder did not finish."""
    if reason := why_incomplete(root):
        raise IncompleteStoreError(reason)


def mark_begun(root: Path, door: Door) -> None:
    """Creates the file, durably. OSError."""
    door.write_file(root / FILE_NAME, b"a restore from a backup has not finished\n")
    door.sync_dir(root)


def mark_complete(root: Path, door: Door) -> None:
    """Removes the file. Call this when everything else is durable. OSError."""
    door.remove(root / FILE_NAME)
    door.sync_dir(root)
