"""The messages of several queues from the newest to the oldest: a merge that reads backwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tallystick.admin.paging import decode_offsets, encode_offsets
from tallystick.admin.records import BATCH, pull
from tallystick.admin.servers import Place, Question
from tallystick.client import Stored
from tallystick.client.core.queue import Queue
from tallystick.client.wire.codes import RequestCode


class Backwards:
    """A walk back through queues. The cursor of a part has the offset before which each queue continues."""

    def __init__(self, question: Question, places: Mapping[str, Place]) -> None:
        """`places`: the broker of each name."""
        self._question = question
        self._places = places
        self.was_read = False
        """Whether a queue could be read."""

    async def part(self, queues: Sequence[Queue], cursor: str | None, limit: int) -> tuple[list[Stored], str | None]:
        """Returns the next messages, and the cursor of the part behind them. Queues that cannot be read become
        problems. ConfigurationError: it is not a cursor of this walk."""
        ends = decode_offsets(cursor, queues, "list") if cursor else await self._question.each(queues, self._end)
        before = dict(ends)
        buffers: dict[Queue, list[Stored]] = {}
        found: list[Stored] = []
        while len(found) < limit:
            hungry = [queue for queue in before if not buffers.get(queue) and before[queue] > 0]
            for queue, (messages, first) in (
                await self._question.each(hungry, lambda queue: self._read(queue, before[queue]))
            ).items():
                buffers[queue], before[queue] = messages, first
            for queue in hungry:
                if queue not in buffers:  # it cannot be read
                    before[queue] = 0
            full = [queue for queue, messages in buffers.items() if messages]
            if not full and not any(before.values()):
                break
            if full:
                newest = max(full, key=lambda queue: (buffers[queue][-1].store_ms, queue))
                found.append(buffers[newest].pop())
        left = {queue: buffers[queue][-1].offset + 1 if buffers.get(queue) else end for queue, end in before.items()}
        return found, encode_offsets({queue: end for queue, end in left.items() if end > 0})

    async def _end(self, queue: Queue) -> int:
        ext = {"topic": queue.topic, "queueId": str(queue.id)}
        answer = await self._question.ask(self._places[queue.broker], RequestCode.GET_MAX_OFFSET, ext)
        self.was_read = True
        return int((answer.ext or {}).get("offset", 0))

    async def _read(self, queue: Queue, end: int) -> tuple[list[Stored], int]:
        """The messages before an offset, oldest first, and the offset before which the walk continues: 0 at the
        begin of the queue. ClientError."""
        first = max(0, end - BATCH)
        offset, found = first, []
        while offset < end:
            pulled = await pull(self._question, self._places[queue.broker], queue, offset, end - offset)
            self.was_read = True
            found += [each for each in pulled.messages if each.offset < end]
            if pulled.next_offset <= offset:
                break
            offset = pulled.next_offset
            if pulled.low >= first:  # what was before has expired
                first = 0
        return found, first
