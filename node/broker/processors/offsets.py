"""Consumer offsets (14, 15), and the offsets of a queue's begin, end, and of a time (29, 30, 31, 32).

A group without a committed offset starts at 0 if the queue still has its first message, and that message is near the
end of the log. Otherwise the broker answers that it found no offset, and the client decides.

Source: ConsumerManageProcessor, AdminBrokerProcessor of RocketMQ 4.8.0; `boundaryType` and `setZeroIfNotFound` of 5.x.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from tallystick.node.broker.processors.answers import refused
from tallystick.node.broker.tables.consumer_groups import validate_group_name
from tallystick.node.broker.tables.offsets import MAX_OFFSETS
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.command import Command, need_int, need_long, need_str, opt_bool, opt_str

if TYPE_CHECKING:
    from tallystick.node.broker.context import BrokerContext, StoreView
    from tallystick.node.broker.tables.clients import Channel
    from tallystick.node.remoting.endpoint import Handler

MAX_QUEUE_ID = 65535  # RocketMQ has no limit; here each number that a client sends would stay in the table


class OffsetProcessor:
    """Answers requests about offsets."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker

    def routes(self) -> dict[int, Handler]:
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: self.query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.update,
            RequestCode.GET_MAX_OFFSET: self.max_offset,
            RequestCode.GET_MIN_OFFSET: self.min_offset,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.by_time,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.earliest,
        }

    def query(self, channel: Channel, command: Command) -> Command:
        """14: returns the committed offset of a group: the next one that it consumes."""
        ext = command.ext
        group, topic, queue_id = need_str(ext, "consumerGroup"), need_str(ext, "topic"), need_int(ext, "queueId")
        offset = self._broker.offsets.query(group, topic, queue_id)
        if offset < 0:
            if not opt_bool(ext, "setZeroIfNotFound", True) or not self._begins_near(topic, queue_id):
                raise refused(
                    ResponseCode.QUERY_NOT_FOUND, "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
                )
            offset = 0
        return command.reply(ext={"offset": str(offset)})

    def _begins_near(self, topic: str, queue_id: int) -> bool:
        """Returns whether the queue still has its first message near the end of the log, or never had a message."""
        store = self._broker.store
        if store.queues.min_offset(topic, queue_id) > 0:
            return False
        return store.queues.max_offset(topic, queue_id) == 0 or store.reads.is_in_memory(topic, queue_id, 0)

    def update(self, channel: Channel, command: Command) -> Awaitable[Command] | None:
        """15: commits an offset. Impossible groups, queues and offsets are refused, because they would stay in the
        table."""
        ext = command.ext
        group, topic, queue_id = need_str(ext, "consumerGroup"), need_str(ext, "topic"), need_int(ext, "queueId")
        offset = need_long(ext, "commitOffset")
        if problem := validate_group_name(group):
            raise refused(ResponseCode.SYSTEM_ERROR, problem)
        if topic not in self._broker.topics:
            raise refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        if not 0 <= queue_id <= MAX_QUEUE_ID or offset < 0:
            raise refused(ResponseCode.SYSTEM_ERROR, f"queueId {queue_id} or commitOffset {offset} is not possible")
        if not self._broker.offsets.has_room(group, topic, queue_id):
            raise refused(ResponseCode.SYSTEM_ERROR, f"the table has {MAX_OFFSETS} offsets, which is the limit")
        self._broker.offsets.commit(group, topic, queue_id, offset)
        return None if command.is_oneway else self._kept(command)

    async def _kept(self, command: Command) -> Command:
        """Returns the answer when the offset is durable. Periodic commits of clients are one-way and do not wait."""
        try:
            await self._broker.offsets.saved()
        except OSError as error:
            raise refused(ResponseCode.SYSTEM_ERROR, f"the offset is not saved yet: {error}") from error
        return command.reply(ext={})

    def max_offset(self, channel: Channel, command: Command) -> Command:
        """30: returns the offset that the next message will get."""
        topic, queue_id = _queue(command)
        return command.reply(ext={"offset": str(self._broker.store.queues.max_offset(topic, queue_id))})

    def min_offset(self, channel: Channel, command: Command) -> Command:
        """31: returns the offset of the oldest message."""
        topic, queue_id = _queue(command)
        return command.reply(ext={"offset": str(self._broker.store.queues.min_offset(topic, queue_id))})

    def by_time(self, channel: Channel, command: Command) -> Command:
        """29: returns the offset of the message that was stored at a time, or of the one nearest to it.

        With a `boundaryType`: the first message that is not older, or the last one that is not newer.
        """
        topic, queue_id = _queue(command)
        timestamp_ms = need_long(command.ext, "timestamp")
        boundary = opt_str(command.ext, "boundaryType").upper()
        if boundary in ("LOWER", "UPPER"):
            offset = bounded_offset(self._broker.store, topic, queue_id, timestamp_ms, lower=boundary == "LOWER")
        else:
            offset = self._broker.store.reads.offset_by_time(topic, queue_id, timestamp_ms)
        return command.reply(ext={"offset": str(offset)})

    def earliest(self, channel: Channel, command: Command) -> Command:
        """32: returns the time when the oldest message was stored; -1: the queue has no message."""
        topic, queue_id = _queue(command)
        return command.reply(ext={"timestamp": str(self._broker.store.reads.earliest_store_time(topic, queue_id))})


def _queue(command: Command) -> tuple[str, int]:
    return need_str(command.ext, "topic"), need_int(command.ext, "queueId")


def bounded_offset(store: StoreView, topic: str, queue_id: int, timestamp_ms: int, *, lower: bool) -> int:
    """Returns the offset of the first message that is not older than the time (the queue's end if all are older), or
    with `lower` false of the last one that is not newer (the queue's begin if all are newer).

    Store times grow with offsets, so a binary search needs the times of a dozen or two.
    """
    low, high = store.queues.min_offset(topic, queue_id), store.queues.max_offset(topic, queue_id)

    def time_of(offset: int) -> int:
        return store.reads.store_time(topic, queue_id, offset)

    if lower:
        return low + bisect_left(range(low, high), timestamp_ms, key=time_of)
    return max(low, low + bisect_right(range(low, high), timestamp_ms, key=time_of) - 1)
