"""asyncio's event loop, as far as a raftos node uses it, on the simulator's queue of events.

A loop is one process. All loops of a group share the queue, so that everything that happens in the group has one order
and time is virtual. When the process dies (`alive` is False) what it had planned no longer happens.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any

from simulator.clock import EventQueue


class Killed(BaseException):
    """The process dies here. Not an Exception: what is being killed cannot catch it."""


class Call:
    """A callback that waits for its time; asyncio calls it a handle."""

    __slots__ = ("_arguments", "_cancelled", "_context", "callback")

    def __init__(self, callback: Callable[..., Any], arguments: tuple[Any, ...], context: contextvars.Context | None):
        self.callback = callback
        self._arguments = arguments
        self._context = context
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True

    def cancelled(self) -> bool:
        return self._cancelled

    def __call__(self) -> None:
        if self._context is None:
            self.callback(*self._arguments)
        else:
            self._context.run(self.callback, *self._arguments)


class Datagrams:
    """A transport of datagrams: hands them to `send(data, address)`."""

    def __init__(self, send: Callable[[bytes, tuple[str, int]], None]) -> None:
        self._send = send

    def sendto(self, data: bytes, address: tuple[str, int]) -> None:
        self._send(data, address)

    def is_closing(self) -> bool:
        return False


class VirtualLoop(asyncio.AbstractEventLoop):
    """`send`: takes datagrams. `after_each`: called after each callback. `on_error`: an uncaught exception,
    which asyncio would log."""

    def __init__(
        self,
        queue: EventQueue,
        *,
        send: Callable[[bytes, tuple[str, int]], None],
        after_each: Callable[[], None],
        on_error: Callable[[BaseException], None],
    ) -> None:
        self.alive = True
        self.protocol: Any = None
        self._queue = queue
        self._send = send
        self._after_each = after_each
        self._on_error = on_error

    def run(self, callback: Callable[..., Any], *arguments: Any) -> None:
        """Now, as the process that this loop is."""
        if not self.alive:
            return
        # Who implements an event loop says so by this; the queues and tasks of asyncio ask for it.
        asyncio._set_running_loop(self)
        try:
            callback(*arguments)
        except (Exception, Killed) as error:
            self._on_error(error)
        finally:
            asyncio._set_running_loop(None)
        self._after_each()

    def _due(self, call: Call) -> None:
        if not call.cancelled():
            self.run(call)

    # -- what asyncio and raftos ask for ---------------------------------------------------------------------------

    def time(self) -> float:
        return self._queue.now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return not self.alive

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *arguments: Any, context: contextvars.Context | None = None
    ) -> Call:
        return self.call_later(0.0, callback, *arguments, context=context)

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., Any],
        *arguments: Any,
        context: contextvars.Context | None = None,
    ) -> Call:
        call = Call(callback, arguments, context)
        self._queue.after(delay, self._due, call)
        return call

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coroutine: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:  # type: ignore[override]
        return asyncio.Task(coroutine, loop=self, **options)

    async def create_datagram_endpoint(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], local_addr: tuple[str, int]
    ) -> tuple[Datagrams, Any]:
        del local_addr
        transport, self.protocol = Datagrams(self._send), protocol_factory()
        self.protocol.connection_made(transport)
        return transport, self.protocol

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if self.alive and error is not None:
            self._on_error(error)
