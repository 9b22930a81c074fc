"""The logger of aiohttp's server. aiohttp logs a traceback for each request that is not HTTP, or whose peer leaves; a
stranger could fill the disk with them. Those are a line without a traceback here, one in ten seconds. A traceback of a
handler, which is a bug, stays."""

from __future__ import annotations

import logging
import time

from aiohttp.http_exceptions import HttpProcessingError

from tallystick.store.limited_log import LimitedLog

_logger = logging.getLogger("tallystick.http")


class _PeerErrors(logging.Filter):
    def __init__(self) -> None:
        super().__init__()
        self._log = LimitedLog(_logger, time.monotonic)

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is not the fault of a peer. Otherwise a limited line takes its place."""
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            self._log.warning(
                "request", "%s: not a request: %s", record.getMessage(), " ".join(str(error).split())[:200]
            )
        elif isinstance(error, ConnectionError):
            self._log.info("left", "%s: the peer left", record.getMessage())
        else:
            return True
        return False


def peer_errors() -> logging.Logger:
    """The logger to give to aiohttp."""
    logger = logging.getLogger("tallystick.http.aiohttp")
    if not logger.filters:
        logger.addFilter(_PeerErrors())
    return logger
