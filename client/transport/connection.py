"""One connection to a server, which many requests share.

Requests get numbers, and answers come in any order. Frames that are written in one turn of the event loop leave in one
system call. A server can also send requests: a handler serves each, and its result is the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

from tallystick.client.core.errors import ConnectionFailed, NoAnswer, ProtocolError, Timeout
from tallystick.client.wire.codec import decode, encode_head
from tallystick.client.wire.codes import ResponseCode
from tallystick.client.wire.command import FLAG_ONEWAY, FLAG_RESPONSE, Command
from tallystick.client.wire.errors import FrameError, HeaderError
from tallystick.client.wire.frames import FrameSplitter

Served = Command | Awaitable[Command | None] | None
Serve = Callable[[str, Command], Served]
"""Serves a request of the server at an address. None: no answer."""

_HIGH_BYTES = 1 << 20  # unsent bytes above which calls wait
_DEAD_S = 3.0  # a connection without a byte for so long, since a request that had no answer, is closed


class Connection(asyncio.Protocol):
    """A connection to `address` (host:port). `lost` is called once, with the reason, when it ends."""

    def __init__(self, address: str, serve: Serve, lost: Callable[[Connection, str], None]) -> None:
        self.address = address
        self.closed = False
        self._serve = serve
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._frames = FrameSplitter()
        self._calls: dict[int, asyncio.Future[Command]] = {}
        self._next_opaque = 0
        self._out: list[bytes] = []
        self._writable: asyncio.Future[None] | None = None
        self._received_s = 0.0
        self._reason = ""
        self._serving: set[asyncio.Task[None]] = set()

    @property
    def local_ip(self) -> str:
        """The address of this machine as seen from the server's network."""
        name = self._transport.get_extra_info("sockname") if self._transport is not None else None
        return str(name[0]) if isinstance(name, tuple) else ""

    async def call(self, command: Command, timeout_s: float) -> Command:
        """Sends a request and returns the answer, whatever its code. ConnectionFailed, NoAnswer, Timeout;
        ProtocolError: the request does not fit into a frame."""
        loop = self._loop
        sent_s = loop.time()
        if self._writable is not None:
            await self._until_writable(command, timeout_s)
            timeout_s -= loop.time() - sent_s
        if self.closed:
            raise ConnectionFailed(self.address, self._reason or "the connection is closed")
        opaque = self._next_opaque
        while opaque in self._calls:
            opaque = (opaque + 1) & 0x7FFFFFFF
        self._next_opaque = (opaque + 1) & 0x7FFFFFFF
        command.opaque = opaque
        self._send(command)
        answer: asyncio.Future[Command] = loop.create_future()
        self._calls[opaque] = answer
        timer = loop.call_later(timeout_s, self._expired, opaque, command.code, timeout_s, sent_s)
        try:
            return await answer
        finally:
            timer.cancel()
            self._calls.pop(opaque, None)

    def oneway(self, command: Command) -> None:
        """Sends a request that gets no answer. ConnectionFailed, ProtocolError."""
        if self.closed:
            raise ConnectionFailed(self.address, self._reason or "the connection is closed")
        command.flag |= FLAG_ONEWAY
        command.opaque = self._next_opaque
        self._next_opaque = (self._next_opaque + 1) & 0x7FFFFFFF
        self._send(command)

    def close(self, reason: str = "closed") -> None:
        """Sends what is written, then closes."""
        self._end(reason)
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: str) -> None:
        """Closes at once."""
        self._end(reason)
        if self._transport is not None:
            self._transport.abort()

    def _end(self, reason: str) -> None:
        if not self.closed:
            self._flush()
            self.closed = True
            self._reason = reason

    # --- writing ---

    def _send(self, command: Command) -> None:
        try:
            head = encode_head(command)
        except (HeaderError, FrameError) as error:
            raise ProtocolError(f"{self.address}: {error}", address=self.address) from error
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(head)
        if command.body:
            self._out.append(command.body)

    def _flush(self) -> None:
        if self._out and not self.closed and self._transport is not None:
            self._transport.write(b"".join(self._out))
        self._out.clear()

    async def _until_writable(self, command: Command, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                while self._writable is not None:
                    await asyncio.shield(self._writable)
        except TimeoutError:
            raise ConnectionFailed(
                self.address, f"the server read nothing within {timeout_s:g} s, so request {command.code} was not sent"
            ) from None

    # --- what the event loop calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_HIGH_BYTES)

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        waiting, self._writable = self._writable, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        reason = self._reason or (str(error) if error else "the server closed the connection")
        self.closed, self._reason = True, reason
        self.resume_writing()
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(NoAnswer(self.address, f"the connection was lost: {reason}"))
        for task in self._serving:
            task.cancel()
        self._lost(self, reason)

    def data_received(self, data: bytes) -> None:
        self._received_s = self._loop.time()
        try:
            frames = self._frames.feed(data)
        except FrameError as error:
            frames = error.frames
            self._loop.call_soon(self.abort, f"is no server of RocketMQ: it sent {error}")
        for frame in frames:
            try:
                command = decode(*frame)
            except HeaderError as error:
                self.abort(f"is no server of RocketMQ: it sent {error}")
                return
            if command.flag & FLAG_RESPONSE:
                answer = self._calls.get(command.opaque)
                if answer is not None and not answer.done():  # else it came too late
                    answer.set_result(command)
            else:
                self._serve_request(command)

    def _expired(self, opaque: int, code: int, timeout_s: float, sent_s: float) -> None:
        answer = self._calls.get(opaque)
        if answer is not None and not answer.done():
            answer.set_exception(Timeout(self.address, f"no answer to request {int(code)} within {timeout_s:.3g} s"))
        silent_s = self._loop.time() - max(sent_s, self._received_s)
        if silent_s >= _DEAD_S and sent_s > self._received_s and not self.closed:
            self.abort(f"no byte came for {silent_s:.0f} s after a request")

    # --- requests of the server ---

    def _serve_request(self, request: Command) -> None:
        try:
            result = self._serve(self.address, request)
        except Exception as error:
            result = _failed(request, error)
        if result is None:
            return
        if isinstance(result, Command):
            self._answer(request, result)
            return
        task = self._loop.create_task(self._serve_later(request, result))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve_later(self, request: Command, result: Awaitable[Command | None]) -> None:
        try:
            answer = await result
        except Exception as error:
            answer = _failed(request, error)
        if answer is not None:
            self._answer(request, answer)

    def _answer(self, request: Command, answer: Command) -> None:
        if request.flag & FLAG_ONEWAY or self.closed:
            return
        answer.opaque = request.opaque
        answer.flag |= FLAG_RESPONSE
        answer.header_type = request.header_type
        self._send(answer)


def _failed(request: Command, error: Exception) -> Command:
    return request.reply(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")
