"""A command: one request or response, with a small text header and a body of opaque bytes.

`opaque` is the number that connects a response to its request; each side of a connection has its own numbers. `ext` has
the named fields of the request or response. All values are text (`"true"`, `"5"`); the functions below convert them,
and raise errors with RocketMQ's texts.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from tallystick.client.wire.codes import ResponseCode

FLAG_RESPONSE = 1
FLAG_ONEWAY = 2
VERSION = 373  # V4_8_0; clients refuse SQL filters below 232, and switch to newer protocols above
LANGUAGES = (
    *("JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS"),
    *("RUST", "NODE_JS"),  # 5.x
)  # in the order of their numbers in the binary header


class HeaderType(enum.IntEnum):
    """The encoding of a header. The frame contains the number."""

    JSON = 0
    ROCKETMQ = 1


class ResponseError(Exception):
    """The server answers the request with this code and remark."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark

    def __str__(self) -> str:
        return f"code {self.code}: {self.remark}"


@dataclass(slots=True)
class Command:
    """One request or response. `language` is None if the peer's language is unknown."""

    code: int
    opaque: int = 0
    flag: int = 0
    language: str | None = "JAVA"
    version: int = VERSION
    remark: str | None = None
    ext: dict[str, str] | None = None
    body: bytes = b""
    header_type: HeaderType = HeaderType.JSON
    user: str = ""
    """The account that sent this request, as access control found it. It is not sent. Empty: unknown."""
    received_s: float = field(default=0.0, compare=False)
    """When this process received it, by a steady clock. It is not sent. 0: unknown."""

    @property
    def is_response(self) -> bool:
        """Whether this is a response."""
        return self.flag & FLAG_RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        """Whether the sender expects no response. None may be sent."""
        return self.flag & FLAG_ONEWAY != 0

    def reply(
        self, code: int = 0, *, ext: dict[str, str] | None = None, body: bytes = b"", remark: str | None = None
    ) -> Command:
        """Returns a response to this request, with the same type of header."""
        return Command(code, self.opaque, FLAG_RESPONSE, "JAVA", VERSION, remark, ext, body, self.header_type)


Fields = Mapping[str, str] | None


def need_str(ext: Fields, name: str) -> str:
    """Returns the text of a field. ResponseError 1: it is missing."""
    value = ext.get(name) if ext is not None else None
    if value is None:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, f"the custom field <{name}> is null")
    return value


def opt_str(ext: Fields, name: str, default: str = "") -> str:
    """Returns the text of a field, or `default` if it is missing."""
    value = ext.get(name) if ext is not None else None
    return default if value is None else value


def need_int(ext: Fields, name: str) -> int:
    """Returns a signed 32-bit field. ResponseError 1: it is missing or not such a number."""
    return _number(name, need_str(ext, name), 31)


def need_long(ext: Fields, name: str) -> int:
    """Returns a signed 64-bit field. ResponseError 1: it is missing or not such a number."""
    return _number(name, need_str(ext, name), 63)


def opt_int(ext: Fields, name: str, default: int = 0) -> int:
    """Returns a signed 32-bit field, or `default` if it is missing. ResponseError 1: it is not such a number."""
    value = ext.get(name) if ext is not None else None
    return default if value is None else _number(name, value, 31)


def opt_long(ext: Fields, name: str, default: int = 0) -> int:
    """Returns a signed 64-bit field, or `default` if it is missing. ResponseError 1: it is not such a number."""
    value = ext.get(name) if ext is not None else None
    return default if value is None else _number(name, value, 63)


def opt_bool(ext: Fields, name: str, default: bool = False) -> bool:
    """Returns whether a field is `true` in any case, as in Java; `default` if it is missing."""
    value = ext.get(name) if ext is not None else None
    return default if value is None else value.lower() == "true"


def need_bool(ext: Fields, name: str) -> bool:
    """Returns whether a field is `true` in any case, as in Java. ResponseError 1: it is missing."""
    return need_str(ext, name).lower() == "true"


def _number(name: str, text: str, bits: int) -> int:
    # A 64-bit number has at most 20 characters. Python's int() also accepts "1_000" and " 5"; Java's parser does not.
    try:
        value = int(text) if len(text) <= 20 else None
    except ValueError:
        value = None
    if (
        value is None
        or not -(1 << bits) <= value < 1 << bits
        or "_" in text
        or text[:1].isspace()
        or text[-1:].isspace()
    ):
        raise ResponseError(
            ResponseCode.SYSTEM_ERROR, f"the custom field <{name}> is no {bits + 1}-bit number: {text[:40]!r}"
        )
    return value
