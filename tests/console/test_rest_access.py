"""Who may use the REST interface: log-ins, roles, tokens, pages of other sites, and what the brokers decide."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from console_lab import DOCUMENT, NODE, PASSWORD, TOKEN, ConsoleLab

from tallystick.console.api import access as module
from tallystick.console.api.access import IDLE_S, LONGEST_S, MOST_OF_USER, MOST_SESSIONS, Sessions
from tallystick.node.http.authentication import FAILURES


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[ConsoleLab]:
    """With access control, and a token of the port."""
    async with ConsoleLab(tmp_path, acl=True, tokens=True) as lab:
        yield lab


def bearer(token: str = TOKEN) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def path_of(operation: Any) -> str:
    """A path of the operation without the base, with something valid for each parameter."""
    values = {"address": "127.0.0.1:1", "id": "7F00000100002A9F0000000000000000", "queue": "0", "member": "3"}
    path = str(operation.path).removeprefix("/api/v1")
    for parameter in operation.parameters:
        if parameter.place == "path":
            path = path.replace("{" + parameter.name + "}", values.get(parameter.name, "nothing"))
    return path


async def test_without_access_control_callers_on_this_machine_are_admins(tmp_path: Path) -> None:
    async with ConsoleLab(tmp_path) as lab:
        me = await lab.get("/me")
        assert (me["role"], me["by"], me["user"]) == ("admin", "address", None)
        refused = await lab.call("POST", "/session", {"user": "viewer-1", "password": PASSWORD})
        assert (refused.status, refused.json["methods"]) == (403, [])


async def test_without_a_log_in_nothing_is_served_but_the_document(lab: ConsoleLab) -> None:
    for operation in DOCUMENT.operations:
        if operation.role == "none":
            continue
        found = await lab.call(operation.method, path_of(operation))
        assert (found.status, found.kind) == (401, "no-credentials"), operation.id
        assert found.json["methods"] == ["password", "token"]
    assert (await lab.call("GET", "/openapi.json")).status == 200
    assert (await lab.call("GET", "/openapi.yaml")).status == 200
    assert (await lab.raw("GET", "/group")).status == 401, "the other routes of the port need a token as before"


async def test_a_user_logs_in_and_out(lab: ConsoleLab) -> None:
    found = await lab.call("POST", "/session", {"user": "operator-1", "password": PASSWORD})
    assert found.status == 201 and found.json["role"] == "operator" and found.json["user"] == "operator-1"
    cookie = found.headers["Set-Cookie"]
    attributes = {part.strip().lower() for part in cookie.split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/"} <= attributes and "secure" not in attributes
    assert cookie.startswith(f"tally-session-{lab.port}="), "browsers send cookies to all ports of a host"
    sent = cookie.partition(";")[0]
    assert (await lab.get("/me", cookie=sent))["by"] == "session"
    assert (await lab.call("DELETE", "/session", cookie=sent)).status == 204
    assert (await lab.call("GET", "/me", cookie=sent)).status == 401
    assert (await lab.call("DELETE", "/session", cookie=sent)).status == 204, "a second time it changes nothing"


async def test_a_token_logs_in_until_it_is_taken_out_of_its_file(lab: ConsoleLab) -> None:
    assert (await lab.get("/me", headers=bearer()))["by"] == "token"
    found = await lab.call("POST", "/session", {"token": TOKEN})
    assert found.json["role"] == "admin" and found.json["user"] is None
    cookie = found.headers["Set-Cookie"].partition(";")[0]
    assert (await lab.get("/clusters", cookie=cookie))[0]["brokers"], "the node's account asks the brokers"
    lab.token_file.write_text("another-token\n")
    assert (await lab.call("GET", "/me", cookie=cookie)).status == 401
    assert (await lab.call("GET", "/me", headers=bearer())).status == 401


@pytest.mark.parametrize(
    "credentials",
    [
        {"user": "operator-1", "password": "wrong"},
        {"user": "operator-1", "password": PASSWORD + " "},
        {"user": "nobody-1", "password": PASSWORD},
        {"token": "wrong"},
    ],
)
async def test_wrong_credentials(lab: ConsoleLab, credentials: dict[str, str]) -> None:
    found = await lab.call("POST", "/session", credentials)
    assert (found.status, found.kind) == (401, "wrong-credentials")
    assert "Set-Cookie" not in found.headers
    assert credentials.get("password", "wrong") not in found.text.replace("wrong-credentials", "").replace(
        "credentials are wrong", ""
    )


async def test_a_user_without_a_permission_for_the_cluster_has_no_role(lab: ConsoleLab) -> None:
    found = await lab.call("POST", "/session", {"user": "tenant-1", "password": PASSWORD})
    assert (found.status, found.kind) == (403, "not-permitted")


async def test_many_wrong_credentials_are_not_compared(lab: ConsoleLab) -> None:
    for _ in range(FAILURES):
        assert (await lab.call("POST", "/session", {"user": "admin-1", "password": "wrong"})).status == 401
    for body in ({"user": "admin-1", "password": PASSWORD}, {"token": TOKEN}):
        found = await lab.call("POST", "/session", body)
        assert (found.status, found.kind) == (429, "too-many-failures")
        assert int(found.headers["Retry-After"]) > 0
    assert (await lab.call("GET", "/me", headers=bearer())).status == 429
    assert (await lab.raw("GET", "/group", headers=bearer())).status == 429, "the port counts once for all routes"


@pytest.mark.parametrize("user", ["viewer-1", "operator-1", "admin-1"])
async def test_each_operation_needs_its_role(lab: ConsoleLab, user: str) -> None:
    """Refused operations do not look at the request: an invalid body makes no difference."""
    cookie = await lab.log_in(user)
    roles = {"viewer-1": 1, "operator-1": 2, "admin-1": 3}
    needed = {"none": 0, "viewer": 1, "operator": 2, "admin": 3}
    for operation in DOCUMENT.operations:
        if operation.id in ("streamEvents", "logOut", "logIn"):
            continue
        found = await lab.call(operation.method, path_of(operation), cookie=cookie, query={"no-such": 1})
        if needed[operation.role] > roles[user]:
            assert (found.status, found.json["role"]) == (403, operation.role), operation.id
        else:
            assert found.status == 400, operation.id


async def test_a_viewer_who_tries_a_change_changes_nothing(lab: ConsoleLab) -> None:
    viewer, admin = await lab.log_in("viewer-1"), await lab.log_in("admin-1")
    assert (await lab.call("PUT", "/topics/mine", {"readQueues": 1}, cookie=viewer)).status == 403
    assert (await lab.call("GET", "/topics/mine", cookie=admin)).status == 404


async def test_brokers_decide_with_the_permissions_of_the_user(lab: ConsoleLab) -> None:
    """The role admits an operator to sends; the policy of its user has the last word."""

    def forbid(acl: Any) -> Any:
        policy = {"resource": "Topic:secret", "actions": ["All"], "decision": "Deny"}
        return acl.with_account(acl.accounts["operator-1"].with_policy("Custom", [policy]))

    await lab.access.change(forbid)
    cookie = await lab.log_in("operator-1")
    assert (await lab.call("POST", "/topics/open/messages", {"text": "x"}, cookie=cookie)).status == 201
    found = await lab.call("POST", "/topics/secret/messages", {"text": "x"}, cookie=cookie)
    assert (found.status, found.kind) == (403, "access-denied")
    assert "AclException" in found.json["remark"] and found.json["address"]


async def test_a_changed_or_deleted_user_ends_its_sessions(lab: ConsoleLab) -> None:
    async def change(edit: Any) -> None:
        await lab.access.change(edit)

    def user(acl: Any) -> Any:
        return acl.accounts["viewer-1"]

    cookie = await lab.log_in("viewer-1")
    await change(lambda acl: acl.with_account(replace(user(acl), secret="another-secret")))
    assert (await lab.call("GET", "/me", cookie=cookie)).status == 401
    await change(lambda acl: acl.with_account(replace(user(acl), secret=PASSWORD)))
    assert (await lab.call("GET", "/me", cookie=cookie)).status == 401, "an ended session does not come back"

    cookie = await lab.log_in("viewer-1")
    await change(lambda acl: acl.with_account(replace(user(acl), is_super=True)))
    assert (await lab.get("/me", cookie=cookie))["role"] == "admin", "the role is that of now"
    await change(lambda acl: acl.with_account(replace(user(acl), is_enabled=False)))
    assert (await lab.call("GET", "/me", cookie=cookie)).status == 401
    assert (await lab.call("POST", "/session", {"user": "viewer-1", "password": PASSWORD})).status == 401

    cookie = await lab.log_in("operator-1")
    await change(lambda acl: acl.without_account("operator-1"))
    assert (await lab.call("GET", "/me", cookie=cookie)).status == 401


async def test_a_stream_ends_with_its_session(lab: ConsoleLab) -> None:
    cookie = await lab.log_in("viewer-1")
    async with lab.events("/events", cookie=cookie) as events:
        assert (await anext(events))[0] == "figures"
        assert (await lab.call("DELETE", "/session", cookie=cookie)).status == 204
        async for _ in events:
            pass  # it ends; without that the limit of the events fails the test


FOREIGN = [
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
]


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
async def test_a_page_of_another_site_can_use_no_session(lab: ConsoleLab, headers: dict[str, str]) -> None:
    cookie = await lab.log_in("admin-1")
    for method, path, body in (
        ("GET", "/topics", None),
        ("PUT", "/topics/evil", {"readQueues": 1}),
        ("DELETE", "/session", None),
        ("POST", "/session", {"user": "admin-1", "password": PASSWORD}),
    ):
        found = await lab.call(method, path, body, cookie=cookie, headers=headers)
        assert (found.status, found.kind) == (403, "foreign-page"), path
    assert (await lab.call("GET", "/topics/evil", cookie=cookie)).status == 404
    assert (await lab.get("/me", cookie=cookie))["by"] == "session", "the page did not log the user out"


async def test_a_page_of_another_site_can_do_nothing_without_access_control(tmp_path: Path) -> None:
    async with ConsoleLab(tmp_path) as lab:
        for headers in (*FOREIGN, {"Host": "evil.example"}):
            assert (await lab.call("PUT", "/topics/evil", {"readQueues": 1}, headers=headers)).status == 403, headers
        plain = {"Content-Type": "text/plain"}
        found = await lab.call("PUT", "/topics/evil", data=b'{"readQueues": 1}', headers=plain)
        assert found.status == 415, "a form of a page can send text"
        assert (await lab.call("GET", "/topics/evil")).status == 404
        own = {"Origin": f"http://127.0.0.1:{lab.port}", "Sec-Fetch-Site": "same-origin"}
        assert (await lab.call("GET", "/topics", headers=own)).status == 200


async def test_a_log_in_works_under_any_name_of_the_port(lab: ConsoleLab) -> None:
    """A reverse proxy may give it a public name. A page whose name was made to lead here has no cookie."""
    headers = {"Host": "console.example.com", "Origin": "https://console.example.com"}
    found = await lab.call("POST", "/session", {"user": "viewer-1", "password": PASSWORD}, headers=headers)
    cookie = found.headers["Set-Cookie"].partition(";")[0]
    assert (await lab.get("/me", cookie=cookie, headers=headers))["user"] == "viewer-1"


async def test_a_port_that_others_reach_serves_pages_and_log_ins_alone(tmp_path: Path) -> None:
    async with ConsoleLab(tmp_path, acl=True, http={"host": "0.0.0.0"}) as lab:
        assert (await lab.call("GET", "/topics")).status == 401
        assert (await lab.raw("GET", "/group")).status == 403
        cookie = await lab.log_in("viewer-1")
        assert (await lab.call("GET", "/topics", cookie=cookie)).status == 200
    (tmp_path / "open").mkdir()
    async with ConsoleLab(tmp_path / "open", http={"host": "0.0.0.0"}) as lab:
        found = await lab.call("GET", "/topics")
        assert (found.status, found.json["methods"]) == (401, []), "without users and tokens there is no log-in"


async def test_changes_are_in_the_access_log_with_their_user(lab: ConsoleLab, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "tallystick.access"):
        cookie = await lab.log_in("admin-1")
        await lab.call("PUT", "/topics/logged", {"readQueues": 1}, cookie=cookie, query={"dryRun": True})
        viewer = await lab.log_in("viewer-1")
        await lab.call("DELETE", "/topics/logged", cookie=viewer)
        await lab.call("POST", "/session", {"user": "admin-1", "password": "wrong-one"})
        await lab.call("POST", "/topics/logged/messages", {"text": "secret text"}, headers=bearer())
        await lab.call("GET", "/topics", cookie=cookie)
    lines = [json.loads(each.getMessage()) for each in caplog.records if each.name == "tallystick.access"]
    found = [
        (each["result"], each.get("by"), each.get("user"), each["request"], each["status"])
        for each in lines
        if "status" in each
    ]
    assert found == [
        ("allowed", "password", "admin-1", "POST /api/v1/session", 201),
        ("allowed", "session", "admin-1", "PUT /api/v1/topics/logged", 200),
        ("allowed", "password", "viewer-1", "POST /api/v1/session", 201),
        ("denied", None, "viewer-1", "DELETE /api/v1/topics/logged", 403),
        ("denied", None, "admin-1", "POST /api/v1/session", 401),
        ("allowed", "token", None, "POST /api/v1/topics/logged/messages", 201),
    ]
    for secret in (PASSWORD, TOKEN, NODE[1], "wrong-one", "secret text", cookie.partition("=")[2]):
        assert secret not in caplog.text


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_sessions_end_when_they_are_idle_and_at_last() -> None:
    clock = Clock()
    sessions = Sessions(clock, lambda: 0)
    cookie, session = sessions.begin("a", "secret")
    clock.now_s += IDLE_S - 1
    assert sessions.get(cookie) is session and sessions.is_alive(session)
    clock.now_s += IDLE_S
    assert not sessions.is_alive(session) and sessions.get(cookie) is None and len(sessions) == 0
    assert session.credential == "", "the secret does not stay in memory"
    cookie, session = sessions.begin("a", "secret")
    begun_s = clock.now_s
    while clock.now_s - begun_s < LONGEST_S:
        assert sessions.get(cookie) is session
        clock.now_s += IDLE_S / 2
    assert sessions.get(cookie) is None, "a session that is used does not last without limit"


def test_sessions_are_bounded() -> None:
    clock = Clock()
    sessions = Sessions(clock, lambda: 0)
    first, _ = sessions.begin("a", "secret")
    clock.now_s += 1
    second, _ = sessions.begin("a", "secret")
    clock.now_s += 1
    sessions.get(first)
    for _ in range(MOST_OF_USER - 1):
        sessions.begin("a", "secret")
    assert sessions.get(second) is None, "the one that was idle longest ended"
    assert sessions.get(first) is not None
    for number in range(MOST_SESSIONS * 2):
        clock.now_s += 0.001
        sessions.begin(f"user-{number}", "secret")
    assert len(sessions) == MOST_SESSIONS


def test_a_secret_is_not_shown() -> None:
    _, session = Sessions().begin("a", "the-secret")
    caller = module.Caller(module.Role.ADMIN, "session", "a", "the-secret", session)
    assert "the-secret" not in repr(caller) + repr(session) + repr(module.User("the-secret", None))


async def test_a_cookie_that_is_no_session(lab: ConsoleLab) -> None:
    for value in ("", "x", "a" * 5000, "ä", "x y"):
        found = await lab.call("GET", "/me", cookie=f"tally-session-{lab.port}={value}")
        assert found.status == 401, value
