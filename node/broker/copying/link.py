"""The connection of a slave to its master: bytes in, reports out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from tallystick.node.broker.copying.protocol import CopyError, CopyProblem
from tallystick.store.clock import steady_ms

_REPORT_BYTES = 8


class MasterLink(asyncio.Protocol):
    """One connection. `take(data)` gets what arrives, and may raise CopyError or OSError; `safe()`: what is reported.

    `ended`: done when the connection has ended, always with a CopyError.
    """

    def __init__(self, asked: int, take: Callable[[bytes], None], safe: Callable[[], int]) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.received_bytes = 0
        self._asked = asked
        self._take = take
        self._safe = safe
        self._transport: asyncio.Transport | None = None
        self._received_ms = self._sent_ms = steady_ms()
        self._reported = asked
        self._scheduled = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`: asks for the log."""
        self._transport = cast(asyncio.Transport, transport)
        self._received_ms = steady_ms()
        self._send(self._asked)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._transport is None:
            return
        self._received_ms = steady_ms()
        self.received_bytes += len(data)
        try:
            self._take(data)
        except CopyError as error:
            self.end(error)
        except OSError as error:
            self.end(CopyError(CopyProblem.DISK, str(error)))

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        reason = f": {exc}" if exc is not None else ""
        self.end(CopyError(CopyProblem.UNREACHABLE, f"the connection to the master ended{reason}"))

    def end(self, error: CopyError) -> None:
        """Closes the connection for a reason; nothing that arrives later is taken."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
        if not self.ended.done():
            self.ended.set_exception(error)
            self.ended.exception()  # the owner may not wait for it: asyncio must not complain

    def pause(self, paused: bool) -> None:
        """Whether to read nothing from the connection for now. Then its silence does not count."""
        if self._transport is None or paused == (not self._transport.is_reading()):
            return
        if paused:
            self._transport.pause_reading()
        else:
            self._received_ms = steady_ms()
            self._transport.resume_reading()

    # -- reports -------------------------------------------------------------------------------------------------------

    def report_soon(self) -> None:
        """Reports how far the log is safe, once in this turn of the event loop."""
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._report)

    def _report(self) -> None:
        self._scheduled = False
        if self._safe() > self._reported:
            self._send(self._safe())

    def look(self, now_ms: int, heartbeat_ms: int, silence_ms: int) -> None:
        """Sends a report if none was sent for `heartbeat_ms`, and ends a connection that is silent for too long."""
        silent_ms = now_ms - self._received_ms
        if silent_ms > silence_ms and self._transport is not None and self._transport.is_reading():
            self.end(CopyError(CopyProblem.SILENT, f"the master sent nothing for {silent_ms} ms"))
        elif now_ms - self._sent_ms >= heartbeat_ms:
            self._send(max(self._reported, self._safe()))

    def _send(self, pos: int) -> None:
        if self._transport is not None:
            self._reported, self._sent_ms = pos, steady_ms()
            self._transport.write(pos.to_bytes(_REPORT_BYTES, signed=True))
