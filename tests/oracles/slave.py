"""A slave as RocketMQ 4.8 has it, over a real socket: it appends what it gets and reports its end."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path
from typing import Self


class SlaveError(Exception):
    """What RocketMQ's slave logs as an error before it closes the connection."""


class Slave:
    """The log of a slave, and its connection to a master. `log` begins at `begin`.

    Source: HAService.HAClient of RocketMQ 4.8.0.
    """

    def __init__(self, begin: int = 0, log: bytes = b"") -> None:
        self.begin, self.log = begin, bytearray(log)
        self.parts: list[tuple[int, int]] = []
        """Position and size of each part; size 0: a heartbeat."""
        self.closed = asyncio.Event()
        self._came = asyncio.Event()
        self._writer: asyncio.StreamWriter | None = None
        self._task: asyncio.Task[None] | None = None
        self.failure: BaseException | None = None
        self.reports = True

    @property
    def end(self) -> int:
        return self.begin + len(self.log) if self.log else self.begin

    async def connect(self, port: int, asked: int | None = None, *, after: int = 1 << 62) -> Self:
        """Attaches to the master. `asked`: another position than its end; `after`: it closes after so many bytes."""
        self.closed.clear()
        reader, self._writer = await asyncio.open_connection("127.0.0.1", port)
        self._writer.write(struct.pack(">q", self.end if asked is None else asked))
        self._task = asyncio.ensure_future(self._follow(reader, self._writer, after))
        return self

    async def _follow(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, after: int) -> None:
        held = b""
        try:
            while after > 0:
                data = await reader.read(min(after, 65536))
                if not data:
                    return
                after -= len(data)
                held += data
                while len(held) >= 12:
                    pos, size = struct.unpack(">qi", held[:12])
                    if self.log and pos != self.end:
                        raise SlaveError(f"master pushed {pos}, and the slave is at {self.end}")
                    if len(held) < 12 + size:
                        break
                    if not self.log:
                        self.begin = pos
                    self.log += held[12 : 12 + size]
                    self.parts.append((pos, size))
                    held = held[12 + size :]
                    if self.reports:
                        writer.write(struct.pack(">q", self.end))
                self._came.set()
        except (ConnectionError, SlaveError) as error:
            self.failure = error
        finally:
            writer.transport.abort()
            self.closed.set()
            self._came.set()

    async def has(self, end: int, timeout_s: float = 30.0) -> None:
        """Returns when the log reaches `end`. AssertionError: the connection ended before. TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while self.end < end or (not self.log and end > self.begin):
                assert not self.closed.is_set(), f"closed at {self.end}: {self.failure}"
                self._came.clear()
                await self._came.wait()

    async def ended(self, timeout_s: float = 30.0) -> None:
        """Returns when the master has closed the connection. TimeoutError."""
        await asyncio.wait_for(self.closed.wait(), timeout_s)

    def send(self, data: bytes) -> None:
        assert self._writer is not None
        self._writer.write(data)

    async def cut(self) -> None:
        """Closes the connection from this side."""
        assert self._writer is not None and self._task is not None
        self._writer.transport.abort()
        await self.ended()
        await self._task


def log_bytes(folder: Path, begin: int, end: int) -> bytes:
    """The bytes of the segments in a folder from `begin` to `end`."""
    segments = sorted(path for path in folder.iterdir() if path.name.isdigit())
    if not segments:
        return b""  # a slave that has stored nothing yet
    found = b"".join(path.read_bytes() for path in segments)
    first = int(segments[0].name)
    return found[begin - first : end - first]
