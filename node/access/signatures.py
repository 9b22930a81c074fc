"""Signatures of requests, shared with clients: the code is in their wheel, which depends on no other."""

from tallystick.client.wire.signatures import (
    ACCESS_KEY,
    SECURITY_TOKEN,
    SIGNATURE,
    is_signed,
    sign,
    signature,
    signed_content,
)

__all__ = [
    "ACCESS_KEY",
    "SECURITY_TOKEN",
    "SIGNATURE",
    "is_signed",
    "sign",
    "signature",
    "signed_content",
]
