"""The messages of several queues by the time at which they were stored: a merge that reads no further than it must."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from tallystick.admin.paging import decode_offsets, encode_offsets
from tallystick.admin.records import offset_at, pull
from tallystick.admin.servers import Place, Question
from tallystick.client import ClientError, Stored
from tallystick.client.core.queue import Queue


class Window:
    """A window of time over queues. The cursor of a part has the next offset of each queue that has not ended."""

    def __init__(self, question: Question, places: Mapping[str, Place], begin_ms: int, end_ms: int) -> None:
        """`places`: the broker of each name. The window has both ends."""
        self._question = question
        self._places = places
        self._begin_ms = begin_ms
        self._end_ms = end_ms
        self.was_read = False
        """Whether a queue could be read."""

    async def part(self, queues: Sequence[Queue], cursor: str | None, limit: int) -> tuple[list[Stored], str | None]:
        """Returns the next messages, and the cursor of the part behind them. Queues that cannot be read become
        problems. ConfigurationError: it is not a cursor of this window."""
        starts = decode_offsets(cursor, queues, "search") if cursor else await self._question.each(queues, self._first)
        readers = [_QueueReader(self, queue, offset) for queue, offset in starts.items()]
        await self._question.each(readers, _QueueReader.fill)
        heap = [reader for reader in readers if reader.head is not None]
        heapq.heapify(heap)
        found: list[Stored] = []
        while heap and len(found) < limit:
            reader = heap[0]
            found.append(reader.take())
            if reader.head is None and not reader.ended:
                await self._question.each([reader], _QueueReader.fill)
            if reader.head is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, reader)
        return found, encode_offsets({each.queue: each.head.offset for each in heap if each.head is not None})

    async def _first(self, queue: Queue) -> int:
        """An offset at or before the first message of the window. RocketMQ 4.8 returns any of the messages that were
        stored in the given millisecond, so the one before the window is asked for."""
        return await offset_at(self._question, self._places[queue.broker], queue, max(0, self._begin_ms - 1))

    async def read(self, queue: Queue, offset: int) -> tuple[list[Stored], int, bool]:
        """Reads messages of the window from an offset on. Returns them, the next offset, and whether none follows."""
        while True:
            pulled = await pull(self._question, self._places[queue.broker], queue, offset)
            inside = [each for each in pulled.messages if self._begin_ms <= each.store_ms <= self._end_ms]
            past = any(each.store_ms > self._end_ms for each in pulled.messages)
            # An offset outside of the queue: what was there has expired, or is not there yet.
            ended = past or pulled.next_offset >= pulled.high or pulled.next_offset == offset
            offset = pulled.next_offset
            if inside or ended:
                return inside, offset, ended


class _QueueReader:
    """Reads one queue of the window. Sorted by its next message (`head`)."""

    def __init__(self, window: Window, queue: Queue, offset: int) -> None:
        self.queue = queue
        self.ended = False
        self._window = window
        self._offset = offset
        self._messages: list[Stored] = []
        self._at = 0

    @property
    def head(self) -> Stored | None:
        """The next message; None: it has to be read, or the queue has ended."""
        return self._messages[self._at] if self._at < len(self._messages) else None

    def take(self) -> Stored:
        """Returns the next message, and steps behind it."""
        message = self._messages[self._at]
        self._at += 1
        return message

    async def fill(self) -> None:
        """Reads the next messages. ClientError; the queue has ended then."""
        try:
            self._messages, self._offset, self.ended = await self._window.read(self.queue, self._offset)
        except ClientError:
            self.ended = True
            raise
        self._at = 0
        self._window.was_read = True

    def __lt__(self, other: _QueueReader) -> bool:
        mine, its = self.head, other.head
        assert mine is not None and its is not None, "only queues with a message are compared"
        return (mine.store_ms, self.queue) < (its.store_ms, other.queue)
