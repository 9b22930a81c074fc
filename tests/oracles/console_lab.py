"""The REST interface and the console on a real HTTP port, over a real broker in this process.

Each answer of the interface is checked against the OpenAPI document: an operation, a status, a media type or a field
that the document does not describe fails the test that met it.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
from yarl import URL

from tallystick.client.testing import Broker
from tallystick.console.api.document import BASE, Document
from tallystick.node.core.settings import HttpSettings
from tallystick.node.http.console import ConsoleView
from tallystick.node.http.server import HttpServer, Probes

HERE = "127.0.0.1"
DOCUMENT = Document.load()
_PATHS = [(each, re.compile(re.sub(r"\\\{[^}]+\\\}", "[^/]+", re.escape(each.path)))) for each in DOCUMENT.operations]
PASSWORD = "a-long-secret"
USERS = {
    "viewer-1": ["Get"],
    "operator-1": ["Get", "Pub"],
    "admin-1": ["Get", "Update"],
    "tenant-1": [],
}
"""Users by name, with what they may do to the cluster. They may do everything to topics and groups."""
NODE = ("node-account", "secret-of-the-node")
TOKEN = "token-of-the-port"


@dataclass(frozen=True)
class Answered:
    """An answer. `json` None: it has no body, or another one."""

    status: int
    headers: Any
    text: str
    json: Any

    @property
    def kind(self) -> str:
        """The kind of a problem."""
        return str(self.json["type"]).rpartition(":")[2]


def acl_file(folder: Path) -> Path:
    """Writes the users into a file."""
    file = folder / "plain_acl.yml"
    lines = ["accounts:", f"- {{accessKey: {NODE[0]}, secretKey: {NODE[1]}, admin: true}}", "users:"]
    for name, actions in USERS.items():
        entries = ["{resource: 'Topic:*', actions: [All], decision: Allow}"]
        entries.append("{resource: 'Group:*', actions: [All], decision: Allow}")
        if actions:
            entries.append(f"{{resource: 'Cluster:*', actions: [{', '.join(actions)}], decision: Allow}}")
        policy = f"{{policyType: Custom, entries: [{', '.join(entries)}]}}"
        lines.append(f"- {{username: {name}, password: {PASSWORD}, policies: [{policy}]}}")
    file.write_text("\n".join(lines) + "\n")
    return file


class ConsoleLab:
    """Name server, broker and HTTP port. `acl`: with access control; `tokens`: with a token of the port."""

    def __init__(
        self,
        folder: Path,
        *,
        acl: bool = False,
        tokens: bool = False,
        http: dict[str, Any] | None = None,
        **broker: Any,
    ) -> None:
        self.folder = folder
        self.acl = acl
        settings: dict[str, Any] = dict(broker)
        if acl:
            self.acl_file = acl_file(folder)
            credentials = folder / "tools.yml"
            credentials.write_text(f"accessKey: {NODE[0]}\nsecretKey: {NODE[1]}\n")
            settings |= {"aclEnable": True, "aclFile": str(self.acl_file), "aclCredentialsFile": str(credentials)}
        more: dict[str, Any] = dict(http or {})
        if tokens:
            self.token_file = folder / "tokens"
            self.token_file.write_text(TOKEN + "\n")
            more["adminTokenFile"] = str(self.token_file)
        self.broker = Broker(folder / "broker", **settings)
        chosen: dict[str, Any] = {"host": HERE, "port": 0} | more
        self._http = HttpSettings(**chosen)
        self.port = 0
        self.server: HttpServer
        self._session: aiohttp.ClientSession

    @property
    def access(self) -> Any:
        """The access control of the broker."""
        return self.broker._broker.access

    async def __aenter__(self) -> Self:
        await self.broker.__aenter__()
        view = ConsoleView(
            nameservers=lambda: self.broker.nameserver,
            credentials=lambda: NODE if self.acl else None,
            tls=lambda: None,
            rules=lambda: self.access.control.accounts.rules if self.acl else None,
        )
        probes = Probes(lambda: None, lambda: None, lambda form: iter(()))
        self.server = HttpServer(self._http, probes, console=view)
        self.port = await self.server.start()
        self._session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        await self._session.close()
        await self.server.stop()
        await self.broker.__aexit__(None, None, None)

    def url(self, path: str) -> str:
        return f"http://{HERE}:{self.port}{path}"

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
        cookie: str | None = None,
        query: dict[str, Any] | None = None,
        data: bytes | None = None,
    ) -> Answered:
        """Sends a request to a path below `/api/v1`, and checks the answer against the document."""
        sent = dict(headers or {})
        if cookie is not None:
            sent["Cookie"] = cookie
        if body is not None:
            data = json.dumps(body).encode()
        if data is not None:
            sent.setdefault("Content-Type", "application/json")
        url = URL(self.url(BASE + path), encoded=True)
        if query:
            url = url.update_query({name: json.dumps(value).strip('"') for name, value in query.items()})
        async with self._session.request(method, url, data=data, headers=sent) as answer:
            text = await answer.text(errors="surrogateescape")
            found = Answered(
                answer.status, answer.headers, text, json.loads(text) if "json" in answer.content_type else None
            )
            check(method, answer.url.raw_path, answer.status, answer.content_type, found)
            return found

    async def get(self, path: str, **more: Any) -> Any:
        """The JSON of a read, which succeeds."""
        found = await self.call("GET", path, **more)
        assert found.status == 200, found
        return found.json

    async def log_in(self, user: str, password: str = PASSWORD) -> str:
        """Returns the cookie of a new session."""
        found = await self.call("POST", "/session", {"user": user, "password": password})
        assert found.status == 201, found
        return str(found.headers["Set-Cookie"]).partition(";")[0]

    async def raw(self, method: str, path: str, **more: Any) -> Answered:
        """Sends a request to any path of the port, without a check."""
        async with self._session.request(method, self.url(path), **more) as answer:
            data = await answer.read()
            return Answered(answer.status, answer.headers, data.decode("utf-8", "replace"), None)

    def events(self, path: str, *, cookie: str | None = None, headers: dict[str, str] | None = None) -> Events:
        """Opens a stream of events."""
        sent = dict(headers or {}) | ({"Cookie": cookie} if cookie is not None else {})
        return Events(self._session.get(self.url(BASE + path), headers=sent))


class Events:
    """A stream of server-sent events: an asynchronous context manager and iterator of (name, data, id)."""

    def __init__(self, request: Any) -> None:
        self._request = request
        self.answer: aiohttp.ClientResponse

    async def __aenter__(self) -> Self:
        self.answer = await self._request.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        self.answer.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[str, Any, str | None]:
        fields: dict[str, str] = {}
        while True:
            line = (await asyncio.wait_for(self.answer.content.readline(), 60)).decode()
            if not line:
                raise StopAsyncIteration
            if line == "\n":
                if "event" in fields:
                    return fields["event"], json.loads(fields["data"]), fields.get("id")
                fields = {}
                continue
            name, _, value = line.rstrip("\n").partition(": ")
            fields[name] = value


async def until(condition: Callable[[], Any]) -> None:
    """Waits until something holds that the product does not announce."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def check(method: str, path: str, status: int, media_type: str, found: Answered) -> None:
    """AssertionError: the document does not describe the answer."""
    matching = [operation for operation, pattern in _PATHS if operation.method == method and pattern.fullmatch(path)]
    if not matching:
        assert status in (404, 405) and media_type == "application/problem+json", (method, path, found)
        return
    # A literal path precedes one with a parameter.
    operation = min(matching, key=lambda each: each.path.count("{"))
    described = DOCUMENT.answer_schema(operation.id, status)
    if described is None:
        assert found.text == "", (operation.id, found)
        return
    assert media_type == described[0], (operation.id, found)
    if found.json is not None:
        validator = DOCUMENT.validator(described[1])
        errors = [f"{list(each.instance_path)}: {each.message}" for each in validator.iter_errors(found.json)]
        assert errors == [], (operation.id, found.json)
