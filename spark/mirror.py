"""A local mirror of a store that is not mounted: files of the right lengths, whose bytes are fetched when necessary.

If a process does not run where the store is, it gets a temporary folder with the store's files as holes of full length.
`presence.bring` fetches the blocks that are about to be read, from the broker or a backup. So the code for mounted
volumes also reads the mirror, and only the blocks that it reads cross the network. Zeros are not written: an index of
400 MB with a few entries takes a few blocks. The folder is removed when the task ends.

A ConsumeQueue has its full length from creation, mostly zeros, and there can be ten thousands of them. So the broker
tells where each of them ends: no reader fetches all queues to find out, and no zeros behind the end.

The mirror has no part of the log behind the committed position, because the broker does not serve it. A task that
reads a few files of the log names them (`files`); then no listing is requested.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from tallystick.spark.store_client import RemoteQueues, RemoteStore
from tallystick.store._kernel import QueueEnd
from tallystick.store.formats.queue_format import UNIT
from tallystick.store.formats.segment_files import is_of_log, segment_start

BLOCK_BYTES = 64 << 10
_DERIVED = ("consumequeue", "consumequeue_ext", "index")
_ZEROS = bytes(BLOCK_BYTES)
_KEEP_SIZE_PUNCH_HOLE = 0x01 | 0x02  # fixed by Linux: fallocate(2)
_libc = ctypes.CDLL(None, use_errno=True)


class Remote(Protocol):
    """The files of a store elsewhere, such as `StoreClient`."""

    def store(self, under: str | None = None) -> RemoteStore:
        """Returns the present state of the store. `under`: lists the files below this folder instead of the log's."""
        ...

    def queues(self, below: int) -> RemoteQueues:
        """Returns where the ConsumeQueues end; only if `store` says that it tells."""
        ...

    def read(self, path: str, begin: int, end: int) -> Iterator[bytes]:
        """Yields bytes [begin, end) of a file, end > begin, in pieces. FileNotFoundError: the file does not exist."""
        ...

    def __exit__(self, *_: object) -> None: ...


