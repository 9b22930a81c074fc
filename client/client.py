"""The client of an application: `async with Client("ns1:9876;ns2:9876") as client`."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeVar, Unpack

from tallystick.client.consuming.consumer import Consumer, ConsumerOptions
from tallystick.client.consuming.filters import ALL, Filter
from tallystick.client.consuming.pull import PullConsumer
from tallystick.client.core.errors import ClosedError, ConfigurationError
from tallystick.client.core.events import OnEvent
from tallystick.client.producing.producer import Producer, ProducerOptions
from tallystick.client.producing.transaction import Check, TransactionalProducer
from tallystick.client.transport.connections import Acl
from tallystick.client.transport.routes import Route
from tallystick.client.transport.session import Session
from tallystick.client.wire.command import Command, HeaderType

_HEADERS: Mapping[str, HeaderType] = {"json": HeaderType.JSON, "rocketmq": HeaderType.ROCKETMQ}


class _Closable(Protocol):
    async def close(self) -> Any: ...


Owned = TypeVar("Owned", bound=_Closable)


class Client:
    """A client of a cluster. Producers and consumers that it makes share its connections and end with it.

    Use it as an asynchronous context manager, in one event loop. It starts no threads; asyncio resolves host names in
    its own.
    """

    def __init__(
        self,
        nameservers: str,
        *,
        tls: bool | ssl.SSLContext = False,
        acl: Acl | tuple[str, str] | None = None,
        timeout: float = 3.0,
        connect_timeout: float = 3.0,
        client_id: str | None = None,
        on_event: OnEvent | None = None,
        header: Literal["json", "rocketmq"] = "json",
    ) -> None:
        """`nameservers`: `host:port;host:port`. `tls`: True verifies servers with the system's certificates; a context
        does as it says. `acl`: an account of access control. `timeout`, `connect_timeout`: seconds of a request and of
        an attempt to connect. `client_id`: how brokers name this client; it must be unique. `on_event` gets events, and
        must not block. `header`: the encoding of requests. ConfigurationError: an argument is wrong.
        """
        addresses = [part.strip() for part in nameservers.replace(",", ";").split(";") if part.strip()]
        if timeout <= 0 or connect_timeout <= 0:
            raise ConfigurationError("timeout and connect_timeout are numbers of seconds above 0")
        if header not in _HEADERS:
            raise ConfigurationError(f"header is json or rocketmq, not {header!r}")
        context = ssl.create_default_context() if tls is True else tls or None
        self._session = Session(
            addresses,
            tls=context,
            acl=Acl(*acl) if isinstance(acl, tuple) else acl,
            header=_HEADERS[header],
            connect_timeout_s=connect_timeout,
            timeout_s=timeout,
            client_id=client_id,
            on_event=on_event,
        )
        self._entered = False
        self._owns: list[_Closable] = []

    async def __aenter__(self) -> Self:
        if self._entered:
            raise ClosedError("a Client is used once: make a new one")
        self._entered = True
        self._session.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes producers, consumers and connections. It can be called again."""
        while self._owns:
            await self._owns.pop().close()
        await self._session.close()

    @property
    def id(self) -> str:
        """How brokers name this client."""
        return self._session.client_id

    def producer(self, group: str, **options: Unpack[ProducerOptions]) -> Producer:
        """Returns a producer of a group. The options are those of `Producer`."""
        return self._owned(Producer(self._session, group, **options))

    def transactional(self, group: str, *, check: Check, **options: Unpack[ProducerOptions]) -> TransactionalProducer:
        """Returns a producer of transactions. `check` answers brokers that ask how a transaction ended."""
        return self._owned(TransactionalProducer(self._session, group, check, **options))

    def consumer(self, group: str, topic: str, **options: Unpack[ConsumerOptions]) -> Consumer:
        """Returns a consumer of a topic, which is a member of a group. The options are those of `ConsumerOptions`."""
        return self._owned(Consumer(self._session, group, topic, **options))

    def pull(self, topic: str, *, group: str | None = None, where: Filter = ALL) -> PullConsumer:
        """Returns a consumer for an application that keeps its offsets. `group`: for `committed` and `commit`."""
        return PullConsumer(self._session, topic, group=group, where=where)

    async def release(self, made: Producer | TransactionalProducer | Consumer) -> None:
        """Closes a producer or a consumer that is not needed any longer, and forgets it. A client that lives long and
        makes many of them needs this."""
        await made.close()
        self._owns = [each for each in self._owns if each is not made]

    def _owned(self, made: Owned) -> Owned:
        self._owns.append(made)
        return made

    @property
    def nameservers(self) -> str:
        """The addresses of the name servers, separated by semicolons."""
        return ";".join(self._session.nameservers.addresses)

    async def route(self, topic: str) -> Route:
        """Asks a name server for the brokers and queues of a topic. NotFound: it does not exist."""
        return await self._session.routes.refresh(topic)

    async def ask_nameserver(
        self, code: int, ext: Mapping[str, str] | None = None, body: bytes = b"", *, timeout: float | None = None
    ) -> Command:
        """Sends any request to a name server. Refused: its answer is an error; ConnectionFailed, NoAnswer: there is
        no answer of any of them."""
        return await self._session.nameservers.ask(code, dict(ext or {}), timeout or self._session.timeout_s, body)

    async def ask(
        self,
        address: str,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout: float | None = None,
    ) -> Command:
        """Sends any request to a server. Refused: the answer is an error. ConnectionFailed, NoAnswer: no answer."""
        command = Command(code, ext=dict(ext) if ext is not None else None, body=body)
        return await self._session.connections.ask(address, command, timeout or self._session.timeout_s)

    async def call(
        self,
        address: str,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout: float | None = None,
    ) -> Command:
        """Sends any request to a server and returns the answer, whatever its code. ConnectionFailed, NoAnswer: no
        answer. It does not wait for the pause after a failed attempt to connect, but fails at once."""
        command = Command(code, ext=dict(ext) if ext is not None else None, body=body)
        return await self._session.connections.call(address, command, timeout or self._session.timeout_s, patient=False)
