"""Frames between members: a header of 20 bytes, a message, and for some kinds a payload behind it, big-endian.

offset  size  field
     0     4  bytes of the message
     4     4  bytes of the payload
     8     1  kind       what the message is (`codec`, `handshake`, `shipping`)
     9     1  version    of the message's own layout
    10     2  flags      none is defined: a frame with a flag is refused
    12     4  CRC-32 of the message
    16     4  CRC-32 of the 16 bytes before

The header has its own CRC so that a damaged length is detected before the receiver waits for so many bytes. The message
has a CRC because TCP's checksum accepts about one in ten thousand damaged segments, and nothing later would detect a
term with one wrong bit. The payload has none here: its user checks it (entries of the log have their own CRCs, and
chunks of a file too), and one pass over the bytes is enough.

The header and the kinds of the handshake are the same in all versions of the protocol, so that members can tell each
other that they have no version in common.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

_HEADER = struct.Struct(">IIBBHII")
_CRC = struct.Struct(">I")
HEADER_BYTES = _HEADER.size
assert HEADER_BYTES == 20, "fixed: other members speak it"
_COVERED_BYTES = HEADER_BYTES - _CRC.size
_FIELDS = struct.Struct(">IIBBHI")

MESSAGE_MAX_BYTES = 1 << 20
"""Largest message without its payload. Do not change: other members use it."""

_TLS_HANDSHAKE = b"\x16\x03"  # how every TLS client begins


class FrameError(ValueError):
    """The bytes are not a valid sequence of frames. The stream ends, because the start of the next frame is unknown."""


class FrameHeader(NamedTuple):
    """A header whose own CRC is correct and whose sizes are within the limits."""

    message_bytes: int
    payload_bytes: int
    kind: int
    version: int
    message_crc: int


def encode_frame(kind: int, version: int, message: bytes, payload_bytes: int = 0) -> bytes:
    """Header and message; the payload's bytes must follow."""
    assert len(message) <= MESSAGE_MAX_BYTES, f"a message of kind {kind} with {len(message)} bytes"
    fields = _FIELDS.pack(len(message), payload_bytes, kind, version, 0, zlib.crc32(message))
    return b"".join((fields, _CRC.pack(zlib.crc32(fields)), message))


def decode_header(buffer: memoryview, offset: int, payload_max_bytes: int) -> FrameHeader:
    """The header at `offset`, which must be complete. Raises FrameError if it is invalid or exceeds the limits."""
    message_bytes, payload_bytes, kind, version, flags, message_crc, header_crc = _HEADER.unpack_from(buffer, offset)
    if zlib.crc32(buffer[offset : offset + _COVERED_BYTES]) != header_crc:
        if buffer[offset : offset + 2] == _TLS_HANDSHAKE:
            raise FrameError("a TLS handshake, but TLS is not enabled here")
        raise FrameError("a header with a wrong CRC, or of another protocol")
    if message_bytes > MESSAGE_MAX_BYTES:
        raise FrameError(f"a message of {message_bytes} bytes; {MESSAGE_MAX_BYTES} are allowed")
    if payload_bytes > payload_max_bytes:
        raise FrameError(f"a payload of {payload_bytes} bytes; {payload_max_bytes} are allowed")
    if flags:
        raise FrameError(f"unknown flags {flags:#06x}")
    return FrameHeader(message_bytes, payload_bytes, kind, version, message_crc)


def check_message(header: FrameHeader, message: memoryview) -> None:
    """Raises FrameError if these are not the bytes that were sent."""
    if zlib.crc32(message) != header.message_crc:
        raise FrameError(f"a message of kind {header.kind} with a wrong CRC")
