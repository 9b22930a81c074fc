"""Requests that the document does not allow are refused before anything is done, and the answer names what is wrong."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from console_lab import ConsoleLab

from tallystick.client import (
    AccessDenied,
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
    Timeout,
    Unknown,
)
from tallystick.console.api.problems import problem_of


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lab(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ConsoleLab]:
    async with ConsoleLab(tmp_path_factory.mktemp("lab")) as lab:
        yield lab


pytestmark = pytest.mark.asyncio(loop_scope="module")


def locations(found: Any) -> list[str]:
    assert (found.status, found.kind) == (400, "invalid-request"), found
    return [each["location"] for each in found.json["errors"]]


@pytest.mark.parametrize(
    ("path", "location"),
    [
        ("/topics?limit=0", "query.limit"),
        ("/topics?limit=1001", "query.limit"),
        ("/topics?limit=x", "query.limit"),
        ("/topics?limit=1.5", "query.limit"),
        ("/topics?limit=1e2", "query.limit"),
        ("/topics?limit=+1", "query.limit"),
        ("/topics?limit=99999999999999999999", "query.limit"),
        ("/topics?limit=%D9%A1", "query.limit"),
        ("/topics?limit=", "query.limit"),
        ("/topics?limit=1&limit=2", "query.limit"),
        ("/topics?system=1", "query.system"),
        ("/topics?Limit=1", "query.Limit"),
        ("/topics?" + "x" * 300 + "=1", "query." + "x" * 100),
        ("/topics/a%20b", "path.topic"),
        ("/topics/a%2Fb", "path.topic"),
        ("/topics/%00", "path.topic"),
        ("/topics/" + "a" * 300, "path.topic"),
        ("/brokers/no-port", "path.address"),
        ("/messages/not-hex", "path.id"),
        ("/topics/a/queues/b/-1/messages", "path.queue"),
        ("/topics/a/queues/b/0/messages?waitSeconds=31", "query.waitSeconds"),
        ("/topics/a/queues/b/0/messages?waitSeconds=nan", "query.waitSeconds"),
    ],
)
async def test_a_parameter_that_is_not_valid(lab: ConsoleLab, path: str, location: str) -> None:
    assert locations(await lab.call("GET", path)) == [location]


async def test_all_errors_of_a_request_are_named(lab: ConsoleLab) -> None:
    found = await lab.call("POST", "/topics/a%20b/messages?dryRun=maybe&dryrun=true", {"tag": 1, "keys": "x"})
    assert set(locations(found)) >= {"path.topic", "query.dryRun", "query.dryrun"}


async def test_a_misspelt_dry_run_makes_no_change(lab: ConsoleLab) -> None:
    assert locations(await lab.call("PUT", "/topics/misspelt?dryrun=true", {"readQueues": 1})) == ["query.dryrun"]
    assert (await lab.call("GET", "/topics/misspelt")).status == 404


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"", "missing"),
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b'{"readQueues": NaN}', "not JSON"),
        (b"[]", "object"),
        (b"null", "object"),
        (b'{"readQueues": 0}', "minimum"),
        (b'{"readQueues": 1.5}', "integer"),
        (b'{"readQueues": "1"}', "integer"),
        (b'{"readQueues": true}', "integer"),
        (b'{"readQueues": 1e300}', "maximum"),
        (b'{"perm": 7}', "perm"),
        (b'{"name": "x"}', "dditional"),
        (b'{"attributes": {"a": 1}}', "string"),
        (b'{"attributes": ' + b'{"a":' * 500 + b"1" + b"}" * 501, ""),
        (b"[" * 100_000, "not JSON"),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_a_body_that_is_not_valid(lab: ConsoleLab, data: bytes, word: str) -> None:
    found = await lab.call("PUT", "/topics/invalid", data=data, headers={"Content-Type": "application/json"})
    assert any(each.startswith("body") for each in locations(found))
    assert word in json.dumps(found.json["errors"])


async def test_a_password_is_not_repeated_in_an_error(lab: ConsoleLab) -> None:
    found = await lab.call("POST", "/session", {"user": "u", "password": 12345678, "more": "another-secret"})
    assert found.status == 400 and "12345678" not in found.text and "another-secret" not in found.text


async def test_a_body_where_there_is_none(lab: ConsoleLab) -> None:
    assert locations(await lab.call("DELETE", "/topics/x", {"a": 1})) == ["body"]


async def test_errors_before_an_operation_are_problems(lab: ConsoleLab) -> None:
    found = await lab.call("GET", "/no-such-path")
    assert (found.status, found.json["status"]) == (404, 404)
    found = await lab.call("POST", "/clusters")
    assert (found.status, found.headers["Allow"], found.json["title"]) == (405, "GET", "Method Not Allowed")
    found = await lab.call("PUT", "/topics/x", data=b"<a/>", headers={"Content-Type": "text/xml"})
    assert (found.status, found.json["title"]) == (415, "Unsupported Media Type")
    found = await lab.call("POST", "/topics/x/messages", data=b" " * (5 << 20))
    assert found.status == 413
    old = await lab.raw("GET", "/no-such-path")
    assert (old.status, old.text[:9]) == (404, '{"error":'), "the other routes of the port answer as before"


async def test_1000_messages_are_a_request_and_1001_are_not(lab: ConsoleLab) -> None:
    messages = [{"text": "x", "keys": ["a"], "properties": {"b": "c"}}] * 1001
    assert locations(await lab.call("POST", "/topics/a/messages", {"messages": messages})) == ["body"]
    found = await lab.call("POST", "/topics/many/messages", {"messages": messages[:1000]})
    assert found.status == 201 and len(found.json["results"]) == 1000


ERRORS: list[tuple[ClientError, int, str]] = [
    (NotFound("a:1", 17, "no topic"), 404, "not-found"),
    (AccessDenied("a:1", 1, "AclException"), 403, "access-denied"),
    (Busy("a:1", 2, "busy"), 503, "busy"),
    (NotSupported("a:1", 3, "no"), 501, "not-supported"),
    (Refused("a:1", 1, "no"), 422, "refused"),
    (ConnectionFailed("a:1", "refused"), 502, "no-connection"),
    (Timeout("a:1", "3 s"), 504, "no-answer"),
    (NoAnswer("a:1", "lost"), 504, "no-answer"),
    (ProtocolError("what"), 502, "protocol"),
    (NotStored("no"), 502, "not-stored"),
    (Unknown("who knows", "KEY"), 504, "unknown-outcome"),
    (ConfigurationError("wrong"), 400, "invalid-request"),
    (ClosedError("closed"), 503, "busy"),
    (ClientError("other"), 500, "internal"),
]


@pytest.mark.parametrize(("error", "status", "kind"), ERRORS, ids=lambda value: type(value).__name__)
async def test_each_error_of_the_client_has_its_status(error: ClientError, status: int, kind: str) -> None:
    problem = problem_of(error)
    assert problem.status == problem.body["status"] == status
    assert problem.body["type"].endswith(f":{kind}")
    assert [problem.body[name] for name in ("code", "remark", "address")] == [error.code, error.remark, error.address]
