"""GET and PUT /log-level: {"level": "DEBUG"}. A change holds until the process ends.

400: the body does not contain a level.
"""

from __future__ import annotations

from aiohttp import web

from tallystick.node.core.logs import LEVELS, current_level, set_level
from tallystick.node.http.json_api import ApiError, failed, object_of


def log_routes() -> list[web.RouteDef]:
    """The routes."""
    return [web.get("/log-level", _show), web.put("/log-level", _change)]


async def _show(_: web.Request) -> web.Response:
    return web.json_response({"level": current_level()})


async def _change(request: web.Request) -> web.Response:
    try:
        values = await object_of(request)
    except ApiError as error:
        return failed(error.status, str(error))
    if set(values) != {"level"} or values["level"] not in LEVELS:
        return failed(400, f'the body must be {{"level": "..."}} with one of {", ".join(LEVELS)}')
    set_level(values["level"])
    return await _show(request)
