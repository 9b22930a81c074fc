"""The interface as routes of aiohttp: who asks, whether the request is valid, the handler, and the answer.

Handlers are functions of a `Call`, by the ids of the operations in `openapi.yaml`. They return a value of JSON or of
the admin core, an `Answer` with status and headers, or a prepared response. Errors become problems in one place.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tallystick.admin.admin import Admin
from tallystick.admin.models import json_of
from tallystick.client import ClientError
from tallystick.console.api.access import BY, ROLES, USER, Access, Caller
from tallystick.console.api.backends import Backend, Backends
from tallystick.console.api.document import Document, Operation
from tallystick.console.api.encoding import encoded
from tallystick.console.api.events import EventStream, Places
from tallystick.console.api.problems import ProblemError, problem_of

MOST_LISTENERS = 64
"""Streams of events of all callers."""
MOST_POLLS = 128
"""Requests that wait for messages."""
_log = logging.getLogger("tallystick.console")


@dataclass(frozen=True, slots=True)
class Answer:
    """A value with another status than 200, or with headers."""

    value: Any
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Services:
    """What handlers share."""

    access: Access
    backends: Backends
    document: Document
    cluster: Callable[[], str]
    """The name servers."""
    version: str
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    listeners: Places = field(default_factory=lambda: Places(MOST_LISTENERS, "streams of events"))
    polls: Places = field(default_factory=lambda: Places(MOST_POLLS, "requests that wait for messages"))


@dataclass(frozen=True, slots=True)
class Call:
    """A valid request of a caller who may send it."""

    request: web.Request
    caller: Caller | None
    """None: the operation needs no log-in."""
    backend: Backend | None
    values: dict[str, Any]
    """The parameters, by their names in the document."""
    body: Any
    services: Services

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    @property
    def admin(self) -> Admin:
        """The admin core with the caller's credentials."""
        assert self.backend is not None, "the operation needs a role"
        return self.backend.admin

    @property
    def dry_run(self) -> bool:
        return bool(self.values["dryRun"])

    def stream(self) -> EventStream:
        """A stream of events, which ends with the session of the caller."""
        return EventStream(self.request, self.may_listen, self.services.stopping)

    def is_there(self) -> bool:
        """Whether the caller still waits for the answer."""
        transport = self.request.transport
        return transport is not None and not transport.is_closing()

    def may_listen(self) -> bool:
        """Whether the log-in is still valid, for an answer that takes long."""
        caller = self.caller
        if caller is None or caller.session is None:
            return True
        now = self.services.access.of_session(caller.session, self.request.remote or "")
        return now is not None and now.role >= caller.role


Handler = Callable[[Call], Awaitable[Any]]


class Interface:
    """All operations. `handlers` by the id of their operation: there is one for each, and no other."""

    def __init__(self, services: Services, handlers: Mapping[str, Handler]) -> None:
        self._services = services
        self._handlers = handlers

    def routes(self) -> list[web.RouteDef]:
        """Returns the routes."""
        found = []
        for operation in self._services.document.operations:
            more = {"allow_head": False} if operation.method == "GET" else {}  # the document has no HEAD
            handler = self._served(operation, self._handlers[operation.id])
            found.append(web.route(operation.method, operation.path, handler, **more))
        return found

    def _served(self, operation: Operation, handler: Handler) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def serve(request: web.Request) -> web.StreamResponse:
            try:
                return await self._serve(operation, handler, request)
            except ProblemError as problem:
                return problem.response()
            except ClientError as error:
                return problem_of(error).response()
            except web.HTTPException:
                raise
            except Exception:
                _log.exception("%s %s failed", request.method, operation.path)
                return ProblemError("internal", "an error in this server: its log has the details").response()

        return serve

    async def _serve(self, operation: Operation, handler: Handler, request: web.Request) -> web.StreamResponse:
        caller = self._caller(operation, request)
        values, body = await operation.arguments(request)
        if caller is None:
            return _response(await handler(Call(request, None, None, values, body, self._services)))
        backend = await self._services.backends.get(caller.identity)
        with backend.in_use():
            return _response(await handler(Call(request, caller, backend, values, body, self._services)))

    def _caller(self, operation: Operation, request: web.Request) -> Caller | None:
        if operation.role == "none":
            return None
        caller = self._services.access.caller(request)
        request[BY] = caller.by
        if caller.user is not None:
            request[USER] = caller.user
        if caller.role < ROLES[operation.role]:
            detail = f"{operation.id} needs the role {operation.role}; this caller is {caller.role.name.lower()}"
            raise ProblemError("not-permitted", detail, role=operation.role)
        return caller


def _response(answer: Any) -> web.StreamResponse:
    if isinstance(answer, web.StreamResponse):
        return answer
    if not isinstance(answer, Answer):
        answer = Answer(answer)
    return web.Response(
        body=encoded(json_of(answer.value)),
        status=answer.status,
        headers=dict(answer.headers),
        content_type="application/json",
    )
