"""The account file `plain_acl.yml`: read at the start, and again when it changed.

A changed file is used when two looks in a row find the same file (`FileWatch`), so that one that is being written is
not read half. A file that cannot be used changes nothing: the accounts stay those of the last good file, and `problem`
says why.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from pathlib import Path

from tallystick.node.access.fields import AclError
from tallystick.node.access.plain_acl import MAX_BYTES, PlainAcl, dump, parse
from tallystick.node.access.sealing import Sealer
from tallystick.store._kernel import Door
from tallystick.store.file_watch import FileWatch
from tallystick.store.replace_file import replace_file

_logger = logging.getLogger("tallystick.access")

_OWNER_ONLY = 0o600


class AccountFile:
    """One file. `acl` is the content of the last good version, with secrets as they are used."""

    def __init__(self, path: Path, sealer: Sealer, door: Door) -> None:
        """Reads the file. AclError, OSError: it cannot be used."""
        self.path = path
        self.problem = ""
        """Why the file is not used as it is now; empty if it is."""
        self._sealer = sealer
        self._door = door
        self._watch = FileWatch([path], settle=True)
        self.acl = self._read()

    def look(self) -> bool:
        """Uses the file if it changed and is complete. Returns whether `acl` changed."""
        if not self._watch.changed():
            return False
        try:
            found = self._read()
        except OSError as error:
            self._fails(error.strerror or str(error))
            return False
        except AclError as error:
            self._fails(str(error))
            return False
        self.problem = ""
        changed, self.acl = found != self.acl, found
        _logger.warning("%s was read again: it has %d accounts", self.path, len(found.accounts))
        return changed

    def save(self, acl: PlainAcl) -> None:
        """Replaces the file. Blocks for syncs. OSError: nothing changed. The new file has the permissions of the old
        one."""
        data = dump(self._sealer.sealed(acl))
        if len(data) > MAX_BYTES:
            raise OSError(errno.EFBIG, f"the accounts have {len(data)} bytes, more than {MAX_BYTES}")
        mode = _OWNER_ONLY
        with contextlib.suppress(OSError):
            mode = self.path.stat().st_mode & 0o777
        temporary = self.path.with_name(self.path.name + ".tmp")
        with contextlib.suppress(OSError):
            temporary.unlink()
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))  # before it has any secret
        replace_file(self._door, self.path, data)
        self._watch.take()
        self.acl, self.problem = acl, ""

    def _read(self) -> PlainAcl:
        with self.path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        return self._sealer.opened(parse(content))

    def _fails(self, problem: str) -> None:
        if problem != self.problem:
            _logger.error("%s cannot be used, the accounts stay as they were: %s", self.path, problem)
        self.problem = problem
