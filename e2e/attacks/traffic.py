"""Clients of attacks: many requests in flight over one connection, and whole queues read back.

`Pipe` sends prepared requests and calls back for each answer, in whatever order answers come. Bodies begin with an id,
as everywhere in the lab, so that whatever is read back tells what it is.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterable
from typing import Any

from lab.ledger import body_id
from lab.load import batch_entry, send_fields

from tallystick.node.core.client import ClusterClient, QueueAddress
from tallystick.node.remoting.codec import decode, encode
from tallystick.node.remoting.codes import RequestCode
from tallystick.node.remoting.command import Command, HeaderType
from tallystick.store.formats import properties

GROUP = "attack"
WINDOW = 1000
_HEAD = struct.Struct(">II")

Answered = Callable[[str, Command], None]


def send_command(topic: str, queue_id: int, body: bytes, pairs: dict[str, str] | None = None) -> Command:
    """A plain send, with these properties."""
    ext = send_fields(GROUP, topic, queue_id, {properties.WAIT: "true"} | (pairs or {}))
    return Command(RequestCode.SEND_MESSAGE_V2, ext=ext, body=body, header_type=HeaderType.ROCKETMQ)


class Pipe:
    """One connection with up to `window` requests in flight."""

    def __init__(self, address: str, on_answer: Answered, window: int = WINDOW) -> None:
        self._address, self._on_answer = address, on_answer
        self._room = asyncio.Semaphore(window)
        self._waiting: dict[int, str] = {}
        self._sent_all = False
        self._finished = asyncio.Event()
        self.broken: str = ""
        """Why the connection ended before the answers had all come."""

    async def run(self, requests: Iterable[tuple[str, Command]]) -> int:
        """Sends all of them, each with its name; returns when all are answered, or the connection broke: how many were
        answered."""
        host, _, port = self._address.rpartition(":")
        try:
            reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 22)
        except OSError as error:
            self.broken = str(error)
            return 0
        listening = asyncio.create_task(self._listen(reader))
        number = 0
        try:
            for number, (name, command) in enumerate(requests, 1):
                await self._room.acquire()
                if self.broken or writer.is_closing():
                    break
                command.opaque = number & 0x7FFFFFFF
                self._waiting[command.opaque] = name
                writer.write(encode(command))
                if not number % 64:
                    await writer.drain()
            self._sent_all = True
            if self._waiting and not self.broken:
                await self._finished.wait()
        except ConnectionError as error:
            self.broken = str(error) or "the connection broke"
        finally:
            listening.cancel()
            writer.close()
        return number - len(self._waiting)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                size, mark = _HEAD.unpack(await reader.readexactly(8))
                rest = await reader.readexactly(size - 4)
                header_bytes = mark & 0xFFFFFF
                answer = decode(mark >> 24, rest[:header_bytes], rest[header_bytes:])
                name = self._waiting.pop(answer.opaque, None)
                if name is not None:
                    self._on_answer(name, answer)
                    self._room.release()
                if self._sent_all and not self._waiting:
                    self._finished.set()
        except (OSError, EOFError) as error:
            self.broken = str(error) or "the connection ended"
            self._finished.set()
            self._room.release()


async def read_queue(
    client: ClusterClient, broker: str, topic: str, queue_id: int, *, first: int | None = None, count: int = 1024
) -> tuple[int, list[str]]:
    """The lowest offset of a queue, and the ids of all messages from there (or from `first`) to its end."""
    low, names = 0, []
    async for item in records(client, broker, topic, queue_id, first=first, count=count):
        if isinstance(item, int):
            low = item
        else:
            names.append(body_id(item.body))
    return low, names


async def records(
    client: ClusterClient, broker: str, topic: str, queue_id: int, *, first: int | None = None, count: int = 1024
) -> Any:
    """First the lowest offset, then every record. AssertionError: a gap."""
    queue = QueueAddress(topic, "", broker, queue_id)
    low, high = await client.offset_range(queue)
    yield low
    at = low if first is None else first
    while at < high:
        pulled = await client.pull(queue, at, group=GROUP, count=count)
        if not pulled.records:
            raise AssertionError(f"{topic} queue {queue_id}: no message at {at}, although the queue ends at {high}")
        for record in pulled.records:
            yield record
        at = pulled.next_offset


class Acknowledged:
    """Messages and where the broker said that they are, by their ids; refusals by code and remark."""

    def __init__(self) -> None:
        self.at: dict[str, tuple[str, int, int]] = {}
        self.refused: dict[str, int] = {}

    def note(self, topic: str, queue_id: int, name: str, answer: Command) -> None:
        """An answer to a send."""
        if answer.code == 0:
            self.at[name] = topic, queue_id, int((answer.ext or {})["queueOffset"])
        else:
            text = f"{answer.code} {answer.remark}"
            self.refused[text] = self.refused.get(text, 0) + 1

    async def missing(self, broker: str) -> list[str]:
        """Describes each message that is not at its acknowledged place; reads every queue from end to end."""
        wrong = []
        async with ClusterClient("", timeout_s=30) as client:
            for topic, queue_id in sorted({place[:2] for place in self.at.values()}):
                low, names = await read_queue(client, broker, topic, queue_id)
                for name, (where, queue, offset) in self.at.items():
                    if (where, queue) != (topic, queue_id):
                        continue
                    found = names[offset - low] if 0 <= offset - low < len(names) else None
                    if found != name:
                        wrong.append(f"{name}: acknowledged at {topic}/{queue_id} offset {offset}, found {found}")
        return wrong


def batch_command(topic: str, queue_id: int, bodies: Iterable[bytes], *, keys: bool = False) -> Command:
    """One request with all these messages; with `keys` each has an entry in the index."""
    body = b"".join(
        batch_entry(each, {properties.WAIT: "true"} | ({properties.KEYS: f"k{number}"} if keys else {}))
        for number, each in enumerate(bodies)
    )
    command = send_command(topic, queue_id, body)
    command.code = RequestCode.SEND_BATCH_MESSAGE
    assert command.ext is not None
    command.ext["m"] = "true"
    return command


async def fill(
    broker: str, topic: str, queues: int, total_bytes: int, body_bytes: int = 1024, *, keys: bool = False
) -> dict[int, int]:
    """Sends equal messages, whose bodies have about so many bytes together, in batches; how many messages of each queue
    were acknowledged."""
    each = max(1, (256 << 10) // body_bytes)
    rounds = max(1, total_bytes // (each * body_bytes))
    bodies = [b"fill|".ljust(body_bytes, b"x")] * each
    commands = [batch_command(topic, queue, bodies, keys=keys) for queue in range(queues)]
    acknowledged = dict.fromkeys(range(queues), 0)

    def note(name: str, answer: Command) -> None:
        assert answer.code == 0, f"a batch was refused: {answer.code} {answer.remark}"
        acknowledged[int(name)] += each

    pipe = Pipe(broker, note, window=16)
    await pipe.run((str(number % queues), commands[number % queues]) for number in range(rounds))
    assert not pipe.broken, pipe.broken
    return acknowledged


async def ends(broker: str, topic: str, queues: int) -> dict[int, int]:
    """The max offset of each queue."""
    async with ClusterClient("", timeout_s=30) as client:
        return {n: (await client.offset_range(QueueAddress(topic, "", broker, n)))[1] for n in range(queues)}
