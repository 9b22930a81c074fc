"""A restore that can be run again after a kill at any point, with the same result: `tally backup restore --once NAME`.

A program that starts a restore, such as an operator, may not learn how it ended. So the restore leaves its name:

    tally-restore-run    the name of the restore; written before anything else, and kept
    tally-restored       the result; written when everything else is durable

The next run of the same name finds one of three folders: without the name (it begins), with the name and without the
result (it removes what the interrupted run left, and begins), or with the result (it does nothing). A folder that
contains anything else is never changed. Two runs in one folder exclude each other with a lock.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tallystick.node.backup.errors import BackupError
from tallystick.node.backup.restore import Restore, Restored, check_empty
from tallystick.store._kernel import Door
from tallystick.store.replace_file import replace_file

RUN_NAME = "tally-restore-run"
RESULT_NAME = "tally-restored"
_LEFT = frozenset({f"{RUN_NAME}.tmp"})
"""What a run that was killed before it had a name can leave."""


def finished(root: Path, name: str) -> dict[str, Any] | None:
    """Returns the result of an earlier run; None if none has finished. BackupError: another restore has the folder."""
    try:
        noted = json.loads((root / RESULT_NAME).read_bytes())
        run, result = noted["run"], dict(noted["result"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise BackupError(f"{root / RESULT_NAME} is damaged: {error!r}") from error
    if run != name:
        raise BackupError(f"{root} has the store of the restore {run!r}, not of {name!r}")
    return result


def run(restore: Restore, name: str) -> Restored:
    """Runs a restore under its name. BackupError: the folder has other files, or another run uses it; see `Restore`."""
    root, door = restore.root, Door()
    if root.exists() and not root.is_dir():
        raise BackupError(f"{root} is not a folder")
    door.mkdir(root)
    with _alone(root):
        if _is_of(root, name):
            _empty(root, door)
        else:
            check_empty(root, _LEFT)
            replace_file(door, root / RUN_NAME, name.encode())
        restored = restore.run(ignored=_LEFT | {RUN_NAME})
        if not restored.damaged:
            noted = {"run": name, "result": restored.to_json(restore.manifest.id)}
            replace_file(door, root / RESULT_NAME, json.dumps(noted).encode())
    return restored


def _is_of(root: Path, name: str) -> bool:
    """Whether an earlier run of this name began here. BackupError: it was one of another name."""
    try:
        found = (root / RUN_NAME).read_text()
    except FileNotFoundError:
        return False
    if found != name:
        raise BackupError(f"{root} has what the restore {found!r} left, not {name!r}")
    return True


def _empty(root: Path, door: Door) -> None:
    """Removes everything but the name of the run. The name stays, so this can be interrupted as well."""
    for entry in list(os.scandir(root)):
        if entry.is_dir(follow_symlinks=False) and entry.name != "lost+found":
            for folder, _, files in os.walk(entry.path, topdown=False):
                for file in files:
                    door.remove(Path(folder) / file)
                Path(folder).rmdir()
        elif not entry.is_dir(follow_symlinks=False) and entry.name != RUN_NAME:
            door.remove(Path(entry.path))
    door.sync_dir(root)


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise BackupError(f"another restore into {root} is running") from None
    finally:
        os.close(descriptor)
