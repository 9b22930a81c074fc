"""Authentication of administration over HTTP: a caller must send one of the tokens in a file.

Each line of the file is a token. It can contain two while one replaces the other. The process checks the file at each
request, and reads it again if it changed, also if a symbolic link was replaced, as Kubernetes does with Secrets. If the
file cannot be read, or has no token, all requests are refused. Tokens are never logged.
"""

from __future__ import annotations

import errno
import hmac
import logging
from pathlib import Path

from tallystick.store.file_watch import FileWatch

_logger = logging.getLogger("tallystick.http")

_SCHEME = "bearer"
_MAX_BYTES = 64 * 1024


class TokenFile:
    """The tokens of one file."""

    def __init__(self, path: Path) -> None:
        """Reads the file. OSError: it cannot be read."""
        self._path = path
        path.stat()
        self._watch = FileWatch([path])
        self._tokens: tuple[bytes, ...] = ()
        self._problem = ""
        self._read()
        if self._problem:
            raise OSError(errno.EINVAL, self._problem, str(path))

    def admits(self, authorization: str | None) -> bool:
        """Returns whether the value of the header `Authorization` contains a token of the file, in constant time."""
        self._refresh()
        scheme, _, given = (authorization or "").strip().partition(" ")
        if scheme.lower() != _SCHEME:
            return False
        sent = given.strip().encode("utf-8", "surrogateescape")
        # all of them, so that the time does not depend on which one matches
        matches = [hmac.compare_digest(sent, token) for token in self._tokens]
        return any(matches)

    def _refresh(self) -> None:
        if self._watch.changed() or self._problem:
            self._read()

    def _read(self) -> None:
        try:
            with self._path.open("rb") as file:
                lines = file.read(_MAX_BYTES).splitlines()
            self._tokens = tuple(filter(None, (line.strip() for line in lines)))
            problem = "" if self._tokens else "has no token"
        except OSError as error:
            self._tokens = ()
            problem = error.strerror or type(error).__name__
        if problem and problem != self._problem:
            _logger.error("%s: %s: all requests are refused", self._path, problem)
        self._problem = problem


def read_token(path: Path) -> str:
    """Returns the first token of a file. Raises OSError if the file does not contain one."""
    with path.open("rb") as file:
        for line in file.read(_MAX_BYTES).splitlines():
            if line.strip():
                return line.strip().decode("utf-8", "surrogateescape")
    raise OSError(errno.EINVAL, "has no token", str(path))
