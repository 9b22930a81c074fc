"""The fields of a pull request.

Source: PullMessageRequestHeader of RocketMQ 4.8.0.
"""

from __future__ import annotations

from typing import NamedTuple, Self

from tallystick.node.remoting.codes import ResponseCode
from tallystick.node.remoting.command import ResponseError, need_int, need_long, need_str

COMMIT_OFFSET, SUSPEND, SUBSCRIPTION = 1, 2, 4
"""Bits of `sys_flag`: the pull commits an offset; the broker may hold it; it contains its subscription. 8 (class
filter) and 16 (lite pull) have no effect."""

MAX_MESSAGES = 1024
"""Largest number of messages of a pull; a larger number is lowered to it. It also limits the units that a read
tests."""

_LONG = 2**63


class PullRequest(NamedTuple):
    """The fields of a pull without the offsets, which differ between the pulls of a queue."""

    group: str
    topic: str
    queue_id: int
    max_messages: int
    """From 1 to `MAX_MESSAGES`, also if the client asked for more."""
    sys_flag: int
    sub_version: int
    ext: dict[str, str]
    """All fields of the request, for those that only some pulls need."""

    @classmethod
    def read(cls, ext: dict[str, str]) -> tuple[Self, int]:
        """Returns the request and its first offset. ResponseError 1: a field is missing or is not a number in range."""
        try:
            group, topic, offset = ext["consumerGroup"], ext["topic"], int(ext["queueOffset"])
            queue_id, max_messages = int(ext["queueId"]), int(ext["maxMsgNums"])
            sys_flag, sub_version = int(ext["sysFlag"]), int(ext["subVersion"])
        except (KeyError, ValueError):
            raise _complaint(ext) from None
        if not -_LONG <= offset < _LONG:
            raise _complaint(ext)
        most = min(max(max_messages, 1), MAX_MESSAGES)
        return cls(group, topic, queue_id, most, sys_flag, sub_version, ext), offset

    def commit_offset(self) -> int:
        """Returns the offset that the pull commits. ResponseError 1: it is missing."""
        return need_long(self.ext, "commitOffset")

    def suspend_ms(self) -> int:
        """Returns how long the client permits to hold the pull. ResponseError 1: the field is missing."""
        return need_long(self.ext, "suspendTimeoutMillis")


def _complaint(ext: dict[str, str]) -> ResponseError:
    """Returns the error for a request whose fields could not be read."""
    try:
        for name in ("consumerGroup", "topic"):
            need_str(ext, name)
        for name in ("queueId", "maxMsgNums", "sysFlag"):
            need_int(ext, name)
        for name in ("queueOffset", "commitOffset", "suspendTimeoutMillis", "subVersion"):
            need_long(ext, name)
    except ResponseError as error:
        return error
    return ResponseError(ResponseCode.SYSTEM_ERROR, "the fields of the pull cannot be read")
