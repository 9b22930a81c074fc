"""What a pull asks for, read from its fields.

Source: PullMessageRequestHeader of RocketMQ 4.8.0.
"""

from __future__ import annotations

from typing import NamedTuple, Self

from tallystick.node.remoting.codes import ResponseCode
from tallystick.node.remoting.command import ResponseError, need_int, need_long, need_str

COMMIT_OFFSET, SUSPEND, SUBSCRIPTION = 1, 2, 4
"""Bits of `sys_flag`: the pull commits an offset; it may be held; it brings its subscription along. 8 (class filter)
and 16 (lite pull) change nothing here."""

MAX_MESSAGES = 1024
"""Messages a pull may ask for; more are taken as so many. It also bounds how many units one look tests."""

_LONG = 2**63


class PullRequest(NamedTuple):
    """A pull's fields, without the offsets: those change from one pull of a queue to the next."""

    group: str
    topic: str
    queue_id: int
    max_messages: int
    """From 1 to `MAX_MESSAGES`, whatever was asked for."""
    sys_flag: int
    sub_version: int
    ext: dict[str, str]
    """The fields as they came, for what only some pulls need."""

    @classmethod
    def read(cls, ext: dict[str, str]) -> tuple[Self, int]:
        """The request, and the offset it begins at. ResponseError 1: a field is missing or no number of its size."""
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
        """The offset that the pull commits. ResponseError 1: there is none."""
        return need_long(self.ext, "commitOffset")

    def suspend_ms(self) -> int:
        """How long the client would wait for messages. ResponseError 1: it does not say."""
        return need_long(self.ext, "suspendTimeoutMillis")


def _complaint(ext: dict[str, str]) -> ResponseError:
    """What is wrong with the fields of a request that could not be read."""
    try:
        for name in ("consumerGroup", "topic"):
            need_str(ext, name)
        for name in ("queueId", "maxMsgNums", "sysFlag"):
            need_int(ext, name)
        for name in ("queueOffset", "commitOffset", "suspendTimeoutMillis", "subVersion"):
            need_long(ext, name)
    except ResponseError as error:
        return error
    return ResponseError(ResponseCode.SYSTEM_ERROR, "the fields of this pull cannot be read")
