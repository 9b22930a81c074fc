"""Which files of a store another process may read, and the way to them. Read-only, and blocking: called on threads.

    commitlog/<start>    dledger-*/data/<start>    dledger-*/index/<start>         the log, and the ledger's own index
    consumequeue/<topic>/<queue>/<start>           consumequeue_ext/...             index/<time>
    checkpoint    abort

Nothing else of the folder is there for who asks: no tables, no votes, no lock. A path is walked folder by folder from
the store's own, and nothing on the way may be a symbolic link, so no name leads out of it.

Files have their full length from creation, so a length says nothing about the log: what lies at or behind the committed
position may still change, and is not served (`readable_bytes`).
"""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tallystick.store.formats.segment_files import is_of_log, segment_start
from tallystick.store.settings import StoreSettings

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe in its place must not block the open
_DEPTHS = {"commitlog": 2, "consumequeue": 4, "consumequeue_ext": 4, "index": 2}
"""Parts of a file's path, by the folder that it begins with."""
_ALONE = ("checkpoint", "abort")
_LEDGER_PARTS = ("data", "index")
_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO}


class NotServedError(Exception):
    """No file that is served has this path."""


@dataclass(frozen=True, slots=True)
class StoreFile:
    """One that is served. `log_start`: position of its first byte in the log; None: it is derived from the log."""

    parts: tuple[str, ...]
    log_start: int | None

    def readable_bytes(self, length: int, committed: int) -> int:
        """Of a file of so many bytes, those that will not change, or that need not be asked about."""
        return length if self.log_start is None else max(0, min(length, committed - self.log_start))


def file_of(path: str) -> StoreFile:
    """The file with this path in the store. NotServedError: there can be none that is served."""
    parts = _parts(path)
    if len(parts) != _depth(parts[0]):
        raise NotServedError(path)
    if not is_of_log(parts):
        return StoreFile(parts, None)
    start = segment_start(parts[-1])
    if start is None:  # without a place in the log the committed part of it is unknown
        raise NotServedError(path)
    return StoreFile(parts, start)


def _parts(path: str) -> tuple[str, ...]:
    parts = tuple(path.split("/"))
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise NotServedError(path)
    if parts[0].startswith("dledger-") and parts[1:] and parts[1] not in _LEDGER_PARTS:
        raise NotServedError(path)
    if _depth(parts[0]) == 0:
        raise NotServedError(path)
    return parts


def _depth(first: str) -> int:
    if first in _ALONE:
        return 1
    return 3 if first.startswith("dledger-") else _DEPTHS.get(first, 0)


class StoreFolder:
    """The store's folder, and that of its log if it is kept elsewhere (`storePathCommitLog`)."""

    def __init__(self, settings: StoreSettings) -> None:
        self._root = settings.root
        self._log = settings.commit_log_folder if settings.storePathCommitLog else None
        self.log_path = f"dledger-{settings.dLegerSelfId}/data" if settings.enableDLegerCommitLog else "commitlog"

    def open(self, file: StoreFile) -> tuple[io.FileIO, int]:
        """A file that is there, and its bytes; it stays whole for the reader when it is deleted meanwhile.

        NotServedError: it is not there, or no plain file. OSError: the disk.
        """
        base, parts = self._base(file.parts)
        try:
            folder = _descend(base, parts[:-1])
            try:
                descriptor = os.open(parts[-1], _FILE, dir_fd=folder)
            finally:
                os.close(folder)
        except (OSError, ValueError) as error:  # ValueError: the name is no text that a file can have
            raise _as_absent(error, file.parts) from error
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            os.close(descriptor)
            raise NotServedError("/".join(file.parts))
        return io.FileIO(descriptor), found.st_size

    def listed(self, under: str) -> list[tuple[str, int]]:
        """(path, bytes) of all files below a folder, or of one file, by path. What is not there has none.

        NotServedError: nothing in that folder is served. OSError: the disk.
        """
        parts = _parts(under)
        depth = _depth(parts[0])
        if len(parts) > depth:
            raise NotServedError(under)
        base, below = self._base(parts)
        try:
            if len(parts) == depth:
                folder, pattern = _descend(base, below[:-1]), below[-1]
            else:
                folder, pattern = _descend(base, below), None
        except (OSError, ValueError) as error:
            _as_absent(error, parts)
            return []
        prefix = parts if pattern is None else parts[:-1]
        try:
            return sorted(_files(folder, prefix, depth - len(prefix), pattern))
        finally:
            os.close(folder)

    def _base(self, parts: tuple[str, ...]) -> tuple[Path, tuple[str, ...]]:
        if parts[0] == "commitlog" and self._log is not None:
            return self._log, parts[1:]
        return self._root, parts


def _descend(base: Path, parts: tuple[str, ...]) -> int:
    """A descriptor of the folder. What the operator named may be a link (`base`), nothing below it may."""
    folder = os.open(base, _FOLDER & ~os.O_NOFOLLOW)
    for part in parts:
        above = folder
        try:
            folder = os.open(part, _FOLDER, dir_fd=above)
        finally:
            os.close(above)
    return folder


def _as_absent(error: OSError | ValueError, parts: tuple[str, ...]) -> NotServedError:
    if isinstance(error, OSError) and error.errno not in _ABSENT:
        raise error
    return NotServedError("/".join(parts))


def _files(folder: int, prefix: tuple[str, ...], depth: int, only: str | None) -> Iterator[tuple[str, int]]:
    """`depth`: how many levels below the folder the files are; others are passed over, as are links."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if only is not None and entry.name != only:
                continue
            try:
                if depth == 1 and entry.is_file(follow_symlinks=False):
                    path = "/".join((*prefix, entry.name))
                    file_of(path)
                    yield path, entry.stat(follow_symlinks=False).st_size
                elif depth > 1 and entry.is_dir(follow_symlinks=False):
                    below = os.open(entry.name, _FOLDER, dir_fd=folder)
                    try:
                        yield from _files(below, (*prefix, entry.name), depth - 1, None)
                    finally:
                        os.close(below)
            except NotServedError:
                continue  # a name that is no segment's
            except OSError as error:
                if error.errno not in _ABSENT:
                    raise
                # It expired while we looked.
