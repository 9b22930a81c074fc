"""The broker's id of a message, shared with clients: the code is in their wheel, which depends on no other."""

from tallystick.client.wire.message_id import (
    MessageIdError,
    decode_message_id,
    encode_message_id,
)

__all__ = [
    "MessageIdError",
    "decode_message_id",
    "encode_message_id",
]
