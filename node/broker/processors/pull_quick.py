"""The short way of a pull: its header is recognized instead of read, and its answer made by the kernel in one piece.

Consumers send the same header over and over with other offsets. Of a header whose shape is known (`PullShapes`) only
the numbers are read; the fields are those that the full decoder found when the shape was new. The checks are the same
for every pull, whichever way it takes. The short way ends where anything but messages in memory is due (an error, an
empty queue, a filter that looks into messages, a reader that is far behind): then nothing has happened yet, and the
frame takes the full way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tallystick.node.broker.processors.pull_checks import PullChecks
from tallystick.node.broker.processors.pull_request import COMMIT_OFFSET, PullRequest
from tallystick.node.remoting.codec import decode
from tallystick.node.remoting.codes import RequestCode
from tallystick.node.remoting.command import HeaderType, ResponseError
from tallystick.node.remoting.errors import HeaderError
from tallystick.store._kernel import PullShapes

if TYPE_CHECKING:
    from tallystick.node.broker.context import BrokerContext
    from tallystick.node.remoting.connection import Connection

_PULLS = frozenset((RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE))
_MOST_REQUESTS = 10_000  # as many as the kernel keeps shapes


class QuickPulls:
    """Answers pulls that need no more than `PullChecks` and messages that are there."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        self._checks = PullChecks(broker)
        self._shapes = PullShapes()
        self._requests: dict[int, PullRequest] = {}

    def answer(self, connection: Connection, header: bytes) -> bool:
        """True: a frame with this JSON header was a pull, and is answered. False: it is as if it had not been seen."""
        shape = self._shapes.read(header)
        if shape is None:
            return False
        number, offset, commit_offset, opaque = shape
        request = self._requests.get(number)
        if request is None:
            return False
        broker = self._broker
        settings = broker.settings
        if settings.disableConsumeIfConsumerReadSlowly:
            return False
        topic, queue_id = request.topic, request.queue_id
        try:
            group = self._checks.group(request.group)
            self._checks.queue(connection, topic, queue_id)
            wanted = self._checks.filter(group, request)
        except ResponseError:
            return False
        if wanted.accept is not None:
            return False
        suggested = group.broker_id if settings.slaveReadEnable else 0
        found = broker.store.get_frame(
            topic, queue_id, offset, request.max_messages, codes=wanted.codes, opaque=opaque, suggested=suggested
        )
        if found is None:
            return False
        frame, count, size_bytes = found
        if request.sys_flag & COMMIT_OFFSET and settings.brokerId == 0:
            broker.offsets.commit(request.group, topic, queue_id, commit_offset)
        broker.stats.get(request.group, topic, count, size_bytes)
        connection.write(frame)
        return True

    def learn(self, header: bytes) -> None:
        """Pulls with a header of this shape take the short way from now on, if it is one that can."""
        if not header.startswith(b'{"code":'):
            return  # most headers are no pulls: no second look at them
        shape = self._shapes.learn(header)
        if shape is None:
            return
        number, offset, commit_offset, opaque = shape
        try:
            command = decode(HeaderType.JSON, header, b"")
            request, first = PullRequest.read(command.ext or {})
            committed = request.commit_offset()
        except (HeaderError, ResponseError):
            return
        # The numbers must be where the decoder sees them too
        if (
            command.code in _PULLS
            and command.flag == 0
            and (first, committed, command.opaque)
            == (
                offset,
                commit_offset,
                opaque,
            )
        ):
            if len(self._requests) >= _MOST_REQUESTS:
                self._requests.clear()
            self._requests[number] = request
