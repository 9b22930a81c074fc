"""Which pages of files are in memory."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path


def resident(path: Path) -> list[bool]:
    """Whether each page of the file is in memory, by mincore(2), which reads none."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    size = path.stat().st_size
    pages = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
    with path.open("rb") as file:
        at = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
        assert libc.mincore(ctypes.c_void_p(at), ctypes.c_size_t(size), pages) == 0
        libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(size))
    return [bool(page & 1) for page in pages.raw]


def dropped(path: Path) -> bool:
    """Makes the system forget the file's pages. Returns whether it did: some file systems keep them."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return not any(resident(path))
