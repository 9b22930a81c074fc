"""How the values of an application become bodies, and bodies values.

`BYTES` and `TEXT` and `JSON` need nothing else. `pydantic_codec` and `msgspec_codec` need those libraries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import orjson

from tallystick.client.core.errors import ConfigurationError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Codec(Generic[T]):
    """Two functions that are inverse to each other. What they raise reaches the application."""

    encode: Callable[[T], bytes]
    decode: Callable[[bytes], T]


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise ConfigurationError(f"the body must be bytes, not {type(value).__name__}; a codec encodes other values")


BYTES: Codec[bytes] = Codec(_bytes, bytes)
TEXT: Codec[str] = Codec(str.encode, bytes.decode)
JSON: Codec[Any] = Codec(orjson.dumps, orjson.loads)


def pydantic_codec(model: type[T]) -> Codec[T]:
    """JSON of a type that pydantic 2 knows: a model, a dataclass, a union. ImportError: pydantic is not installed."""
    from pydantic import TypeAdapter

    adapter: Any = TypeAdapter(model)
    return Codec(adapter.dump_json, adapter.validate_json)


def msgspec_codec(model: type[T]) -> Codec[T]:
    """JSON of a type that msgspec knows. ImportError: msgspec is not installed."""
    import msgspec

    encoder = msgspec.json.Encoder()
    return Codec(encoder.encode, msgspec.json.Decoder(model).decode)
