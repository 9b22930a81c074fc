"""Keeps the machine's memory full of page cache while brokers are measured, as on any machine that has run a while.

A virtual machine gets its memory from the host when a page is first written, and may give pages back seconds after
they became free. Page cache then grows at a twentieth of its speed (seen: 0.4 against 8 GB/s for the same file), and a
broker that writes much is measured by that. On a machine whose memory is full, a new page of cache replaces an old one,
and no host is asked. So a file fills the cache before each turn that writes; its pages are clean and the oldest, and
the first to go. Both sides run in the same conditions.
"""

import os
from pathlib import Path

# What the kernel keeps free anyway, and what a broker's start takes at once.
_LEAVE_FREE = 1536 << 20
_BLOCK = 1 << 20


# Brokers delete segments of a fuller disk before their time (from 75 % on), and the turn is void.
_FULLEST_DISK = 0.65


def free_bytes() -> int:
    """Memory that holds nothing at all."""
    return _memory_bytes("MemFree")


def _memory_bytes(name: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


class Filler:
    """A file in `folder` whose pages take up the free memory."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "page-cache"
        self._bytes = 0
        self._most_bytes = _memory_bytes("MemTotal")

    def fill(self) -> None:
        """Reads the file, and makes it longer, until hardly any memory is free, or until the file is as large as the
        memory: a system that reclaims clean pages early always has free memory. OSError: the disk."""
        block = bytes(_BLOCK)
        with self._path.open("r+b" if self._path.exists() else "w+b", buffering=0) as file:
            at = 0
            while free_bytes() > _LEAVE_FREE:
                if at < self._bytes:
                    os.pread(file.fileno(), _BLOCK, at)
                elif self._bytes < self._most_bytes and self._has_room():
                    os.pwrite(file.fileno(), block, at)
                    self._bytes += _BLOCK
                else:
                    break
                at += _BLOCK
            os.fdatasync(file.fileno())

    def _has_room(self) -> bool:
        disk = os.statvfs(self._path.parent)
        used = disk.f_blocks - disk.f_bfree
        return used < _FULLEST_DISK * (used + disk.f_bavail)

    def remove(self) -> None:
        """Gives the memory and the disk back."""
        self._path.unlink(missing_ok=True)
        self._bytes = 0
