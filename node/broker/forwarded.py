"""Requests that another member passes on to this one, which leads; and the clients that it speaks for.

A request is served as if its client were connected here: processors get a `RemoteClient` for a connection, which has
the client's address, so records are born where they were. It is a channel too: what the leader asks of a client that
heartbeats to another member (what became of a transaction, here is your reply) goes by that member's link.

Only who knows this leadership's key is believed (`leader_place`).
"""

from __future__ import annotations

import hmac
import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

from tallystick.node.broker import envelope
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import FLAG_ONEWAY, Command, ResponseError, opt_str
from tallystick.node.remoting.errors import FrameError, HeaderError, RemotingConnectError
from tallystick.store.limited_log import LimitedLog

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from tallystick.node.remoting.endpoint import Handler
    from tallystick.node.remoting.server import Connection
    from tallystick.store.message import Host

_CLIENTS = "clients of another member"  # attribute of its link


class RemoteClient:
    """A client whose connection another member has. Keeps to `clients.Channel`; one for each client and link."""

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
        """As `Connection.oneway`; lost if the client or the link is gone."""
        command.flag |= FLAG_ONEWAY
        self._link.oneway(envelope.to_client(command, self.remote, 0))

    async def call(self, command: Command, timeout_s: float = 3.0) -> Command:
        """As `Connection.call`."""
        outer = await self._link.call(envelope.to_client(command, self.remote, timeout_s), timeout_s)
        answer = envelope.opened(outer) if outer.code == ResponseCode.SUCCESS else None
        if answer is None:
            raise RemotingConnectError(self.id, outer.remark or "the client is gone")
        return answer

    def close(self) -> None:
        """It is not spoken to any more. Its connection is another member's."""
        self._gone = True
        clients_of(self._link).pop(self.id, None)


def clients_of(link: Connection) -> dict[str, RemoteClient]:
    """The clients that a member speaks for by this link."""
    found: dict[str, RemoteClient] = link.attributes.setdefault(_CLIENTS, {})
    return found


def is_of_member(connection: Connection) -> bool:
    """Another member passes requests on by it, or has done so."""
    return _CLIENTS in connection.attributes


class Receiver(Protocol):
    """What it needs to know of the group: `group.BrokerGroup`."""

    @property
    def leads(self) -> bool: ...

    @property
    def key(self) -> str: ...

    def refusal(self) -> str | None: ...


class ForwardedRequests:
    """Serves them at the leader, refuses them at any other member."""

    def __init__(
        self,
        receiver: Receiver,
        changes: Mapping[int, Handler],
        questions: Mapping[int, Handler],
        log: LimitedLog,
        on_left: Callable[[RemoteClient], None],
    ) -> None:
        """`changes` need a leader that takes entries, `questions` one that leads. `on_left`: a client is gone."""
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
            raise ResponseError(ResponseCode.SYSTEM_ERROR, f"no request in an envelope: {error}") from error
        if inner is None:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, "an empty envelope")
        handler = self._handler(inner.code)
        clients = clients_of(link)
        # Remembered only when it heartbeats: other requests need its address, and nothing later.
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
        """The clients known by it are gone, as far as we can tell; those that live heartbeat by another way."""
        for client in list(clients_of(link).values()):
            client.close()
            self._on_left(client)

    def _judge(self, command: Command) -> None:
        if not hmac.compare_digest(opt_str(command.ext, envelope.KEY).encode(), self._receiver.key.encode()):
            raise ResponseError(ResponseCode.NO_PERMISSION, "not a word of a member of this leader's group")

    def _handler(self, code: int) -> Handler:
        receiver = self._receiver
        handler = self._questions.get(code)
        if handler is not None:
            reason = None if receiver.leads else receiver.refusal() or "this member does not lead"
        else:
            handler = self._changes.get(code)
            reason = receiver.refusal()
        if handler is None:
            raise ResponseError(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f"request {code} is not passed on")
        if reason is not None:
            raise ResponseError(ResponseCode.SERVICE_NOT_AVAILABLE, reason)
        return handler

    async def _finish(self, command: Command, inner: Command, result: Awaitable[Command | None]) -> Command:
        # It begins only now, and leadership may have gone since. Who passed it on keeps it.
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
        """As `Connection` answers it."""
        if isinstance(error, ResponseError):
            return inner.reply(error.code, remark=error.remark)
        self._log.warning(f"request {inner.code}", "a request %d that was passed on failed", inner.code, exc_info=True)
        return inner.reply(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")


def only(routes: Mapping[int, Handler], codes: Collection[int]) -> dict[int, Handler]:
    """Those of the routes that serve these codes."""
    return {code: handler for code, handler in routes.items() if code in codes}
