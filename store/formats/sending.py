"""The requests that send messages, shared with clients: the code is in their wheel, which depends on no other."""

from tallystick.client.wire.sending import (
    BATCH_PROPERTIES,
    MAX_PROPERTIES_BYTES,
    batch_part,
    send_fields,
)

__all__ = [
    "BATCH_PROPERTIES",
    "MAX_PROPERTIES_BYTES",
    "batch_part",
    "send_fields",
]
