"""The handshake: the first frame of either side of a connection, and why a side closes it.

    caller                                        called
    Hello: versions, lane, own id, wanted member ->   judge
                                                  <- Welcome: version, own id          frames follow, caller to called
                                                  <- Refusal: code, reason             both close

A caller is refused if it belongs to another cluster or group, wants another member than the one that it reached (its
address may have been reassigned), has the same id as the called member, or supports no common version. The handshake
does not check whether a member is in the group: only the log knows that, and a removed member must be able to learn it.
`callers` decides whether the caller can have this id: not if no address of it is configured, and not if a live
connection has it.

The version is the highest that both support. The layout of these frames is the same in all versions; bytes behind the
known fields are ignored, so that a later version can add fields. Source: rule S14.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import Any

VERSION_MIN = 1
VERSION_MAX = 1
"""Protocol versions that this version supports. One determines the set of kinds and the layout of each message."""

# Kinds of frames. Do not change: other members use them.
KIND_HELLO = 1
KIND_WELCOME = 2
KIND_REFUSAL = 3
HANDSHAKE_KINDS = frozenset((KIND_HELLO, KIND_WELCOME, KIND_REFUSAL))
HANDSHAKE_VERSION = 1

_MAGIC = b"TARP"  # do not change: other members use it
_HELLO = struct.Struct(">4sHHBii")
_WELCOME = struct.Struct(">4sHi")
_REFUSAL = struct.Struct(">4sH")
_LENGTH = struct.Struct(">H")
NAME_MAX_BYTES = 255
_REASON_MAX_BYTES = 1024
HELLO_MAX_BYTES = 4096
"""Largest message before the end of the handshake, with space for additions of later versions."""


class HandshakeError(ValueError):
    """The received frame is not of this kind."""


class Lane(enum.IntEnum):
    """The purpose of a connection. Votes and heartbeats must not wait behind entries (L9), so each has its own."""

    CONTROL = 1
    BULK = 2


class Standing(enum.IntEnum):
    """How good a caller's claim to its name is (`callers`)."""

    UNKNOWN = 0
    ADDRESS = 1
    """It comes from an address of the member."""
    CERTIFICATE = 2


class RefusalCode(enum.IntEnum):
    """Why a caller is refused. Do not change: other members use it. An unknown code is valid; its text explains it."""

    CLUSTER = 1
    GROUP = 2
    MEMBER = 3
    VERSION = 4
    LANE = 5
    CERTIFICATE = 6
    TAKEN = 7


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a member. It is stored on the member's volume and never derived from an address."""

    cluster: str
    group: str
    member: int

    def __post_init__(self) -> None:
        for name in (self.cluster, self.group):
            if not 0 < len(name.encode()) <= NAME_MAX_BYTES:
                raise ValueError(f"{name!r} is not a name of 1 to {NAME_MAX_BYTES} bytes")
        if not 0 <= self.member < 1 << 31:
            raise ValueError(f"{self.member} is not a member id")

    def __str__(self) -> str:
        return f"n{self.member} of group {printable(self.group)} in cluster {printable(self.cluster)}"


@dataclass(frozen=True, slots=True)
class Hello:
    """The caller's first frame. `lane` is a plain number: a later version may have lanes that are unknown here."""

    identity: Identity
    wanted_member: int
    lane: int
    version_min: int = VERSION_MIN
    version_max: int = VERSION_MAX

    def encode(self) -> bytes:
        """The message of a frame of KIND_HELLO."""
        fixed = _HELLO.pack(
            _MAGIC, self.version_min, self.version_max, self.lane, self.identity.member, self.wanted_member
        )
        return fixed + _text(self.identity.cluster) + _text(self.identity.group)

    @classmethod
    def decode(cls, message: memoryview) -> Hello:
        """Raises HandshakeError if the message is not a Hello."""
        magic, version_min, version_max, lane, member, wanted = _unpack(_HELLO, message)
        _check_magic(magic)
        cluster, offset = _read_text(message, _HELLO.size, NAME_MAX_BYTES)
        group, _ = _read_text(message, offset, NAME_MAX_BYTES)
        return cls(_identity(cluster, group, member), wanted, lane, version_min, version_max)


