"""A replicated group over HTTP, for its operator and for `tally group`. Bodies are JSON.

    GET    /group                  what this member knows of its group
    POST   /group/transfer         {"target": 1}; {} for the longest log           200 {"leader": 1}
    POST   /group/members          {"member": 3, "role": "learner" | "voter"}      200 {"index": 57}
    DELETE /group/members/3                                                       200 {"index": 58}

Changes are sent to the leader. A member that does not lead answers 409 with the leader; a leader that cannot make the
change now also answers 409, with the reason. 503: leadership was lost before the outcome was known. 404: there is no
group here. A failure is {"error": "...", "leader": 1 or null}. If the process has a file of tokens, each request needs
one.

A repeated request has no further effect: a leader answers 200 if the member to add is in the group, or the one to
remove is not.

A new member begins as a learner (M5) and can become a voter when it is close to the leader's end. A request for `voter`
adds an unknown member as a learner, or promotes a learner: one step per request. If the leader does not reach the
learner, or it is too far behind, the leader answers 409 with `"role": "learner"`: retry.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from enum import Enum
from typing import TYPE_CHECKING, Any

from aiohttp import web

from tallystick.node.http.json_api import ApiError, failed, object_of
from tallystick.replication.member.errors import ChangeError, OutcomeUnknownError, TransferError
from tallystick.replication.membership import AddLearner, Promote, Remove

if TYPE_CHECKING:
    from tallystick.node.broker.group.group_role import BrokerGroup
    from tallystick.replication.member.status import GroupStatus

_ROLES = ("learner", "voter")
_MAX_NUMBER = (1 << 31) - 1


def group_json(group: BrokerGroup) -> dict[str, Any]:
    """The body of GET /group. Members are numbers; only the leader knows the peers' `lag_bytes` and `match_index`."""
    status = asdict(group.status())
    status["broker"] = {
        "leads": group.leads,
        "unready": group.unready(),
        "tables_saved_index": group.tables.saved_index,
    }
    return {key: _plain(value) for key, value in status.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.name.lower() if isinstance(value.value, int) else value.value
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value


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
            except (TransferError, ChangeError) as error:
                return failed(409, _with_leader(found, str(error)), found.member.leader)
            except OutcomeUnknownError as error:
                return failed(503, f"the outcome is unknown: {error}", found.member.leader)

        return handle

    return [
        web.get("/group", route(_status)),
        web.post("/group/transfer", route(_transfer)),
        web.post("/group/members", route(_admit)),
        web.delete("/group/members/{member}", route(_remove)),
    ]


def _with_leader(group: BrokerGroup, reason: str) -> str:
    leader = group.member.leader
    if leader == group.number:
        return reason
    who = "no leader is known" if leader is None else f"n{leader} leads: send the request to it"
    return f"{reason} ({who})"


async def _status(group: BrokerGroup, request: web.Request) -> Any:
    return group_json(group)


async def _transfer(group: BrokerGroup, request: web.Request) -> Any:
    body = await object_of(request)
    target = None if body.get("target") is None else _member(body["target"])
    return {"leader": await group.transfer(target)}


async def _admit(group: BrokerGroup, request: web.Request) -> Any:
    body = await object_of(request)
    member, role = _member(body.get("member")), body.get("role", "voter")
    if role not in _ROLES:
        raise ApiError(400, f"role must be one of {', '.join(_ROLES)}, not {role!r}")
    status = group.status()
    if member in status.learners and role == "voter":
        try:
            return {"index": await group.member.change(Promote(member)), "role": "voter"}
        except ChangeError as error:
            if not _holds(group, status):
                raise
            raise ApiError(409, str(error), role="learner") from error  # a later retry may succeed
    if member in status.voters + status.learners and _holds(group, status):
        return {"index": status.membership_index, "role": "voter" if member in status.voters else "learner"}
    known = {peer.member for peer in status.peers if peer.address is not None}
    if member not in known:
        raise ApiError(400, f"the address of n{member} is unknown: add it to dLegerPeers of every member")
    return {"index": await group.member.change(AddLearner(member)), "role": "learner"}


async def _remove(group: BrokerGroup, request: web.Request) -> Any:
    member, status = _member(request.match_info["member"]), group.status()
    if member not in status.voters + status.learners and _holds(group, status):
        return {"index": status.membership_index}
    return {"index": await group.member.change(Remove(member))}


def _holds(group: BrokerGroup, status: GroupStatus) -> bool:
    """Whether the membership is the group's as far as known: only then can a change be reported as done already."""
    return group.leads and status.membership_committed


def _member(value: Any) -> int:
    text = str(value).removeprefix("n") if isinstance(value, int | str) and not isinstance(value, bool) else ""
    if not text.isdecimal() or int(text) > _MAX_NUMBER:
        raise ApiError(400, f"a member must be a number from 0, not {value!r}")
    return int(text)
