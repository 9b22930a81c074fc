"""The file `abort` exists while a store is open. If it exists at a start, the last stop was not a clean shutdown.

The file is durable before the first change of any other file, so it exists after a power loss at any time. It is
removed last, when everything else is durable.

Source: DefaultMessageStore.createTempFile and shutdown of RocketMQ 4.8.0.
"""

from __future__ import annotations

from pathlib import Path

from tallystick.store._kernel import Door

FILE_NAME = "abort"


def was_aborted(root: Path) -> bool:
    """Whether the last process that opened the store did not close it."""
    return (root / FILE_NAME).exists()


def mark_open(root: Path, door: Door) -> None:
    """Creates the file. Call this before the first change. OSError: the file is not durable, do not continue."""
    if not was_aborted(root):
        door.write_file(root / FILE_NAME, b"")
    # Also if the file existed: its creation may have been the last action of a process that crashed.
    door.sync_dir(root)


def mark_closed(root: Path, door: Door) -> None:
    """Removes the file. Call this when everything is durable. OSError: the next start takes longer, nothing is lost."""
    if was_aborted(root):
        door.remove(root / FILE_NAME)
        door.sync_dir(root)
