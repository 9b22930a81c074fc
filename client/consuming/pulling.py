"""The requests of a consumer about one queue: pulls, offsets, and messages that go back."""

from __future__ import annotations

import enum
import time
from datetime import datetime
from typing import Generic, NamedTuple, TypeVar

from tallystick.client.consuming.filters import Filter, Sql
from tallystick.client.core.errors import ConnectionFailed, NotFound, refused
from tallystick.client.core.message import Stored, decode_stored
from tallystick.client.transport.routes import Queue
from tallystick.client.transport.session import Session
from tallystick.client.wire.codes import RequestCode, ResponseCode
from tallystick.client.wire.command import Command
from tallystick.client.wire.pulling import pull_fields

_NOTHING = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)
_ANSWER_S = 10.0
"""Seconds beyond those of waiting in which a broker must answer a pull."""
S = TypeVar("S", bound=Stored)


class Start(enum.Enum):
    """Where a group begins in a queue for which it has no offset."""

    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    """With the oldest message that is kept."""
    LAST = "CONSUME_FROM_LAST_OFFSET"
    """With new messages. In a queue from which no message has expired, brokers of RocketMQ 4 begin with the first."""


class Pulled(NamedTuple, Generic[S]):
    """The result of a pull. The next one begins at `next_offset`; `moved`: the offset was not in the queue. The queue
    has the offsets from `min_offset` to before `max_offset`. `broker_id`: from where to pull next."""

    messages: list[S]
    next_offset: int
    min_offset: int
    max_offset: int
    moved: bool
    broker_id: int


def retry_topic(group: str) -> str:
    """The topic of the messages that a group sent back."""
    return f"%RETRY%{group}"


class Queues:
    """Requests about queues, for one group."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group

    async def pull(
        self,
        queue: Queue,
        offset: int,
        where: Filter,
        version: int,
        kind: type[S],
        *,
        count: int = 32,
        wait_s: float = 0.0,
        broker_id: int = 0,
        commit: int | None = None,
    ) -> Pulled[S]:
        """Pulls messages from `offset` on. The broker waits at most `wait_s` for the first one. `version`: of the
        subscription; `commit`: an offset to commit with it. Refused, ConnectionFailed, NoAnswer, ProtocolError."""
        address = self._session.routes.reader(queue.broker, broker_id)
        if address is None:
            raise ConnectionFailed(f"broker {queue.broker}", "is in no route at present")
        # Brokers know an SQL filter from heartbeats, and do not compile it for each pull.
        ext = pull_fields(
            *(self._group, queue.topic, queue.id, offset),
            count=count,
            wait_s=wait_s,
            expression=where.text,
            kind=where.kind,
            with_subscription=not isinstance(where, Sql),
            version=version,
            commit=commit,
        )
        command = Command(RequestCode.PULL_MESSAGE, ext=ext)
        answer = await self._session.connections.call(address, command, wait_s + _ANSWER_S)
        if answer.code != ResponseCode.SUCCESS and answer.code not in _NOTHING:
            raise refused(address, answer.code, answer.remark)
        fields = answer.ext or {}
        messages = decode_stored(answer.body, queue.broker, kind) if answer.code == ResponseCode.SUCCESS else []
        return Pulled(
            messages,
            int(fields["nextBeginOffset"]),
            int(fields.get("minOffset", 0)),
            int(fields.get("maxOffset", 0)),
            answer.code == ResponseCode.PULL_OFFSET_MOVED,
            int(fields.get("suggestWhichBrokerId", 0)),
        )

    async def _ask(self, queue: Queue, code: int, ext: dict[str, str]) -> Command:
        address = self._session.routes.master(queue.broker) or self._session.routes.reader(queue.broker)
        if address is None:
            raise ConnectionFailed(f"broker {queue.broker}", "is in no route at present")
        fields = {"topic": queue.topic, "queueId": str(queue.id), **ext}
        return await self._session.connections.ask(address, Command(code, ext=fields), self._session.timeout_s)

    async def committed(self, queue: Queue) -> int | None:
        """Returns the committed offset of the group; None: it has none. Refused, ConnectionFailed, NoAnswer."""
        ext = {"consumerGroup": self._group, "setZeroIfNotFound": "false"}
        try:
            answer = await self._ask(queue, RequestCode.QUERY_CONSUMER_OFFSET, ext)
        except NotFound as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        return int((answer.ext or {})["offset"])

    async def commit(self, queue: Queue, offset: int) -> None:
        """Commits an offset: the group has consumed all messages before it. Refused, ConnectionFailed, NoAnswer."""
        ext = {"consumerGroup": self._group, "commitOffset": str(offset)}
        await self._ask(queue, RequestCode.UPDATE_CONSUMER_OFFSET, ext)

    async def min_offset(self, queue: Queue) -> int:
        """Returns the offset of the oldest message that is kept."""
        return int(((await self._ask(queue, RequestCode.GET_MIN_OFFSET, {})).ext or {})["offset"])

    async def max_offset(self, queue: Queue) -> int:
        """Returns the offset that the next message will get."""
        return int(((await self._ask(queue, RequestCode.GET_MAX_OFFSET, {})).ext or {})["offset"])

    async def offset_at(self, queue: Queue, when: datetime) -> int:
        """Returns the offset of the first message that was stored at this time or later; RocketMQ 4 may take the one
        before."""
        ext = {"timestamp": str(int(when.timestamp() * 1000)), "boundaryType": "LOWER"}
        return int(((await self._ask(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext)).ext or {})["offset"])

    async def begin(self, queue: Queue, start: Start | datetime) -> int:
        """Returns where the group begins in a queue for which it has no offset."""
        if queue.topic == retry_topic(self._group):
            return await self.min_offset(queue)  # what was sent back is never skipped
        if isinstance(start, datetime):
            return await self.offset_at(queue, start)
        return await (self.max_offset if start is Start.LAST else self.min_offset)(queue)

    async def send_back(self, message: Stored, delay_level: int, max_retries: int) -> None:
        """Sends a message back to its broker, which delivers it later: after a delay that grows with the attempts
        (level 0), or of a level. A negative level, or after `max_retries` repetitions: it becomes a dead letter.

        Refused, ConnectionFailed: it was not sent back. NoAnswer: it may have been.
        """
        address = self._session.routes.master(message.broker)
        if address is None:
            raise ConnectionFailed(f"broker {message.broker}", "has no master at present")
        ext = {
            "offset": str(message.position),
            "group": self._group,
            "delayLevel": str(delay_level),
            "originMsgId": message.message_id,
            "originTopic": message.topic,
            "unitMode": "false",
            "maxReconsumeTimes": str(max_retries),
        }
        command = Command(RequestCode.CONSUMER_SEND_MSG_BACK, ext=ext)
        await self._session.connections.ask(address, command, self._session.timeout_s)


def now_ms() -> int:
    """Milliseconds since 1970: the version of a subscription."""
    return time.time_ns() // 1_000_000
