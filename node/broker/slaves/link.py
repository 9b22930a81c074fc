"""The connection of one slave: sends it the log as far as the connection takes it.

Memory is bounded: nothing is read from the log while more than `UNSENT_BYTES` wait for the slave. Bytes that were just
written are in the page cache and are read on the event loop, a few parts in each of its turns. Older bytes may be on
the disk, so a thread reads them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from tallystick.node.broker.slaves.segment_reader import SegmentReader
from tallystick.node.broker.slaves.transfer import Part, Refusal, SlaveRefusedError, Transfer
from tallystick.store.clock import steady_ms

if TYPE_CHECKING:
    from tallystick.node.broker.slaves.server import SlaveServer

UNSENT_BYTES = 256 << 10
"""At most this much, and one part, waits in memory for one slave."""
_TURN_BYTES = 256 << 10
_CACHED_BYTES = 8 << 20
"""The end of the log that is read on the event loop."""


class SlaveLink(asyncio.Protocol):
    """One connection. Owns the transfer to its slave."""

    def __init__(self, server: SlaveServer) -> None:
        self._server = server
        settings = server.settings
        self.transfer = Transfer(
            server.copies, server.min_pos, settings.mappedFileSizeCommitLog, settings.haTransferBatchSize
        )
        self.remote = ""
        """Address of the slave, `host:port`."""
        self.sent_bytes = 0
        """Bytes of the log that were sent."""
        self.bytes_a_second = 0
        """The same in the last second."""
        self.number: int | None = None
        """Of the copy, when the slave has named its position."""
        self._transport: asyncio.Transport | None = None
        self._reader = SegmentReader(settings.log_folder, settings.mappedFileSizeCommitLog)
        self._received_ms = self._sent_ms = steady_ms()
        self._counted = (self._sent_ms, 0)
        self._paused = self._scheduled = False
        self._reading: asyncio.Task[None] | None = None

    # -- the connection ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = connected = cast(asyncio.Transport, transport)
        connected.set_write_buffer_limits(high=UNSENT_BYTES)
        self.remote = _address(transport.get_extra_info("peername"))
        try:
            self._server.joined(self)
        except SlaveRefusedError as error:
            self.refuse(error)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._transport is None:
            return
        self._received_ms = steady_ms()
        try:
            if not self.transfer.receive(data):
                return
        except SlaveRefusedError as error:
            self.refuse(error)
            return
        if self.number is None:
            self.number = self._server.copies.attach(self.transfer.stored)
            self._server.began(self)
            self.push()
        else:
            self._server.copies.stored(self.number, self.transfer.stored)
            self._server.reported()

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._paused = True

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._paused = False
        self.push()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._end()

    def refuse(self, error: SlaveRefusedError) -> None:
        """Closes the connection for a reason."""
        if self._transport is not None:
            self._server.refused(self, error)
            self._end()

    async def close(self) -> None:
        """Closes the connection; returns when no thread reads for it."""
        self._end()
        if self._reading is not None:
            await self._reading

    def _end(self) -> None:
        transport, self._transport = self._transport, None
        if transport is None:
            return
        transport.abort()
        if self.number is not None:
            self._server.copies.detach(self.number)
        if self._reading is None:
            self._reader.close()
        self._server.left(self)

    # -- sending -------------------------------------------------------------------------------------------------------

    def push(self) -> None:
        """Sends what may be sent, as far as the connection takes it in this turn of the event loop."""
        budget = _TURN_BYTES
        try:
            while self._transport is not None and not self._paused and self._reading is None:
                part = self.transfer.next_part()
                if part is None:
                    return
                if budget <= 0:
                    self._push_soon()
                    return
                if self._server.copies.sendable - part.pos > _CACHED_BYTES:
                    self._reading = asyncio.get_running_loop().create_task(self._read_and_send(part))
                    return
                self._send(part, self._read(part))
                budget -= part.size
        except SlaveRefusedError as error:
            self.refuse(error)

    def _push_soon(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._push_now)

    def _push_now(self) -> None:
        self._scheduled = False
        self.push()

    async def _read_and_send(self, first: Part) -> None:
        """Sends the next parts of the log, which a thread reads together."""
        try:
            parts = self._parts(first)
            found = await asyncio.to_thread(lambda: [self._read(part) for part in parts])
        except SlaveRefusedError as error:
            self._reading = None
            self.refuse(error)
            return
        self._reading = None
        if self._transport is None:
            self._reader.close()
            return
        for part, data in zip(parts, found, strict=True):
            self._send(part, data)
        self.push()

    def _parts(self, first: Part) -> list[Part]:
        """The parts of one read, up to `_TURN_BYTES`: `first`, and those of its size behind it in its segment."""
        segment_bytes = self._server.settings.mappedFileSizeCommitLog
        end = min(first.pos - first.pos % segment_bytes + segment_bytes, self._server.copies.sendable)
        count = max(1, min(_TURN_BYTES, end - first.pos) // first.size)
        return [Part(first.pos + n * first.size, first.size) for n in range(count)]

    def _read(self, part: Part) -> bytes:
        try:
            return self._reader.read(part.pos, part.size)
        except OSError as error:
            text = f"the log cannot be read at {part.pos}: {error}"
            raise SlaveRefusedError(Refusal.UNREADABLE, text) from error

    def _send(self, part: Part, data: bytes) -> None:
        assert self._transport is not None
        self.transfer.sent(part)
        self.sent_bytes += part.size
        self._sent_ms = steady_ms()
        self._transport.write(part.header + data)

    def look(self, now_ms: int) -> None:
        """Sends a heartbeat if one is due, and closes a connection whose slave is silent."""
        settings = self._server.settings
        if self._transport is None:
            return
        since_ms, counted = self._counted
        if now_ms - since_ms >= 1000:
            self.bytes_a_second = (self.sent_bytes - counted) * 1000 // (now_ms - since_ms)
            self._counted = now_ms, self.sent_bytes
        silent_ms = now_ms - self._received_ms
        if silent_ms > settings.haHousekeepingInterval:
            self.refuse(SlaveRefusedError(Refusal.SILENT, f"it sent nothing for {silent_ms} ms"))
        elif (
            self.number is not None
            and self._transport.get_write_buffer_size() == 0
            and self._reading is None
            and now_ms - self._sent_ms >= settings.haSendHeartbeatInterval
        ):
            self._sent_ms = now_ms
            self._transport.write(self.transfer.heartbeat())


def _address(peer: Any) -> str:
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else ""
