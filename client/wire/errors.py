"""What can go wrong on a link.

RemotingError
├── FrameError            the bytes are no frames: the link is closed
├── HeaderError           a frame's header cannot be read, or a command has no form as a header
├── RemotingConnectError  there is no link to that address, or it broke before the answer came
├── RemotingTimeout       no answer in time
└── RemotingBusyError     too many calls wait for answers on this link: our own limit

A refusal that came as an answer is no error here: it is a response with a code (see `command.ResponseError`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tallystick.client.wire.frames import Frame


class RemotingError(Exception):
    """Base of all errors of the remoting protocol."""


class FrameError(RemotingError):
    """The stream is no sequence of frames. `frames` are the good ones that came before the bad place."""

    def __init__(self, reason: str, frames: list[Frame] | None = None) -> None:
        super().__init__(reason)
        self.frames: list[Frame] = frames or []


class HeaderError(RemotingError):
    """A header that cannot be read or written; the message says which part."""


class RemotingConnectError(RemotingError):
    """No connection to `address`, or it was lost while an answer was due."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address}: {reason}")
        self.address = address


class RemotingTimeout(RemotingError):  # noqa: N818  # the name that RocketMQ's users know
    """No answer from `address` to a request of that `code` within `timeout_s` seconds."""

    def __init__(self, address: str, code: int, timeout_s: float) -> None:
        super().__init__(f"{address}: no answer to request {int(code)} within {timeout_s:g} s")
        self.address = address
        self.code = int(code)
        self.timeout_s = timeout_s


class RemotingBusyError(RemotingError):
    """The limit of calls in flight on one link is reached."""
