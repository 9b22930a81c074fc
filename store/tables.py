"""The tables under `config/`: small JSON files, replaced as a whole, each with its previous version as backup.

    topics.json        the table
    topics.json.bak    the previous version
    topics.json.tmp    a new version that is being written

Saving writes and syncs X.tmp, renames X to X.bak, renames X.tmp to X and syncs the folder. At every moment X or X.bak
is a complete table, even if a crash loses some of these steps. An invalid X never becomes X.bak, because it would
replace the good version. Loading reads X or, if it is missing, empty or damaged, X.bak (as RocketMQ does).
`table_opening.py` handles versions that cannot be read.

The format is fastjson's pretty form. The first field, `crc32`, is the CRC of the text without it: damage can leave
valid JSON with other names or numbers. RocketMQ ignores the field and drops it when it saves; a file without it is
accepted if it is JSON. Source: ConfigManager and MixAll.string2File of RocketMQ 4.8.0, which does not sync.
"""

from __future__ import annotations

import logging
import os
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tallystick.store import fastjson
from tallystick.store._kernel import Door
from tallystick.store.fastjson import FastjsonError

_logger = logging.getLogger("tallystick.store")

_CHECKSUM = "crc32"
_CHECKED = re.compile(rb'\{\n\t"crc32":(\d{1,10}),')
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")


class DamagedTableError(ValueError):
    """The content of a table's file is not what a broker has saved."""


class TableError(ValueError):
    """Neither the table nor its backup can be read. `path`: the file of the table."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path


@dataclass(frozen=True, slots=True)
class DataVersion:
    """Identifies a state of a table: two versions are equal only if both numbers are equal."""

    counter: int = 0
    timestamp: int = 0

    def next(self, now_ms: int) -> DataVersion:
        """The next version."""
        return DataVersion(self.counter + 1, now_ms)

    def to_json(self) -> dict[str, int]:
        return {"counter": self.counter, "timestamp": self.timestamp}

    @classmethod
    def from_json(cls, value: Any) -> DataVersion:
        """Reads a table's `dataVersion`. Missing or invalid numbers count as 0; RocketMQ 5's `stateVersion` is ignored.

        Versions are only compared: a wrong one causes one unnecessary registration.
        """
        fields = value if isinstance(value, dict) else {}
        counter, timestamp = fields.get("counter"), fields.get("timestamp")
        return cls(counter if isinstance(counter, int) else 0, timestamp if isinstance(timestamp, int) else 0)


class JsonTable:
    """One file under `config/`. Saving blocks for syncs: do not call it on the event loop. Not thread-safe."""

    def __init__(self, door: Door, path: Path) -> None:
        self.path = path
        self._door = door
        self.backup = path.with_name(path.name + ".bak")
        self._temporary = path.with_name(path.name + ".tmp")
        self._whole: bool | None = None  # whether the file at `path` is valid; None: not checked yet

    def load(self) -> dict[Any, Any] | None:
        """The table, or its backup if only that is valid. None if neither file exists.

        Raises TableError if no existing file is valid; OSError.
        """
        faults = []
        for path in (self.path, self.backup):
            try:
                table = _read(path)
            except FileNotFoundError:
                continue
            except DamagedTableError as error:
                faults.append(f"{path.name}: {error}")
                continue
            if path == self.path:
                self._whole = True
            elif faults:
                _logger.warning("%s cannot be read, using its backup: %s", self.path, faults[0])
            return table
        if faults:
            raise TableError(self.path, "; ".join(faults))
        return None

    def read(self, path: Path) -> dict[Any, Any] | None:
        """Loads one version: `path` is the file of the table or of its backup. None if it does not exist.

        Raises DamagedTableError; OSError if it cannot be read.
        """
        try:
            table = _read(path)
        except FileNotFoundError:
            return None
        if path == self.path:
            self._whole = True
        return table

    def set_aside(self, path: Path) -> Path:
        """Durably renames a version to a name that is never written to. Returns the new path. OSError: it is
        unchanged."""
        if path == self.path:
            self._whole = None
        number = 1
        while os.path.lexists(kept := path.with_name(f"{path.name}.damaged-{number}")):
            number += 1
        self._door.rename(str(path), str(kept))
        self._door.sync_dir(str(path.parent))
        return kept

    def save(self, table: dict[Any, Any]) -> None:
        """Durably replaces the table. OSError: it failed; this version or the previous one can still be loaded."""
        self._door.mkdir(str(self.path.parent))
        self._door.write_file(str(self._temporary), encode(table))
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
            except (OSError, DamagedTableError):
                return False
            self._whole = True
        return self._whole


def encode(table: dict[Any, Any]) -> bytes:
    """The content of the file of a table."""
    text = fastjson.dumps(table, pretty=True)
    return b'{\n\t"%s":%d,' % (_CHECKSUM.encode(), zlib.crc32(text)) + text[1:] if table else text


def decode(data: bytes) -> dict[Any, Any]:
    """The table in the content of a file. Raises DamagedTableError."""
    checked = _CHECKED.match(data)
    if checked is not None and zlib.crc32(b"{" + data[checked.end() :]) != int(checked[1]):
        raise DamagedTableError(
            f"the CRC of its content differs from its field {_CHECKSUM}; "
            "remove the field from a file that was changed by hand"
        )
    if control := _CONTROL.search(data):  # RocketMQ escapes them, and its reader accepts them
        raise DamagedTableError(f"a control character at byte {control.start()}")
    try:
        table = fastjson.loads(data)
    except FastjsonError as error:
        raise DamagedTableError(f"no JSON: {error}") from error
    if not isinstance(table, dict):
        raise DamagedTableError("no JSON object")
    table.pop(_CHECKSUM, None)
    return table


def _read(path: Path) -> dict[Any, Any]:
    return decode(path.read_bytes())
