"""A request may administer if it has a token of the file in its present state."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer
from tally_process import environment, tally

from tallystick.node.core.settings import HttpSettings
from tallystick.node.http.admin_api import AdminView
from tallystick.node.http.server import Probes, application

pytestmark = pytest.mark.process

SECRET = "s3cret-of-the-cluster"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(SECRET + "\n")
    return file


@pytest.fixture
async def client(file: Path) -> AsyncIterator[TestClient]:
    admin = AdminView(lambda: None, lambda: "starting", lambda: {"phase": "starting"})
    app = application(
        Probes(lambda: None, lambda: None, lambda form: iter(["m 1\n"])),
        admin=admin,
        settings=HttpSettings(adminTokenFile=str(file)),
    )
    async with TestClient(TestServer(app)) as client:
        yield client


def change(file: Path, content: str | None) -> None:
    """Another file in its place, as editors and Kubernetes do it; None: the file is removed."""
    if content is None:
        file.unlink()
        return
    new = file.with_name("new")
    new.write_text(content)
    new.replace(file)


async def status(client: TestClient, path: str, authorization: str | None = None, method: str = "GET") -> int:
    headers = {} if authorization is None else {"Authorization": authorization}
    async with client.request(method, path, headers=headers) as answer:
        if answer.status == 401:
            assert "error" in await answer.json()
            assert answer.headers["WWW-Authenticate"] == "Bearer"
        return answer.status


async def test_probes_and_metrics_are_open_and_nothing_else_is(client: TestClient) -> None:
    assert [await status(client, path) for path in ("/healthz", "/readyz", "/metrics")] == [200] * 3
    for path in ("/node", "/group", "/topics", "/consumergroups/g", "/nothing", "/healthz/"):
        assert await status(client, path) == 401, path
    assert await status(client, "/group/transfer", method="POST") == 401
    assert await status(client, "/node", f"Bearer {SECRET}") == 200
    assert await status(client, "/topics", f"bearer  {SECRET} ") == 503, "let in, and there is no broker"


@pytest.mark.parametrize(
    "given",
    ["", "Bearer", "Bearer ", f"Basic {SECRET}", SECRET, f"Bearer {SECRET}x", f"Bearer {SECRET[:-1]}", "Bearer \xe4"],
)
async def test_a_token_that_is_not_in_the_file(client: TestClient, given: str) -> None:
    assert await status(client, "/node", given) == 401


async def test_the_file_is_read_again_when_it_is_another_one(client: TestClient, file: Path) -> None:
    change(file, f"new\n\n{SECRET}\n")
    assert [await status(client, "/node", f"Bearer {token}") for token in ("new", SECRET, "")] == [200, 200, 401]
    change(file, "new")
    assert [await status(client, "/node", f"Bearer {token}") for token in ("new", SECRET)] == [200, 401]


async def test_no_request_is_allowed_while_the_token_file_is_missing(
    client: TestClient, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    change(file, None)
    with caplog.at_level(logging.ERROR):
        assert [await status(client, "/node", f"Bearer {SECRET}") for _ in range(3)] == [401] * 3
    assert len(caplog.records) == 1, "one line, not one for each request"
    change(file, "")
    assert await status(client, "/node", "Bearer ") == 401
    change(file, SECRET)
    assert await status(client, "/node", f"Bearer {SECRET}") == 200
    assert SECRET not in caplog.text


@pytest.mark.parametrize("content", [None, "", " \n\n"])
def test_a_process_does_not_start_without_a_token(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
    result = tally("nameserver", "--port", "0", "--http-port", "0", "--set", f"adminTokenFile={file}")
    assert result.returncode == 2
    assert f"tally: {file}: " in result.stderr
    assert "Traceback" not in result.stderr


async def test_the_command_sends_what_is_in_its_file(client: TestClient, file: Path) -> None:
    place = f"127.0.0.1:{client.port}"

    async def ask(*arguments: str, **more: str) -> str:
        result = await asyncio.to_thread(
            tally, "group", "status", "--http", place, "--json", *arguments, env=environment(**more)
        )
        answer: dict[str, str] = json.loads(result.stdout)
        return answer["error"]

    assert "token" in await ask()
    let_in = "this broker is not in a replicated group, or has not started yet"
    assert await ask("--token-file", str(file)) == let_in
    assert await ask(TALLY_TOKEN_FILE=str(file)) == let_in
