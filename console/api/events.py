"""Server-sent events: an answer that stays open, for a bounded number of listeners, of which none can slow others.

A listener that does not read within `WRITE_S` is dropped: its connection ends, and the browser connects again. One
whose machine has gone without a word is found by TCP after `_SILENT_MS`.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from tallystick.console.api.encoding import encoded
from tallystick.console.api.problems import ProblemError

WRITE_S = 10.0
COMMENT_S = 10.0
"""A comment is sent after this time without an event, so that a listener that left is found."""
_SILENT_MS = 30_000
_SECOND = 1.0


class GoneError(Exception):
    """The listener left, reads too slowly, or may not listen any longer."""


class Places:
    """A bounded number of something, for all callers together."""

    def __init__(self, most: int, what: str) -> None:
        self._most, self._what = most, what
        self.count = 0

    @contextmanager
    def take(self) -> Iterator[None]:
        """Takes a place within this context. ProblemError: there is none."""
        if self.count >= self._most:
            raise ProblemError("busy", f"this server has {self._most} {self._what}", headers={"Retry-After": "10"})
        self.count += 1
        try:
            yield
        finally:
            self.count -= 1


class EventStream:
    """One listener. `may_listen` is asked before each event; `stopping`: set when the process stops."""

    def __init__(self, request: web.Request, may_listen: Callable[[], bool], stopping: asyncio.Event) -> None:
        self._request = request
        self._may_listen = may_listen
        self._stopping = stopping
        self.response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"})

    async def begin(self) -> None:
        """Sends the header of the answer."""
        transport = self._request.transport
        opened = None if transport is None else transport.get_extra_info("socket")
        if opened is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
            try:
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENT_MS)
            except OSError:
                pass  # it ended already, which the first write finds
        await self._write(self.response.prepare(self._request))
        await self._write(self.response.write(b"retry: 3000\n\n"))

    async def send(self, name: str, data: Any, id: str | None = None) -> None:
        """Sends an event. GoneError: to no listener any longer."""
        text = data if isinstance(data, bytes) else encoded(data)
        head = f"id: {id}\n" if id is not None else ""
        await self._write(self.response.write(f"{head}event: {name}\ndata: ".encode() + text + b"\n\n"))

    async def wait(self, event: asyncio.Future[Any]) -> bool:
        """Waits until the future is done and returns True; False: a comment was sent meanwhile, so wait again.

        GoneError: as in `send`, also if the process stops."""
        stopping = asyncio.ensure_future(self._stopping.wait())
        loop = asyncio.get_running_loop()
        end_s = loop.time() + COMMENT_S
        try:
            while loop.time() < end_s:
                await asyncio.wait({event, stopping}, timeout=_SECOND, return_when=asyncio.FIRST_COMPLETED)
                if stopping.done():
                    raise GoneError
                self._check()
                if event.done():
                    return True
        finally:
            stopping.cancel()
        await self._write(self.response.write(b":\n\n"))
        return False

    def _check(self) -> None:
        transport = self._request.transport
        if transport is None or transport.is_closing() or not self._may_listen():
            raise GoneError

    async def _write(self, writing: Any) -> None:
        try:
            self._check()
        except GoneError:
            writing.close()
            raise
        try:
            async with asyncio.timeout(WRITE_S):
                await writing
        except TimeoutError:
            if self._request.transport is not None:
                self._request.transport.abort()
            raise GoneError from None
        except (ConnectionError, RuntimeError):  # aiohttp raises both for a connection that ended
            raise GoneError from None
