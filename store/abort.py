"""The file `abort`: it exists while a store is open, so finding it means that the last stop was none in order.

It is durable before the first change of any other file: a store that was written to and then lost its power always has
it. It goes as the very last thing, when all else is durable.

Source: DefaultMessageStore.createTempFile and shutdown of RocketMQ 4.8.0.
"""

from __future__ import annotations

from pathlib import Path

from tallystick.store._kernel import Door

FILE_NAME = "abort"


def was_aborted(root: Path) -> bool:
    """The last one who opened the store did not close it."""
    return (root / FILE_NAME).exists()


def mark_open(root: Path, door: Door) -> None:
    """Call before the first change. OSError: the mark is not durable, do not go on."""
    if not was_aborted(root):
        door.write_file(root / FILE_NAME, b"")
    # Also for one that was there: the creation may have been the last thing before a crash of the process.
    door.sync_dir(root)


def mark_closed(root: Path, door: Door) -> None:
    """Call when everything is durable. OSError: the store counts as aborted, which only costs its next start time."""
    if was_aborted(root):
        door.remove(root / FILE_NAME)
        door.sync_dir(root)
