"""What all JSON routes of the HTTP port share: how a body is read, and how a failure is reported.

A failure is {"error": "...", "leader": 1 or null}, with further fields of the route.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from tallystick.console.api.problems import is_of_interface, problem_of_status


class ApiError(Exception):
    """A request failed: `status`, the reason as text, and further fields of the body."""

    def __init__(self, status: int, reason: str, **more: Any) -> None:
        super().__init__(reason)
        self.status = status
        self.more = more


def failed(status: int, reason: str, leader: int | None = None, **more: Any) -> web.Response:
    """A failure in the form of all routes."""
    return web.json_response({"error": reason, "leader": leader, **more}, status=status)


def refused(request: web.Request, status: int, reason: str, headers: Mapping[str, str] | None = None) -> web.Response:
    """A failure before a route gets the request, in the form that its path has."""
    if is_of_interface(request.path):
        return problem_of_status(status, reason, dict(headers or {})).response()
    answer = failed(status, reason)
    answer.headers.update(headers or {})
    return answer


async def json_of(request: web.Request) -> Any:
    """The body. Raises ApiError if it is not JSON."""
    try:
        return json.loads(await request.text())
    except ValueError as error:  # also UnicodeDecodeError
        raise ApiError(400, f"the body is not JSON: {error}") from error
    except RecursionError as error:
        raise ApiError(400, "the body is nested too deeply") from error


async def object_of(request: web.Request) -> dict[str, Any]:
    """The body; without one, no fields. Raises ApiError if it is not a JSON object."""
    values = await json_of(request) if request.body_exists else {}
    if not isinstance(values, dict):
        raise ApiError(400, "the body is not a JSON object")
    return values
