"""The console as a part of an HTTP server: the pages at `/`, and the REST interface at `/api/v1`.

A node mounts it on its HTTP port, and `tally console` on a port of a process without a broker. The server provides its
limits, its access log and the headers of its answers.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping

from aiohttp import web

from tallystick.console.api import cluster, consumption, messages, reading, sending, session, topics
from tallystick.console.api.access import Access, Gate
from tallystick.console.api.backends import Backends, Connect
from tallystick.console.api.document import Document
from tallystick.console.api.interface import Handler, Interface, Services
from tallystick.console.api.problems import is_of_interface
from tallystick.console.pages import page_routes

HANDLERS: Mapping[str, Handler] = {
    **cluster.HANDLERS,
    **topics.HANDLERS,
    **messages.HANDLERS,
    **sending.HANDLERS,
    **reading.HANDLERS,
    **consumption.HANDLERS,
    **session.HANDLERS,
}


class Console:
    """The pages and the interface of one cluster. `connect` makes an admin core; `cluster` names its name servers."""

    def __init__(self, connect: Connect, cluster: Callable[[], str], gate: Gate) -> None:
        self.services = Services(
            access=Access(gate),
            backends=Backends(connect),
            document=Document.load(),
            cluster=cluster,
            version=importlib.metadata.version("tallystick"),
        )
        self._pages = page_routes()
        self._paths = frozenset(route.path for route in self._pages)

    def covers(self, path: str) -> bool:
        """Whether the console itself decides who may ask for a path: pages are for all, the interface has sessions."""
        return is_of_interface(path) or path in self._paths

    def add_to(self, app: web.Application) -> None:
        """Adds the routes, and the end of streams and connections when the server stops."""
        app[CONSOLE] = self
        app.add_routes(self._pages)
        app.add_routes(Interface(self.services, HANDLERS).routes())
        app.on_shutdown.append(self._stop)
        app.on_cleanup.append(self._close)

    async def _stop(self, app: web.Application) -> None:
        self.services.stopping.set()

    async def _close(self, app: web.Application) -> None:
        await self.services.backends.close()


CONSOLE = web.AppKey("console", Console)
"""Where an application has its console."""
