"""Messages between two members while one fetches files of the other. Layouts as in `codec`; see `shipping`.

The sender chooses a number for each question, and the answer repeats it; a question can be sent again.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from tallystick.replication.transport.codec import Layout
from tallystick.replication.transport.handshake import Lane, printable

FIRST_KIND = 64
DIGEST_BYTES = 32
"""SHA-256."""
_NAME_MAX_BYTES = 255
_REASON_MAX_BYTES = 1024
# Names of folders and files as the ledger uses them; none of them can lead out of the target folder.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*){0,3}")


class ShippedFile(NamedTuple):
    """A file that no longer changes. `name` is relative, with `/` between its parts."""

    name: str
    size: int


def is_file_name(name: str) -> bool:
    """Whether a file can be shipped under this name."""
    return len(name) <= _NAME_MAX_BYTES and _NAME.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class ListRequest:
    """Asks which files are in the shipment."""

    source: int
    target: int
    request: int
    shipment: int


@dataclass(frozen=True, slots=True)
class ListReply:
    source: int
    target: int
    request: int
    files: tuple[ShippedFile, ...]
    """In the order of their numbers, from 0."""


@dataclass(frozen=True, slots=True)
class ChunkRequest:
    """Asks for `size` bytes of file number `file` from `offset` on."""

    source: int
    target: int
    request: int
    shipment: int
    file: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """The requested bytes are the payload, which has this CRC-32."""

    source: int
    target: int
    request: int
    crc: int
    payload: bytes | memoryview = b""


@dataclass(frozen=True, slots=True)
class DigestRequest:
    """Asks for the SHA-256 of the whole file."""

    source: int
    target: int
    request: int
    shipment: int
    file: int


@dataclass(frozen=True, slots=True)
class DigestReply:
    source: int
    target: int
    request: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class ShippingRefusal:
    """The question cannot be answered: there is no such shipment, or it cannot be read."""

    source: int
    target: int
    request: int
    reason: str


ShippingRequest = ListRequest | ChunkRequest | DigestRequest
ShippingReply = ListReply | Chunk | DigestReply | ShippingRefusal
ShippingMessage = ShippingRequest | ShippingReply

_REQUEST = struct.Struct(">iiqq")
_REPLY = struct.Struct(">iiq")
_CHUNK_REQUEST = struct.Struct(">iiqqIQI")
_CHUNK = struct.Struct(">iiqI")
_DIGEST_REQUEST = struct.Struct(">iiqqI")
_COUNT = struct.Struct(">I")
_FILE = struct.Struct(">QH")

M = TypeVar("M")
View = memoryview


def _encode_list_request(m: ListRequest) -> bytes:
    return _REQUEST.pack(m.source, m.target, m.request, m.shipment)


def _decode_list_request(view: View, payload: View | None) -> ListRequest:
    return ListRequest(*_REQUEST.unpack(view))


def _encode_list_reply(m: ListReply) -> bytes:
    parts = [_REPLY.pack(m.source, m.target, m.request), _COUNT.pack(len(m.files))]
    for name, size in m.files:
        data = name.encode()
        parts += (_FILE.pack(size, len(data)), data)
    return b"".join(parts)


def _decode_list_reply(view: View, payload: View | None) -> ListReply:
    source, target, request = _REPLY.unpack_from(view)
    (count,) = _COUNT.unpack_from(view, _REPLY.size)
    offset = _REPLY.size + _COUNT.size
    files: list[ShippedFile] = []
    for _ in range(count):
        size, length = _FILE.unpack_from(view, offset)
        offset += _FILE.size
        name = str(view[offset : offset + length], "utf-8")
        offset += length
        if not is_file_name(name):
            raise ValueError(f"{name!r} is not a valid file name")
        files.append(ShippedFile(name, size))
    if offset != len(view):
        raise ValueError("its files do not end where the message ends")
    if len({file.name for file in files}) != count:
        raise ValueError("two files have the same name")
    return ListReply(source, target, request, tuple(files))


def _encode_chunk_request(m: ChunkRequest) -> bytes:
    return _CHUNK_REQUEST.pack(m.source, m.target, m.request, m.shipment, m.file, m.offset, m.size)


def _decode_chunk_request(view: View, payload: View | None) -> ChunkRequest:
    return ChunkRequest(*_CHUNK_REQUEST.unpack(view))


def _encode_chunk(m: Chunk) -> bytes:
    return _CHUNK.pack(m.source, m.target, m.request, m.crc)


def _decode_chunk(view: View, payload: View | None) -> Chunk:
    source, target, request, crc = _CHUNK.unpack(view)
    return Chunk(source, target, request, crc, b"" if payload is None else payload)


def _encode_digest_request(m: DigestRequest) -> bytes:
    return _DIGEST_REQUEST.pack(m.source, m.target, m.request, m.shipment, m.file)


def _decode_digest_request(view: View, payload: View | None) -> DigestRequest:
    return DigestRequest(*_DIGEST_REQUEST.unpack(view))


def _encode_digest_reply(m: DigestReply) -> bytes:
    return _REPLY.pack(m.source, m.target, m.request) + m.digest


def _decode_digest_reply(view: View, payload: View | None) -> DigestReply:
    digest = bytes(view[_REPLY.size :])
    if len(digest) != DIGEST_BYTES:
        raise ValueError(f"a digest of {len(digest)} bytes")
    source, target, request = _REPLY.unpack_from(view)
    return DigestReply(source, target, request, digest)


def _encode_refusal(m: ShippingRefusal) -> bytes:
    return _REPLY.pack(m.source, m.target, m.request) + m.reason[: _REASON_MAX_BYTES // 4].encode()


def _decode_refusal(view: View, payload: View | None) -> ShippingRefusal:
    reason = str(view[_REPLY.size : _REPLY.size + _REASON_MAX_BYTES], "utf-8", "replace")
    source, target, request = _REPLY.unpack_from(view)
    return ShippingRefusal(source, target, request, printable(reason))


def _layout(
    kind: int, message: type[M], encode: Callable[[M], bytes], decode: Callable[[View, View | None], M]
) -> Layout:
    return Layout(FIRST_KIND + kind, 1, message, Lane.BULK, message is Chunk, encode, decode)


# do not change: other members use these kinds
LAYOUTS = (
    _layout(0, ListRequest, _encode_list_request, _decode_list_request),
    _layout(1, ListReply, _encode_list_reply, _decode_list_reply),
    _layout(2, ChunkRequest, _encode_chunk_request, _decode_chunk_request),
    _layout(3, Chunk, _encode_chunk, _decode_chunk),
    _layout(4, DigestRequest, _encode_digest_request, _decode_digest_request),
    _layout(5, DigestReply, _encode_digest_reply, _decode_digest_reply),
    _layout(6, ShippingRefusal, _encode_refusal, _decode_refusal),
)
