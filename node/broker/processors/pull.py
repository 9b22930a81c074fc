"""PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361): delivery of messages to consumers.

The broker checks a pull in RocketMQ's order (`pull_checks`), then reads the queue. It sends the records as they are in
the log, behind a head that is made from a template. A pull that finds no message at the end of its queue is held if
its client permits (`holds`). When a message arrives, the broker checks and reads again, because the topic or the
subscription may have been deleted.

    status in the store                         code
    FOUND                                       0
    NO_MATCHED_MESSAGE, MESSAGE_WAS_REMOVING    20  pull again at once, from nextBeginOffset
    OFFSET_OVERFLOW_ONE, OFFSET_FOUND_NULL      19  nothing yet: held, if the client allows
    NO_MATCHED_LOGIC_QUEUE, NO_MESSAGE_IN_QUEUE 19 at offset 0, else 21
    OFFSET_OVERFLOW_BADLY, OFFSET_TOO_SMALL     21  pull from nextBeginOffset; a message to OFFSET_MOVED_EVENT, too

A slave answers with code 20 where a master answers with 21, and stores no offsets.

Source: PullMessageProcessor of RocketMQ 4.8.0; the recorded frames in the golden data.
"""

from __future__ import annotations

import enum
import logging
import time
from typing import TYPE_CHECKING

from tallystick.node.broker.processors.pull_checks import PullChecks
from tallystick.node.broker.processors.pull_head import pull_head
from tallystick.node.broker.processors.pull_request import COMMIT_OFFSET, SUSPEND, PullRequest
from tallystick.node.broker.services.holds import Hold
from tallystick.node.broker.services.offset_moved import OffsetMovedEvents
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import FLAG_ONEWAY, Command, ResponseError
from tallystick.store.formats.message import GetResult, GetStatus
from tallystick.store.formats.record import Record
from tallystick.store.limited_log import LimitedLog

if TYPE_CHECKING:
    from tallystick.node.broker.context import BrokerContext
    from tallystick.node.broker.tables.consumer_groups import SubscriptionGroup
    from tallystick.node.remoting.server import Connection, Handler

_logger = logging.getLogger("tallystick.broker.pull")

MAX_BODY = 16 * 1024 * 1024 - 1024
"""Bytes of records above which the general encoder decides whether a frame can carry them."""

_FOUND = GetStatus.FOUND
_CODES = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.NO_MATCHED_LOGIC_QUEUE: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.NO_MESSAGE_IN_QUEUE: ResponseCode.PULL_OFFSET_MOVED,
}
_EMPTY = (GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE)


class _Done(enum.Enum):
    """The result of a pull for which the caller has no answer to send."""

    SENT = enum.auto()
    HELD = enum.auto()