class Mirror:
    """A `presence.Bringer`, and a context manager: `root` and `committed` exist within it. It closes `remote`.

    `files`: paths of the files that the mirror has, with their bytes and how many of them can be read; None: it has all
    files of the store. `most_derived_bytes`: 0: without ConsumeQueues and index. Otherwise without those that have more
    bytes than this, if the broker does not tell where queues end, because they are then fetched as a whole.
    It raises what `remote` raises; OSError.
    """

    def __init__(
        self,
        remote: Remote,
        parent: Path | None = None,
        files: Mapping[str, tuple[int, int]] | None = None,
        *,
        most_derived_bytes: int | None = None,
    ) -> None:
        self._client = remote
        self._parent = parent
        self._files = files
        self._most_derived_bytes = most_derived_bytes
        self.committed: int | None = None
        """The bound that the remote side gave; None: it was not asked."""
        self._readable: dict[Path, int] = {}
        self._held: dict[Path, set[int]] = {}
        self._tells = False
        self._queues: RemoteQueues | None = None
        self._ends: dict[str, QueueEnd] = {}
        self.fetched_bytes = 0

    def __enter__(self) -> Mirror:
        self._folder = Path(tempfile.mkdtemp(prefix="mirror-", dir=self._parent))
        self.root = self._folder / "store"
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._client.__exit__()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _make(self) -> None:
        if self._files is not None:
            for path, (length, readable) in self._files.items():
                self._make_file(path, length, readable)
            return
        derived = [each for folder in _DERIVED for each in self._derived(folder)]
        store = self._client.store()  # last, so that its bound is behind everything that the queues name
        (self.root / store.log_folder).mkdir(parents=True)
        self.committed, self._tells = store.committed, store.tells_queues
        for path, length in [*self._log_files(store), *derived]:
            start = _log_start(path)
            self._make_file(path, length, length if start is None else max(0, min(length, store.committed - start)))
        if not store.closed:
            (self.root / "abort").touch()

    def _derived(self, folder: str) -> Iterable[tuple[str, int]]:
        most = self._most_derived_bytes
        if most == 0:
            return ()
        store = self._client.store(folder)
        fits = most is None or store.tells_queues or sum(length for _, length in store.files) <= most
        return store.files if fits else ()

    def _make_file(self, path: str, length: int, readable: int) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("wb") as new:
            new.truncate(length)
        self._readable[file] = readable

    def _log_files(self, store: RemoteStore) -> list[tuple[str, int]]:
        """Lists the files of both logs, if dledger continued a plain one."""
        older = () if store.log_folder == "commitlog" else self._client.store("commitlog").files
        return [*older, *store.files]

    def queues(self) -> RemoteQueues | None:
        if self._queues is None and self._tells and self.committed is not None:
            self._queues = self._client.queues(self.committed)
            self._ends = {f"{each.topic}/{each.queue}": each for each in self._queues.ends if each.regular}
        return self._queues

    def _written(self, path: Path, readable: int) -> int:
        """Bytes of a file that need to be fetched: behind the last unit of a ConsumeQueue are only zeros."""
        name = path.relative_to(self.root).as_posix()
        if not name.startswith("consumequeue/") or self.queues() is None:
            return readable
        end = self._ends.get(name.removeprefix("consumequeue/").rpartition("/")[0])
        return readable if end is None else max(0, min(readable, end.end * UNIT.size - (segment_start(path.name) or 0)))

    def bring(self, path: Path, begin: int, end: int) -> None:
        readable = self._readable.get(path)
        if readable is None:
            return  # not a file of the store
        readable = self._written(path, readable)
        end = min(end, readable)
        held = self._held.setdefault(path, set())
        for first, last in _runs(begin // BLOCK_BYTES, -(-end // BLOCK_BYTES), held):
            try:
                self._fetch(path, first * BLOCK_BYTES, min(last * BLOCK_BYTES, readable))
            except FileNotFoundError:
                self._forget(path)
                raise
            held.update(range(first, last))

    def _fetch(self, path: Path, begin: int, end: int) -> None:
        with path.open("r+b") as file:
            for piece in self._client.read(path.relative_to(self.root).as_posix(), begin, end):
                self.fetched_bytes += len(piece)
                for at in range(0, len(piece), BLOCK_BYTES):
                    block = piece[at : at + BLOCK_BYTES]
                    if block != _ZEROS[: len(block)]:
                        os.pwrite(file.fileno(), block, begin + at)
                begin += len(piece)

    def _forget(self, path: Path) -> None:
        """Removes a file that expired at the broker, and all older ones."""
        there = {self.root / name for name, _ in self._log_files(self._client.store())}
        for file in list(self._readable):
            if file == path or (_log_start(file.relative_to(self.root).as_posix()) is not None and file not in there):
                file.unlink(missing_ok=True)
                del self._readable[file]

    def release(self, path: Path, begin: int, end: int) -> None:
        """Turns whole blocks of the file into holes again, if the file system supports that."""
        held = self._held.get(path)
        first, last = -(-begin // BLOCK_BYTES), end // BLOCK_BYTES
        if not held or first >= last or not path.exists():
            return
        held.difference_update(range(first, last))
        with path.open("r+b") as file:
            _libc.fallocate(
                file.fileno(),
                _KEEP_SIZE_PUNCH_HOLE,
                ctypes.c_longlong(first * BLOCK_BYTES),
                ctypes.c_longlong((last - first) * BLOCK_BYTES),
            )


def _log_start(path: str) -> int | None:
    """Returns the position of the first byte of a log file; None: it is not a file of the log."""
    parts = tuple(path.split("/"))
    return segment_start(parts[-1]) if is_of_log(parts) else None


def _runs(first: int, last: int, held: set[int]) -> Iterator[tuple[int, int]]:
    """Returns the ranges [a, b) of the blocks [first, last) that were not fetched."""
    begin: int | None = None
    for block in range(first, last):
        if block in held:
            if begin is not None:
                yield begin, block
                begin = None
        elif begin is None:
            begin = block
    if begin is not None:
        yield begin, last
