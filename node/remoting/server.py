"""Accepts links and serves requests on them."""

from __future__ import annotations

import asyncio

from tallystick.node.remoting.connection import Connection
from tallystick.node.remoting.endpoint import Endpoint, Handler, Limits

__all__ = ["Connection", "Handler", "Limits", "RemotingServer"]

_BACKLOG = 1024  # as RocketMQ's


class RemotingServer(Endpoint):
    """One listening port. `routes` maps request codes to handlers; codes without one are answered with 3."""

    _server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port (chosen by the system for 0). OSError: the address cannot be used."""
        assert self._server is None and not self.stopping, "a server starts once"
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self), host, port, backlog=_BACKLOG)
        self.start_sweeping()
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self, grace_s: float = 5.0) -> None:
        """Accept nothing more, give running handlers `grace_s` seconds, close every connection. Again: nothing."""
        if self._server is not None:
            self._server.close()
            await self.finish(grace_s)
            self._server = None
