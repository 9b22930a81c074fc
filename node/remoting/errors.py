"""The errors of the remoting protocol, shared with clients: the code is in their wheel, which depends on no other."""

from tallystick.client.wire.errors import (
    FrameError,
    HeaderError,
    RemotingBusyError,
    RemotingConnectError,
    RemotingError,
    RemotingTimeout,
)

__all__ = [
    "FrameError",
    "HeaderError",
    "RemotingBusyError",
    "RemotingConnectError",
    "RemotingError",
    "RemotingTimeout",
]
