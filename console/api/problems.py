"""Errors as `application/problem+json` (RFC 9457).

    {"type": "urn:tallystick:problem:not-found", "title": "Not found", "status": 404, "detail": "...",
     "code": 17, "remark": "...", "address": "10.0.0.7:10911"}

`code`, `remark` and `address` are those of the server that refused the request; null if no server did.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import orjson
from aiohttp import web

from tallystick.admin.errors import ChangedError
from tallystick.client import (
    AccessDenied,
    BufferFull,
    Busy,
    ClientError,
    ClosedError,
    ConfigurationError,
    ConnectionFailed,
    NoAnswer,
    NotFound,
    NotStored,
    NotSupported,
    ProtocolError,
    Refused,
    Unknown,
)

BASE = "/api/v1"
MEDIA_TYPE = "application/problem+json"
_PREFIX = "urn:tallystick:problem:"
_KINDS: dict[str, tuple[int, str]] = {
    "invalid-request": (400, "The request is invalid"),
    "no-credentials": (401, "A log-in is required"),
    "wrong-credentials": (401, "The credentials are wrong"),
    "not-permitted": (403, "The caller may not do this"),
    "foreign-page": (403, "A page of another site may have sent the request"),
    "access-denied": (403, "Access control refused the request"),
    "not-found": (404, "Not found"),
    "conflict": (409, "The request does not fit the present state"),
    "changed": (412, "It was changed by another request"),
    "refused": (422, "A server refused the request"),
    "too-many-failures": (429, "Too many wrong credentials"),
    "internal": (500, "An error in this server"),
    "not-supported": (501, "The server does not support this"),
    "incomplete": (502, "A part of the change failed"),
    "no-connection": (502, "A server cannot be reached"),
    "protocol": (502, "A server sent something unexpected"),
    "not-stored": (502, "The message was not stored"),
    "busy": (503, "Too much work: retry later"),
    "no-answer": (504, "A server did not answer"),
    "unknown-outcome": (504, "It is not known whether the message is stored"),
}
_OF_ERRORS: tuple[tuple[type[Exception], str], ...] = (
    (ChangedError, "changed"),
    (AccessDenied, "access-denied"),
    (Busy, "busy"),
    (NotFound, "not-found"),
    (NotSupported, "not-supported"),
    (Refused, "refused"),
    (Unknown, "unknown-outcome"),
    (NotStored, "not-stored"),
    (ConnectionFailed, "no-connection"),
    (NoAnswer, "no-answer"),
    (ProtocolError, "protocol"),
    (ConfigurationError, "invalid-request"),
    (BufferFull, "busy"),
    (ClosedError, "busy"),
)
"""The first class that fits decides: subclasses come before their base."""


class ProblemError(Exception):
    """A request failed. `kind`: a name of `_KINDS`; `more`: further members of the answer."""

    def __init__(self, kind: str, detail: str, *, headers: dict[str, str] | None = None, **more: Any) -> None:
        super().__init__(detail)
        self.status, title = _KINDS[kind]
        self.headers = headers or {}
        self.body: dict[str, Any] = {
            "type": _PREFIX + kind,
            "title": title,
            "status": self.status,
            "detail": detail,
            "code": None,
            "remark": None,
            "address": None,
            **more,
        }

    def response(self) -> web.Response:
        """Returns the answer."""
        return web.Response(
            body=orjson.dumps(self.body), status=self.status, content_type=MEDIA_TYPE, headers=self.headers
        )


def problem_of(error: ClientError) -> ProblemError:
    """Returns the problem for an error of the client or the admin core."""
    kind = next((kind for cls, kind in _OF_ERRORS if isinstance(error, cls)), "internal")
    more: dict[str, Any] = {}
    if isinstance(error, Unknown):
        more["uniqueKey"] = error.unique_key
    if isinstance(error, ChangedError):
        more["etag"] = error.etag or None
    headers = {"Retry-After": "1"} if _KINDS[kind][0] == 503 else None
    return ProblemError(
        kind, str(error), headers=headers, code=error.code, remark=error.remark, address=error.address, **more
    )


def is_of_interface(path: str) -> bool:
    """Whether a path belongs to the interface, whose errors are problems."""
    return path == BASE or path.startswith(BASE + "/")


def problem_of_status(status: int, detail: str, headers: dict[str, str] | None = None) -> ProblemError:
    """Returns a problem for a status of HTTP that has no kind here, such as 404 for an unknown path or 405."""
    kind = next((kind for kind, (known, _) in _KINDS.items() if known == status), "invalid-request")
    problem = ProblemError(kind, detail, headers=headers)
    if problem.status != status:
        problem.status = status
        problem.body |= {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status}
    return problem
