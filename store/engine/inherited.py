"""Syncs files that a killed process wrote and did not sync.

After `kill -9` all written data is in the page cache, but perhaps not on the disk, and the next process tracks only its
own writes. So the next process syncs all files before it treats them as durable: the log before SYNC_FLUSH answers the
first send (a later segment that survives a power loss is useless if an earlier one does not), and queues and index
before the first progress mark that counts after a power loss.

To sync a file without unwritten pages is cheap, but takes several milliseconds on a busy disk. Therefore a large number
of files is synced by syncing their whole file system.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tallystick.store._kernel import Door


def sync_files(door: Door, folder: Path) -> None:
    """Makes all files below `folder` and their names durable. Blocks. Skips removed files. Raises OSError."""
    found: list[_Found] = []
    if folder.is_dir():
        _collect(str(folder), folder.stat().st_dev, found)
    if len(found) > door.most_single_syncs and door.sync_fs(found[-1].path):
        found = _left(found, found[-1].device)
    for path, is_folder, _ in found:
        try:
            if is_folder:
                door.sync_dir(path)
            else:
                door.sync(path)
        except FileNotFoundError:
            pass  # a topic was removed, or a file was deleted


class _Found(NamedTuple):
    path: str
    is_folder: bool
    device: int
    """-1 if unknown."""


def _collect(path: str, device: int, found: list[_Found]) -> None:
    """Adds all files and folders in `path`, each folder after its content, and `path` last."""
    try:
        with os.scandir(path) as listed:
            entries = sorted(listed, key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.is_dir():
            with contextlib.suppress(FileNotFoundError):
                _collect(entry.path, entry.stat().st_dev, found)
        else:
            found.append(_Found(entry.path, False, -1 if entry.is_symlink() else device))
    found.append(_Found(path, True, device))


def _left(found: list[_Found], device: int) -> list[_Found]:
    """What is to be synced after the file system of `device` was synced: what lies elsewhere, and one file."""
    one = next((each for each in found if each.device == device and not each.is_folder), None)
    return [each for each in found if each.device != device or each is one]
