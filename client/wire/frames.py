"""Frames: how a stream of bytes is cut into commands. No I/O here.

size          field
   4          total length: bytes that follow it, big-endian
   1          header type: 0 JSON, 1 ROCKETMQ
   3          header length
   header     header length bytes
   body       the rest, may be empty

A whole frame has at most `MAX_FRAME` bytes; one that announces more, or less than its own parts need, ends the link,
for nothing after it can be trusted. Source: apache/rocketmq, remoting/netty/NettyDecoder.java.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, Protocol

from tallystick.client.wire.errors import FrameError

MAX_FRAME = 16_777_216  # fixed: RocketMQ's decoders refuse more
_MARKS = struct.Struct(">II")
_HEADER_TYPES = 2


class Frame(NamedTuple):
    """One frame, not yet understood."""

    header_type: int
    header: bytes
    body: bytes


class FrameSource(Protocol):
    """What cuts the bytes of one connection into frames. It may answer some frames itself and keep them back."""

    @property
    def unfinished_bytes(self) -> int:
        """Bytes that are kept of a frame whose end has not come."""

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are complete after `data`. FrameError: the rest of the stream is lost."""


class FrameSplitter:
    """The plain frame source. Keeps less than one frame between calls, so at most `max_frame` bytes."""

    __slots__ = ("_kept", "_max_frame", "_wanted")

    def __init__(self, max_frame: int = MAX_FRAME) -> None:
        self._max_frame = max_frame
        self._kept = bytearray()  # an incomplete frame
        self._wanted = 0  # bytes that it needs, as far as known: a large frame is not looked at for each of its chunks

    @property
    def unfinished_bytes(self) -> int:
        """Bytes that are kept of a frame whose end has not come."""
        return len(self._kept)

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that are complete after `data`. FrameError: a length that cannot be; `.frames` came before it."""
        if self._kept:
            self._kept += data
            if len(self._kept) < self._wanted:
                return []
            data = bytes(self._kept)
            self._kept = bytearray()
        frames: list[Frame] = []
        start, end = 0, len(data)
        self._wanted = 8
        while end - start >= 8:
            total, mark = _MARKS.unpack_from(data, start)
            header_end = start + 8 + (mark & 0xFFFFFF)
            stop = start + 4 + total
            if header_end > stop or total + 4 > self._max_frame or mark >> 24 >= _HEADER_TYPES:
                raise FrameError(_reason(total, mark, self._max_frame), frames)
            if stop > end:
                self._wanted = 4 + total
                break
            frames.append(Frame(mark >> 24, data[start + 8 : header_end], data[header_end:stop]))
            start = stop
        if start < end:
            self._kept += data[start:]
        return frames


def _reason(total: int, mark: int, max_frame: int) -> str:
    if (text := total.to_bytes(4, "big")).isalnum():  # as of another protocol: "GET ", "HTTP", "SSH-"
        return f"text that begins with {text.decode()!r}, which is not a frame"
    if total & 0x80000000:
        return f"a frame with the negative length {total - (1 << 32)}"
    if total + 4 > max_frame:
        return f"a frame of {total + 4} bytes, {max_frame} are allowed"
    if mark >> 24 >= _HEADER_TYPES:
        return f"a frame with header type {mark >> 24}"
    return f"a header of {mark & 0xFFFFFF} bytes in a frame that ends {total} bytes after its length"
