"""Commands, shared with clients: the code is in their wheel, which depends on no other."""

from tallystick.client.wire.command import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    LANGUAGES,
    VERSION,
    Command,
    Fields,
    HeaderType,
    ResponseError,
    need_bool,
    need_int,
    need_long,
    need_str,
    opt_bool,
    opt_int,
    opt_long,
    opt_str,
)

__all__ = [
    "FLAG_ONEWAY",
    "FLAG_RESPONSE",
    "LANGUAGES",
    "VERSION",
    "Command",
    "Fields",
    "HeaderType",
    "ResponseError",
    "need_bool",
    "need_int",
    "need_long",
    "need_str",
    "opt_bool",
    "opt_int",
    "opt_long",
    "opt_str",
]
