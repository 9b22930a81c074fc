"""Reads the progress of a driver over HTTP, at the address of its pod, without a token. The answer is not trusted."""

from __future__ import annotations

import logging

import aiohttp
import orjson

from tallystick.operator.jobs.manifests import DRIVER_HTTP
from tallystick.operator.jobs.observed import Progress, progress_of

_logger = logging.getLogger(__name__)

ASK_SECONDS = 2.0
MAX_BYTES = 16 << 10


class DriverHttp:
    """Sends requests with the session of the operator."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def progress(self, address: str) -> Progress | None:
        """Returns the progress of the driver at an address; None: no valid answer in time."""
        host = f"[{address}]" if ":" in address else address
        timeout = aiohttp.ClientTimeout(ASK_SECONDS)
        try:
            async with self._session.get(f"http://{host}:{DRIVER_HTTP}/progress", timeout=timeout) as answer:
                if answer.status != 200:
                    return None
                content = await answer.content.read(MAX_BYTES)
            return progress_of(orjson.loads(content))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            _logger.debug("could not read the progress of the driver at %s: %s", address, error)
            return None