@dataclass(frozen=True, slots=True)
class Welcome:
    """The answer that opens the lane; both sides use `version` from now on."""

    identity: Identity
    version: int

    def encode(self) -> bytes:
        """The message of a frame of KIND_WELCOME."""
        fixed = _WELCOME.pack(_MAGIC, self.version, self.identity.member)
        return fixed + _text(self.identity.cluster) + _text(self.identity.group)

    @classmethod
    def decode(cls, message: memoryview) -> Welcome:
        """Raises HandshakeError if the message is not a Welcome."""
        magic, version, member = _unpack(_WELCOME, message)
        _check_magic(magic)
        cluster, offset = _read_text(message, _WELCOME.size, NAME_MAX_BYTES)
        group, _ = _read_text(message, offset, NAME_MAX_BYTES)
        return cls(_identity(cluster, group, member), version)


@dataclass(frozen=True, slots=True)
class Refusal:
    """The answer that ends the connection. `reason` is for people; after `decode` it is safe for a log line."""

    code: int
    reason: str

    def encode(self) -> bytes:
        """The message of a frame of KIND_REFUSAL."""
        return _REFUSAL.pack(_MAGIC, self.code) + _text(self.reason[: _REASON_MAX_BYTES // 4])

    @classmethod
    def decode(cls, message: memoryview) -> Refusal:
        """Raises HandshakeError if the message is not a Refusal."""
        magic, code = _unpack(_REFUSAL, message)
        _check_magic(magic)
        reason, _ = _read_text(message, _REFUSAL.size, _REASON_MAX_BYTES)
        return cls(code, printable(reason))


def judge(hello: Hello, own: Identity) -> Welcome | Refusal:
    """The answer of `own` to a caller. Pure."""
    caller = hello.identity
    if caller.cluster != own.cluster:
        return Refusal(RefusalCode.CLUSTER, f"this is {own}, not of cluster {printable(caller.cluster)}")
    if caller.group != own.group:
        return Refusal(RefusalCode.GROUP, f"this is {own}, not of group {printable(caller.group)}")
    if hello.wanted_member != own.member:
        return Refusal(RefusalCode.MEMBER, f"this is {own}, not n{hello.wanted_member}")
    if caller.member == own.member:
        return Refusal(RefusalCode.MEMBER, f"this is {own}: two members have the id n{own.member}")
    version = common_version(hello.version_min, hello.version_max)
    if version is None:
        return Refusal(
            RefusalCode.VERSION,
            f"n{own.member} supports the versions {VERSION_MIN} to {VERSION_MAX}, "
            f"not {hello.version_min} to {hello.version_max}",
        )
    if hello.lane not in set(Lane):
        return Refusal(RefusalCode.LANE, f"n{own.member} does not know lane {hello.lane}")
    return Welcome(own, version)


def objection(welcome: Welcome, hello: Hello) -> str | None:
    """Why the caller leaves although it was accepted; None if it stays. Pure."""
    found, own = welcome.identity, hello.identity
    if (found.cluster, found.group, found.member) != (own.cluster, own.group, hello.wanted_member):
        return f"reached {found}, not n{hello.wanted_member}"
    if not hello.version_min <= welcome.version <= hello.version_max:
        return f"{found} chose version {welcome.version}, which is not supported here"
    return None


def common_version(version_min: int, version_max: int) -> int | None:
    """The highest version that both sides support; None if there is none."""
    version = min(version_max, VERSION_MAX)
    return version if version >= max(version_min, VERSION_MIN) else None


def _identity(cluster: str, group: str, member: int) -> Identity:
    try:
        return Identity(cluster, group, member)
    except ValueError as error:
        raise HandshakeError(str(error)) from None


def _check_magic(magic: bytes) -> None:
    if magic != _MAGIC:
        raise HandshakeError("a first frame of another protocol")


def _unpack(layout: struct.Struct, message: memoryview) -> tuple[Any, ...]:
    if len(message) < layout.size:
        raise HandshakeError(f"a first frame of {len(message)} bytes")
    return layout.unpack_from(message)


def _text(text: str) -> bytes:
    data = text.encode()
    return _LENGTH.pack(len(data)) + data


def _read_text(message: memoryview, offset: int, max_bytes: int) -> tuple[str, int]:
    begin = offset + _LENGTH.size
    if begin > len(message):
        raise HandshakeError("a truncated first frame")
    (length,) = _LENGTH.unpack_from(message, offset)
    if length > max_bytes or begin + length > len(message):
        raise HandshakeError("a first frame with a text that is too long")
    try:
        return str(message[begin : begin + length], "utf-8"), begin + length
    except UnicodeDecodeError:
        raise HandshakeError("a first frame with a text that is not UTF-8") from None


def printable(text: str) -> str:
    """Text of another process for a log line: nothing in it can begin a new line."""
    return "".join(each if each.isprintable() else "?" for each in text)
