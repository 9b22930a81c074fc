"""The HTTP port: probes, metrics, and administration of the process.

    /healthz          200 while the process works; 500 with the reason when only a restart can help
    /readyz           200 when the broker serves and accepts messages; 503 with the reason otherwise
    /metrics          Prometheus text, see `metrics.py`
    /node             what the process is doing; see `node_api.py`
    /settings         the broker's settings, and changes; see `settings_api.py`
    /group            a replicated group: its state, and changes; see `group_api.py`
    /promotion        makes a slave the master; see `promotion_api.py`
    /migration        what is to be known about the master before and after that; see `migration_api.py`
    /topics           see `topics_api.py`
    /consumergroups   see `consumer_groups_api.py`
    /store            the store's files, for jobs that read them; see `store_files_api.py`
    /api/v1           the REST interface of the whole cluster, and at / the console; see `console.py`

`authentication.py` decides who may use the routes: with `adminTokenFile`, all but the first three require a token. A
token of `readTokenFile` opens only `/store`; with such a file `/store` requires a token in any case. Without
`adminTokenFile`, only callers on this machine may use them, unless `open` is set.

`limits.py` limits the resources of connections; a body must arrive within `BODY_S` seconds (408).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web
from aiohttp.typedefs import Middleware

from tallystick.node.access.access_log import AccessLog
from tallystick.node.core.admin_token import TokenFile
from tallystick.node.core.settings import HttpSettings
from tallystick.node.http.admin_api import MAX_BODY_BYTES, AdminView, table_routes
from tallystick.node.http.authentication import Authentication, add_headers, is_closed, json_bodies
from tallystick.node.http.console import ConsoleView, make_console
from tallystick.node.http.consumer_groups_api import ConsumerGroupsApi
from tallystick.node.http.exposition import Form, form_for
from tallystick.node.http.group_api import group_routes
from tallystick.node.http.http_log import HttpLog
from tallystick.node.http.json_api import refused
from tallystick.node.http.limits import BODY_S, Guards
from tallystick.node.http.log_api import log_routes
from tallystick.node.http.migration_api import migration_routes
from tallystick.node.http.node_api import node_routes
from tallystick.node.http.peer_errors import peer_errors
from tallystick.node.http.promotion_api import promotion_routes
from tallystick.node.http.settings_api import settings_routes
from tallystick.node.http.store_files_api import StoreFilesApi
from tallystick.node.http.topics_api import TopicsApi
from tallystick.node.http.users_api import users_routes
from tallystick.node.remoting.server import bind
from tallystick.node.remoting.turns import TURN_S
from tallystick.node.tls.process import ProcessTls
from tallystick.node.tls.settings import TlsMode
from tallystick.store.limited_log import LimitedLog

if TYPE_CHECKING:
    from tallystick.node.broker.group.group_role import BrokerGroup


_logger = logging.getLogger("tallystick.http")

_LINGER_S = 1.0
"""Time in which a client whose body was not read can read the answer before its connection ends."""
_BACKLOG = 128
MAX_BODIES = 32
"""Requests with a body that are served at a time; others are answered with 503."""
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
UnderWay = Callable[[object], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class Probes:
    """The probes of the port. Each returns the reason of a failure, or None."""

    healthy: Callable[[], str | None]
    ready: Callable[[], str | None]
    metrics: Callable[[Form], Iterator[str]]
    """Returns the page of metrics in pieces, each of which takes a short time."""


def no_group() -> BrokerGroup | None:
    """For a process without a group."""
    return None


def application(
    probes: Probes,
    group: Callable[[], BrokerGroup | None] = no_group,
    admin: AdminView | None = None,
    settings: HttpSettings = HttpSettings(),  # noqa: B008 -- frozen
    under_way: UnderWay = lambda _: nullcontext(),
    console: ConsoleView | None = None,
) -> web.Application:
    """The routes, for a server or a test client. `admin` None: only the group can be administered.

    OSError: a file of tokens cannot be read, or contains no token.
    `under_way(protocol)`: a context in which a request of that connection is served. `console` None: without it.
    """

    def answer(reason: str | None, bad: int) -> web.Response:
        return web.Response(text="ok\n") if reason is None else web.Response(status=bad, text=reason + "\n")

    async def healthz(_: web.Request) -> web.Response:
        return answer(probes.healthy(), 500)

    async def readyz(_: web.Request) -> web.Response:
        return answer(probes.ready(), 503)

    async def metrics(request: web.Request) -> web.Response:
        form = form_for(request.headers.get("Accept", ""))
        body = await _in_turns(probes.metrics(form))
        return web.Response(body=body, headers={"Content-Type": form.value})

    bodies = _Bodies()
    tokens, read_tokens = _token_file(settings.adminTokenFile), _token_file(settings.readTokenFile)
    guard = Authentication(settings, tokens, read_tokens)
    log = HttpLog("address" if tokens is None else "token", _access_log(admin))
    middlewares = [_noted(under_way), log.middleware, guard.middleware, json_bodies, _errors_as_json, bodies.middleware]
    app = web.Application(middlewares=middlewares, client_max_size=MAX_BODY_BYTES)
    app.on_response_prepare.append(add_headers)
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics)])
    bodies.add_to(app)
    app.add_routes(group_routes(group))
    app.add_routes(log_routes())
    if admin is not None:
        app.add_routes(node_routes(admin))
        app.add_routes(settings_routes(admin))
        app.add_routes(promotion_routes(admin))
        app.add_routes(migration_routes(admin, authenticated=tokens is not None))
        app.add_routes(table_routes(TopicsApi, admin))
        app.add_routes(table_routes(ConsumerGroupsApi, admin))
        app.add_routes(users_routes(admin))
        StoreFilesApi(admin).add_to(app)
    if console is not None and settings.console:
        pages = make_console(console, settings, tokens, guard.failures)
        guard.decides_itself = pages.covers
        pages.add_to(app)
    return app


async def _in_turns(pieces: Iterator[str]) -> bytes:
    """Joins a text whose pieces take long together: other work of the event loop runs between them."""
    found, end_s = bytearray(), time.perf_counter() + TURN_S
    for piece in pieces:
        found += piece.encode()
        if time.perf_counter() >= end_s:
            await asyncio.sleep(0)
            end_s = time.perf_counter() + TURN_S
    return bytes(found)


def _access_log(admin: AdminView | None) -> AccessLog:
    """Its lines are also in the audit of the broker, while there is one."""
    log = AccessLog()

    def audit(line: dict[str, Any]) -> None:
        broker = None if admin is None else admin.broker()
        if broker is not None:
            broker.audit.record(line)

    log.on_line = audit
    return log


def _noted(under_way: UnderWay) -> Middleware:
    @web.middleware
    async def noted(request: web.Request, handler: _Handler) -> web.StreamResponse:
        with under_way(request.protocol):
            return await handler(request)

    return noted


class _Bodies:
    """The requests with a body. Bodies are held in memory as a whole, so few are accepted at a time: `MAX_BODY_BYTES`
    each. A stop does not wait for a body that is still arriving: its sender may be a stranger who sends no more."""

    def __init__(self) -> None:
        self._count = 0
        self._arriving: set[asyncio.Timeout] = set()
        self._is_stopping = False

    def add_to(self, app: web.Application) -> None:
        """Adds the handler of the application's end."""
        app.on_shutdown.append(self._stop)

    @web.middleware
    async def middleware(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Reads the body, which the request keeps for the handler."""
        if not request.body_exists:
            return await handler(request)
        if self._is_stopping:
            return self._late(request)
        if self._count >= MAX_BODIES:
            return refused(request, 503, f"{MAX_BODIES} requests with a body are in progress: retry later")
        self._count += 1
        try:
            try:
                async with asyncio.timeout(BODY_S) as limit:
                    self._arriving.add(limit)
                    try:
                        await request.read()
                    finally:
                        self._arriving.discard(limit)
            except TimeoutError:
                return self._late(request)
            return await handler(request)
        finally:
            self._count -= 1

    def _late(self, request: web.Request) -> web.Response:
        if self._is_stopping:
            return refused(request, 503, "the process is stopping")
        return refused(request, 408, f"the body did not arrive within {BODY_S:g} s")

    async def _stop(self, app: web.Application) -> None:
        self._is_stopping = True
        for limit in tuple(self._arriving):
            limit.reschedule(asyncio.get_running_loop().time())


@web.middleware
async def _errors_as_json(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Unknown path or method, body too long: reported like all other failures."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        allowed = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else None
        return refused(request, error.status, f"{request.method} {request.path}: {error.reason}", allowed)


def _token_file(path: str) -> TokenFile | None:
    return TokenFile(Path(path).expanduser()) if path else None


class HttpServer:
    """The port itself."""

    def __init__(
        self,
        settings: HttpSettings,
        probes: Probes,
        group: Callable[[], BrokerGroup | None] = no_group,
        admin: AdminView | None = None,
        tls: ProcessTls | None = None,
        console: ConsoleView | None = None,
    ) -> None:
        """Raises OSError if a file of tokens cannot be read, or contains no token. `tls` None: without TLS.

        SettingsError: `tlsMode` needs a certificate, and there is none.
        """
        self._settings = settings
        self._tls = None
        if tls is not None:
            if settings.tlsMode is TlsMode.enforcing:
                tls.certificate.require()
            self._tls = tls.port(LimitedLog(_logger, time.monotonic), settings.tlsMode)
        app = application(probes, group, admin, settings, self._under_way, console)
        self._runner = web.AppRunner(app, access_log=None, lingering_time=_LINGER_S, logger=peer_errors())
        self.guards: Guards | None = None
        """The guards of the connections; None before the start."""
        self._servers: list[asyncio.Server] = []
        self._sweeping: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Listens and returns the port. OSError: the address cannot be used; the text names it."""
        sockets = await bind(self._settings.host, self._settings.port, "http.port")
        await self._runner.setup()
        server = self._runner.server
        assert server is not None, "the runner is set up"
        self.guards = guards = Guards(server)
        if is_closed(self._settings):
            _logger.info("HTTP port: only probes and metrics are served: set http.adminTokenFile, or http.open = true")
        loop = asyncio.get_running_loop()
        for listener in sockets:
            self._servers.append(await loop.create_server(self._accepted, sock=listener, backlog=_BACKLOG))
        self._sweeping = loop.create_task(guards.keep_sweeping(), name="sweep-http")
        return int(sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Accepts nothing more and lets requests in progress end. Further calls, or before `start`, do nothing."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        for server in self._servers:
            server.close()
        self._servers = []
        if self.guards is not None:
            self.guards.close_silent()
        await self._runner.cleanup()

    def _accepted(self) -> asyncio.Protocol:
        assert self.guards is not None, "it is started"
        guard = self.guards()
        return guard if self._tls is None else self._tls.guard(guard)

    def _under_way(self, protocol: object) -> AbstractContextManager[None]:
        return nullcontext() if self.guards is None else self.guards.under_way(protocol)
