"""Requests that a browser sends for a page of another site, a port that others reach, and wrong tokens."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer, make_mocked_request
from hypothesis import given
from hypothesis import strategies as st
from tally_process import TallyProcess

from tallystick.node.core.admin_token import TokenFile
from tallystick.node.core.settings import HttpSettings, is_loopback
from tallystick.node.http.admin_api import AdminView
from tallystick.node.http.authentication import (
    FAILURE_WINDOW_S,
    FAILURES,
    Authentication,
    Failures,
    host_name,
    is_private,
)
from tallystick.node.http.server import Probes, application

ADMIN = ("/node", "/topics", "/settings", "/group", "/store", "/log-level")
PROBES = ("/healthz", "/readyz", "/metrics")


@asynccontextmanager
async def port(settings: HttpSettings = HttpSettings()) -> AsyncIterator[TestClient[Any, Any]]:  # noqa: B008
    admin = AdminView(lambda: None, lambda: "starting", lambda: {"phase": "starting"})
    app = application(Probes(lambda: None, lambda: None, lambda form: iter(["m 1\n"])), admin=admin, settings=settings)
    async with TestClient(TestServer(app)) as client:
        yield client


async def status(client: TestClient[Any, Any], path: str, method: str = "GET", **headers: str) -> int:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with client.request(method, path, headers=named) as answer:
        return answer.status


FOREIGN = [
    {"Host": "evil.example"},
    {"Host": "evil.example:8080"},
    {"Host": "localhost.evil.example"},
    {"Host": "127.0.0.1.evil.example"},
    {"Host": "local"} | {"Origin": "http://evil.example"},
    {"Origin": "https://127.0.0.1"},
    {"Origin": "null"},
    {"Sec_Fetch_Site": "cross-site"},
    {"Sec_Fetch_Site": "same-site"},
]


@pytest.mark.parametrize("headers", FOREIGN)
async def test_a_page_of_another_site_can_neither_read_nor_change(headers: dict[str, str]) -> None:
    async with port() as client:
        for path in ADMIN:
            assert await status(client, path, **headers) == 403, path
            assert await status(client, path, "POST", **headers) == 403, path
        assert [await status(client, path, **headers) for path in PROBES] == [200] * 3


async def test_tools_and_pages_of_the_port_itself_are_served() -> None:
    async with port(HttpSettings(allowedHosts="mq.example.com, Other.example")) as client:
        own = f"127.0.0.1:{client.port}"
        for headers in (
            {},
            {"Host": "localhost:8080"},
            {"Host": "broker-a"},
            {"Host": "[::1]:8080"},
            {"Host": "10.1.2.3"},
            {"Host": "broker.local"},
            {"Host": "orders-0-1.shop.svc:8080"},
            {"Host": socket.gethostname()},
            {"Host": "mq.example.com:8080"},
            {"Host": "OTHER.example."},
            {"Origin": f"http://{own}", "Sec_Fetch_Site": "same-origin"},
            {"Sec_Fetch_Site": "none"},
        ):
            assert await status(client, "/node", **headers) == 200, headers


async def test_a_caller_with_a_token_may_use_any_name(tmp_path: Path) -> None:
    """No page knows the token, and a proxy or a DNS name may stand between."""
    (tmp_path / "token").write_text("secret")
    async with port(HttpSettings(adminTokenFile=str(tmp_path / "token"))) as client:
        for headers in FOREIGN:
            assert await status(client, "/node", **headers) == 401
            assert await status(client, "/node", Authorization="Bearer secret", **headers) == 200


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
async def test_a_body_is_json_and_says_so(content_type: str) -> None:
    """These are what a page may send to another site without asking it."""
    async with port() as client:
        headers = {"Content-Type": content_type} if content_type else {}
        async with client.put("/log-level", data=b'{"level": "DEBUG"}', headers=headers) as answer:
            assert answer.status == 415 and "Content-Type: application/json" in (await answer.json())["error"]
        async with client.put("/log-level", json={"level": "LOUD"}) as answer:
            assert answer.status == 400, "the body was read"


async def test_every_answer_tells_browsers_to_do_nothing_with_it() -> None:
    async with port() as client:
        for path in (*PROBES, *ADMIN, "/nothing"):
            async with client.get(path) as answer:
                assert answer.headers["X-Content-Type-Options"] == "nosniff", path
                assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
                assert answer.headers["Cache-Control"] == "no-store"
                assert "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.parametrize(
    ("settings", "answer"),
    [
        (HttpSettings(host="0.0.0.0"), 403),
        (HttpSettings(host="::"), 403),
        (HttpSettings(host="192.0.2.7"), 403),
        (HttpSettings(host="broker-a"), 403),
        (HttpSettings(host="0.0.0.0", open=True), 200),
        (HttpSettings(host="127.0.0.2"), 200),
        (HttpSettings(host="::1"), 200),
        (HttpSettings(host="localhost"), 200),
    ],
)
async def test_a_port_that_others_reach_needs_a_token_or_the_setting(settings: HttpSettings, answer: int) -> None:
    async with port(settings) as client:
        assert await status(client, "/node") == answer
        assert [await status(client, path) for path in PROBES] == [200] * 3


@pytest.mark.process
def test_a_process_that_listens_everywhere_answers_probes_only(tmp_path: Path) -> None:
    """`tally run --host 0.0.0.0`, as the image starts it."""
    with TallyProcess(tmp_path, "--host", "0.0.0.0", "--set", "http.port=0") as process:
        address = f"127.0.0.1:{process.places['http'].rpartition(':')[2]}"

        def ask(method: str, path: str, body: str | None = None) -> tuple[int, str]:
            connection = http.client.HTTPConnection(address, timeout=60)
            connection.request(method, path, body, {"Content-Type": "application/json"})
            found = connection.getresponse()
            return found.status, found.read().decode()

        assert ask("GET", "/readyz") == (200, "ok\n")
        refused, text = ask("PUT", "/topics/mine", "{}")
        assert refused == 403 and "http.adminTokenFile" in json.loads(text)["error"]
        assert ask("GET", "/store")[0] == 403


async def asked(guard: Authentication, token: str, remote: str) -> int:
    """The status of a request with a token from an address."""

    async def handler(_: web.Request) -> web.StreamResponse:
        return web.Response()

    request = make_mocked_request("GET", "/node", headers={"Authorization": f"Bearer {token}"}).clone(remote=remote)
    return (await guard.middleware(request, handler)).status


async def test_wrong_tokens_of_an_address_are_limited(tmp_path: Path) -> None:
    """Also the right one is not compared then: else the limit would not slow down a search. Others are served."""
    (tmp_path / "token").write_text("secret")
    clock = [100.0]
    guard = Authentication(HttpSettings(), TokenFile(tmp_path / "token"), None, lambda: clock[0])
    for _ in range(FAILURES):
        assert await asked(guard, "wrong", "192.0.2.1") == 401
    assert await asked(guard, "wrong", "192.0.2.1") == 429
    assert await asked(guard, "secret", "192.0.2.1") == 429
    assert await asked(guard, "secret", "192.0.2.2") == 200
    clock[0] += FAILURE_WINDOW_S
    assert await asked(guard, "secret", "192.0.2.1") == 200


def test_addresses_with_wrong_tokens_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tallystick.node.http.authentication._MOST_ADDRESSES", 8)
    failures = Failures(lambda: 1.0)
    for number in range(100):
        failures.add(f"192.0.2.{number}")
    assert len(failures._found) == 8
    now: Callable[[str], int] = failures.wait_s
    assert [now(f"192.0.2.{number}") for number in (0, 99)] == [0, 0]


@pytest.mark.parametrize(
    ("name", "private"),
    [
        ("127.0.0.1", True),
        ("fe80::1%eth0", True),
        ("broker", True),
        ("a.local", True),
        ("a.svc.cluster.local", True),
        ("localhost", True),
        ("", False),
        ("evil.example", False),
        ("evillocal.com", False),
        ("a.notlocal", False),
        ("127.0.0.1.nip.io", False),
    ],
)
def test_names_that_no_page_has(name: str, private: bool) -> None:
    assert is_private(name) is private


@given(st.text(max_size=40))
def test_any_header_has_a_name_or_none(host: str) -> None:
    name = host_name(host)
    assert name == name.lower() and is_private(name) in (True, False)


@given(st.text(max_size=20))
def test_any_address_is_loopback_or_not(address: str) -> None:
    assert is_loopback(address) in (True, False)
