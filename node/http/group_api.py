"""A replicated group over HTTP, for its operator and for `tally group`. Bodies are JSON.

    GET    /group                  what this member knows of its group
    POST   /group/transfer         {"target": 1}; {} for the longest log           200 {"leader": 1}
    POST   /group/members          {"member": 3, "role": "learner" | "voter"}      200 {"index": 57}
    DELETE /group/members/3                                                       200 {"index": 58}

Changes are sent to the leader. A member that does not lead answers 409 with the leader; a leader that cannot make the
change now also answers 409, with the reason. 503: leadership was lost before the outcome was known. 404: there is no
group here. A failure is {"error": "...", "leader": 1 or null}. If the process has a file of tokens, each request needs
one. `tallystick.node.broker.services.group_changes` says what the changes mean.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from aiohttp import web

from tallystick.node.broker.services.group_changes import GroupChangeError, Outcome, change_group, group_json
from tallystick.node.http.json_api import ApiError, failed, object_of

if TYPE_CHECKING:
    from tallystick.node.broker.group.group_role import BrokerGroup

_STATUS = {Outcome.INVALID: 400, Outcome.REFUSED: 409, Outcome.UNKNOWN: 503}


def group_routes(group: Callable[[], BrokerGroup | None]) -> list[web.RouteDef]:
    """Routes for a server whose broker may be in a group, or may not have started."""

    def route(work: Callable[[BrokerGroup, web.Request], Awaitable[Any]]) -> Callable[[web.Request], Any]:
        async def handle(request: web.Request) -> web.Response:
            found = group()
            if found is None:
                return failed(404, "this broker is not in a replicated group, or has not started yet")
            try:
                return web.json_response(await work(found, request))
            except ApiError as error:
                return failed(error.status, str(error), found.member.leader, **error.more)
            except GroupChangeError as error:
                return failed(_STATUS[error.outcome], str(error), error.leader, **error.more)

        return handle

    return [
        web.get("/group", route(_status)),
        web.post("/group/transfer", route(_transfer)),
        web.post("/group/members", route(_add)),
        web.delete("/group/members/{member}", route(_remove)),
    ]


async def _status(group: BrokerGroup, request: web.Request) -> Any:
    return group_json(group)


async def _transfer(group: BrokerGroup, request: web.Request) -> Any:
    return await change_group(group, "transfer", await object_of(request))


async def _add(group: BrokerGroup, request: web.Request) -> Any:
    return await change_group(group, "add", await object_of(request))


async def _remove(group: BrokerGroup, request: web.Request) -> Any:
    return await change_group(group, "remove", request.match_info)
