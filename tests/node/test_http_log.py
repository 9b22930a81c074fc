"""The access log of the HTTP port: changes and refusals, without tokens."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from tallystick.node.core.settings import HttpSettings
from tallystick.node.http.server import Probes, application

TOKEN = "a-token-of-some-length"


async def lines(
    caplog: pytest.LogCaptureFixture, settings: HttpSettings, *requests: tuple[str, str, dict[str, str]]
) -> list[dict[str, Any]]:
    """The lines that these requests (method, path, headers) leave."""
    app = application(Probes(lambda: None, lambda: None, lambda form: iter(())), settings=settings)
    with caplog.at_level(logging.INFO, "tallystick.access"):
        async with TestClient(TestServer(app)) as client:
            for method, path, headers in requests:
                async with client.request(method, path, headers=headers):
                    pass
    assert TOKEN not in caplog.text
    return [json.loads(record.getMessage()) for record in caplog.records if record.name == "tallystick.access"]


@pytest.fixture
def guarded(tmp_path: Path) -> HttpSettings:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    return HttpSettings(adminTokenFile=str(file))


async def test_a_change_and_a_refusal_leave_a_line(caplog: pytest.LogCaptureFixture, guarded: HttpSettings) -> None:
    right = {"Authorization": f"Bearer {TOKEN}"}
    found = await lines(
        caplog,
        guarded,
        ("GET", "/log-level", right),
        ("GET", "/healthz", {}),
        ("DELETE", "/log-level", right),
        ("GET", "/log-level?token=secret", {"Authorization": "Bearer wrong"}),
        ("DELETE", "/log-level", {}),
    )
    shown = {"from": "127.0.0.1", "left_out": 0}
    assert found == [
        {"result": "failed", "by": "token", "request": "DELETE /log-level", "status": 405, **shown},
        {"result": "denied", "request": "GET /log-level", "status": 401, **shown},
        {"result": "denied", "request": "DELETE /log-level", "status": 401, **shown},
    ]


async def test_a_change_without_tokens(caplog: pytest.LogCaptureFixture) -> None:
    levels = {"Content-Type": "application/json"}
    found = await lines(caplog, HttpSettings(), ("PUT", "/log-level", levels), ("PUT", "/nothing", {}))
    assert [(line["by"], line["request"]) for line in found] == [
        ("address", "PUT /log-level"),
        ("address", "PUT /nothing"),
    ]


async def test_a_flood_of_refusals_leaves_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    foreign = ("GET", "/log-level", {"Host": "evil.example"})
    found = await lines(caplog, HttpSettings(), *[foreign] * 60)
    assert 20 <= len(found) < 60 and {line["status"] for line in found} == {403}
