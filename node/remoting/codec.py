"""The codec of commands, shared with clients: the code is in their wheel, which depends on no other."""

from tallystick.client.wire.codec import (
    MAX_FIELDS,
    MAX_FRAME,
    MAX_HEADER,
    FrameError,
    HeaderError,
    decode,
    encode,
    encode_head,
)

__all__ = [
    "MAX_FIELDS",
    "MAX_FRAME",
    "MAX_HEADER",
    "FrameError",
    "HeaderError",
    "decode",
    "encode",
    "encode_head",
]
