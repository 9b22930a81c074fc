"""Accepts links and serves requests on them."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Sequence
from typing import Any

from tallystick.node.remoting.connection import Connection
from tallystick.node.remoting.endpoint import Endpoint, Handler, Limits
from tallystick.node.remoting.turns import Turns, turns_of_loop
from tallystick.node.tls.process import ProcessTls

__all__ = ["Connection", "Handler", "Limits", "RemotingServer"]

_BACKLOG = 1024  # as RocketMQ's


class RemotingServer(Endpoint):
    """One listening port. `routes` maps request codes to handlers; codes without one are answered with 3."""

    _servers: Sequence[asyncio.Server] = ()

    def turns(self) -> Turns:
        """See `Endpoint`: its peers may be strangers."""
        return turns_of_loop(self.clock)

    async def start(self, host: str, port: int, tls: ProcessTls | None = None, setting: str = "") -> int:
        """Listen; returns the port (chosen by the system for 0). OSError: the address cannot be used, see `bind`."""
        return await self.serve(await bind(host, port, setting), tls)

    async def serve(self, sockets: Sequence[socket.socket], tls: ProcessTls | None = None) -> int:
        """Listen on what `bind` returned, which is ours from here on; returns its port. `tls` None: without TLS."""
        assert not self._servers and not self.stopping, "a server starts once"
        loop = asyncio.get_running_loop()
        port = None if tls is None else tls.port(self.log)

        def accept() -> asyncio.Protocol:
            connection = Connection(self)
            return connection if port is None else port.guard(connection)

        self._servers = [await loop.create_server(accept, sock=bound, backlog=_BACKLOG) for bound in sockets]
        self.start_sweeping()
        return int(sockets[0].getsockname()[1])

    async def stop(self, grace_s: float = 5.0) -> None:
        """Accept nothing more, give running handlers `grace_s` seconds, close every connection. Again: nothing."""
        if self._servers:
            for server in self._servers:
                server.close()
            await self.finish(grace_s)
            self._servers = ()


async def bind(host: str, port: int, setting: str = "") -> list[socket.socket]:
    """Sockets at every address of `host`, which refuse connections until they are served.

    So an owner learns that its port is free, and which one it has (`port` 0: any free one, the same at every address),
    before it does its long work. OSError: the address cannot be had; the text names it, and the `setting` it is from.
    """
    bound: list[socket.socket] = []
    absent: OSError | None = None
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, _, _, _, address in dict.fromkeys(found):
            try:
                bound.append(_bind_one(family, (address[0], port, *address[2:])))
            except OSError as error:
                # `localhost` is listed as ::1 too where the system has no IPv6.
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                absent = error
            else:
                port = bound[0].getsockname()[1]
        if absent is not None and not bound:
            raise absent
    except OSError as error:
        close_all(bound)
        source = f" ({setting})" if setting else ""
        raise OSError(error.errno, f"cannot listen on {host}:{port}{source}: {error.strerror}") from error
    return bound


def _bind_one(family: int, address: tuple[Any, ...]) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # its IPv4 side is bound by itself
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


def close_all(sockets: Sequence[socket.socket]) -> None:
    """Gives up what was bound but never served. Closed ones are left alone."""
    for each in sockets:
        each.close()
