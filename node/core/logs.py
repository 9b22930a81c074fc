"""Logs of the processes: lines of text, or one JSON object per line, on standard error.

A line names the time (UTC in JSON, local in text), the level, the part of the product, and what happened. Bodies and
properties of messages, tokens and keys are never logged. The level can be changed while the process runs:
`PUT /log-level`, and mqadmin's `updateBrokerConfig` and `updateNamesrvConfig` with the key `logLevel`.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from tallystick.store.settings import SettingsError

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
FORMATS = ("text", "json")
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_root = logging.getLogger("tallystick")


class JsonFormatter(logging.Formatter):
    """`time`, `level`, `logger`, `message`, and `error` with the traceback of an exception: the operator's keys."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name.removeprefix("tallystick."),
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure(level: str, style: str) -> None:
    """Logs of the whole process. `level` is one of `LEVELS`, `style` one of `FORMATS`; libraries log warnings only."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else logging.Formatter(_TEXT))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    _root.setLevel(level)


def set_level(level: str) -> None:
    """From now on. Writes a line at the higher of the two levels, so that the log shows the change."""
    if level != current_level():
        old, new = _root.getEffectiveLevel(), logging.getLevelName(level)
        _root.log(max(old, new), "logLevel changes from %s to %s", logging.getLevelName(old), level)
        _root.setLevel(level)


def current_level() -> str:
    """One of `LEVELS`."""
    return logging.getLevelName(_root.getEffectiveLevel())


def check(level: str, style: str) -> None:
    """SettingsError: one of the settings `logLevel` and `logFormat` has no such value."""
    if level not in LEVELS:
        raise SettingsError("logLevel", f"must be one of {', '.join(LEVELS)}, not {level!r}")
    if style not in FORMATS:
        raise SettingsError("logFormat", f"must be one of {', '.join(FORMATS)}, not {style!r}")
