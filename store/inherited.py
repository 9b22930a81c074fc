"""What a killed process left in the system's cache, and nobody has synced.

After `kill -9` everything that was written is there, but not for certain on the disk; and the process that goes on with
the store knows only of its own writes. So before it calls anything durable that it found, it syncs all of it: the log
before SYNC_FLUSH answers the first send (a later segment that survives a power loss is worth nothing behind an earlier
one that does not), queues and index before the first progress mark that is to hold after one.

A sync of a file that has nothing to write costs the disk little.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tallystick.store._kernel import Door


def sync_files(door: Door, folder: Path) -> None:
    """Makes all below `folder` durable, names included. Blocks. What vanishes meanwhile is passed over. OSError."""
    if not folder.is_dir():
        return
    try:
        for entry in sorted(folder.iterdir()):
            if entry.is_dir():
                sync_files(door, entry)
            else:
                _sync_file(door, entry)
        door.sync_dir(str(folder))
    except FileNotFoundError:
        pass  # a topic was removed


def _sync_file(door: Door, path: Path) -> None:
    try:
        door.sync(str(path))
    except FileNotFoundError:
        pass  # it was cleaned
