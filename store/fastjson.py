"""JSON in fastjson's dialect, shared with clients: the code is in their wheel, which depends on no other."""

from tallystick.client.wire.fastjson import (
    LENIENT_REQUEST_BYTES,
    MAX_DEPTH,
    FastjsonError,
    JsonObjectKey,
    dumps,
    int_keys,
    loads,
    loads_request,
    object_keys,
)

__all__ = [
    "LENIENT_REQUEST_BYTES",
    "MAX_DEPTH",
    "FastjsonError",
    "JsonObjectKey",
    "dumps",
    "int_keys",
    "loads",
    "loads_request",
    "object_keys",
]
