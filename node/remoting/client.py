"""The client side: one connection for each address, opened when it is needed, and again after it broke."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Any

from tallystick.client.wire.addresses import NOT_AN_ADDRESS, host_and_port, reason_of
from tallystick.node.remoting.command import Command
from tallystick.node.remoting.connection import Connection
from tallystick.node.remoting.endpoint import Endpoint, Handler, Limits
from tallystick.node.remoting.errors import RemotingBusyError, RemotingConnectError, RemotingError, RemotingTimeout
from tallystick.replication.transport.names import Names

__all__ = ["RemotingBusyError", "RemotingClient", "RemotingConnectError", "RemotingError", "RemotingTimeout"]


class RemotingClient(Endpoint):
    """Calls servers by address ("host:port", "[::1]:port"). `routes` handle the requests that servers send."""

    def __init__(
        self,
        routes: Mapping[int, Handler] | None = None,
        *,
        connect_timeout_s: float = 3.0,
        idle_seconds: float = 120.0,
        name: str = "remoting.client",
        limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic,
        sign: Callable[[Command], None] | None = None,
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
    ) -> None:
        """`sign`: adds a signature to each request of `call` and `oneway`. `tls`: the context for a new connection;
        None: it does not use TLS."""
        super().__init__(routes or {}, idle_seconds=idle_seconds, name=name, limits=limits, clock=clock)
        self.connect_timeout_s = connect_timeout_s
        self.cut_last = True
        self._sign = sign
        self._tls = tls
        self._links: dict[str, Connection] = {}
        self._opening: dict[str, asyncio.Task[Connection]] = {}
        self._names = Names()
        self.on_close.append(self._forget)

    async def call(self, address: str, command: Command, timeout_s: float = 3.0) -> Command:
        """Sends a request and returns the answer, whatever its code. `timeout_s` includes connecting.

        RemotingConnectError: no connection, or it broke before the answer. RemotingTimeout. RemotingBusyError.
        """
        if self._sign is not None:
            self._sign(command)
        deadline_s = time.monotonic() + timeout_s
        connection = await self._connection(address, command.code, timeout_s)
        return await connection.call(command, max(0.0, deadline_s - time.monotonic()))

    async def oneway(self, address: str, command: Command, timeout_s: float = 3.0) -> None:
        """Sends a one-way request. RemotingConnectError, RemotingTimeout: there is no connection."""
        if self._sign is not None:
            self._sign(command)
        connection = await self._connection(address, command.code, timeout_s)
        connection.oneway(command)

    async def connection(self, address: str) -> Connection:
        """Returns the connection to an address, and opens it if necessary. RemotingConnectError: that failed."""
        link = self._links.get(address)
        if link is not None and not link.closed:
            return link
        if self.stopping:
            raise RemotingConnectError(address, "the client is closed")
        opening = self._opening.get(address)
        if opening is None:
            opening = self._opening[address] = asyncio.get_running_loop().create_task(self._open(address))
            opening.add_done_callback(lambda task: self._opened(address, task))
        try:
            # several callers may wait; one that is cancelled does not stop the others
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            if opening.cancelled():
                raise RemotingConnectError(address, "the client was closed") from None
            raise

    def address_of(self, connection: Connection) -> str | None:
        """The address that a connection was opened for; None: it is not one of this client's open connections."""
        return next((address for address, link in self._links.items() if link is connection), None)

    async def close(self, grace_s: float = 1.0) -> None:
        """Waits for running handlers, then closes all connections. Waiting calls fail with RemotingConnectError."""
        self.stopping = True
        for opening in self._opening.values():
            opening.cancel()
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        await self.finish(grace_s)

    async def _connection(self, address: str, code: int, timeout_s: float) -> Connection:
        link = self._links.get(address)
        if link is not None and not link.closed:
            return link
        try:
            async with asyncio.timeout(timeout_s):
                return await self.connection(address)
        except TimeoutError:
            raise RemotingTimeout(address, code, timeout_s) from None

    async def _open(self, address: str) -> Connection:
        found = host_and_port(address)
        if found is None:
            raise RemotingConnectError(address, NOT_AN_ADDRESS)
        host, port = found
        try:
            async with asyncio.timeout(self.connect_timeout_s):
                link = await self._connect(host, port)
        except TimeoutError:
            raise RemotingConnectError(address, f"no connection within {self.connect_timeout_s:g} s") from None
        except UnicodeError as error:
            raise RemotingConnectError(address, f"is not the name of a host: {error}") from error
        except OSError as error:
            raise RemotingConnectError(address, reason_of(error)) from error
        if link.closed:
            raise RemotingConnectError(address, "the connection was refused at once")
        self.start_sweeping()
        self._links[address] = link
        return link

    async def _connect(self, host: str, port: int) -> Connection:
        """Connects to the first of the host's addresses that answers. OSError: that of the last one; UnicodeError."""
        loop = asyncio.get_running_loop()
        addresses = await self._names.addresses(host)
        for number, found in enumerate(addresses, 1):
            try:
                _, link = await loop.create_connection(lambda: Connection(self), found, port, **self._options(host))
                return link
            except OSError:
                if number == len(addresses):
                    raise
        raise AssertionError("a name that was found has an address")

    def _options(self, host: str) -> dict[str, Any]:
        context = self._tls()
        if context is None:
            return {}
        return {"ssl": context, "server_hostname": host, "ssl_handshake_timeout": self.connect_timeout_s}

    def _opened(self, address: str, task: asyncio.Task[Connection]) -> None:
        del self._opening[address]
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it: the callers that wait have it

    def _forget(self, connection: Connection) -> None:
        for address, link in list(self._links.items()):
            if link is connection:
                del self._links[address]
