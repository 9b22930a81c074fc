"""Requests that another member forwards to this one, the leader, and the clients of that member.

A request is served as if its client were connected here. Processors get a `RemoteClient` in place of a connection. It
has the client's address, so records get the correct born host. It is also a channel: requests of the leader to a client
of another member (a transaction check, a reply) use that member's link.

Only a sender that knows this leadership's key is trusted (`leader_place`).
"""

from __future__ import annotations

import hmac
import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

from tallystick.node.broker.group import envelope
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import FLAG_ONEWAY, Command, ResponseError, opt_str
from tallystick.node.remoting.errors import FrameError, HeaderError, RemotingConnectError
from tallystick.store.limited_log import LimitedLog

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from tallystick.node.remoting.endpoint import Handler
    from tallystick.node.remoting.server import Connection
    from tallystick.store.formats.message import Host

_CLIENTS = "clients of another member"  # attribute of its link


class RemoteClient:
    """A client that is connected to another member. Implements `clients.Channel`; one object for each client and
    link."""

    def __init__(self, link: Connection, remote: Host) -> None:
        self.remote = remote
        self.id = str(remote)
        self.attributes: dict[str, Any] = {}
        self._link = link
        self._gone = False

    @property
    def closed(self) -> bool:
        return self._gone or self._link.closed

    def oneway(self, command: Command) -> None:
        """As `Connection.oneway`; lost if the client or the link is closed."""
        command.flag |= FLAG_ONEWAY
        self._link.oneway(envelope.to_client(command, self.remote, 0))

    async def call(self, command: Command, timeout_s: float = 3.0) -> Command:
        """As `Connection.call`."""
        outer = await self._link.call(envelope.to_client(command, self.remote, timeout_s), timeout_s)
        answer = envelope.opened(outer) if outer.code == ResponseCode.SUCCESS else None
        if answer is None:
            raise RemotingConnectError(self.id, outer.remark or "the client is not connected")
        return answer

    def close(self) -> None:
        """Stops using the client. Its connection belongs to another member."""
        self._gone = True
        clients_of(self._link).pop(self.id, None)


def clients_of(link: Connection) -> dict[str, RemoteClient]:
    """The clients for which a member forwards requests on this link."""
    found: dict[str, RemoteClient] = link.attributes.setdefault(_CLIENTS, {})
    return found


def is_of_member(connection: Connection) -> bool:
    """Whether another member forwards requests on this connection, or has done so."""
    return _CLIENTS in connection.attributes


class Receiver(Protocol):
    """What this module needs from the group: `group.BrokerGroup`."""

    @property
    def leads(self) -> bool: ...

    @property
    def key(self) -> str: ...

    def refusal(self) -> str | None: ...


class ForwardedRequests:
    """Serves forwarded requests at the leader, and refuses them at any other member."""

    def __init__(
        self,
        receiver: Receiver,
        changes: Mapping[int, Handler],
        questions: Mapping[int, Handler],
        log: LimitedLog,
        on_left: Callable[[RemoteClient], None],
    ) -> None:
        """`changes` need a leader that accepts entries, `questions` need a leader. `on_left`: a client disconnected."""
        self._receiver = receiver
        self._changes, self._questions = changes, questions
        self._log = log
        self._on_left = on_left

    def routes(self) -> dict[int, Handler]:
        return {RequestCode.FORWARDED_REQUEST: self.serve, RequestCode.CLIENT_LEFT: self.left}

    def serve(self, link: Connection, command: Command) -> Command | Awaitable[Command | None] | None:
        """31001."""
        self._judge(command)
        try:
            inner, remote = envelope.opened(command), envelope.client_of(command)
        except (FrameError, HeaderError) as error:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, f"an envelope without a valid request: {error}") from error
        if inner is None:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, "an empty envelope")
        inner.user = opt_str(command.ext, envelope.USER)
        handler = self._handler(inner.code)
        clients = clients_of(link)
        # Remembered only when it sends a heartbeat: other requests need its address once.
        client = clients.get(str(remote)) or RemoteClient(link, remote)
        if inner.code == RequestCode.RELAYED_HEART_BEAT:
            clients[client.id] = client
        try:
            result = handler(client, inner)  # type: ignore[arg-type]  # all that they use of a connection
        except Exception as error:
            result = self._failed(inner, error)
        if inspect.isawaitable(result):
            return self._finish(command, inner, result)
        return envelope.answer(command, result)

    def left(self, link: Connection, command: Command) -> None:
        """31002."""
        self._judge(command)
        client = clients_of(link).pop(str(envelope.client_of(command)), None)
        if client is not None:
            client.close()
            self._on_left(client)

    def link_lost(self, link: Connection) -> None:
        """Drops the clients of a lost link; those that are still connected send heartbeats another way."""
        for client in list(clients_of(link).values()):
            client.close()
            self._on_left(client)

    def _judge(self, command: Command) -> None:
        if not hmac.compare_digest(opt_str(command.ext, envelope.KEY).encode(), self._receiver.key.encode()):
            raise ResponseError(ResponseCode.NO_PERMISSION, "the sender is not a member of this leader's group")

    def _handler(self, code: int) -> Handler:
        receiver = self._receiver
        handler = self._questions.get(code)
        if handler is not None:
            reason = None if receiver.leads else receiver.refusal() or "this member does not lead"
        else:
            handler = self._changes.get(code)
            reason = receiver.refusal()
        if handler is None:
            raise ResponseError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f"request {code} is not forwarded")
        if reason is not None:
            raise ResponseError(ResponseCode.SERVICE_NOT_AVAILABLE, reason)
        return handler

    async def _finish(self, command: Command, inner: Command, result: Awaitable[Command | None]) -> Command:
        # It begins only now, and leadership may be lost since. The forwarding member keeps the request.
        reason = self._receiver.refusal() if inner.code in self._changes else None
        if reason is not None and inspect.iscoroutine(result):
            result.close()
            raise ResponseError(ResponseCode.SERVICE_NOT_AVAILABLE, reason)
        try:
            answer = await result
        except Exception as error:
            answer = self._failed(inner, error)
        return envelope.answer(command, answer)

    def _failed(self, inner: Command, error: Exception) -> Command:
        """The answer that `Connection` would give."""
        if isinstance(error, ResponseError):
            return inner.reply(error.code, remark=error.remark)
        self._log.warning(f"request {inner.code}", "forwarded request %d failed", inner.code, exc_info=True)
        return inner.reply(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")


def only(routes: Mapping[int, Handler], codes: Collection[int]) -> dict[int, Handler]:
    """The routes that serve these codes."""
    return {code: handler for code, handler in routes.items() if code in codes}
