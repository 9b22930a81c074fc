"""Users of access control over HTTP, at `/users`, for programs that manage them: each has an owner.

    GET    /users                 all of them                                              200
    GET    /users/{name}          one                                                      200, 404
    PUT    /users/{name}          {"password": ..., "policies": [...], "owner": ...}       201 made, 200, 412
    DELETE /users/{name}          ?owner=...                                               200, 412

The fields are those of `access/acl_users.py`. A PUT replaces the whole user. `owner` is a text that names who manages
the user, such as the UID of a resource; it is required. A user of another owner, or without one, is not changed and not
deleted: 412 with `owner`. A PUT with `"adopt": true` takes over a user that has no owner. Accounts of RocketMQ 4.x
share the names, and have no owner. Answers contain no password. See `admin_api` for failures; without access control,
each request is answered with 409.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from tallystick.node.access.acl_users import AclUser
from tallystick.node.access.fields import AclError, flag, text
from tallystick.node.access.plain_acl import PlainAcl, Principal
from tallystick.node.http.admin_api import CREATED, UNCHANGED, UPDATED, AdminView, served
from tallystick.node.http.json_api import ApiError, object_of

if TYPE_CHECKING:
    from tallystick.node.broker.access import BrokerAccess
    from tallystick.node.broker.broker import Broker

PATH = "/users"


def users_routes(view: AdminView) -> list[web.RouteDef]:
    """The routes."""
    one = PATH + "/{name}"
    return [
        web.get(PATH, served(view, _list, changes=False)),
        web.get(one, served(view, _show, changes=False)),
        web.put(one, served(view, _put, changes=True)),
        web.delete(one, served(view, _delete, changes=True)),
    ]


def _access(broker: Broker) -> BrokerAccess:
    if broker.access is None:
        raise ApiError(409, "the broker has no access control (aclEnable)")
    return broker.access


async def _list(broker: Broker, request: web.Request) -> web.Response:
    acl = _access(broker).acl
    users = [each.managed() for _, each in sorted(acl.accounts.items()) if isinstance(each, AclUser)]
    return web.json_response({"users": users, "version": dict(acl.version or {})})


async def _show(broker: Broker, request: web.Request) -> web.Response:
    name = request.match_info["name"]
    found = _access(broker).acl.accounts.get(name)
    if not isinstance(found, AclUser):
        raise ApiError(404, f"there is no user {name}")
    return web.json_response(found.managed())


async def _put(broker: Broker, request: web.Request) -> web.Response:
    access, name, fields = _access(broker), request.match_info["name"], await object_of(request)
    try:
        adopts = flag(fields, "adopt")
        wanted = AclUser.read({**fields, "username": name})
        wanted.user()
        if text(fields, "username") not in ("", name):
            raise AclError("the name in the body differs from the name in the path")
        if not wanted.owner:
            raise AclError("owner is blank")
    except AclError as error:
        raise ApiError(400, str(error)) from error
    before = access.acl.accounts.get(name)
    result = CREATED if before is None else UNCHANGED if before == wanted else UPDATED

    def edit(acl: PlainAcl) -> PlainAcl:
        _must_own(acl.accounts.get(name), name, wanted.owner, adopts=adopts)
        return acl.with_account(wanted)

    if result == UNCHANGED:
        return web.json_response(wanted.managed() | {"result": result})
    try:
        await access.change(edit)
    except AclError as error:
        raise ApiError(400, str(error)) from error
    return web.json_response(wanted.managed() | {"result": result}, status=201 if result == CREATED else 200)


async def _delete(broker: Broker, request: web.Request) -> web.Response:
    access, name, owner = _access(broker), request.match_info["name"], request.query.get("owner", "")
    if not owner:
        raise ApiError(400, "owner is missing in the query")
    existed = name in access.acl.accounts

    def edit(acl: PlainAcl) -> PlainAcl:
        _must_own(acl.accounts.get(name), name, owner, adopts=False)
        return acl.without_account(name)

    if existed:
        await access.change(edit)
    return web.json_response({"username": name, "existed": existed})


def _must_own(found: Principal | None, name: str, owner: str, *, adopts: bool) -> None:
    """ApiError: the user has another owner. It is checked within the change, so that two changes cannot both
    find the name free."""
    if found is None:
        return
    if not isinstance(found, AclUser):
        raise ApiError(412, f"{name} is an account of RocketMQ 4.x, not a user", owner="")
    if found.owner == owner or (adopts and not found.owner):
        return
    whose = f"belongs to {found.owner}" if found.owner else "has no owner"
    raise ApiError(412, f"the user {name} exists and {whose}", owner=found.owner)
