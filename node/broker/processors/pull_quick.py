"""The fast path of pulls: the kernel recognizes the header and builds the answer in one piece.

Consumers send the same header again and again with other offsets. If the shape of a header is known (`PullShapes`),
the kernel reads only its numbers; the other fields are those that the decoder found when the shape was new. The checks
are the same on both paths. With access control, the kernel checks the signature of each header; whether the account
may pull is decided once for each shape and address, until the accounts change. The fast path only returns messages that
are in memory. In any other case (an error, an empty queue, a filter that reads messages, a consumer that is far behind)
it has no effect, and the frame takes the normal path.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tallystick.node.access.control import By
from tallystick.node.access.signatures import signed_content
from tallystick.node.broker.processors.pull_checks import PullChecks
from tallystick.node.broker.processors.pull_request import COMMIT_OFFSET, PullRequest
from tallystick.node.remoting.codec import decode
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import Command, HeaderType, ResponseError
from tallystick.node.remoting.errors import HeaderError
from tallystick.store._kernel import DamageError, PullShapes

if TYPE_CHECKING:
    from tallystick.node.broker.access import BrokerAccess
    from tallystick.node.broker.context import BrokerContext
    from tallystick.node.remoting.connection import Connection

_PULLS = frozenset((RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE))
_PULL, _SUCCESS = int(RequestCode.PULL_MESSAGE), int(ResponseCode.SUCCESS)  # their hashes are computed at once
_COMMIT, _OFFSET = "commitOffset", "queueOffset"
_MOST_REQUESTS = 10_000  # the kernel remembers as many shapes


class QuickPulls:
    """Answers pulls that pass `PullChecks` and find messages in memory."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        self._checks = PullChecks(broker)
        self._shapes = PullShapes()
        self._requests: dict[int, PullRequest] = {}
        self._granted: dict[tuple[int, str], str] = {}
        """With access control: by shape and address, the user that may pull."""

    def forget(self) -> None:
        """The accounts are others: no shape is known."""
        self._shapes.forget()
        self._requests.clear()
        self._granted.clear()

    def answer(self, connection: Connection, header: bytes) -> bool:
        """Returns whether the frame with this JSON header was a pull and is answered. False: the call had no effect."""
        shape = self._shapes.read(header)
        if shape is None:
            return False
        number, offset, commit_offset, opaque = shape
        request = self._requests.get(number)
        if request is None:
            return False
        begin_s = time.monotonic()
        broker = self._broker
        user = self._granted.get((number, connection.remote.ip), "")
        if broker.access is not None and not user:
            return False
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
        if not broker.quotas.admits_pull(connection, user):
            return False
        suggested = group.broker_id if settings.slaveReadEnable else 0
        try:
            found = broker.store.reads.get_frame(
                topic, queue_id, offset, request.max_messages, codes=wanted.codes, opaque=opaque, suggested=suggested
            )
        except (OSError, DamageError):
            return False  # the normal path tries again, and answers with the error if it meets it as well
        if found is None:
            return False
        frame, count, size_bytes, following = found
        if request.sys_flag & COMMIT_OFFSET and settings.brokerId == 0:
            broker.offsets.commit(request.group, topic, queue_id, commit_offset)
        broker.stats.get(request.group, topic, count, size_bytes)
        broker.pulled.note(request.group, topic, queue_id, following)
        broker.quotas.delivered(connection, user, count, size_bytes)
        connection.write(frame)
        broker.request_times.add(_PULL, _SUCCESS, time.monotonic() - begin_s)
        return True

    def learn(self, connection: Connection, header: bytes) -> None:
        """Remembers the shape of this header: later pulls with it take the fast path, if their kind permits it."""
        if not header.startswith(b'{"code":'):
            return  # most headers are not pulls
        shape = self._shapes.learn(header)
        if shape is None:
            return
        number, offset, commit_offset, opaque = shape
        access = self._broker.access
        if number in self._requests and (access is None or (number, connection.remote.ip) in self._granted):
            return
        try:
            command = decode(HeaderType.JSON, header, b"")
            request, first = PullRequest.read(command.ext or {})
            committed = request.commit_offset()
        except (HeaderError, ResponseError):
            return
        # The decoder must find the numbers in the same places
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
            if len(self._requests) >= _MOST_REQUESTS or len(self._granted) >= _MOST_REQUESTS:
                self.forget()
                return
            if access is None or self._grants(access, connection, command, number):
                self._requests[number] = request

    def _grants(self, access: BrokerAccess, connection: Connection, command: Command, number: int) -> bool:
        """Whether the account of a pull may send it, and later ones of its shape from this address."""
        verdict = access.control.verdict(connection, command)
        if verdict is None or verdict.by is not By.SIGNATURE or verdict.account is None:
            return False
        ext, user = command.ext or {}, verdict.account.user
        # The names with the offsets are not behind each other in the order of names: texts are between them.
        names = sorted(ext)
        at, then = names.index(_COMMIT), names.index(_OFFSET)
        texts = [
            signed_content({name: ext[name] for name in part}, b"")
            for part in (names[:at], names[at + 1 : then], names[then + 1 :])
        ]
        self._shapes.sign(number, texts[0], texts[1], texts[2], user.secret.encode("utf-8", "replace"))
        self._granted[number, connection.remote.ip] = user.name
        return True
