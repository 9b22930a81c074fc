"""What a killed process left in the system's cache, and nobody has synced.

After `kill -9` everything that was written is there, but not for certain on the disk; and the process that goes on with
the store knows only of its own writes. So before it calls anything durable that it found, it syncs all of it: the log
before SYNC_FLUSH answers the first send (a later segment that survives a power loss is worth nothing behind an earlier
one that does not), queues and index before the first progress mark that is to hold after one.

A sync of a file that has nothing to write costs the disk little, and still several milliseconds on a busy one: very
many files are synced with their whole file system.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tallystick.store._kernel import Door


def sync_files(door: Door, folder: Path) -> None:
    """Makes all below `folder` durable, names included. Blocks. What vanishes meanwhile is passed over. OSError."""
    found: list[_Found] = []
    _collect(str(folder), found)
    if len(found) > door.most_single_syncs and door.sync_fs(found[-1].path):
        found = _left(found, found[-1].device)
    for path, is_folder, _ in found:
        try:
            if is_folder:
                door.sync_dir(path)
            else:
                door.sync(path)
        except FileNotFoundError:
            pass  # a topic was removed, or a file was cleaned


class _Found(NamedTuple):
    path: str
    is_folder: bool
    device: int
    """-1: not known."""


def _collect(path: str, found: list[_Found]) -> None:
    """Adds all files and folders in `path`, each folder behind what is in it, and `path` as the last one."""
    try:
        device = Path(path).stat().st_dev
        entries = sorted(os.scandir(path), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.is_dir():
            _collect(entry.path, found)
        else:
            found.append(_Found(entry.path, False, -1 if entry.is_symlink() else device))
    found.append(_Found(path, True, device))


def _left(found: list[_Found], device: int) -> list[_Found]:
    """What is to be synced after the file system of `device` was synced: what lies elsewhere, and one file."""
    one = next((each for each in found if each.device == device and not each.is_folder), None)
    return [each for each in found if each.device != device or each is one]
