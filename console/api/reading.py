"""Handlers: reads a queue, waits for its messages, and streams a topic.

A stream pulls each queue by itself, with long polls, and commits no offsets. At most `_MOST_WAITING` messages wait for
the listener; pulls continue when it has read them. The id of an event has the next offset of each queue, so a listener
that connects again continues behind the last event that it got.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from typing import Any

import orjson

from tallystick.admin.models import json_of
from tallystick.admin.records import message_of
from tallystick.client import ALL, ClientError, PullConsumer, Queue, Stored, Tags
from tallystick.console.api.events import EventStream, GoneError
from tallystick.console.api.interface import Call, Handler
from tallystick.console.api.problems import ProblemError, problem_of

_MOST_WAITING = 64
_MOST_QUEUES = 128
_LONGEST_ID = 7000
"""Servers accept 8190 bytes of a header."""
_POLL_S = 15.0
_AGAIN_S = 3.0
_PULL = 32


async def read_queue(call: Call) -> Any:
    queue = Queue(call["topic"], call["broker"], call["queue"])
    pull = call.admin.client.pull(queue.topic)
    if queue not in await pull.queues():
        raise ProblemError("not-found", f"the topic has no queue {queue.id} that can be read at broker {queue.broker}")
    low, high = await pull.range(queue)
    offset = call["offset"]
    offset = max(low, high + offset) if offset < 0 else offset
    if offset < low or offset > high:
        return {"items": [], "nextOffset": min(max(offset, low), high), "minOffset": low, "maxOffset": high}
    wait_s = float(call["waitSeconds"])
    if offset < high or not wait_s:
        pulled = await pull.fetch(queue, offset, count=call["limit"])
    else:
        with call.services.polls.take():
            pulled = await _until(call, pull.fetch(queue, offset, count=call["limit"], wait=wait_s))
    return {
        "items": [message_of(message) for message in pulled.messages],
        "nextOffset": pulled.next_offset,
        "minOffset": pulled.min_offset,
        "maxOffset": pulled.max_offset,
    }


async def stream_topic(call: Call) -> Any:
    with call.services.listeners.take():
        pull = call.admin.client.pull(call["topic"], where=Tags(call["tag"]) if call["tag"] is not None else ALL)
        offsets = await _begin(call, pull)
        stream = call.stream()
        try:
            await stream.begin()
            await _stream(stream, pull, offsets)
        except GoneError:
            pass
        return stream.response


async def _begin(call: Call, pull: PullConsumer) -> dict[Queue, int]:
    """Returns the first offset of each queue."""
    queues = await pull.queues()
    if len(queues) > _MOST_QUEUES:
        detail = f"the topic has {len(queues)} queues; a stream reads at most {_MOST_QUEUES}"
        raise ProblemError("not-supported", detail)
    known = _decode(call["Last-Event-ID"])

    async def first(queue: Queue) -> int:
        low, high = await pull.range(queue)
        offset = known.get(f"{queue.broker}/{queue.id}")
        if offset is not None:
            return min(max(offset, low), high)
        return low if call["from"] == "earliest" else high

    return dict(zip(queues, await asyncio.gather(*map(first, queues)), strict=True))


async def _stream(stream: EventStream, pull: PullConsumer, offsets: dict[Queue, int]) -> None:
    waiting: asyncio.Queue[tuple[Queue, Stored | ClientError, int]] = asyncio.Queue(_MOST_WAITING)
    sent = dict(offsets)

    async def read(queue: Queue) -> None:
        offset = offsets[queue]
        while True:
            try:
                pulled = await pull.fetch(queue, offset, count=_PULL, wait=_POLL_S)
            except ClientError as error:
                await waiting.put((queue, error, offset))
                await asyncio.sleep(_AGAIN_S)
                continue
            for message in pulled.messages:
                await waiting.put((queue, message, message.offset + 1))
            offset = pulled.next_offset

    readers = [asyncio.create_task(read(queue), name=f"stream of {queue}") for queue in offsets]
    try:
        while True:
            coming = asyncio.ensure_future(waiting.get())
            try:
                while not await stream.wait(coming):
                    pass
            finally:
                coming.cancel()
            queue, item, following = coming.result()
            if isinstance(item, ClientError):
                await stream.send("problem", problem_of(item).body)
                continue
            sent[queue] = following
            await stream.send("message", json_of(message_of(item)), _encode(sent))
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


async def _until(call: Call, fetching: Any) -> Any:
    """Returns the result of a long poll. ProblemError: the process stops meanwhile."""
    poll = asyncio.ensure_future(fetching)
    stopping = asyncio.ensure_future(call.services.stopping.wait())
    try:
        await asyncio.wait({poll, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not poll.done():
            raise ProblemError("busy", "the process is stopping")
        return poll.result()
    finally:
        poll.cancel()
        stopping.cancel()


def _encode(offsets: dict[Queue, int]) -> str | None:
    """The id of an event; None: the browser could not send it in a header."""
    table = {f"{queue.broker}/{queue.id}": offset for queue, offset in offsets.items()}
    id = base64.urlsafe_b64encode(orjson.dumps(table)).decode()
    return id if len(id) <= _LONGEST_ID else None


def _decode(text: str | None) -> dict[str, int]:
    if text is None:
        return {}
    try:
        table = orjson.loads(base64.b64decode(text, altchars=b"-_", validate=True))
    except (binascii.Error, ValueError):
        table = None
    if not isinstance(table, dict) or not all(type(each) is int for each in table.values()):
        raise ProblemError("invalid-request", "Last-Event-ID is not the id of an event of this stream")
    return table


HANDLERS: dict[str, Handler] = {"readQueue": read_queue, "streamTopic": stream_topic}
