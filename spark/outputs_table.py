"""An output at the location of an Iceberg table, in any file system that the table's catalog names.

Names are relative to the table's location, or whole locations: data files can be elsewhere (`write.data.path`). A file
is written to a temporary file first. Then it is uploaded, or moved from the folder `aside` where a half-written file
would be visible.
"""

from __future__ import annotations

import posixpath
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import pyarrow.fs as filesystems
from pyiceberg.io.pyarrow import PyArrowFileIO

from tallystick.spark.outputs import Output, checked, read_whole

_PIECE_BYTES = 8 << 20
_ATOMIC = ("s3", "gcs", "abfs")
"""Arrow's names of file systems where an object appears when its upload is complete."""


class TableOutput(Output):
    """`io`: of the table; tasks get its properties, with the credentials that the catalog gave. `location`: of the
    table. `aside`: folder there for unfinished files."""

    shared = True

    def __init__(self, io: PyArrowFileIO, location: str, aside: str) -> None:
        self._io = io
        self._aside = aside
        self.place = location.rstrip("/")

    @contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        with tempfile.TemporaryFile() as file:
            yield file
            file.seek(0)
            system, path = self._at(name)
            if system.type_name in _ATOMIC:
                self._copy(file, system, path)
                return
            _, aside = self._at(f"{self._aside}/{uuid.uuid4().hex}")
            for each in (aside, path):
                system.create_dir(posixpath.dirname(each), recursive=True)
            self._copy(file, system, aside)
            system.move(aside, path)

    def _copy(self, file: BinaryIO, system: Any, path: str) -> None:
        with system.open_output_stream(path) as stream:
            shutil.copyfileobj(file, stream, _PIECE_BYTES)

    def read(self, name: str) -> bytes | None:
        system, path = self._at(name)
        return read_whole(system, path)

    @contextmanager
    def opened(self, name: str) -> Iterator[Any]:
        system, path = self._at(name)
        with system.open_input_file(path) as file:
            yield file

    def names(self, below: str = "") -> list[str]:
        system, root = self._at("")
        folder = posixpath.join(root, below) if below else root
        found = system.get_file_info(filesystems.FileSelector(folder, allow_not_found=True, recursive=True))
        return sorted(posixpath.relpath(each.path, root) for each in found if each.is_file)

    def remove(self, name: str) -> None:
        self.removed(name)

    def removed(self, name: str) -> bool:
        """Removes a file. False: it does not exist."""
        system, path = self._at(name)
        if system.get_file_info(path).type == filesystems.FileType.NotFound:
            return False
        system.delete_file(path)
        return True

    def remove_folder(self, name: str) -> None:
        """Removes all files below a folder, and the folder."""
        system, path = self._at(name)
        if system.get_file_info(path).type != filesystems.FileType.NotFound:
            system.delete_dir(path)

    def _at(self, name: str) -> tuple[Any, str]:
        """The file system of a name, and its path there."""
        if not name:
            location = self.place
        elif "://" in name or name.startswith("/"):
            location = name
        else:
            location = f"{self.place}/{checked(name)}"
        scheme, netloc, path = self._io.parse_location(location, self._io.properties)
        return self._io.fs_by_scheme(scheme, netloc), path.rstrip("/")
