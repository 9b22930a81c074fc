"""The tables under `config/`: small JSON files, replaced as a whole, with the version before beside them.

    topics.json        the table
    topics.json.bak    the one before it
    topics.json.tmp    a new one on its way

Saving writes and syncs X.tmp, renames X to X.bak, renames X.tmp to X and syncs the folder: at every moment one of X
and X.bak is a whole table, also on a disk that keeps only some of this. An X that cannot be read never becomes X.bak:
the good one would be lost with it. Loading takes X or, if it is missing, empty or no JSON, X.bak (as RocketMQ does).
What happens to a version that cannot be read is in `table_opening.py`.

The text is fastjson's pretty form. Source: ConfigManager and MixAll.string2File of RocketMQ 4.8.0, which does not sync.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tallystick.store import fastjson
from tallystick.store._kernel import Door
from tallystick.store.fastjson import FastjsonError

_log = logging.getLogger("tallystick.store.tables")


class TableError(ValueError):
    """Neither the table nor its backup can be read; `path` is the table's."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path


@dataclass(frozen=True, slots=True)
class DataVersion:
    """Tells two states of a table apart: equal only if both numbers are."""

    counter: int = 0
    timestamp: int = 0

    def next(self, now_ms: int) -> DataVersion:
        """The version after this one."""
        return DataVersion(self.counter + 1, now_ms)

    def to_json(self) -> dict[str, int]:
        return {"counter": self.counter, "timestamp": self.timestamp}

    @classmethod
    def from_json(cls, value: Any) -> DataVersion:
        """From a table's `dataVersion`; what is missing or no number counts as 0, RocketMQ 5's `stateVersion` is left.

        A version is only compared with others: a wrong one costs one registration too many.
        """
        fields = value if isinstance(value, dict) else {}
        counter, timestamp = fields.get("counter"), fields.get("timestamp")
        return cls(counter if isinstance(counter, int) else 0, timestamp if isinstance(timestamp, int) else 0)


class JsonTable:
    """One file under `config/`. Blocks for syncs when saving: not for the event loop's thread. One user at a time."""

    def __init__(self, door: Door, path: Path) -> None:
        self.path = path
        self._door = door
        self.backup = path.with_name(path.name + ".bak")
        self._temporary = path.with_name(path.name + ".tmp")
        self._whole: bool | None = None  # whether the file at `path` can be read; None: nobody looked yet

    def load(self) -> dict[Any, Any] | None:
        """The table, or the one before it if that is the one that can be read. None: there is neither.

        TableError: there is a file, but none can be read. OSError: the disk failed.
        """
        faults = []
        for path in (self.path, self.backup):
            try:
                table = _read(path)
            except FileNotFoundError:
                continue
            except FastjsonError as error:
                faults.append(f"{path.name}: {error}")
                continue
            if path == self.path:
                self._whole = True
            elif faults:
                _log.warning("%s cannot be read, its backup is taken: %s", self.path, faults[0])
            return table
        if faults:
            raise TableError(self.path, "; ".join(faults))
        return None

    def read(self, path: Path) -> dict[Any, Any] | None:
        """One version: `path` is that of the table or of its backup. None: there is none.

        FastjsonError: it is no JSON object. OSError: it cannot be read.
        """
        try:
            table = _read(path)
        except FileNotFoundError:
            return None
        if path == self.path:
            self._whole = True
        return table

    def set_aside(self, path: Path) -> Path:
        """Renames a version, durably, to a name that nothing writes to; its new path. OSError: it stays."""
        if path == self.path:
            self._whole = None
        number = 1
        while os.path.lexists(kept := path.with_name(f"{path.name}.damaged-{number}")):
            number += 1
        self._door.rename(str(path), str(kept))
        self._door.sync_dir(str(path.parent))
        return kept

    def save(self, table: dict[Any, Any]) -> None:
        """Replaces the table, durably. OSError: it failed; this table or the one before it can still be loaded."""
        self._door.mkdir(str(self.path.parent))
        self._door.write_file(str(self._temporary), fastjson.dumps(table, pretty=True))
        if self._is_whole():
            self._door.rename(str(self.path), str(self.backup))
        self._whole = None
        self._door.rename(str(self._temporary), str(self.path))
        self._door.sync_dir(str(self.path.parent))
        self._whole = True

    def _is_whole(self) -> bool:
        if self._whole is None or (self._whole and not self.path.exists()):
            try:
                _read(self.path)
            except (OSError, FastjsonError):
                return False
            self._whole = True
        return self._whole


def _read(path: Path) -> dict[Any, Any]:
    table = fastjson.loads(path.read_bytes())
    if not isinstance(table, dict):
        raise FastjsonError("no JSON object", 0)
    return table
