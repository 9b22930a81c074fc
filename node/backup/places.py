"""Where backups are kept: a folder, or a prefix in an S3-compatible store.

A name is a path with `/`. An object appears whole or not at all, and is durable when `write` returns. Objects are never
changed. They have at most `pieces.PIECE_BYTES` and some bytes of a seal, so a whole object fits into memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from tallystick.node.backup.errors import BackupError, MissingObjectError, PlaceError
from tallystick.store._kernel import Door
from tallystick.store.replace_file import replace_file


class Place(Protocol):
    """All methods block, and raise PlaceError."""

    text: str
    """The place as the user wrote it."""

    def names(self, below: str) -> dict[str, int]:
        """Returns the objects below a folder, with their bytes."""

    def read(self, name: str) -> bytes:
        """Returns an object. MissingObjectError: there is none."""

    def write(self, name: str, data: bytes) -> None:
        """Stores an object: durable and complete, or not there."""

    def remove(self, name: str) -> None:
        """Removes an object. It does not matter whether it exists."""


class FolderPlace:
    """A folder, such as a mounted volume."""

    def __init__(self, root: Path, door: Door | None = None) -> None:
        self.text = str(root)
        self._root = root
        self._door = door or Door()

    def names(self, below: str) -> dict[str, int]:
        """See `Place`."""
        try:
            return dict(self._found(self._root / below, below.rstrip("/")))
        except OSError as error:
            raise PlaceError(f"{self.text}: {error}") from error

    def _found(self, folder: Path, name: str) -> Iterator[tuple[str, int]]:
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            return
        for entry in entries:
            path = f"{name}/{entry.name}" if name else entry.name
            if entry.is_dir(follow_symlinks=False):
                yield from self._found(folder / entry.name, path)
            elif not entry.name.endswith(".tmp"):  # an interrupted write
                try:
                    yield path, entry.stat().st_size
                except FileNotFoundError:
                    continue  # it was removed meanwhile

    def read(self, name: str) -> bytes:
        """See `Place`."""
        try:
            with (self._root / name).open("rb") as file:
                data = file.read()
                _drop(file.fileno())
                return data
        except FileNotFoundError:
            raise MissingObjectError(self.text, name) from None
        except OSError as error:
            raise PlaceError(f"{self.text}: {error}") from error

    def write(self, name: str, data: bytes) -> None:
        """See `Place`."""
        path = self._root / name
        try:
            self._door.mkdir(path.parent)
            replace_file(self._door, path, data)
            with path.open("rb") as file:
                _drop(file.fileno())  # so that the read that checks it comes from the disk
        except OSError as error:
            path.with_name(path.name + ".tmp").unlink(missing_ok=True)  # it may fill the disk
            raise PlaceError(f"{self.text}: cannot store {name}: {error}") from error

    def remove(self, name: str) -> None:
        """See `Place`."""
        path = self._root / name
        try:
            self._door.remove(path)
            self._door.sync_dir(path.parent)
        except FileNotFoundError:
            return
        except OSError as error:
            raise PlaceError(f"{self.text}: cannot remove {name}: {error}") from error


def _drop(descriptor: int) -> None:
    """Drops a file's pages from the page cache, which belongs to the broker: they are durable, and read once."""
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def open_place(text: str, settings: Path | None = None) -> Place:
    """Returns the place that the user wrote: a folder, or `s3://bucket/prefix`.

    `settings`: a file with the endpoint and the credentials of an S3 store. BackupError: it has another form.
    """
    scheme = urlsplit(text).scheme
    if scheme == "s3":
        from tallystick.node.backup.s3 import S3Place, s3_settings

        return S3Place(text, s3_settings(settings))
    if scheme and "://" in text:
        raise BackupError(f"{text}: a place of backups is a folder or s3://bucket/prefix")
    return FolderPlace(Path(text))
