"""Notices that files changed, without reading them: a certificate with its key, a list of accounts or tokens.

`stat` of the files shows a change, with links followed: Kubernetes puts a new version into a new folder and replaces a
link to it. The state is taken before the files are read, so a change during the read is noticed afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

_State = tuple[tuple[int, ...] | None, ...]


class FileWatch:
    """Some files that are used together."""

    def __init__(self, paths: Iterable[Path], *, settle: bool = False) -> None:
        """`settle`: a change counts when two looks in a row find the same state, so that a file that is being written
        is not read half."""
        self._paths = tuple(paths)
        self._settle = settle
        self._used = self._seen = self._look()

    def changed(self) -> bool:
        """Whether the files are other ones than at the last time this was true, or at the beginning. A file that is
        missing or cannot be looked at is a change too."""
        state = self._look()
        # A file that is missing is not being written.
        is_settled = not self._settle or state == self._seen or None in state
        self._seen = state
        if state == self._used or not is_settled:
            return False
        self._used = state
        return True

    def take(self) -> None:
        """The present state is in use: the caller wrote it."""
        self._used = self._seen = self._look()

    def _look(self) -> _State:
        return tuple(_stamp(path) for path in self._paths)


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:  # reading it reports why
        return None
    # The time of the last change of the file's attributes, too: permission to read it may have been given.
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
