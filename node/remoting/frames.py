"""Frames, shared with clients: the code is in their wheel, which depends on no other."""

from tallystick.client.wire.frames import (
    MAX_FRAME,
    Frame,
    FrameSource,
    FrameSplitter,
)

__all__ = [
    "MAX_FRAME",
    "Frame",
    "FrameSource",
    "FrameSplitter",
]
