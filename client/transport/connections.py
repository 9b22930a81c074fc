"""The connections of a client, one for each address: opened when needed, again after a failure, with growing pauses."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tallystick.client.core.errors import ClosedError, ConnectionFailed, Timeout, refused
from tallystick.client.core.events import Event, OnEvent
from tallystick.client.transport.connection import Connection, Serve, Served
from tallystick.client.wire.addresses import NOT_AN_ADDRESS, host_and_port, reason_of
from tallystick.client.wire.codes import ResponseCode
from tallystick.client.wire.command import Command, HeaderType
from tallystick.client.wire.signatures import SECURITY_TOKEN, sign

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 3.0


@dataclass(frozen=True, slots=True)
class Acl:
    """An account of RocketMQ's access control. Requests carry `access_key` and a signature made with `secret_key`."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)


@dataclass(slots=True)
class _Failures:
    """Attempts to connect that failed one after the other; the next one may begin at `again_s` of the loop's clock."""

    count: int = 0
    again_s: float = 0.0
    reason: str = ""


class Connections:
    """Calls servers by address ("host:port", "[::1]:port"). `serve` gets the requests of servers."""

    def __init__(
        self,
        *,
        connect_timeout_s: float,
        tls: ssl.SSLContext | None,
        acl: Acl | None,
        header: HeaderType,
        on_event: OnEvent,
    ) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._tls = tls
        self._acl = acl
        self._header = header
        self._on_event = on_event
        self._links: dict[str, Connection] = {}
        self._opening: dict[str, asyncio.Task[Connection]] = {}
        self._failures: dict[str, _Failures] = {}
        self._known: set[str] = set()
        self._routes: dict[int, Serve] = {}
        self._all_lost = asyncio.Event()
        self.on_open: list[Callable[[str], None]] = []
        """Called with the address of each connection that was opened."""
        self.versions: dict[str, int] = {}
        """The protocol version of each server, from its last answer."""
        self.closed = False

    def route(self, code: int, serve: Serve) -> None:
        """`serve` gets the requests of servers with this code."""
        self._routes[int(code)] = serve

    async def call(self, address: str, command: Command, timeout_s: float, *, patient: bool = True) -> Command:
        """Sends a request and returns the answer, whatever its code. `timeout_s` includes connecting.

        ConnectionFailed: it was not sent. NoAnswer, Timeout: it may have been served. `patient`: whether to wait for
        the pause after failed attempts to connect, within the time; otherwise ConnectionFailed is raised at once.
        """
        self._prepare(command)
        link = self._links.get(address)
        if link is None or link.closed:
            loop = asyncio.get_running_loop()
            begin_s = loop.time()
            link = await self._within(address, timeout_s, patient)
            timeout_s = max(0.001, timeout_s - (loop.time() - begin_s))
        answer = await link.call(command, timeout_s)
        self.versions[address] = answer.version
        if answer.code == ResponseCode.GO_AWAY:  # nothing was done: the server wants a new connection
            link.close("the server asked for a new connection")
            answer = await (await self._within(address, timeout_s, patient)).call(command, timeout_s)
        return answer

    async def ask(self, address: str, command: Command, timeout_s: float) -> Command:
        """Like `call`, but an answer with an error code raises Refused."""
        answer = await self.call(address, command, timeout_s)
        if answer.code != ResponseCode.SUCCESS:
            raise refused(address, answer.code, answer.remark)
        return answer

    async def oneway(self, address: str, command: Command, timeout_s: float) -> None:
        """Sends a request that gets no answer. ConnectionFailed."""
        self._prepare(command)
        (await self._within(address, timeout_s, True)).oneway(command)

    def is_open(self, address: str) -> bool:
        """Whether there is a connection to this address now."""
        link = self._links.get(address)
        return link is not None and not link.closed

    def local_ip(self) -> str:
        """The address of this machine in a network of a server; empty if there is no connection."""
        return next((link.local_ip for link in self._links.values() if not link.closed), "")

    async def close(self, grace_s: float = 1.0) -> None:
        """Closes all connections. Waiting calls fail with NoAnswer."""
        self.closed = True
        for task in self._opening.values():
            task.cancel()
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        for link in list(self._links.values()):
            link.close("the client was closed")
        if self._links:
            try:
                await asyncio.wait_for(self._all_lost.wait(), grace_s)
            except TimeoutError:
                for link in list(self._links.values()):
                    link.abort("the client was closed")
                await asyncio.sleep(0)

    def _prepare(self, command: Command) -> None:
        command.header_type = self._header
        command.language = "PYTHON"
        if self._acl is not None:
            if self._acl.security_token is not None:
                command.ext = {**(command.ext or {}), SECURITY_TOKEN: self._acl.security_token}
            sign(command, self._acl.access_key, self._acl.secret_key)

    # --- opening ---

    async def _within(self, address: str, timeout_s: float, patient: bool) -> Connection:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._connection(address, patient)
        except Timeout:
            raise
        except TimeoutError:
            failures = self._failures.get(address)
            reason = failures.reason if failures and failures.reason else "no connection"
            raise ConnectionFailed(address, f"{reason}, within {timeout_s:.3g} s") from None

    async def _connection(self, address: str, patient: bool) -> Connection:
        while True:
            link = self._links.get(address)
            if link is not None and not link.closed:
                return link
            if self.closed:
                raise ClosedError("the client is closed", address=address)
            failures = self._failures.get(address)
            if failures is not None and address not in self._opening:
                left_s = failures.again_s - asyncio.get_running_loop().time()
                if left_s > 0:
                    if not patient:
                        raise ConnectionFailed(address, failures.reason)
                    await asyncio.sleep(left_s)
                    continue
            return await self._opened(address)

    async def _opened(self, address: str) -> Connection:
        """Several callers may wait for one attempt. One that is cancelled does not stop it for the others."""
        opening = self._opening.get(address)
        if opening is None:
            opening = self._opening[address] = asyncio.get_running_loop().create_task(self._open(address))
            opening.add_done_callback(lambda task: self._finished(address, task))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            if opening.cancelled():
                raise ClosedError("the client was closed", address=address) from None
            raise

    def _finished(self, address: str, task: asyncio.Task[Connection]) -> None:
        del self._opening[address]
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it: the callers that wait have it

    async def _open(self, address: str) -> Connection:
        found = host_and_port(address)
        if found is None:
            raise ConnectionFailed(address, NOT_AN_ADDRESS)
        host, port = found
        options: dict[str, Any] = {}
        if self._tls is not None:
            options = {"ssl": self._tls, "server_hostname": host, "ssl_handshake_timeout": self._connect_timeout_s}
        loop = asyncio.get_running_loop()
        if isinstance(loop, asyncio.BaseEventLoop):  # uvloop's cannot try a second address meanwhile
            options["happy_eyeballs_delay"] = 0.25
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, link = await loop.create_connection(
                    lambda: Connection(address, self._serve, self._lost), host, port, **options
                )
        except TimeoutError:
            raise self._failed(address, f"no connection within {self._connect_timeout_s:g} s") from None
        except OSError as error:
            raise self._failed(address, reason_of(error)) from error
        except UnicodeError as error:
            raise self._failed(address, f"is not the name of a host: {error}") from error
        self._failures.pop(address, None)
        self._links[address] = link
        self._all_lost.clear()
        self._on_event(Event("reconnected" if address in self._known else "connected", address))
        self._known.add(address)
        for hook in self.on_open:
            hook(address)
        return link

    def _failed(self, address: str, reason: str) -> ConnectionFailed:
        failures = self._failures.setdefault(address, _Failures())
        pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**failures.count) * random.uniform(0.5, 1.0)
        failures.count = min(failures.count + 1, 20)
        failures.again_s = asyncio.get_running_loop().time() + pause_s
        failures.reason = reason
        self._on_event(Event("connect-failed", address, f"{reason}; the next attempt is after {pause_s:.2f} s"))
        return ConnectionFailed(address, reason)

    def _lost(self, link: Connection, reason: str) -> None:
        if self._links.get(link.address) is link:
            del self._links[link.address]
            self._on_event(Event("disconnected", link.address, reason))
        if not self._links:
            self._all_lost.set()

    def _serve(self, address: str, request: Command) -> Served:
        serve = self._routes.get(request.code)
        if serve is None:
            remark = f" request type {request.code} not supported"
            return request.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
        return serve(address, request)
