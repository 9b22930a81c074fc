"""What is done to a member's disk: a byte is turned over, or there is no room left."""

from __future__ import annotations

import errno
import os
import random
import subprocess
from collections.abc import Iterable
from pathlib import Path

from lab.replicas import entries_of, sealed_segments


class CannotMountError(Exception):
    """Small file systems cannot be made here; the text is the system's."""


def flip_a_byte(ledger: Path, draw: int) -> tuple[Path, int]:
    """Turns one bit over, in the body of an entry of a sealed segment; the file and the byte. ValueError: none is."""
    rng = random.Random(draw)
    sealed = sealed_segments(ledger)
    if not sealed:
        raise ValueError(f"{ledger} has no sealed segment")
    path = rng.choice(sealed)[1]
    at, size = rng.choice(entries_of(path))
    at = rng.randrange(at + 48, at + size)
    with path.open("r+b", buffering=0) as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ (1 << rng.randrange(8))]))
        os.fsync(file.fileno())
    return path, at


def patch(path: Path, at: int, data: bytes) -> None:
    """Overwrites bytes of a file from byte `at`."""
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


class SmallDisks:
    """A file system in memory on each folder, as long as the context lasts."""

    def __init__(self, folders: Iterable[Path], megabytes: int) -> None:
        self._folders, self._megabytes = list(folders), megabytes
        self._mounted: list[Path] = []

    @property
    def mounted(self) -> bool:
        """Whether the file systems are there."""
        return bool(self._mounted)

    def mount(self) -> None:
        """CannotMountError: that is not allowed here."""
        for folder in self._folders:
            command = ["mount", "-t", "tmpfs", "-o", f"size={self._megabytes}m", "tmpfs", str(folder)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                self.unmount()
                raise CannotMountError(done.stderr.strip() or f"mount ended with {done.returncode}")
            self._mounted.append(folder)

    def unmount(self, *, keep: bool = False) -> None:
        """All that are mounted; `keep`: what is in them is left in the folders."""
        while self._mounted:
            folder = self._mounted.pop()
            copy = folder.with_name(folder.name + "-kept")
            if keep:
                subprocess.run(["cp", "-a", "--sparse=always", str(folder), str(copy)], check=False)
            subprocess.run(["umount", "--lazy", str(folder)], check=False)
            if keep and copy.is_dir():
                folder.rmdir()
                copy.rename(folder)


def fill(folder: Path) -> Path:
    """Takes all room on the file system of this folder, while others go on writing there; the file that does."""
    filler = folder / "filler"
    with filler.open("ab", buffering=0) as file:
        # A piece that does not fit is given back as a whole: smaller and smaller ones until not a block is left.
        for piece in (1 << 24, 1 << 20, 1 << 16, 1 << 12):
            try:
                while True:
                    os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, piece)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
    return filler
