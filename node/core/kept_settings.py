"""Settings that were changed while the process ran: a file with their values as text, which the next start uses.

The values override files, environment and flags. A change is on disk before it is answered.

The file can come from another version: a setting that this version does not have, or whose value it does not accept,
is a warning, and stays in the file. The process starts as if it were not there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tallystick.node.core.configuration import ConfigurationError
from tallystick.store.finding_log import FindingLog
from tallystick.store.table_opening import OpenedFile, open_table
from tallystick.store.tables import JsonTable

_logger = logging.getLogger("tallystick")

FILE_NAME = "tally-settings.json"
_LOST = "settings that were changed while the process ran are as configured again"


def open_kept_settings(file: JsonTable, findings: FindingLog) -> dict[str, str]:
    """Returns the kept settings by name. A damaged file is set aside and reported. TableError, OSError."""
    return open_table(file, _parse, findings, lost=_LOST).table


S = TypeVar("S")


def with_kept(settings: S, kept: Mapping[str, str], change: Callable[[S, Mapping[str, str]], S], source: str) -> S:
    """Returns settings with the kept ones. `change` returns changed settings, or raises ConfigurationError."""
    if not kept:
        return settings
    try:
        settings, used = change(settings, kept), dict(kept)
    except ConfigurationError:
        used = {}
        for key, text in kept.items():
            try:
                settings = change(settings, {key: text})
                used[key] = text
            except ConfigurationError as error:
                _logger.warning("%s; the setting is used as configured", error)
    shown = ", ".join(f"{key}={text}" for key, text in used.items())
    _logger.info("settings that were changed while the process ran, from %s: %s", source, shown or "none")
    return settings


def keep_settings(file: JsonTable, changes: dict[str, str]) -> None:
    """Adds changes to the file. Blocks for a sync. TableError, OSError: nothing was changed."""
    file.save((file.load() or {}) | changes)


def _parse(content: OpenedFile) -> dict[str, str]:
    settings: dict[Any, Any] = content.load() or {}
    if any(isinstance(value, dict | list) or value is None for value in settings.values()):
        raise ValueError("a setting is not a text")
    return {str(key): str(value) for key, value in settings.items()}
