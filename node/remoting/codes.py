"""Request and response codes, shared with clients: the code is in their wheel, which depends on no other."""

from tallystick.client.wire.codes import (
    RequestCode,
    ResponseCode,
)

__all__ = [
    "RequestCode",
    "ResponseCode",
]
