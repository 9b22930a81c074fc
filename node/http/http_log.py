"""The access log of the HTTP port: each request that changes something, and each one that is refused.

    {"result": "allowed", "by": "token", "from": "10.0.0.7", "request": "POST /topics", "status": 201, "left_out": 0}

`by` is `token`, or `address` on a port without tokens; in the REST interface also `session` or `password`, with `user`.
A request that was served and failed has the result `failed`. It is a line of the logger `tallystick.access`, with the
bounds of `AccessLog`. Queries, bodies and tokens are never in it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from aiohttp import web

from tallystick.console.api.access import BY, USER
from tallystick.node.access.access_log import LONGEST, AccessLog

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_REFUSED = frozenset({401, 403, 415, 429})


class HttpLog:
    """Writes the lines of one port. `by`: why its requests are allowed."""

    def __init__(self, by: str, log: AccessLog) -> None:
        self._by, self._log = by, log

    @web.middleware
    async def middleware(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Put it around the middleware that authenticates and the one that turns errors into answers."""
        response = await handler(request)
        status = response.status
        about = {
            "from": request.remote or "",
            "request": f"{request.method} {request.path}"[:LONGEST],
            "status": status,
        }
        if (user := request.get(USER)) is not None:
            about["user"] = user[:LONGEST]
        if status in _REFUSED:
            self._log.write("http denied", logging.WARNING, {"result": "denied", **about})
        elif request.method not in _READS:
            result = "allowed" if status < 400 else "failed"
            line = {"result": result, "by": request.get(BY, self._by), **about}
            self._log.write("http changes", logging.INFO, line, is_change=True)
        return response
