"""Stores a message in OFFSET_MOVED_EVENT when a consumer gets another offset than it asked for.

It informs the subscribers of that topic that messages were skipped (they had expired) or are delivered again. As in
RocketMQ this is best effort: the pull's answer does not wait for it. At most MAX_IN_FLIGHT events are stored at a time,
and others are dropped.

Source: PullMessageProcessor.generateOffsetMovedEvent and OffsetMovedEvent of RocketMQ 4.8.0.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from tallystick.node.broker.tables.message_queue import MessageQueue
from tallystick.node.broker.tables.topics import OFFSET_MOVED_EVENT
from tallystick.store import fastjson
from tallystick.store.formats import properties
from tallystick.store.formats.message import Message
from tallystick.store.formats.properties import KEYS, TAGS
from tallystick.store.limited_log import LimitedLog

if TYPE_CHECKING:
    from tallystick.node.broker.context import BrokerContext

MAX_IN_FLIGHT = 64
"""Limit of events that are being stored at a time."""


class OffsetMovedEvents:
    """Writes the events of one broker. `dropped` counts events above the limit."""

    def __init__(self, broker: BrokerContext) -> None:
        self._broker = broker
        self._tasks: set[asyncio.Task[None]] = set()
        self._log = LimitedLog(logging.getLogger("tallystick.broker.pull"), time.monotonic)
        self.dropped = 0

    def report(self, group: str, topic: str, queue_id: int, offset_request: int, offset_new: int) -> None:
        """`group` asked for `offset_request` and gets `offset_new`."""
        self._log.warning(
            "offset moved",
            "%s asked for offset %d of %s queue %d and got offset %d",
            *(group, offset_request, topic, queue_id, offset_new),
        )
        if len(self._tasks) >= MAX_IN_FLIGHT:
            self.dropped += 1
            return
        queue = MessageQueue(topic, self._broker.settings.brokerName, queue_id)
        event = {
            "consumerGroup": group,
            "messageQueue": queue.to_json(),
            "offsetNew": offset_new,
            "offsetRequest": offset_request,
        }
        message = Message(
            OFFSET_MOVED_EVENT,
            0,
            fastjson.dumps(event),
            properties.encode({KEYS: group, TAGS: group}),
            born_timestamp_ms=self._broker.now_ms(),
            born_host=self._broker.host,
        )
        task = asyncio.get_running_loop().create_task(self._put(message), name="offset moved event")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _put(self, message: Message) -> None:
        result = await self._broker.store.writes.put(message)
        if not result.status.stored:
            self._log.warning("not stored", "cannot store the event of a moved offset: %s", result.status.name)
