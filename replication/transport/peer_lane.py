"""One lane to one peer: keeps a connection, and accepts messages while it is connected and not full.

Nothing is queued for later. A message that cannot be passed to a connection now is refused, and one that was passed may
be lost with the connection: the core sends again what is still relevant, which a queue could not know.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable

from tallystick.replication.transport.backoff import Backoff
from tallystick.replication.transport.counters import LaneStatus, SentCounters
from tallystick.replication.transport.handshake import Hello, Identity, Lane
from tallystick.replication.transport.link import CallerLink, Payload
from tallystick.replication.transport.shared import Shared

Address = tuple[str, int]

_TOLD_MAX = 16  # fewer failures exist, but a peer can send any text


class _NowhereError(OSError):
    """The peer's name has no address."""


class PeerLane:
    """`address` is resolved again for each attempt. `on_connected` and `on_room` are `Transport`'s."""

    def __init__(
        self,
        shared: Shared,
        member: int,
        address: Address,
        lane: Lane,
        *,
        on_connected: Callable[[int, Lane], None],
        on_room: Callable[[int, Lane], None],
    ) -> None:
        self.sent = SentCounters()
        self._shared = shared
        self._member = member
        self._address = address
        self._lane = lane
        self._on_connected = on_connected
        self._on_room = on_room
        self._refused = False  # a message was refused because the lane is full
        settings = shared.settings
        self._queue_bytes = settings.control_queue_bytes if lane is Lane.CONTROL else settings.bulk_queue_bytes
        self._loop = asyncio.get_running_loop()
        first_s = settings.reconnect_first_ms / 1000
        self._backoff = Backoff(first_s, settings.reconnect_max_ms / 1000, shared.dice)
        self._nowhere = Backoff(first_s, settings.reconnect_nowhere_ms / 1000, shared.dice)
        self.resolved: frozenset[str] = frozenset()
        """The addresses of the peer's name when it was last resolved."""
        self._told: set[str] = set()  # reasons logged since the last connection
        self._link: CallerLink | None = None
        self._hurry = asyncio.Event()
        self._task = self._loop.create_task(self._keep(), name=f"lane-{lane.name.lower()}-n{member}")

    @property
    def address(self) -> Address:
        """The configured address of the peer."""
        return self._address

    @property
    def connected(self) -> bool:
        """Whether there is a connection that the peer accepted."""
        return self._link is not None and not self._link.closed

    def status(self) -> LaneStatus:
        """The present state; the counters continue to count."""
        link = self._link
        return LaneStatus(self.connected, 0 if link is None else link.queued_bytes, self.sent)

    def send(self, head: bytes, payload: Payload | None) -> bool:
        """Passes a frame to the connection; False if it was refused."""
        link = self._link
        if link is None or link.closed:
            self.sent.dropped_unconnected += 1
            return False
        if link.paused:
            self.sent.dropped_full += 1
            self._refused = True
            return False
        link.write(head, payload)
        if link.closed:
            self.sent.dropped_unconnected += 1
            return False
        self.sent.frames += 1
        self.sent.bytes += len(head) + (0 if payload is None else len(payload))
        return True

    def move(self, address: Address) -> None:
        """Changes the peer's address."""
        if address != self._address:
            self._address = address
            self._hurry.set()
            if self._link is not None:
                self._link.fail("the peer's address was changed")

    async def close(self, grace_s: float) -> None:
        """Refuses all messages, waits up to `grace_s` seconds until the rest is sent, and ends the connection."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        link, self._link = self._link, None
        if link is not None:
            link.close("this member closes the connection")
            try:
                async with asyncio.timeout(grace_s):
                    await link.lost.wait()
            except TimeoutError:
                link.abort()

    # --- the connection ---

    async def _keep(self) -> None:
        shared = self._shared
        steady_s = shared.settings.reconnect_max_ms / 1000
        while True:
            self._hurry.clear()
            since_s, backoff = None, self._backoff
            try:
                link = await self._connect()
            except TimeoutError:
                reason = f"no connection within {shared.settings.connect_timeout_ms} ms"
            except OSError as error:
                reason = _words(error)
                if isinstance(error, _NowhereError):  # it may become a member later, or never
                    backoff = self._nowhere
            except Exception as error:  # an internal error must end one attempt, not the lane
                shared.log.warning("mistake", "calling n%d failed", self._member, about=self._member, exc_info=True)
                reason = repr(error)
            else:
                since_s = self._loop.time()
                await link.lost.wait()
                reason = link.reason
            self.sent.failures += 1
            self.sent.last_error = reason
            self._tell(reason)
            # A peer that accepts the connection and closes it at once counts like one that refuses.
            if since_s is not None and self._loop.time() - since_s >= steady_s:
                self._backoff.reset()
            if backoff is not self._nowhere:
                self._nowhere.reset()
            try:
                async with asyncio.timeout(backoff.next_s()):
                    await self._hurry.wait()
            except TimeoutError:
                pass  # the wait is over

    def _tell(self, reason: str) -> None:
        """Logs a reason once until the next connection: a peer may be absent for good."""
        if reason in self._told or len(self._told) >= _TOLD_MAX:
            return
        host, port = self._address
        written = self._shared.log.warning(
            f"{self._lane.name} lane", "n%d at %s:%d (%s): %s",
            self._member, host, port, self._lane.name.lower(), reason, about=self._member,
        )  # fmt: skip
        if written:
            self._told.add(reason)

    async def _connect(self) -> CallerLink:
        shared = self._shared
        settings = shared.settings
        hello = Hello(shared.identity, self._member, int(self._lane))
        host, port = self._address
        timeout_s = settings.connect_timeout_ms / 1000
        context = None if shared.tls is None else shared.tls.client()
        made: list[CallerLink] = []

        def factory() -> CallerLink:
            made.append(
                CallerLink(
                    settings,
                    hello,
                    queue_bytes=self._queue_bytes,
                    inspect=self._inspect,
                    on_room=self._room,
                )
            )
            return made[-1]

        deadline_s = self._loop.time() + timeout_s
        addresses = await self._addresses(host, timeout_s)
        self.resolved = frozenset(addresses)
        try:
            async with asyncio.timeout_at(deadline_s):
                for number, address in enumerate(addresses, 1):
                    try:
                        await self._loop.create_connection(
                            factory, address, port, ssl=context, server_hostname=None if context is None else host
                        )
                        break
                    except OSError:
                        if number == len(addresses):
                            raise
            link = made[-1]
            try:
                async with asyncio.timeout(settings.handshake_timeout_ms / 1000):
                    await asyncio.shield(link.welcomed)
            except TimeoutError:
                raise ConnectionError(f"no answer to Hello within {settings.handshake_timeout_ms} ms") from None
        except BaseException:
            for each in made:
                each.fail("the attempt was abandoned")
            raise
        if link.closed:
            raise ConnectionError(link.reason)
        self._link = link
        self._told.clear()
        self.sent.connects += 1
        shared.log.info(
            f"{self._lane.name} lane up", "n%d at %s:%d (%s): connected",
            self._member, host, port, self._lane.name.lower(), about=self._member,
        )  # fmt: skip
        self._refused = False
        self._loop.call_soon(self._tell_connected, link)
        return link

    async def _addresses(self, host: str, timeout_s: float) -> list[str]:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._shared.names.addresses(host)
        except TimeoutError:
            raise _NowhereError(f"its name was not resolved within {timeout_s:g} s") from None
        except (socket.gaierror, UnicodeError) as error:  # UnicodeError: not a valid host name
            raise _NowhereError(_words(error)) from None

    def _inspect(self, transport: asyncio.Transport) -> str | None:
        shared = self._shared
        if shared.tls is None or shared.tls.calls_plain:
            return None
        own = shared.identity
        return shared.tls.stranger(transport.get_extra_info("peercert"), Identity(own.cluster, own.group, self._member))

    def _tell_connected(self, link: CallerLink) -> None:
        if link is self._link and not link.closed:
            self._on_connected(self._member, self._lane)

    def _room(self) -> None:
        if self._refused:
            self._refused = False
            self._on_room(self._member, self._lane)


def _words(error: Exception) -> str:
    """The system's text of the error; asyncio's own text repeats the address."""
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error}"
    if isinstance(error, socket.gaierror) or not isinstance(error, OSError) or not error.errno:
        return getattr(error, "strerror", None) or str(error) or type(error).__name__
    return os.strerror(error.errno)
