"""Encodes and decodes commands, in both forms of the header. Without I/O.

JSON, with keys in fastjson's order, without keys that are null:

    {"code":11,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":7,"remark":"..","serializeTypeCurrentRPC":"JSON",
     "version":373}

ROCKETMQ, big-endian:

size    field
   2    code, signed
   1    language (its number; one without a number here becomes OTHER when written again)
   2    version
   4    opaque
   4    flag
   4+n  remark: length, UTF-8 (0: none)
   4+m  ext: length, then per field 2-byte key length, key, 4-byte value length, value

Source: apache/rocketmq, remoting/protocol/RemotingCommand.java, RemotingSerializable.java, RocketMQSerializable.java.
"""

from __future__ import annotations

import struct
from typing import Any

import orjson

from tallystick.client.wire import fastjson
from tallystick.client.wire.command import LANGUAGES, Command, HeaderType
from tallystick.client.wire.errors import FrameError, HeaderError
from tallystick.client.wire.frames import MAX_FRAME

__all__ = ["MAX_FRAME", "FrameError", "HeaderError", "decode", "encode", "encode_head"]

MAX_HEADER = 1 << 20
"""Limit of a header, chosen by tallystick. The longest text of a client are the properties of a message: 32 KiB, six
times as much with escapes."""
MAX_FIELDS = 1024
"""Limit for the extension fields of a header, chosen by tallystick. Clients send 20 at most."""
_MARKS = struct.Struct(">II")
_BINARY = struct.Struct(">hBhiii")  # ends with the length of the remark
_INT = struct.Struct(">i")
_KEY_LENGTH = struct.Struct(">h")
assert _BINARY.size == 17, "fixed by every client"
_LANGUAGE_NUMBERS = {name: number for number, name in enumerate(LANGUAGES)}
_KNOWN_LANGUAGES = frozenset(LANGUAGES)
_OTHER = _LANGUAGE_NUMBERS["OTHER"]


def encode(command: Command) -> bytes:
    """Returns the frame of a command. HeaderError: no header can contain it. FrameError: it exceeds `MAX_FRAME`."""
    return encode_head(command) + command.body


def encode_head(command: Command) -> bytes:
    """Returns the frame without its body, so that a large body need not be copied. Errors as in `encode`."""
    kind = command.header_type
    header = _encode_json(command) if kind == HeaderType.JSON else _encode_binary(command)
    size = len(header)
    total = 4 + size + len(command.body)
    if total + 4 > MAX_FRAME:
        raise FrameError(f"a frame of {total + 4} bytes, {MAX_FRAME} are allowed")
    return _MARKS.pack(total, kind << 24 | size) + header


def decode(header_type: int, header: bytes, body: bytes) -> Command:
    """Returns the command of a frame. HeaderError: the header is not valid for its type, or too large."""
    if len(header) > MAX_HEADER:
        raise HeaderError(f"a header of {len(header)} bytes, {MAX_HEADER} are allowed")
    if header_type == HeaderType.JSON:
        return _decode_json(header, body)
    if header_type == HeaderType.ROCKETMQ:
        return _decode_binary(header, body)
    raise HeaderError(f"unknown header type {header_type}")


def _encode_json(command: Command) -> bytes:
    fields: dict[str, Any] = {"code": command.code}
    if command.ext is not None:
        fields["extFields"] = command.ext
    fields["flag"] = command.flag
    if command.language is not None:
        fields["language"] = command.language
    fields["opaque"] = command.opaque
    if command.remark is not None:
        fields["remark"] = command.remark
    fields["serializeTypeCurrentRPC"] = "JSON"
    fields["version"] = command.version
    try:
        return orjson.dumps(fields)
    except TypeError:  # a lone surrogate in a text: Python's form of file names that are not UTF-8
        return fastjson.dumps(fields, sort_keys=False)


_TEXT_ONLY = {str}


def _decode_json(header: bytes, body: bytes) -> Command:
    try:
        fields = orjson.loads(header)
    except orjson.JSONDecodeError:
        try:
            fields = fastjson.loads_request(header)
        except fastjson.FastjsonError as error:
            raise HeaderError(f"a JSON header with {error}") from error
    if type(fields) is not dict:
        raise HeaderError("a JSON header that is not an object")
    get = fields.get
    code, opaque, flag, version = get("code", 0), get("opaque", 0), get("flag", 0), get("version", 0)
    if not (type(code) is type(opaque) is type(flag) is type(version) is int) or not (
        -0x80000000 <= code <= 0x7FFFFFFF
        and -0x80000000 <= opaque <= 0x7FFFFFFF
        and -0x80000000 <= flag <= 0x7FFFFFFF
        and -0x80000000 <= version <= 0x7FFFFFFF
    ):
        code, opaque, flag, version = (_int_field(fields, name) for name in ("code", "opaque", "flag", "version"))
    language = get("language")
    if type(language) is not str or language not in _KNOWN_LANGUAGES:
        language = None
    remark = get("remark")
    if remark is not None and type(remark) is not str:
        remark = _text(remark)
    ext = get("extFields")
    if ext is not None:
        if type(ext) is not dict:
            raise HeaderError("a JSON header whose extFields are not an object")
        if len(ext) > MAX_FIELDS:
            raise HeaderError(f"a JSON header with {len(ext)} extFields, {MAX_FIELDS} are allowed")
        # Nearly always all values are strings. A set of types shows that without a loop in Python.
        if not {*map(type, ext.values()), *map(type, ext)} <= _TEXT_ONLY:
            ext = {_text(key): _text(value) for key, value in ext.items() if value is not None}
    return Command(code, opaque, flag, language, version, remark, ext, body, HeaderType.JSON)


