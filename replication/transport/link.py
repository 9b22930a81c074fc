"""One connection between two members, either end: bytes come in, frames come out, and there is one way to end it.

The caller's end sends Hello and from then on only sends. The called end answers once and from then on only receives. A
member sends only on connections that it made itself, so a network that fails in one direction disables one lane, and
nothing requires both directions.

`closed` is set before anything else when a link ends, for any reason; nothing is delivered or sent after it.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import cast

from tallystick.replication.transport.counters import ReceivedCounters
from tallystick.replication.transport.frames import (
    HEADER_BYTES,
    FrameError,
    FrameHeader,
    check_message,
    decode_header,
    encode_frame,
)
from tallystick.replication.transport.handshake import (
    HANDSHAKE_VERSION,
    HELLO_MAX_BYTES,
    KIND_HELLO,
    KIND_REFUSAL,
    KIND_WELCOME,
    HandshakeError,
    Hello,
    Refusal,
    Standing,
    Welcome,
    objection,
)
from tallystick.replication.transport.receive_buffer import ReceiveBuffer
from tallystick.replication.transport.settings import TransportSettings
from tallystick.store import memory_budget

_SMALL_PAYLOAD = 16 << 10  # below this, joining is cheaper than a second write
_KEEPALIVE_PROBES = 3
# Linux, struct tcp_info: tcpi_last_data_recv and tcpi_last_ack_recv, milliseconds.
_TCP_INFO = struct.Struct("=52xII")

Payload = bytes | bytearray | memoryview


class LinkRefusedError(ConnectionError):
    """The other side refuses the caller, or is another member than wanted. Only a change of settings can help."""


class Link(asyncio.BufferedProtocol):
    """What both ends have in common."""

    def __init__(self, settings: TransportSettings, payload_max_bytes: int) -> None:
        self.closed = False
        self.address = "not connected"
        self.host = ""
        """The other side's IP address."""
        self.transport: asyncio.Transport | None = None
        self.reason = ""
        """Why the link ended; the first reason stays."""
        self.ended_by_us = False
        self.lost = asyncio.Event()
        """Set when the connection is lost."""
        self._buffer = ReceiveBuffer()
        self._header: FrameHeader | None = None
        self._settings = settings
        self._payload_max_bytes = payload_max_bytes
        self._open = False
        self._charged = self._buffer.capacity  # charged to the process's memory budget; a small buffer is not

    def __str__(self) -> str:
        return f"a member's link of {self.address}"

    def cut(self) -> None:
        """Ends the link now because of the memory that it holds."""
        self.fail("all connections hold too much memory")

    def fail(self, reason: str) -> None:
        """Ends the link now, without sending the rest."""
        if not self.closed:
            self.closed = self.ended_by_us = True
            self.reason = reason
            if self.transport is not None:
                self.transport.abort()

    def close(self, reason: str) -> None:
        """Ends the link after the written data is sent. Nothing more is delivered."""
        if not self.closed:
            self.closed = self.ended_by_us = True
            self.reason = reason
            if self.transport is not None:
                self.transport.close()

    def abort(self) -> None:
        """Stops waiting for data that is unsent after `close`."""
        if self.transport is not None:
            self.transport.abort()

    # --- called by the event loop -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is established, including TLS."""
        self.transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.host = str(peer[0]).removeprefix("::ffff:")
            self.address = f"{self.host}:{peer[1]}"
        if self.closed:  # its owner ended it meanwhile
            self.transport.abort()
            return
        try:
            tune(self.transport, self._settings.silence_timeout_ms)
        except OSError as error:  # the peer reset it at once
            self.fail(f"the connection was lost: {error}")
            return
        self.begin()

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is lost."""
        self.closed = True
        self._buffer = ReceiveBuffer()  # it may be large, and owners keep links for some time
        memory_budget.PROCESS.charge(self, 0, keep=True)
        if not self.reason:
            self.reason = f"the connection was lost: {error}" if error else "the peer closed the connection"
        self.lost.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next received bytes are written."""
        return self._buffer.room()

    def buffer_updated(self, count: int) -> None:
        """`count` bytes were received."""
        self.bytes_came(count)
        self._buffer.received(count)
        if self._buffer.capacity != self._charged:  # a large frame made it grow
            self._charged = self._buffer.capacity
            memory_budget.PROCESS.charge(self, self._charged, keep=True)
        try:
            while not self.closed and self._take_frame():
                pass
        except (FrameError, HandshakeError) as error:
            self.fail(f"it sent {error}")

    def eof_received(self) -> bool:
        """The other side sends no more: close the connection."""
        return False

    def _take_frame(self) -> bool:
        buffer = self._buffer
        header = self._header
        if header is None:
            head = buffer.peek(HEADER_BYTES)
            if head is None:
                return False
            header = decode_header(head, 0, self._payload_max_bytes)
            if not self._open and header.message_bytes > HELLO_MAX_BYTES:
                raise FrameError(f"a first frame of {header.message_bytes} bytes")
            self.check(header)
        begin = HEADER_BYTES + header.message_bytes
        total = begin + header.payload_bytes
        frame = buffer.peek(total)
        if frame is None:
            self._header = header
            buffer.expect(total)
            return False
        self._header = None
        message = frame[HEADER_BYTES:begin]
        check_message(header, message)
        payload = frame[begin:] if header.payload_bytes else None
        buffer.take(total, lent=payload is not None)
        self.frame(header, message, payload)
        return True

    # --- different for the two ends -----------------------------------------------------------------------------------

    def begin(self) -> None:
        """The connection is established."""

    def bytes_came(self, count: int) -> None:
        """`count` more bytes were received."""

    def check(self, header: FrameHeader) -> None:
        """Raises FrameError if this kind of frame is not allowed now. Called before the link waits for its bytes."""
        raise NotImplementedError

    def frame(self, header: FrameHeader, message: memoryview, payload: memoryview | None) -> None:
        """A complete frame was received. Raises FrameError or HandshakeError if it is invalid."""
        raise NotImplementedError


