"""The output of a job: a folder, or a bucket of an S3-compatible store (`outputs_s3.py`).

A file appears complete under its name, or not at all: it is written in another place until its writer has finished. A
bucket can neither show several files at once nor rename one. So one more file, which is written last, records which
files belong together.

    shared      tasks write their files themselves, because all of them can access the output
    not shared  only the driver can write (a volume that one pod may mount): the files of a task are sent to the driver,
                so they must fit into memory; `carried` and `Runner.stream` limit them to a few results at a time
"""

from __future__ import annotations

import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TypeVar

from tallystick.spark.runner import Runner

ASIDE = "_tally/aside"
"""Folder of files that are being written. When a job begins, its content is left over from killed jobs."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class OutputError(Exception):
    """The output cannot be used: its name is invalid, or its content does not permit it."""


class Output(ABC):
    """Files by name: a relative path with `/`. It can be pickled. All methods raise OSError."""

    shared: bool
    place: str
    """The place, for messages. It contains no secret."""

    @abstractmethod
    @contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        """Writes a file. When the block ends, the file is durable and replaces one of the same name. If the block
        raises, nothing is written."""
        yield BytesIO()

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """Returns the content of a small file; None: it does not exist."""

    @contextmanager
    def opened(self, name: str) -> Iterator[Any]:
        """Opens a file for random reads, as pyarrow's file. FileNotFoundError."""
        raise NotImplementedError
        yield

    @abstractmethod
    def names(self, below: str = "") -> list[str]:
        """Returns the names of all files, or of those below a folder, sorted; without files that are being written."""

    def sizes(self) -> dict[str, int]:
        """Returns the bytes of all files by name."""
        raise NotImplementedError

    @abstractmethod
    def remove(self, name: str) -> None:
        """Removes a file, if it exists."""

    def clear_aside(self) -> None:  # noqa: B027 -- not all places have an aside
        """Removes the unfinished files of killed writers."""

    def write(self, name: str, data: bytes) -> None:
        with self.create(name) as file:
            file.write(data)


class FolderOutput(Output):
    """`shared`: the folder is mounted under the same path wherever tasks run."""

    def __init__(self, folder: Path, *, shared: bool = True) -> None:
        self.folder = folder
        self.shared = shared
        self.place = str(folder)

    @contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        target = self._path(name)
        aside = self.folder / ASIDE
        aside.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=aside)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).chmod(0o644)  # mkstemp's files are private
            made = [folder for folder in (target.parent, *target.parent.parents) if not folder.exists()]
            target.parent.mkdir(parents=True, exist_ok=True)
            Path(temporary).replace(target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        for folder in {target.parent, *(each.parent for each in made)}:
            _sync_folder(folder)

    def read(self, name: str) -> bytes | None:
        try:
            return self._path(name).read_bytes()
        except FileNotFoundError:
            return None

    @contextmanager
    def opened(self, name: str) -> Iterator[Any]:
        import pyarrow as pa

        with pa.memory_map(str(self._path(name))) as file:
            yield file

    def sizes(self) -> dict[str, int]:
        return {name: self._path(name).stat().st_size for name in self.names()}

    def names(self, below: str = "") -> list[str]:
        found = []
        for path in (self._path(below) if below else self.folder).rglob("*"):
            name = path.relative_to(self.folder).as_posix()
            if not name.startswith(f"{ASIDE}/") and path.is_file():
                found.append(name)
        return sorted(found)

    def remove(self, name: str) -> None:
        self._path(name).unlink(missing_ok=True)

    def clear_aside(self) -> None:
        shutil.rmtree(self.folder / ASIDE, ignore_errors=True)

    def _path(self, name: str) -> Path:
        return self.folder / checked(name)


class Carried(Output):
    """The files of one task on their way to the driver. `files`: (name, bytes), in the order of their completion."""

    shared = True
    place = "the driver"

    def __init__(self) -> None:
        self.files: list[tuple[str, bytes]] = []

    @contextmanager
    def create(self, name: str) -> Iterator[BinaryIO]:
        file = BytesIO()
        yield file
        self.files.append((checked(name), file.getvalue()))

    def read(self, name: str) -> bytes | None:
        raise NotImplementedError("tasks do not read the output")

    def names(self, below: str = "") -> list[str]:
        raise NotImplementedError("tasks do not read the output")

    def remove(self, name: str) -> None:
        raise NotImplementedError("tasks do not remove files")


def writing(
    output: Output, runner: Runner, function: Callable[[Item, Output], Result], items: Sequence[Item]
) -> Iterator[Result]:
    """Yields `function` of each item, in their order. The files that it wrote are in `output` when its result is
    yielded. If the output is not shared, the files of an item should have at most some 32 MiB together."""
    if output.shared:
        yield from runner(partial(_directly, function=function, output=output), items)
        return
    for result, files in runner.stream(partial(_carrying, function=function), items):
        for name, data in files:
            output.write(name, data)
        yield result


def _directly(item: Any, function: Callable[[Any, Output], Any], output: Output) -> Any:
    return function(item, output)


def _carrying(item: Any, function: Callable[[Any, Output], Any]) -> tuple[Any, list[tuple[str, bytes]]]:
    carried = Carried()
    return function(item, carried), carried.files


def output_at(text: str) -> Output:
    """Returns the output of a folder, or of `s3://bucket/prefix` with AWS_ENDPOINT_URL and AWS_REGION as
    `outputs_s3.output_settings` finds them. OutputError, OSError."""
    if not text.startswith("s3://"):
        return FolderOutput(Path(text))
    from tallystick.spark.outputs_s3 import S3Output, output_settings

    settings = output_settings()
    return S3Output(text, settings.get("AWS_ENDPOINT_URL"), settings.get("AWS_REGION"))


def checked(name: str) -> str:
    """Checks the name of a file. OutputError: it is not a name within an output."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "/".join(parts) != name:
        raise OutputError(f"{name!r} is not the name of a file")
    return name


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_whole(system: Any, path: str) -> bytes | None:
    """Returns the content of a file of a pyarrow file system; None: there is no such file. OSError."""
    try:
        with system.open_input_stream(path) as stream:
            data: bytes = stream.read()
            return data
    except FileNotFoundError:
        return None
