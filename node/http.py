"""The HTTP port: probes for those who run the process, metrics for those who watch it.

    /healthz   200 while the process works at all; 500 with the reason when only a restart can help
    /readyz    200 when the broker serves and takes messages; 503 with the reason while it does not
    /metrics   Prometheus text, see `metrics.py`
    /group     a replicated group: what is known of it, and changes; see `group_api.py`

Nothing asks for a password, and the group's routes move leadership: bind it to loopback or to a trusted network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiohttp import web

from tallystick.node.group_api import group_routes
from tallystick.node.remoting.server import bind
from tallystick.node.settings import HttpSettings

if TYPE_CHECKING:
    from tallystick.node.broker.group import BrokerGroup


@dataclass(frozen=True, slots=True)
class Probes:
    """What the port shows. Each probe returns why the answer is no; None: it is yes."""

    healthy: Callable[[], str | None]
    ready: Callable[[], str | None]
    metrics: Callable[[], bytes]


def no_group() -> BrokerGroup | None:
    """A process without one."""
    return None


def application(probes: Probes, group: Callable[[], BrokerGroup | None] = no_group) -> web.Application:
    """The routes, for a server or a test client."""

    def answer(reason: str | None, bad: int) -> web.Response:
        return web.Response(text="ok\n") if reason is None else web.Response(status=bad, text=reason + "\n")

    async def healthz(_: web.Request) -> web.Response:
        return answer(probes.healthy(), 500)

    async def readyz(_: web.Request) -> web.Response:
        return answer(probes.ready(), 503)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=probes.metrics(), headers={"Content-Type": "text/plain; version=0.0.4"})

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics)])
    app.add_routes(group_routes(group))
    return app


class HttpServer:
    """The port itself."""

    def __init__(
        self, settings: HttpSettings, probes: Probes, group: Callable[[], BrokerGroup | None] = no_group
    ) -> None:
        self._settings = settings
        self._runner = web.AppRunner(application(probes, group), access_log=None)

    async def start(self) -> int:
        """Listens; returns the port. OSError: the address cannot be used; the text names it."""
        sockets = await bind(self._settings.host, self._settings.port)
        await self._runner.setup()
        for listener in sockets:
            await web.SockSite(self._runner, listener).start()
        return int(sockets[0].getsockname()[1])

    async def stop(self) -> None:
        await self._runner.cleanup()
