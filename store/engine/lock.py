"""The file `lock`: one process at a time works on a store.

The file contains four bytes, `lock`, as RocketMQ's file does. A process that opens the store takes an exclusive lock of
the operating system on bytes 0..1. The system releases this lock when the process dies, so nothing has to be cleaned up
after a kill. The file is never removed: otherwise one process could lock the removed file, and another one its
successor.

Where the system supports it, the lock belongs to the open file (`F_OFD_SETLK`) and not to the process. Such a lock also
excludes a second store of the same process, and it stays when other code of the process closes the same file. Both
kinds of locks exclude each other, so RocketMQ (Java uses process locks) and tallystick do as well. A lock of an open
file does not tell which process holds it. Therefore the process also takes a process lock on byte 4, behind the text:
it only identifies the holder.

Source: DefaultMessageStore.start of RocketMQ 4.8.0; fcntl(2).
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from pathlib import Path

from tallystick.store._kernel import Door
from tallystick.store.engine.restoring import check_complete

FILE_NAME = "lock"
_TEXT = b"lock"
_HOLDER_AT = 4
_FLOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux: type, whence, start, length, process
_SET_LOCK: int | None = getattr(fcntl, "F_OFD_SETLK", None)
_held: set[tuple[int, int]] = set()  # device and inode of what this process holds


class StoreLockedError(Exception):
    """Another process, or another store of this one, has the folder open. `root`: the store; `holder_pid`, if known."""

    def __init__(self, root: Path, holder_pid: int | None) -> None:
        who = f"process {holder_pid}" if holder_pid else "another process"
        who = "this process" if holder_pid == os.getpid() else who
        super().__init__(f"the store {root} is already open: {who} holds {root / FILE_NAME}")
        self.root = root
        self.holder_pid = holder_pid


class FolderLostError(OSError):
    """The folder was removed or replaced by another one while the store was open."""

    def __str__(self) -> str:
        return f"the store's folder was removed or replaced while it was open: {self.filename} is not the file it was"


class StoreLock:
    """A store's lock, held from `acquire` to `release`."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor = descriptor
        self._path = path
        self._file = _identity(os.fstat(descriptor))
        _held.add(self._file)

    @classmethod
    def acquire(cls, root: Path, door: Door, *, unfinished: bool = False) -> StoreLock:
        """Locks the store in the folder `root`, without waiting. Raises StoreLockedError if it is locked;
        IncompleteStoreError if a restore or a conversion of it did not finish, unless the caller does that
        (`unfinished`); OSError."""
        if not unfinished:
            check_complete(root)
        path = root / FILE_NAME
        if path.exists() and _identity(path.stat()) in _held:
            raise StoreLockedError(root, os.getpid())
        # Write the text before locking: closing the file afterwards would release a process lock. The text is always
        # the same, so this does not disturb a process that holds the lock.
        if not path.exists() or path.read_bytes() != _TEXT:
            door.write_file(path, _TEXT)
        descriptor = os.open(path, os.O_RDWR)
        try:
            _lock(descriptor, root)
            return cls(descriptor, path)
        except BaseException:
            os.close(descriptor)
            raise

    def check(self) -> None:
        """Raises FolderLostError if the lock file was removed or replaced; OSError.

        In this case a process still writes to its removed files: every write succeeds, and all data is lost.
        """
        try:
            found = _identity(self._path.stat())
        except FileNotFoundError:
            found = None
        if self._descriptor >= 0 and found != self._file:
            raise FolderLostError(errno.ESTALE, os.strerror(errno.ESTALE), str(self._path))

    def release(self) -> None:
        """Releases the lock. A second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            _held.discard(self._file)


def check_unlocked(root: Path) -> None:
    """Raises StoreLockedError if a process has the store in `root` open; OSError. Needs no permission to write."""
    path = root / FILE_NAME
    try:
        if _identity(path.stat()) in _held:
            raise StoreLockedError(root, os.getpid())
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return  # a process that opens a store creates it first
    try:
        if _locked(descriptor, 0) is not None:
            raise StoreLockedError(root, _holder(descriptor))
    finally:
        os.close(descriptor)


def _identity(data: os.stat_result) -> tuple[int, int]:
    return data.st_dev, data.st_ino


def _lock(descriptor: int, root: Path) -> None:
    try:
        if _SET_LOCK is None:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        else:
            fcntl.fcntl(descriptor, _SET_LOCK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _HOLDER_AT)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise
        raise StoreLockedError(root, _holder(descriptor)) from None


def _holder(descriptor: int) -> int | None:
    if _SET_LOCK is None:
        return None
    for start in (0, _HOLDER_AT):
        pid = _locked(descriptor, start)
        if pid is not None and pid > 0:
            return pid
    return None


def _locked(descriptor: int, start: int) -> int | None:
    """The process that holds the lock of this byte; -1: an open file holds it; 0: a process of another namespace
    (container). None: the byte is not locked."""
    question = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, 1, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, question))
    return None if kind == fcntl.F_UNLCK else int(pid)
