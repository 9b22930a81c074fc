"""The files of the console: their headers, and that no request reaches another file."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from console_lab import ConsoleLab

from tallystick.console.pages import page_routes

STATIC = Path(__file__).resolve().parent.parent.parent / "console" / "static"


@pytest.fixture
async def pages(tmp_path: Path) -> AsyncIterator[TestClient[web.Request, web.Application]]:
    folder = tmp_path / "static"
    (folder / "lib").mkdir(parents=True)
    (folder / "index.html").write_text("<!doctype html><p>" + "hello " * 100)
    (folder / "lib" / "a.js").write_text("export const a = 1")
    (folder / "b.woff2").write_bytes(b"\x00" * 500)
    (folder / ".hidden").write_text("hidden")
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    app = web.Application()
    app.add_routes(page_routes(folder))
    async with TestClient(TestServer(app)) as client:
        yield client


async def test_files_have_their_types_and_a_strict_policy(pages: TestClient[web.Request, web.Application]) -> None:
    kinds = {"/": "html", "/index.html": "html", "/lib/a.js": "javascript", "/b.woff2": "woff2"}
    for path, kind in kinds.items():
        async with pages.get(path) as answer:
            assert answer.status == 200 and answer.content_type.endswith(f"/{kind}")
            policy = answer.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
            assert answer.headers["Cache-Control"] == "no-cache"


async def test_an_unchanged_file_is_not_sent_again(pages: TestClient[web.Request, web.Application]) -> None:
    async with pages.get("/") as answer:
        etag = answer.headers["ETag"]
        assert answer.headers["Content-Encoding"] == "gzip" and (await answer.text()).startswith("<!doctype html>")
    async with pages.get("/", headers={"If-None-Match": etag}) as answer:
        assert (answer.status, await answer.read(), answer.headers["ETag"]) == (304, b"", etag)
    async with pages.get("/", headers={"If-None-Match": '"other"'}) as answer:
        assert answer.status == 200
    async with pages.head("/") as answer:
        assert answer.status == 200
    async with pages.get("/b.woff2") as answer:
        assert "Content-Encoding" not in answer.headers, "it is compressed already"


async def test_no_request_reaches_another_file(pages: TestClient[web.Request, web.Application]) -> None:
    host, port = pages.host, pages.port
    assert host is not None and port is not None
    for path in (
        "/../secret.txt",
        "/lib/../../secret.txt",
        "/%2e%2e/secret.txt",
        "/lib/%2e%2e%2f%2e%2e%2fsecret.txt",
        "/..%5csecret.txt",
        "//etc/passwd",
        "/.hidden",
        "/link.txt",
        "/lib/",
        "/lib",
        "/index.html/",
        "/index.html%00.js",
    ):
        reader_text = await _raw(host, port, path)  # a client of HTTP would make another path of it
        assert reader_text.startswith("HTTP/1.1 404") or reader_text.startswith("HTTP/1.1 400"), (path, reader_text)
        assert "secret" not in reader_text and "hidden" not in reader_text.partition("\r\n\r\n")[2]


async def _raw(host: str, port: int, path: str) -> str:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    text = (await reader.read()).decode("utf-8", "replace")
    writer.close()
    return text


async def test_the_pages_are_open_to_all_and_the_rest_is_not(tmp_path: Path) -> None:
    if not (STATIC / "index.html").is_file():
        pytest.skip("the pages of the console are not there")
    async with ConsoleLab(tmp_path, acl=True, tokens=True) as lab:
        for headers in ({}, {"Host": "console.example.com"}, {"Sec-Fetch-Site": "cross-site"}):
            found = await lab.raw("GET", "/", headers=headers)
            assert found.status == 200 and "<!doctype html>" in found.text.lower()
            assert found.headers["X-Frame-Options"] == "DENY" and found.headers["X-Content-Type-Options"] == "nosniff"
        assert (await lab.raw("GET", "/group")).status == 401
        for name in re.findall(r'(?:src|href)="([^"]+)"', (STATIC / "index.html").read_text()):
            assert (await lab.raw("GET", f"/{name}")).status == 200, name


async def test_a_setting_leaves_the_console_out(tmp_path: Path) -> None:
    async with ConsoleLab(tmp_path, http={"console": False}) as lab:
        assert (await lab.raw("GET", "/")).status == 404
        assert (await lab.raw("GET", "/api/v1/clusters")).status == 404
        assert (await lab.raw("GET", "/healthz")).status == 200
