"""JSON in fastjson's dialect, shared with clients: the code is in their wheel, which depends on no other."""

from tallystick.client.wire.fastjson import (
    MAX_DEPTH,
    FastjsonError,
    JsonObjectKey,
    dumps,
    int_keys,
    loads,
    object_keys,
)

__all__ = [
    "MAX_DEPTH",
    "FastjsonError",
    "JsonObjectKey",
    "dumps",
    "int_keys",
    "loads",
    "object_keys",
]
