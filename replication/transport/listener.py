"""The called side: accepts connections of other members and delivers their frames.

Connections are accepted one by one here and not by a server object of the event loop, because such a server keeps the
TLS context that it was created with, while the files can change. A connection without a name has a time limit and no
rights, and counts for `connections_max` like the others. Connections without a name can use half of that: above it, the
oldest of them is closed, so that silent strangers keep no member out.

`callers` decides whether a caller can have the name that it claims.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Sequence

from tallystick.replication.transport.callers import KnownAddresses, objection, standing
from tallystick.replication.transport.counters import ReceivedCounters
from tallystick.replication.transport.frames import FrameError, FrameHeader
from tallystick.replication.transport.handshake import Hello, Lane, Refusal, RefusalCode, Standing, Welcome, judge
from tallystick.replication.transport.link import CalledLink
from tallystick.replication.transport.shared import Shared

_BACKLOG = 128
_ACCEPT_AGAIN_S = 1.0  # wait after the system had no file descriptor or memory left

# Errors of accept() that concern one connection, which is already gone.
_ONE_CONNECTION = frozenset((errno.ECONNABORTED, errno.EPROTO, errno.EINTR, errno.ENETDOWN, errno.EHOSTUNREACH))

_TLS_HANDSHAKE = b"\x16"  # a frame begins with the high byte of its message's length, which is 0

_COUNTERS_MAX = 256  # for members and lanes; a caller can claim any number

Deliver = Callable[[int, FrameHeader, memoryview, memoryview | None], None]


class Listener:
    """`check` decides which frames are allowed; `deliver(member, header, message, payload)` gets them.
    `addresses(member)`: the addresses of a member (`callers`).

    An exception in `deliver` ends that connection and is logged: the peer reconnects and sends again.
    """

    def __init__(
        self, shared: Shared, check: Callable[[FrameHeader], None], deliver: Deliver, addresses: KnownAddresses
    ) -> None:
        self.received: dict[tuple[int, Lane], ReceivedCounters] = {}
        self.refused = 0
        """Connections that were not accepted: refused, too many, or not of a member."""
        self._shared = shared
        self._check = check
        self._deliver_frame = deliver
        self._addresses = addresses
        self._nameless: dict[CalledLink, asyncio.Task[None] | None] = {}  # oldest first; None: waits for Hello
        self._links: set[CalledLink] = set()
        self._named: dict[tuple[int, Lane], CalledLink] = {}
        self._sockets: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._greeting: set[asyncio.Task[None]] = set()
        self._closing = False

    def start(self, sockets: Sequence[socket.socket]) -> None:
        """Listens on bound sockets, which it owns from now on."""
        loop = asyncio.get_running_loop()
        self._sockets = list(sockets)
        for bound in sockets:
            bound.setblocking(False)
            bound.listen(_BACKLOG)
            self._accepting.append(loop.create_task(self._accept(bound), name="accept-members"))

    async def close(self) -> None:
        """Stops accepting and ends every connection."""
        self._closing = True
        tasks = [*self._accepting, *self._greeting]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for bound in self._sockets:
            bound.close()
        links = list(self._links)
        for link in links:
            link.fail("this member closes the connection")
        for link in links:
            await link.lost.wait()

    def connected(self) -> set[tuple[int, Lane]]:
        """Members with a connection to this one, and the lanes."""
        return set(self._named)

    # --- accepting ----------------------------------------------------------------------------------------------------

    async def _accept(self, bound: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        shared = self._shared
        while True:
            try:
                raw, address = await loop.sock_accept(bound)
            except OSError as error:
                if error.errno not in _ONE_CONNECTION:
                    shared.log.warning("accept", "cannot accept connections of members: %s", str(error))
                    await asyncio.sleep(_ACCEPT_AGAIN_S)
                continue
            if len(self._links) >= shared.settings.connections_max:
                self.refused += 1
                shared.log.warning(
                    "too many", "%s:%d refused: %d connections of members are open",
                    address[0], address[1], len(self._links),
                )  # fmt: skip
                raw.close()
                continue
            link = CalledLink(
                shared.settings,
                judge=self._judge,
                check=self._check,
                deliver=self._deliver,
                on_lost=self._link_lost,
            )
            task = loop.create_task(self._greet(link, raw, f"{address[0]}:{address[1]}"))
            self._nameless[link] = task
            self._greeting.add(task)
            task.add_done_callback(self._greeting.discard)
            if len(self._nameless) > max(1, shared.settings.connections_max // 2):
                self._end_oldest_nameless()

    def _end_oldest_nameless(self) -> None:
        """Ends the oldest connection without a name: it had the most time for its Hello."""
        link = next(iter(self._nameless))
        greeting = self._nameless.pop(link)
        link.fail("too many connections without a name")
        if link.transport is None and greeting is not None:
            greeting.cancel()  # it is in the TLS handshake

    async def _greet(self, link: CalledLink, raw: socket.socket, address: str) -> None:
        """Accepts a connection up to the point where the link runs by itself: including TLS, without Hello."""
        shared = self._shared
        settings = shared.settings
        context = None if shared.tls is None else shared.tls.server()
        self._links.add(link)
        try:
            if shared.tls is not None and shared.tls.accepts_plain:
                async with asyncio.timeout(settings.handshake_timeout_ms / 1000):
                    if await _first_byte(raw) != _TLS_HANDSHAKE:
                        context = None
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: link,
                raw,
                ssl=context,
                ssl_handshake_timeout=None if context is None else settings.handshake_timeout_ms / 1000,
            )
        except OSError as error:  # the TLS handshake failed or took too long, or the connection was lost at once
            raw.close()
            self._forget(link)
            self.refused += 1
            shared.log.warning("tls", "handshake with %s failed: %s", address, str(error) or type(error).__name__)
            return
        except BaseException:
            raw.close()
            self._forget(link)
            raise
        if link in self._nameless:
            self._nameless[link] = None

    def _forget(self, link: CalledLink) -> None:
        self._links.discard(link)
        self._nameless.pop(link, None)

    def _judge(self, link: CalledLink, hello: Hello) -> Welcome | Refusal:
        shared = self._shared
        answer = judge(hello, shared.identity)
        assert link.transport is not None
        tls = shared.tls
        if tls is not None and tls.accepts_plain and link.transport.get_extra_info("sslcontext") is None:
            tls = None
        if isinstance(answer, Welcome) and tls is not None:
            stranger = tls.stranger(link.transport.get_extra_info("peercert"), hello.identity)
            if stranger is not None:
                answer = Refusal(RefusalCode.CERTIFICATE, f"n{hello.identity.member} is not verified: {stranger}")
        if isinstance(answer, Refusal):
            return answer
        member = hello.identity.member
        known = self._addresses(member)
        link.standing = Standing.CERTIFICATE if tls is not None else standing(link.host, known)
        key = member, Lane(hello.lane)
        older = self._named.get(key)
        reason = objection(member, link, older, known, shared.settings.silence_timeout_ms)
        if reason is not None:
            return Refusal(RefusalCode.TAKEN, reason)
        if older is not None:
            older.fail("it made a new connection")
        self._named[key] = link
        self._nameless.pop(link, None)
        link.counters = self._counters(key)
        link.counters.connects += 1
        return answer

    def _counters(self, key: tuple[int, Lane]) -> ReceivedCounters:
        if key not in self.received and len(self.received) >= _COUNTERS_MAX:
            for other in self.received.keys() - self._named.keys():
                del self.received[other]
        return self.received.setdefault(key, ReceivedCounters())

    # --- frames and ends ---

    def _deliver(self, link: CalledLink, header: FrameHeader, message: memoryview, payload: memoryview | None) -> None:
        assert link.hello is not None and link.counters is not None
        link.counters.frames += 1
        member = link.hello.identity.member
        try:
            self._deliver_frame(member, header, message, payload)
        except FrameError:
            raise
        except Exception:
            self._shared.log.warning(
                "mistake", "a message of n%d could not be handled", member, about=member, exc_info=True
            )
            link.fail("one of its messages could not be handled")

    def _link_lost(self, link: CalledLink) -> None:
        self._forget(link)
        if link.hello is None:
            self.refused += 1
            self._shared.log.warning("stranger", "%s rejected: %s", link.address, link.reason)
            return
        member, lane = link.hello.identity.member, Lane(link.hello.lane)
        if self._named.get((member, lane)) is link:
            del self._named[member, lane]
        if link.ended_by_us and not self._closing:
            assert link.counters is not None
            link.counters.failures += 1
            link.counters.last_error = link.reason
            self._shared.log.warning(
                "called", "connection of n%d at %s (%s) closed: %s",
                member, link.address, lane.name.lower(), link.reason, about=member,
            )  # fmt: skip


async def _first_byte(raw: socket.socket) -> bytes:
    """Waits for the first byte of a connection, and leaves it there. Empty: the peer closed the connection. OSError."""
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()

    def arrived() -> None:
        if not readable.done():
            readable.set_result(None)

    loop.add_reader(raw, arrived)
    try:
        await readable
    finally:
        loop.remove_reader(raw)
    return raw.recv(1, socket.MSG_PEEK)
