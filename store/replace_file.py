"""Replacing a small file as a whole: after any crash it is the previous version or the new one.

    NAME.tmp written and synced ─▶ renamed to NAME ─▶ folder synced: the rename survives a loss of power

A crash in between leaves `NAME.tmp`, which is never read and which the next replacement overwrites. A file whose name
is missing for a moment or that has a backup needs other steps: see `tables.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tallystick.store._kernel import Door


def replace_file(door: Door, path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replaces the file, or creates it; its folder must exist. Blocks for syncs.

    `durable`: the new version survives a loss of power that follows the return. Without it, such a loss can bring the
    previous version back. OSError: this version or the previous one is there.
    """
    temporary = path.with_name(path.name + ".tmp")
    door.write_file(temporary, data)
    door.rename(temporary, path)
    if durable:
        door.sync_dir(path.parent)
