"""A small disk that stops giving what lies behind a byte of it: a loop device whose backing file is truncated.

The system answers reads there with EIO, as it does for bad sectors, and a write there makes the sectors readable
again, as a disk with spare sectors does. It needs root and loop devices; where they are missing, tests skip by name.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

_FIEMAP = 0xC020660B
_BLOCK = 4096


class BadDisk:
    """A separate file system, for files that are moved there and linked back. A context manager."""

    def __init__(self, folder: Path, megabytes: int = 24) -> None:
        self.image = folder / "disk.img"
        self.mounted = folder / "disk"
        self._bytes = megabytes << 20

    def __enter__(self) -> Self:
        if os.geteuid() != 0 or not shutil.which("mkfs.ext4") or not Path("/dev/loop-control").exists():
            pytest.skip("a real bad sector needs root, loop devices and mkfs.ext4")
        self.mounted.mkdir(parents=True)
        with self.image.open("wb") as file:
            file.truncate(self._bytes)
        options = ["-q", "-F", "-b", str(_BLOCK), "-O", "^has_journal,^metadata_csum,^resize_inode", "-m", "0"]
        subprocess.run(["mkfs.ext4", *options, str(self.image)], check=True, capture_output=True)
        mount = ["mount", "-o", "loop,noatime", str(self.image), str(self.mounted)]
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"a real bad sector needs loop devices: {done.stderr.strip()}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        subprocess.run(["umount", "--lazy", str(self.mounted)], check=False, capture_output=True)
        self.image.unlink(missing_ok=True)

    def take(self, path: Path) -> Path:
        """Moves a file here and leaves a link in its place."""
        moved = self.mounted / path.name
        shutil.copyfile(path, moved)
        with moved.open("r+b") as file:
            os.fsync(file.fileno())
        path.unlink()
        path.symlink_to(moved)
        return moved

    def lose(self, path: Path, at: int) -> None:
        """From byte `at` of the file on, a multiple of a page, nothing can be read."""
        with path.open("r+b") as file:
            os.fsync(file.fileno())
            place = _place_on_disk(file.fileno(), at)
            os.truncate(self.image, place)
            self.forget(path)
            with pytest.raises(OSError, match="Input/output"):
                os.pread(file.fileno(), 1, at)

    def give_back(self, content: bytes, path: Path) -> None:
        """All sectors are readable again, and the file is as before."""
        os.truncate(self.image, self._bytes)
        path.write_bytes(content)

    def forget(self, path: Path) -> None:
        """The file's pages leave the memory, unless they are mapped."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _place_on_disk(descriptor: int, at: int) -> int:
    """The byte of the device that holds byte `at` of a file. The file's last extent must be the device's last."""
    request = bytearray(struct.pack("=QQIIII", at, 1, 0x1, 0, 1, 0) + bytes(56))
    fcntl.ioctl(descriptor, _FIEMAP, request)
    assert struct.unpack_from("=I", request, 20)[0] == 1, "it is on the disk"
    logical, physical = struct.unpack_from("=QQ", request, 32)
    place: int = physical + at - logical
    return place
