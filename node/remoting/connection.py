"""One connection, on either side: it reads frames, calls handlers, sends answers, and matches answers with calls.

Requests are served in the order in which they arrive. A handler that is a plain function runs to its end; a handler
that waits becomes a task, so later requests can be answered before it (the opaque number identifies the answer).

If a peer does not read its answers, or sends faster than handlers finish, the connection stops reading until that
changes (`Limits`). Requests of a server's connection that do not fit into a turn of the event loop are served in later
ones (`Turns`). Frames that were already read wait in `_backlog`, which has at most two chunks of the transport.
Invalid frames and headers close the connection, because no answer is possible.

The memory that a connection holds for its peer (an unfinished frame, unsent bytes, bodies of waiting requests) is
charged to the process's `MemoryBudget`: at once above `_WATCHED_BYTES`, otherwise at the next sweep.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable
from typing import Any, cast

from tallystick.node.remoting.codec import decode, encode_head
from tallystick.node.remoting.codes import ResponseCode
from tallystick.node.remoting.command import FLAG_ONEWAY, FLAG_RESPONSE, Command, ResponseError
from tallystick.node.remoting.endpoint import FRAME_PROGRESS_BYTES, Endpoint
from tallystick.node.remoting.errors import (
    FrameError,
    HeaderError,
    RemotingBusyError,
    RemotingConnectError,
    RemotingTimeout,
)
from tallystick.node.remoting.frames import Frame, FrameSource
from tallystick.node.remoting.turns import Turns
from tallystick.replication.transport.certificates import certificate_names, common_names
from tallystick.store.formats.message import Host

_SMALL_BODY = 16_384  # below, joining is cheaper than a list of two
_WATCHED_BYTES = 16_384  # a connection that holds less is charged only at the next sweep
_LARGE_BYTES = 131_072  # of an unfinished frame above which reading it takes turns
_SLOW_BYTES = 65_536  # unsent bytes above which each write updates the charge
_CLOSE_GRACE_S = 5.0  # to send the last bytes after close()


class Connection(asyncio.Protocol):
    """One connection of an endpoint. `id` is the peer's "ip:port", `remote` its address; `attributes` is for users."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.remote = Host("0.0.0.0", 0)
        self.id = "not connected"
        self.closed = False
        """Whether this side or the peer closed the connection. Nothing can be sent then."""
        self.attributes: dict[str, Any] = {}
        self._names: tuple[str, ...] | None = None
        self._routes = endpoint.routes
        self._clock = endpoint.clock
        self._limits = endpoint.limits
        self._transport: asyncio.Transport | None = None
        self._source: FrameSource | None = None
        self._last_activity_s = endpoint.clock()
        self._active = False
        """Whether bytes were received or sent since the last sweep. A flag is cheaper than the time of each."""
        self._backlog: deque[Frame] = deque()
        self._turns: Turns | None = None
        self._has_turns = False
        """Whether `_turns` serves what is in the backlog."""
        self._waits_to_read = False
        self._in_flight = 0
        self._write_slow = False
        self._write_paused = False
        self._read_paused = False
        self._charged = False
        self._fault: str | None = None  # why the connection was closed: what the peer sent was not a frame
        self._waiting_bytes = 0  # large bodies in `_backlog` and in handlers
        self._received = 0
        self._frame_begin, self._frame_bytes, self._frame_s = 0, 0, 0.0  # of an unfinished frame, when it grew last
        self._calls: dict[int, asyncio.Future[Command]] = {}
        self._next_opaque = 0

    def __str__(self) -> str:
        return f"{self.endpoint.name} of {self.id}"

    # --- for users of a connection ---

    @property
    def certificate_names(self) -> tuple[str, ...]:
        """The names in the peer's certificate, if it has one that was verified: its common name, DNS names and URIs."""
        if self._names is None:
            found = self._transport.get_extra_info("peercert") if self._transport is not None else None
            self._names = tuple(dict.fromkeys((*common_names(found), *certificate_names(found)))) if found else ()
        return self._names

    def send(self, command: Command) -> None:
        """Sends a command unchanged. An answer that does not fit into a frame is replaced by an error answer.

        HeaderError, FrameError: a request does not fit into a frame. On a closed connection it does nothing.
        """
        try:
            head = encode_head(command)
        except (HeaderError, FrameError) as error:
            if not command.flag & FLAG_RESPONSE:
                raise
            self.endpoint.log.warning("answer", "an answer to %s cannot be sent: %s", self.id, str(error))
            command = Command(
                ResponseCode.SYSTEM_ERROR,
                command.opaque,
                FLAG_RESPONSE,
                remark=str(error),
                header_type=command.header_type,
            )
            head = encode_head(command)
        self.write(head, command.body)

    def oneway(self, command: Command) -> None:
        """Sends a one-way request. Errors as in `send`."""
        command.flag |= FLAG_ONEWAY
        command.opaque = self._new_opaque()
        self.send(command)

    async def call(self, command: Command, timeout_s: float = 3.0) -> Command:
        """Sends a request (this sets its opaque number) and returns the answer, whatever its code.

        RemotingTimeout, RemotingConnectError (also if the connection breaks meanwhile), RemotingBusyError; as in
        `send`.
        """
        if self.closed:
            raise RemotingConnectError(self.id, "the connection is closed")
        if len(self._calls) >= self._limits.calls_in_flight:
            raise RemotingBusyError(f"{self.id}: {len(self._calls)} calls wait for their answers")
        opaque = command.opaque = self._new_opaque()
        code = command.code
        answer: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._calls[opaque] = answer
        try:
            self.send(command)
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise RemotingTimeout(self.id, code, timeout_s) from None
        finally:
            self._calls.pop(opaque, None)

    def write(self, data: bytes, body: bytes = b"") -> None:
        """Sends bytes of whole frames, `data` and then `body`, in one system call and without joining them.

        It never raises. On a closed connection it does nothing.
        """
        transport = self._transport
        if self.closed or transport is None or transport.is_closing():  # closing: its socket failed a moment ago
            return
        try:
            if not body:
                transport.write(data)
            elif len(body) < _SMALL_BODY:
                transport.write(data + body)
            else:
                transport.writelines((data, body))
        except RuntimeError:  # uvloop's transport raises after its socket failed, before it calls connection_lost
            self.closed = True
            return
        if not self._write_paused:
            self._active = True
        if self._write_slow:
            self._look_at_unsent(transport)

    def cut(self) -> None:
        """Closes the connection at once, because of the memory that it holds."""
        self._charged = False
        self.abort()

    def close(self) -> None:
        """Sends what is written, then closes the connection."""
        self.closed = True
        self._backlog.clear()
        if self._transport is not None:
            self._last_activity_s = self._clock()
            self._transport.close()

    def abort(self) -> None:
        """Closes the connection at once."""
        self.closed = True
        self._backlog.clear()
        if self._transport is not None:
            self._transport.abort()

    def sweep(self, now_s: float, idle_s: float) -> None:
        """Closes the connection if it is idle. Aborts it if it was closed and its last bytes cannot be sent."""
        if self._active:
            self._active, self._last_activity_s = False, now_s
        silent_s = now_s - self._last_activity_s
        self._charge(0)
        if self.closed:
            if silent_s >= _CLOSE_GRACE_S:
                self.abort()
        elif silent_s >= idle_s:
            self.endpoint.logger.info("%s: connection idle for %d s, closed", self.id, silent_s)
            self.close()
        elif self._frame_stalls(now_s):
            self.endpoint.log.warning(
                "stalled frame", "%s: received no more bytes of a frame after %d, closed", self.id, self._frame_bytes
            )
            self.abort()

    def _frame_stalls(self, now_s: float) -> bool:
        unfinished = self._source.unfinished_bytes if self._source is not None else 0
        begin = self._received - unfinished
        grown = begin != self._frame_begin or unfinished - self._frame_bytes >= FRAME_PROGRESS_BYTES
        if not unfinished or grown or self._read_paused:
            self._frame_begin, self._frame_bytes, self._frame_s = begin, unfinished, now_s
        return now_s - self._frame_s >= self._limits.frame_stall_s

    # --- what the event loop calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called when the connection is open."""
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):  # ::ffff:10.0.0.1 is an IPv4 peer at an IPv6 socket
            self.remote = Host(str(peer[0]).removeprefix("::ffff:"), int(peer[1]))
        self.id = str(self.remote)
        endpoint = self.endpoint
        if endpoint.stopping or not endpoint.admits(self):
            self._transport.abort()
            self.closed = True
            return
        self._transport.set_write_buffer_limits(high=min(_SLOW_BYTES, self._limits.write_high_bytes))
        self._turns = endpoint.turns()
        endpoint.connected(self)
        self._source = endpoint.frame_source_factory(self)

    def encrypted(self, transport: asyncio.Transport) -> None:
        """Called when the peer begins TLS, before any data: `transport` encrypts."""
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        """Called when the connection is closed: waiting calls fail, and owners are informed."""
        self.closed = True
        self._backlog.clear()
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(
                    RemotingConnectError(
                        self.id, self._fault or f"the connection was lost{f': {error}' if error else ''}"
                    )
                )
        if self in self.endpoint.connections:
            self.endpoint.lost(self)
        self._source = None  # it may refer to this connection, and to large buffers
        self._charged = False
        self.endpoint.budget.charge(self, 0, keep=self.endpoint.cut_last)

    def data_received(self, data: bytes) -> None:
        """Called with received bytes."""
        source = self._source
        if self.closed or source is None:
            return
        self._active = True
        self._received += len(data)
        broken: FrameError | None = None
        try:
            frames = source.feed(data)
        except FrameError as error:
            frames, broken = error.frames, error
        except Exception:  # a bug: this connection cannot continue, others can
            self.endpoint.log.warning("source", "%s: its frames could not be read", self.id, exc_info=True)
            self.abort()
            return
        if frames:
            if self._backlog:  # the transport had one more chunk when reading was paused
                self._put_back(frames)
                self._pause_reading()
            else:
                self._serve(frames)
        if broken is not None and not self.closed:
            self._fault = f"it sent {broken}: connection closed"
            if not self._calls:  # otherwise their callers get the error
                self.endpoint.log.warning("frame", "%s sent %s: connection closed", self.id, str(broken))
            self.close()
        if (unfinished := source.unfinished_bytes) > _WATCHED_BYTES or self._charged:
            self._charge()
            turns = self._turns
            if unfinished > _LARGE_BYTES and turns is not None and turns.is_over and not self._waits_to_read:
                self._waits_to_read = True
                self._pause_reading()
                turns.wait_to_read(self)

    def pause_writing(self) -> None:
        """Called when unsent answers exceed `write_high_bytes`. No requests of the peer are read until it reads
        them."""
        self._write_slow = True
        unsent = self._transport.get_write_buffer_size() if self._transport is not None else 0
        if unsent > self._limits.write_high_bytes or self._limits.write_high_bytes <= _SLOW_BYTES:
            self._write_paused = True
            self._pause_reading()

    def resume_writing(self) -> None:
        """Called when the peer has read enough answers."""
        self._write_slow = self._write_paused = False
        self._last_activity_s = self._clock()
        if self._charged:
            self._charge()
        self._go_on()

    # --- requests and answers ---

    @property
    def at_ease(self) -> bool:
        """Whether a request can be served at once: no request waits before it, and the peer reads its answers."""
        if self._backlog or self._blocked or self.closed or self.endpoint.stopping:
            return False
        return self._turns is None or not self._turns.is_over

    @property
    def peer(self) -> str:
        """See `Waiting`."""
        return self.remote.ip

    @property
    def _blocked(self) -> bool:
        return self._write_paused or self._in_flight >= self._limits.requests_in_flight

    def _serve(self, frames: list[Frame]) -> None:
        turns = self._turns
        for served, frame in enumerate(frames):
            if turns is not None and turns.is_over:
                self._put_back(frames[served:])
                self._wait_for_turn(turns)
                return
            self._dispatch(frame)
            if self.closed:
                return
            if self._blocked:
                self._put_back(frames[served + 1 :])
                self._pause_reading()
                return

    def serve_next(self) -> bool:
        """See `Waiting`."""
        if self._backlog and not self._blocked:
            self._serve_from_backlog()
        self._has_turns = bool(self._backlog) and not self._blocked
        if not self._has_turns:
            self._read_on()
        return self._has_turns

    def _go_on(self) -> None:
        if self._has_turns:
            return
        turns = self._turns
        while self._backlog and not self._blocked:
            if turns is not None and turns.is_over:
                self._wait_for_turn(turns)
                return
            self._serve_from_backlog()
        self._read_on()

    def _wait_for_turn(self, turns: Turns) -> None:
        self._has_turns = True
        turns.wait(self)

    def _serve_from_backlog(self) -> None:
        frame = self._backlog.popleft()
        if len(frame.body) > _WATCHED_BYTES:
            self._waits(-len(frame.body))
        self._dispatch(frame)

    def read_on(self) -> None:
        """See `Waiting`."""
        self._waits_to_read = False
        self._read_on()

    def _read_on(self) -> None:
        """Reads again, unless something is to be served before."""
        if self._backlog or self._blocked or self._waits_to_read or self.closed:
            return
        if self._read_paused and self._transport is not None:
            self._read_paused = False
            self._transport.resume_reading()

    def _pause_reading(self) -> None:
        if not self._read_paused and not self.closed and self._transport is not None:
            self._read_paused = True
            self._transport.pause_reading()

    def _put_back(self, frames: list[Frame]) -> None:
        self._backlog.extend(frames)
        size = sum(len(frame.body) for frame in frames if len(frame.body) > _WATCHED_BYTES)
        if size:
            self._waits(size)

    def _waits(self, size: int) -> None:
        """So many more bytes of bodies are kept for requests that wait; negative: so many fewer."""
        self._waiting_bytes += size
        if not self.closed:
            self._charge()

    def _look_at_unsent(self, transport: asyncio.Transport) -> None:
        """The peer reads slowly: how much is it?"""
        unsent = transport.get_write_buffer_size()
        if unsent > self._limits.write_max_bytes:
            self.endpoint.log.warning("slow reader", "%s does not read its answers: connection closed", self.id)
            self.abort()
            return
        if unsent > self._limits.write_high_bytes and not self._write_paused:
            self._write_paused = True
            self._pause_reading()
        self._charge()

    def _charge(self, least: int = _WATCHED_BYTES) -> None:
        """Tell the budget what this link holds, if it is more than `least`."""
        source, transport = self._source, self._transport
        held = self._waiting_bytes
        if source is not None:
            held += source.unfinished_bytes
        if transport is not None:
            held += transport.get_write_buffer_size()
        if held <= least:
            held = 0
        if held or self._charged:  # only a link that is not lost: else nothing would take it back
            self._charged = held > 0
            self.endpoint.budget.charge(self, held, keep=self.endpoint.cut_last)

    def _dispatch(self, frame: Frame) -> None:
        try:
            command = decode(*frame)
        except HeaderError as error:
            self.endpoint.log.warning("header", "%s sent %s: connection closed", self.id, str(error))
            self.close()
            return
        if command.flag & FLAG_RESPONSE:
            answer = self._calls.get(command.opaque)
            if answer is not None and not answer.done():  # else it came too late
                answer.set_result(command)
            return
        if self.endpoint.stopping:
            return
        handler = self._routes.get(command.code)
        if handler is None:
            remark = f" request type {command.code} not supported"
            self._answer(command, command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark))
            return
        command.received_s = self._clock()
        try:
            result = handler(self, command)
        except Exception as error:
            result = self._failed(command, error)
        if result is None:
            return
        if isinstance(result, Command):
            self._answer(command, result)
        else:
            task = asyncio.get_running_loop().create_task(self._wait_for(command, result))
            self._in_flight += 1
            self.endpoint.tasks.add(task)
            task.add_done_callback(self._task_done)
            if (size := len(command.body)) > _WATCHED_BYTES:
                self._waits(size)
                task.add_done_callback(lambda _: self._waits(-size))

    async def _wait_for(self, request: Command, result: Awaitable[Command | None]) -> None:
        try:
            response = await result
        except Exception as error:
            response = self._failed(request, error)
        if response is not None:
            self._answer(request, response)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self.endpoint.tasks.discard(task)
        self._in_flight -= 1
        if self._read_paused or self._backlog:
            self._go_on()

    def _failed(self, request: Command, error: Exception) -> Command:
        if isinstance(error, ResponseError):
            return request.reply(error.code, remark=error.remark)
        kind = f"request {request.code}"  # a code that has a handler: these kinds are few
        if isinstance(error, OSError):  # a disk or a network, not a mistake of ours
            self.endpoint.log.warning(kind, "request %d of %s failed: %s", request.code, self.id, error)
        else:
            self.endpoint.log.warning(kind, "request %d of %s failed", request.code, self.id, exc_info=True)
        return request.reply(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")

    def _answer(self, request: Command, response: Command) -> None:
        if request.flag & FLAG_ONEWAY:
            return
        response.opaque = request.opaque
        response.flag |= FLAG_RESPONSE
        response.header_type = request.header_type
        times = self.endpoint.times
        if times is not None and request.received_s:  # otherwise nothing here serves its code
            times.add(request.code, response.code, self._clock() - request.received_s)
        self.send(response)

    def _new_opaque(self) -> int:
        opaque = self._next_opaque
        while opaque in self._calls:
            opaque = (opaque + 1) & 0x7FFFFFFF
        self._next_opaque = (opaque + 1) & 0x7FFFFFFF
        return opaque
