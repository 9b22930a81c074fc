"""Logs: one JSON object per line on standard error. Bodies of requests and objects are never logged: no secrets."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime

import orjson

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Formats `time`, `level`, `logger`, `message`, the fields of `extra`, and `error` with the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name.removeprefix("tallystick."),
            "message": record.getMessage(),
        }
        line |= {key: value for key, value in vars(record).items() if key not in _STANDARD and _is_plain(value)}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


def _is_plain(value: object) -> bool:
    """kopf attaches whole objects to its records; they are not logged."""
    return value is None or isinstance(value, str | int | float)


def configure(level: str) -> None:
    """Configures logging of the process. Libraries log warnings and errors only."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.captureWarnings(True)
    logging.getLogger("py.warnings").setLevel(logging.ERROR)  # warnings of libraries about other libraries
    logging.getLogger("tallystick").setLevel(level)
    for noisy in ("kopf", "aiohttp.access", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
