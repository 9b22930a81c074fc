"""What became of a message that was sent."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tallystick.client.core.queue import Queue
from tallystick.client.wire.codes import ResponseCode


class SendStatus(enum.Enum):
    """How safe a stored message is."""

    OK = "ok"
    """As the broker is configured: in its memory, on its disk, or on a majority of a group."""
    NOT_SYNCED = "not synced"
    """The broker did not confirm in time that it is on the disk."""
    NOT_COPIED = "not copied"
    """The broker did not confirm in time that a slave has it."""


STORED = {
    int(ResponseCode.SUCCESS): SendStatus.OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.NOT_SYNCED,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.NOT_COPIED,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.NOT_COPIED,
}
"""Answers of a broker that stored the message."""


@dataclass(frozen=True, slots=True)
class SendResult:
    """A stored message. `message_id` is the broker's id, `unique_key` the client's; `offset`: its number in the queue.

    `maybe_twice`: an earlier request for it had no answer, so it may be stored a second time, with the same unique key.
    `region`: of the broker, for traces; None: the broker wants no traces.
    """

    unique_key: str
    message_id: str
    queue: Queue
    offset: int
    status: SendStatus = SendStatus.OK
    maybe_twice: bool = False
    region: str | None = None
