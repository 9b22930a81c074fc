"""The disk below raftos: files by path, what of them a killed process leaves, what of them a power loss leaves.

raftos opens a file, writes and closes it; it never asks for a sync. So

- a killed process (`kill -9`) leaves all that it has closed, and the file that it was about to write as `open` left it:
  with mode "wb" that is empty;
- a power loss leaves each file as it was at some moment of the last `WRITE_BACK_SECONDS`: what is older, the operating
  system has written back by itself. Linux waits up to 30 seconds; we are kinder.
"""

from __future__ import annotations

import io
import random
from collections import deque
from collections.abc import Callable

from .loop import Killed

WRITE_BACK_SECONDS = 5.0

Versions = deque[tuple[float, bytes | None]]
"""A file since its oldest content that may still be the one on the disk: (since when, content; None: no file)."""


class _Writing(io.BytesIO):
    """Becomes the file's content, or its new end, when it is closed."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        super().__init__()
        self._write = write

    def close(self) -> None:
        if not self.closed:
            data = self.getvalue()
            super().close()
            self._write(data)


class Files:
    """All files of a group. A member's files are those whose path contains its address."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._versions: dict[str, Versions] = {}
        self._kills: list[str] = []

    def content(self, path: str) -> bytes | None:
        """None: there is no such file."""
        versions = self._versions.get(path)
        return versions[-1][1] if versions else None

    def open(self, path: str, mode: str) -> io.BytesIO:
        """As the built-in one, for the modes that raftos uses. FileNotFoundError: to be read, and not there."""
        content = self.content(path)
        if mode == "rb":
            if content is None:
                raise FileNotFoundError(path)
            return io.BytesIO(content)
        if mode == "wb":
            self._put(path, b"")
            return _Writing(lambda data: self._rewrite(path, data))
        assert mode in ("ab", "a")
        if content is None:
            self._put(path, b"")
        return _Writing(lambda data: self._put(path, (self.content(path) or b"") + data))

    def kill_in_rewrite(self, path: str) -> None:
        """Who next opens this file with mode "wb" dies before anything is written to it."""
        self._kills.append(path)

    def lose_power(self, address: str, dice: random.Random | None) -> None:
        """`dice`: at which of the possible moments each file is left; without, at the oldest."""
        for path, versions in self._versions.items():
            if address in path:
                self._forget(versions)
                _, survivor = versions[0] if dice is None else dice.choice(versions)
                versions.clear()
                versions.append((self._now(), survivor))

    def _rewrite(self, path: str, content: bytes) -> None:
        if path in self._kills:
            self._kills.remove(path)
            raise Killed
        self._put(path, content)

    def _put(self, path: str, content: bytes) -> None:
        now = self._now()
        versions = self._versions.setdefault(path, deque([(float("-inf"), None)]))
        if versions[-1][0] == now:
            versions.pop()  # between two writes of one moment no power is lost
        versions.append((now, content))
        self._forget(versions)

    def _forget(self, versions: Versions) -> None:
        """All before the one that has certainly been written back."""
        edge = self._now() - WRITE_BACK_SECONDS
        while len(versions) > 1 and versions[1][0] <= edge:
            versions.popleft()
