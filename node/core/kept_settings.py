"""Settings that were changed while the process ran: a file with their values as text, which the next start uses.

The values override files, environment and flags. A change is on disk before it is answered.
"""

from __future__ import annotations

from typing import Any

from tallystick.store.finding_log import FindingLog
from tallystick.store.table_opening import OpenedFile, open_table
from tallystick.store.tables import JsonTable

FILE_NAME = "tally-settings.json"
_LOST = "settings that were changed while the process ran are as configured again"


def open_kept_settings(file: JsonTable, findings: FindingLog) -> dict[str, str]:
    """Returns the kept settings by name. A damaged file is set aside and reported. TableError, OSError."""
    return open_table(file, _parse, findings, lost=_LOST).table


def keep_settings(file: JsonTable, changes: dict[str, str]) -> None:
    """Adds changes to the file. Blocks for a sync. TableError, OSError: nothing was changed."""
    file.save((file.load() or {}) | changes)


def _parse(content: OpenedFile) -> dict[str, str]:
    settings: dict[Any, Any] = content.load() or {}
    if any(isinstance(value, dict | list) or value is None for value in settings.values()):
        raise ValueError("a setting is not a text")
    return {str(key): str(value) for key, value in settings.items()}