class PullProcessor:
    """Answers pulls, at once or when their hold ends. It registers with the broker's holds to answer them."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        self._moved = OffsetMovedEvents(broker)
        self._checks = PullChecks(broker)
        self._log = LimitedLog(_logger, time.monotonic)
        broker.holds.retry = self.retry

    def routes(self) -> dict[int, Handler]:
        return {RequestCode.PULL_MESSAGE: self.pull, RequestCode.LITE_PULL_MESSAGE: self.pull}

    def pull(self, connection: Connection, command: Command) -> Command | None:
        """Handles a pull. None: the answer was sent, or will be sent later."""
        if command.flag & FLAG_ONEWAY:
            return None  # no client waits for the messages
        try:
            answer = self._pull(connection, command, None, False)
        except ResponseError as error:
            return command.reply(error.code, ext={}, remark=error.remark)
        return None if isinstance(answer, _Done) else answer

    def retry(self, hold: Hold, expired: bool) -> bool:
        """Tries a held pull again. Returns whether it was answered: see `holds.Retry`."""
        command = hold.command
        try:
            answer = self._pull(hold.connection, command, hold, expired)
        except ResponseError as error:
            answer = command.reply(error.code, ext={}, remark=error.remark)
        except Exception as error:  # an error of one pull must not stop the others
            self._log.warning("held pull", "a held pull failed", exc_info=True)
            answer = command.reply(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")
        if isinstance(answer, Command):
            hold.connection.send(answer)
            self._count(command, answer.code, held=True)
        return answer is not _Done.HELD

    def _pull(self, connection: Connection, command: Command, hold: Hold | None, expired: bool) -> Command | _Done:
        broker = self._broker
        request, offset = PullRequest.read(command.ext or {})
        group_name, topic, queue_id, sys_flag = request.group, request.topic, request.queue_id, request.sys_flag
        settings = broker.settings
        group = self._checks.group(group_name)
        self._checks.queue(connection, topic, queue_id)
        wanted = self._checks.filter(group, request)
        start = offset if hold is None else hold.offset
        result = broker.store.reads.get_message(
            topic,
            queue_id,
            start,
            request.max_messages,
            codes=wanted.codes,
            accept=wanted.accept,
            bits=wanted.bits,
            most_accepts=wanted.most_accepts,
        )
        if hold is None and sys_flag & COMMIT_OFFSET and settings.brokerId == 0:
            broker.offsets.commit(group_name, topic, queue_id, request.commit_offset())
        if result.status is _FOUND:
            broker.stats.get(group_name, topic, result.count, len(result.body))
            broker.pulled.note(group_name, topic, queue_id, result.next_begin_offset)
            broker.quotas.delivered(connection, command.user, result.count, len(result.body))
            if result.suggest_pulling_from_slave or settings.disableConsumeIfConsumerReadSlowly:
                self._note_slow(group_name, topic, queue_id, result.body)
            return self._send(connection, command, group, result, ResponseCode.SUCCESS, held=hold is not None)
        code = _CODES[result.status]
        if code == ResponseCode.PULL_OFFSET_MOVED:
            code = self._moved_code(group, topic, queue_id, start, result)
        if hold is not None and not expired and self._stays(hold, code, result):
            return _Done.HELD
        if code == ResponseCode.PULL_NOT_FOUND:
            if hold is None and sys_flag & SUSPEND:
                return self._hold(connection, command, topic, queue_id, offset, request.suspend_ms())
            if hold is not None and hold.offset > hold.first_offset:
                # Nothing at the end, but what lies between was looked at: the client continues after it
                code = ResponseCode.PULL_RETRY_IMMEDIATELY
                result.status = GetStatus.NO_MATCHED_MESSAGE
        return self._send(connection, command, group, result, code, held=hold is not None)

    # Answers

    def _moved_code(
        self, group: SubscriptionGroup, topic: str, queue_id: int, offset: int, result: GetResult
    ) -> ResponseCode:
        if result.status in _EMPTY and offset == 0:
            return ResponseCode.PULL_NOT_FOUND
        if self._broker.settings.brokerId != 0 or result.next_begin_offset == offset:  # or not known where to, yet
            return ResponseCode.PULL_RETRY_IMMEDIATELY
        self._moved.report(group.group_name, topic, queue_id, offset, result.next_begin_offset)
        return ResponseCode.PULL_OFFSET_MOVED

    def _note_slow(self, group: str, topic: str, queue_id: int, body: bytes) -> None:
        """Counts how far the group is behind the end of the log. With `disableConsumeIfConsumerReadSlowly` it disables
        a group that is too far behind."""
        broker = self._broker
        record = Record.decode(body, check_crc=False)
        behind_bytes = broker.store.max_pos - record.pos
        recorded = behind_bytes if broker.store.settings.diskFallRecorded else None
        broker.stats.fall_behind(group, topic, queue_id, recorded, broker.now_ms() - record.store_timestamp_ms)
        settings = broker.settings
        if settings.disableConsumeIfConsumerReadSlowly and behind_bytes > settings.consumerFallbehindThreshold:
            self._log.warning("slow group", "disabled consumer group %s: it is %d bytes behind", group, behind_bytes)
            broker.groups.disable_consume(group)

    def _stays(self, hold: Hold, code: ResponseCode, result: GetResult) -> bool:
        if code == ResponseCode.PULL_NOT_FOUND:
            return True
        if result.status is not GetStatus.NO_MATCHED_MESSAGE:
            return False
        hold.step(result.next_begin_offset, self._broker.steady_ms())
        # What is left is more than one look takes: the client comes back for it, which leaves room for others
        return result.next_begin_offset >= result.max_offset

    def _hold(
        self, connection: Connection, command: Command, topic: str, queue_id: int, offset: int, suspend_ms: int
    ) -> Command | _Done:
        broker = self._broker
        if not broker.settings.longPollingEnable:
            suspend_ms = broker.settings.shortPollingTimeMills
        hold = Hold(connection, command, topic, queue_id, offset, broker.steady_ms() + suspend_ms)
        if broker.holds.add(hold):
            return _Done.HELD
        raise ResponseError(ResponseCode.SYSTEM_BUSY, "[OVERLOAD]system busy, start flow control for a while")

    def _send(
        self,
        connection: Connection,
        command: Command,
        group: SubscriptionGroup,
        result: GetResult,
        code: int,
        *,
        held: bool,
    ) -> Command | _Done:
        body = result.body
        settings = self._broker.settings
        suggested = 0
        if settings.slaveReadEnable:
            behind = result.suggest_pulling_from_slave
            suggested = group.which_broker_when_consume_slowly if behind else group.broker_id
        if len(body) > MAX_BODY:
            fields = {
                "suggestWhichBrokerId": str(suggested),
                "nextBeginOffset": str(result.next_begin_offset),
                "minOffset": str(result.min_offset),
                "maxOffset": str(result.max_offset),
            }
            return command.reply(code, ext=fields, body=body, remark=result.status.name)
        head = pull_head(
            command.header_type,
            code,
            command.opaque,
            result.status,
            suggested,
            result.next_begin_offset,
            result.min_offset,
            result.max_offset,
            len(body),
        )
        connection.write(head, body)
        self._count(command, code, held=held)
        return _Done.SENT

    def _count(self, command: Command, code: int, *, held: bool) -> None:
        self._broker.request_times.add(command.code, code, time.monotonic() - command.received_s, held=held)