def _int_field(fields: dict[Any, Any], name: str) -> int:
    """Converts a number that is not a plain 32-bit integer: fastjson also accepts text and null."""
    value = fields.get(name)
    if value is None:
        return 0
    try:
        number = int(value) if isinstance(value, str) and len(value) <= 11 else value
    except ValueError:
        number = None
    if type(number) is not int or not -0x80000000 <= number <= 0x7FFFFFFF:
        raise HeaderError(f"a JSON header whose {name} is not a 32-bit number")
    return number


def _text(value: Any) -> str:
    """Converts a value to a string as Java does: numbers and booleans as they are, other values as JSON."""
    if isinstance(value, str):
        return value
    try:
        return fastjson.dumps(value).decode()
    except fastjson.FastjsonError as error:
        raise HeaderError(f"a JSON header with a value {error}") from error


def _encode_binary(command: Command) -> bytes:
    language = _LANGUAGE_NUMBERS.get(command.language or "OTHER", _OTHER)
    remark = command.remark.encode("utf-8", "replace") if command.remark else b""
    try:
        parts = [
            _BINARY.pack(command.code, language, command.version, command.opaque, command.flag, len(remark)),
            remark,
            b"",  # the length of the fields, when it is known
        ]
        size = 0
        for name, value in (command.ext or {}).items():
            key, text = name.encode("utf-8", "replace"), value.encode("utf-8", "replace")
            parts += (_KEY_LENGTH.pack(len(key)), key, _INT.pack(len(text)), text)
            size += 6 + len(key) + len(text)
        parts[2] = _INT.pack(size)
    except struct.error as error:
        raise HeaderError(f"command {int(command.code)} does not fit into a ROCKETMQ header: {error}") from error
    return b"".join(parts)


def _decode_binary(header: bytes, body: bytes) -> Command:
    size = len(header)
    if size < _BINARY.size + 4:
        raise HeaderError(f"a ROCKETMQ header of {size} bytes")
    code, language, version, opaque, flag, remark_size = _BINARY.unpack_from(header)
    pos = _BINARY.size + remark_size
    if remark_size < 0 or pos + 4 > size:
        raise HeaderError(f"a ROCKETMQ header of {size} bytes with a remark of {remark_size}")
    remark = header[_BINARY.size : pos].decode("utf-8", "replace") if remark_size else None
    (ext_size,) = _INT.unpack_from(header, pos)
    pos += 4
    end = pos + ext_size
    if ext_size < 0 or end > size:
        raise HeaderError(f"a ROCKETMQ header of {size} bytes with fields of {ext_size}")
    return Command(
        code,
        opaque,
        flag,
        LANGUAGES[language] if language < len(LANGUAGES) else None,
        version,
        remark,
        _decode_fields(header, pos, end) if ext_size else None,
        body,
        HeaderType.ROCKETMQ,
    )


def _decode_fields(header: bytes, pos: int, end: int) -> dict[str, str]:
    ext: dict[str, str] = {}
    fields = 0
    while pos < end:
        if pos + 6 > end:
            raise HeaderError(f"a ROCKETMQ header with a torn field at byte {pos}")
        (key_size,) = _KEY_LENGTH.unpack_from(header, pos)
        key_end = pos + 2 + key_size
        if key_size < 0 or key_end + 4 > end:
            raise HeaderError(f"a ROCKETMQ header with a field name of {key_size} bytes at byte {pos}")
        (text_size,) = _INT.unpack_from(header, key_end)
        text_end = key_end + 4 + text_size
        if text_size < 0 or text_end > end:
            raise HeaderError(f"a ROCKETMQ header with a field of {text_size} bytes at byte {key_end}")
        key = header[pos + 2 : key_end].decode("utf-8", "replace")
        ext[key] = header[key_end + 4 : text_end].decode("utf-8", "replace")
        pos = text_end
        fields += 1
        if fields > MAX_FIELDS:
            raise HeaderError(f"a ROCKETMQ header with more than {MAX_FIELDS} fields")
    return ext
