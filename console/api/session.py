"""Handlers: log-in, log-out, the caller, and the document."""

from __future__ import annotations

from typing import Any

import orjson
from aiohttp import web

from tallystick.console.api.access import BY, USER, Caller
from tallystick.console.api.interface import Call, Handler


async def get_me(call: Call) -> Any:
    assert call.caller is not None, "the operation needs a role"
    return _shown(call, call.caller)


async def log_in(call: Call) -> Any:
    if "user" in call.body:
        call.request[USER] = call.body["user"]  # the access log has it also if the password is wrong
    response = web.Response(status=201, content_type="application/json")
    caller = call.services.access.log_in(call.request, call.body, response)
    call.request[BY] = "token" if caller.user is None else "password"
    response.body = orjson.dumps(_shown(call, caller))
    return response


async def log_out(call: Call) -> Any:
    response = web.Response(status=204)
    call.services.access.log_out(call.request, response)
    return response


async def get_document_json(call: Call) -> Any:
    return web.Response(body=call.services.document.as_json, content_type="application/json")


async def get_document_yaml(call: Call) -> Any:
    return web.Response(body=call.services.document.text.encode(), content_type="application/yaml")


def _shown(call: Call, caller: Caller) -> dict[str, Any]:
    return {
        "user": caller.user,
        "role": caller.role.name.lower(),
        "by": caller.by,
        "expiresMs": None if caller.session is None else caller.session.expires_ms,
        "cluster": call.services.cluster(),
        "version": call.services.version,
    }


HANDLERS: dict[str, Handler] = {
    "getMe": get_me,
    "logIn": log_in,
    "logOut": log_out,
    "getDocumentJson": get_document_json,
    "getDocumentYaml": get_document_yaml,
}