class CallerLink(Link):
    """The end of the member that made the connection. `welcomed` completes when the other side accepted it.

    It fails with LinkRefusedError (one side refuses the other) or ConnectionError (the connection was lost before).
    """

    def __init__(
        self,
        settings: TransportSettings,
        hello: Hello,
        *,
        queue_bytes: int,
        inspect: Callable[[asyncio.Transport], str | None],
        on_room: Callable[[], None],
    ) -> None:
        super().__init__(settings, 0)
        self.welcomed: asyncio.Future[Welcome] = asyncio.get_running_loop().create_future()
        self.paused = False
        self._hello = hello
        self._queue_bytes = queue_bytes
        self._inspect = inspect
        self._on_room = on_room

    @property
    def queued_bytes(self) -> int:
        """Passed to the connection and not sent yet."""
        return 0 if self.transport is None or self.closed else self.transport.get_write_buffer_size()

    def write(self, head: bytes, payload: Payload | None) -> None:
        """Sends a frame. A large payload is not copied: its bytes must not change until they are sent."""
        transport = self.transport
        assert transport is not None and self._open and not self.closed
        try:
            if payload is None:
                transport.write(head)
            elif len(payload) < _SMALL_PAYLOAD:
                transport.write(b"".join((head, payload)))
            else:
                transport.write(head)
                transport.write(payload)
        except RuntimeError:  # uvloop raises after the socket failed, before connection_lost
            self.fail("the connection was lost while sending")

    def begin(self) -> None:
        """Sends Hello."""
        transport = self.transport
        assert transport is not None
        if reason := self._inspect(transport):
            self._refuse(reason)
            return
        transport.set_write_buffer_limits(high=self._queue_bytes, low=self._queue_bytes // 2)
        transport.write(encode_frame(KIND_HELLO, HANDSHAKE_VERSION, self._hello.encode()))

    def check(self, header: FrameHeader) -> None:
        """Only one answer is allowed."""
        if self._open or header.kind not in (KIND_WELCOME, KIND_REFUSAL):
            raise FrameError(f"a frame of kind {header.kind} that was not expected")

    def frame(self, header: FrameHeader, message: memoryview, payload: memoryview | None) -> None:
        """Handles the answer to Hello."""
        if header.kind == KIND_REFUSAL:
            refusal = Refusal.decode(message)
            self._refuse(f"refused this member: {refusal.reason}")
            return
        welcome = Welcome.decode(message)
        if reason := objection(welcome, self._hello):
            self._refuse(reason)
            return
        self._open = True
        if not self.welcomed.done():
            self.welcomed.set_result(welcome)

    def connection_lost(self, error: Exception | None) -> None:
        """Informs the caller that waits for the welcome."""
        super().connection_lost(error)
        if not self.welcomed.done():
            self.welcomed.set_exception(ConnectionError(self.reason))
            self.welcomed.exception()  # read: the waiting caller may be gone

    def pause_writing(self) -> None:
        """More is unsent than the lane may hold. Both kinds of event loop call this within the `write` that caused
        it."""
        self.paused = True

    def resume_writing(self) -> None:
        """Half of that is sent."""
        self.paused = False
        if not self.closed:
            self._on_room()

    def _refuse(self, reason: str) -> None:
        if not self.welcomed.done():
            self.welcomed.set_exception(LinkRefusedError(reason))
            self.welcomed.exception()
        self.fail(reason)


class CalledLink(Link):
    """The end of the member that was called. The owner judges the Hello and gets the frames."""

    def __init__(
        self,
        settings: TransportSettings,
        *,
        judge: Callable[[CalledLink, Hello], Welcome | Refusal],
        check: Callable[[FrameHeader], None],
        deliver: Callable[[CalledLink, FrameHeader, memoryview, memoryview | None], None],
        on_lost: Callable[[CalledLink], None],
    ) -> None:
        super().__init__(settings, settings.payload_max_bytes)
        self.hello: Hello | None = None
        """The Hello of an accepted caller."""
        self.counters: ReceivedCounters | None = None
        """The counters of its member and lane, once it is accepted."""
        self.standing = Standing.UNKNOWN
        """How good its claim to its name is."""
        self._judge = judge
        self._check = check
        self._deliver = deliver
        self._on_lost = on_lost
        self._deadline: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Waits for Hello for a limited time."""
        self._deadline = asyncio.get_running_loop().call_later(
            self._settings.handshake_timeout_ms / 1000, self.fail, "it did not introduce itself in time"
        )

    def bytes_came(self, count: int) -> None:
        """`count` more bytes were received."""
        if self.counters is not None:
            self.counters.bytes += count

    def check(self, header: FrameHeader) -> None:
        """First only Hello is allowed, then what the owner allows."""
        if self._open:
            self._check(header)
        elif header.kind != KIND_HELLO:
            raise FrameError(f"a frame of kind {header.kind} before Hello")
        elif header.payload_bytes:
            raise FrameError("a first frame with a payload")

    def frame(self, header: FrameHeader, message: memoryview, payload: memoryview | None) -> None:
        """Handles Hello, and passes later frames to the owner."""
        if self._open:
            self._deliver(self, header, message, payload)
            return
        hello = Hello.decode(message)
        answer = self._judge(self, hello)
        if isinstance(answer, Refusal):
            self.refuse(answer)
            return
        self.hello = hello
        self._open = True
        self._stop_deadline()
        assert self.transport is not None
        self.transport.write(encode_frame(KIND_WELCOME, HANDSHAKE_VERSION, answer.encode()))

    def silent_ms(self) -> int:
        """Milliseconds since the other machine was last heard, also if it only acknowledged or answered a keepalive.

        0 if the system does not tell.
        """
        raw = None if self.transport is None else self.transport.get_extra_info("socket")
        if self.closed or raw is None or not hasattr(socket, "TCP_INFO"):
            return 0
        try:
            data = raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        except OSError:
            return 0
        return min(_TCP_INFO.unpack(data)) if len(data) == _TCP_INFO.size else 0

    def refuse(self, refusal: Refusal) -> None:
        """Tells the caller the reason and closes the connection."""
        if self.transport is not None and not self.closed:
            self.transport.write(encode_frame(KIND_REFUSAL, HANDSHAKE_VERSION, refusal.encode()))
        self.close(f"refused: {refusal.reason}")

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is lost."""
        self._stop_deadline()
        super().connection_lost(error)
        self._on_lost(self)

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def tune(transport: asyncio.Transport, silence_timeout_ms: int) -> None:
    """Sends without delay, and ends a connection whose peer does not answer.

    TCP_USER_TIMEOUT ends a connection whose bytes are not acknowledged. Keepalive ends an idle one: after half the time
    it sends three probes.
    """
    raw = transport.get_extra_info("socket")
    if raw is None or raw.family not in (socket.AF_INET, socket.AF_INET6):
        return
    half_s = silence_timeout_ms // 2000
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, half_s))
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, half_s // _KEEPALIVE_PROBES))
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_PROBES)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, silence_timeout_ms)
