"""The promotion of a slave over HTTP, for `tally promote` and `tally migrate`. Bodies are JSON.

    POST   /promotion   {"masterIsStopped": false}       200 {"end": 1234, "missingBytes": 0, "strayBytes": 0,
                                                              "millis": 500}
    DELETE /promotion   a master that was fenced from    200 {"master": "10.0.0.1:10911"}
                        here accepts messages again

A broker that was promoted answers POST with 200 and `end` alone, at each repetition. A failure is {"error": "...",
"leader": null}. 404: this broker is not a slave. 409: it was not promoted, and is still a slave; the text says why.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from aiohttp import web

from tallystick.node.broker.copying.promotion import PromotionError
from tallystick.node.http.admin_api import AdminView
from tallystick.node.http.json_api import ApiError, failed, object_of

if TYPE_CHECKING:
    from tallystick.node.broker.copying.group_copy import GroupCopy
    from tallystick.node.broker.copying.slave_role import SlaveRole


def promotion_routes(view: AdminView) -> list[web.RouteDef]:
    """The routes."""

    def route(work: Callable[[SlaveRole | GroupCopy, web.Request], Awaitable[Any]]) -> Callable[[web.Request], Any]:
        async def handle(request: web.Request) -> web.Response:
            broker = view.broker()
            if broker is None:
                return failed(503, view.absent())
            if broker.copying is None:
                return failed(404, "this broker is not a slave: it started with another role")
            try:
                return web.json_response(await work(broker.copying, request))
            except ApiError as error:
                return failed(error.status, str(error))
            except PromotionError as error:
                return failed(409, str(error))

        return handle

    return [web.post("/promotion", route(_promote)), web.delete("/promotion", route(_take_back))]


async def _promote(role: SlaveRole | GroupCopy, request: web.Request) -> Any:
    body = await object_of(request)
    stopped = body.pop("masterIsStopped", False)
    if body or not isinstance(stopped, bool):
        raise ApiError(400, 'the body is {} or {"masterIsStopped": true}')
    return await role.promote(master_is_stopped=stopped)


async def _take_back(role: SlaveRole | GroupCopy, request: web.Request) -> Any:
    return await role.take_back()
