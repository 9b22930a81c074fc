"""Pulling for applications that keep offsets themselves: no group, no heartbeats, nothing in the background."""

from __future__ import annotations

from datetime import datetime

from tallystick.client.consuming.filters import ALL, Filter
from tallystick.client.consuming.pulling import Pulled, Queues, now_ms
from tallystick.client.core.errors import ConfigurationError
from tallystick.client.core.message import Stored
from tallystick.client.core.queue import Queue
from tallystick.client.transport.session import Session

_DEFAULT_GROUP = "TOOLS_CONSUMER"
"""A group that every broker knows."""


class PullConsumer:
    """Made by `Client.pull`. All methods raise Refused, ConnectionFailed and NoAnswer."""

    def __init__(self, session: Session, topic: str, *, group: str | None = None, where: Filter = ALL) -> None:
        if not topic:
            raise ConfigurationError("a pull consumer needs the name of a topic")
        self.topic = topic
        self._session = session
        self._where = where
        self._version = now_ms()
        self._queues = Queues(session, group or _DEFAULT_GROUP)

    async def close(self) -> None:
        """Nothing has to be closed."""

    async def queues(self) -> list[Queue]:
        """Returns the queues of the topic that can be read."""
        return sorted((await self._session.routes.refresh(self.topic)).read)

    async def fetch(self, queue: Queue, offset: int, *, count: int = 32, wait: float = 0.0) -> Pulled[Stored]:
        """Pulls at most `count` messages from `offset` on. The broker waits at most `wait` seconds for the first one.

        The next call begins at `next_offset` of the result: it can be ahead of the last message, because of the filter,
        and elsewhere (`moved`), if the queue does not have the offset.
        """
        await self._session.routes.get(self.topic)
        pulled = await self._queues.pull(queue, offset, self._where, self._version, Stored, count=count, wait_s=wait)
        matches = getattr(self._where, "matches", None)
        if matches is None:
            return pulled
        return pulled._replace(messages=[message for message in pulled.messages if matches(message.tag)])

    async def range(self, queue: Queue) -> tuple[int, int]:
        """Returns the oldest offset that is kept, and the one that the next message will get."""
        await self._session.routes.get(self.topic)
        return await self._queues.min_offset(queue), await self._queues.max_offset(queue)

    async def offset_at(self, queue: Queue, when: datetime) -> int:
        """Returns the offset of the first message that was stored at this time or later."""
        await self._session.routes.get(self.topic)
        return await self._queues.offset_at(queue, when)

    async def committed(self, queue: Queue) -> int | None:
        """Returns the committed offset of the group; None: it has none."""
        await self._session.routes.get(self.topic)
        return await self._queues.committed(queue)

    async def commit(self, queue: Queue, offset: int) -> None:
        """Commits an offset for the group."""
        await self._session.routes.get(self.topic)
        await self._queues.commit(queue, offset)
