"""What all JSON routes of the HTTP port share: how a body is read, and how a failure is told.

A failure is {"error": "...", "leader": 1 or null}, and what else the route says of it.
"""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web


class ApiError(Exception):
    """The answer is no: `status`, the reason as text, and what else stands in the body."""

    def __init__(self, status: int, reason: str, **more: Any) -> None:
        super().__init__(reason)
        self.status = status
        self.more = more


def failed(status: int, reason: str, leader: int | None = None, **more: Any) -> web.Response:
    """A failure as all routes tell it."""
    return web.json_response({"error": reason, "leader": leader, **more}, status=status)


async def json_of(request: web.Request) -> Any:
    """The body. ApiError: it is no JSON."""
    try:
        return json.loads(await request.text())
    except ValueError as error:  # UnicodeDecodeError too
        raise ApiError(400, f"the body is no JSON: {error}") from error
    except RecursionError as error:
        raise ApiError(400, "the body is no JSON that is meant here: too deep") from error


async def object_of(request: web.Request) -> dict[str, Any]:
    """The body; without one there are no fields. ApiError: it is no JSON object."""
    values = await json_of(request) if request.body_exists else {}
    if not isinstance(values, dict):
        raise ApiError(400, "the body is no JSON object")
    return values
