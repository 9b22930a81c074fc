"""What tests of a whole store share: small settings, frames as producers send them, a peer that keeps its answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tallystick.store._kernel import Door
from tallystick.store.engine.message_store import MessageStore
from tallystick.store.formats.message import GetStatus, Host, Message
from tallystick.store.formats.record import BLANK_MAGIC, Record
from tallystick.store.settings import FlushDiskType, StoreSettings

HOST = Host("127.0.0.1", 10911)
PEER = Host("127.0.0.1", 40001)
SYNC = FlushDiskType.SYNC_FLUSH
BORN_MS = 1_600_000_000_000


def small(root: Path, **changes: Any) -> StoreSettings:
    """Segments of 4 KiB and files to match, so that everything rolls within a few dozen messages."""
    sizes: dict[str, Any] = {
        "mappedFileSizeCommitLog": 4096,
        "mappedFileSizeConsumeQueue": 20 * 16,
        "maxHashSlotNum": 32,
        "maxIndexNum": 64,
        # The disk of the machine that runs the tests must not matter here.
        "diskSpaceWarningLevelRatio": 1.0,
        "diskSpaceCleanForciblyRatio": 1.0,
    }
    return StoreSettings(storePathRootDir=str(root), **(sizes | changes))


@asynccontextmanager
async def opened(settings: StoreSettings, door: Door | None = None) -> AsyncIterator[MessageStore]:
    """An open store that does nothing by itself for the moment: its first save, which syncs the log too, is over."""
    store = await MessageStore.open(settings, store_host=HOST, door=door)
    try:
        await asyncio.gather(*(task for task in asyncio.all_tasks() if task.get_name() == "save-at-start"))
        yield store
    finally:
        await store.close()


async def kill(store: MessageStore) -> None:
    """The process is gone: nothing more is written, flushed or saved. What its threads were doing is done, or never."""
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    preallocating = store.upkeep._preallocator._task
    for task in tasks:
        if task is not preallocating:
            task.cancel()
    store.upkeep._preallocator._stopped = True
    await asyncio.gather(*tasks, return_exceptions=True)
    if store.dispatcher._armed is not None:
        store.dispatcher._armed.cancel()
    await store.appender._sync_thread.close()
    store.admission.is_open = False
    store.threads.dispatch.shutdown(cancel_futures=True)
    store.threads.upkeep.shutdown(cancel_futures=True)
    store.threads.timers.shutdown(cancel_futures=True)
    store._lock.release()


def message(
    body: bytes = b"hello", *, topic: str = "T", queue: int = 0, properties: str = "", **fields: Any
) -> Message:
    defaults: dict[str, Any] = {"born_timestamp_ms": BORN_MS, "born_host": PEER}
    return Message(topic, queue, body, properties, **(defaults | fields))


def records_of(body: bytes) -> list[Record]:
    """The records of an answer to a read."""
    found, at = [], 0
    while at < len(body):
        found.append(Record.decode(body, at))
        at += found[-1].size
    return found


def read_queue(store: MessageStore, topic: str = "T", queue: int = 0, offset: int | None = None) -> list[Record]:
    """All records of a queue that the log still has, by as many reads as it takes. Fails on a hole.

    Removed ones may stand before the first: like RocketMQ, a queue all of whose records go keeps its min offset.
    """
    at = store.queues.min_offset(topic, queue) if offset is None else offset
    found: list[Record] = []
    while at < store.queues.max_offset(topic, queue):
        result = store.reads.get_message(topic, queue, at, 1000)
        assert result.status in (GetStatus.FOUND, GetStatus.MESSAGE_WAS_REMOVING), (topic, queue, at, result.status)
        records = records_of(result.body)
        end = result.next_begin_offset
        assert end > at and (len(records) == end - at or not found)
        assert [record.queue_offset for record in records] == list(range(end - len(records), end))
        found += records
        at = end
    return found


def walk_log(folder: Path, segment_bytes: int, begin: int, end: int) -> list[Record]:
    """The records of the segment files in [begin, end), fillers passed over. Fails where there is no record."""
    found, at = [], begin
    data: dict[int, bytes] = {}
    while at < end:
        start = at - at % segment_bytes
        if start not in data:
            data[start] = (folder / f"{start:020}").read_bytes()
        here = at - start
        if int.from_bytes(data[start][here + 4 : here + 8], "big", signed=True) == BLANK_MAGIC:
            at += int.from_bytes(data[start][here : here + 4], "big")
            continue
        record = Record.decode(data[start], here)
        assert record.pos == at
        found.append(record)
        at += record.size
    assert at == end
    return found


# -- frames ------------------------------------------------------------------------------------------------------------


def json_frame(header: dict[str, Any] | bytes, body: bytes = b"", header_type: int = 0) -> bytes:
    """One frame around a header, of whatever kind it is."""
    raw = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    marks = (4 + len(raw) + len(body)).to_bytes(4, "big") + (header_type << 24 | len(raw)).to_bytes(4, "big")
    return marks + raw + body


def send_header(
    *,
    topic: str = "T",
    queue: int | str = 0,
    properties: str = "",
    opaque: int = 1,
    flag: int = 0,
    code: int = 310,
    **ext: str,
) -> dict[str, Any]:
    fields = {"a": "pg", "b": topic, "c": "TBW102", "d": "4", "e": str(queue), "f": "0", "g": str(BORN_MS), "h": "7"}
    fields |= {"i": properties, "j": "0", "k": "false", "m": "false"} | ext
    return {"code": code, "extFields": fields, "flag": flag, "language": "JAVA", "opaque": opaque, "version": 373}


def send_frame(body: bytes = b"hello", **options: Any) -> bytes:
    """A SEND_MESSAGE_V2 as a Java client makes it."""
    return json_frame(send_header(**options), body)


def batch_body(*messages: tuple[bytes, bytes]) -> bytes:
    """A client's batch: (body, properties) each."""
    whole = b""
    for body, properties in messages:
        rest = bytes(8) + (7).to_bytes(4, "big") + len(body).to_bytes(4, "big") + body
        rest += len(properties).to_bytes(2, "big") + properties
        whole += (len(rest) + 4).to_bytes(4, "big") + rest
    return whole


def answers_in(data: bytes) -> list[dict[str, Any]]:
    """The headers of the whole frames in `data`."""
    found = []
    while data:
        size = int.from_bytes(data[:4], "big")
        header_bytes = int.from_bytes(data[5:8], "big")
        found.append(json.loads(data[8 : 8 + header_bytes]))
        data = data[4 + size :]
    return found


class Peer:
    """A connection's side of the short way: what it feeds goes in, what it is answered is kept."""

    def __init__(self, store: MessageStore, host: Host = PEER) -> None:
        self.store = store
        self.answers: list[dict[str, Any]] = []
        self._came = asyncio.Event()
        self.id = store.connections.attach(host, self._write)

    def _write(self, data: bytes) -> None:
        self.answers += answers_in(data)
        self._came.set()

    def feed(self, data: bytes) -> list[tuple[int, bytes, bytes]]:
        """The cold frames; the stream is sound."""
        cold, fault = self.store.connections.feed(self.id, data)
        assert fault is None
        return cold or []

    async def answered(self, count: int, timeout_s: float = 5.0) -> list[dict[str, Any]]:
        """The answers so far, once there are `count`."""
        async with asyncio.timeout(timeout_s):
            while len(self.answers) < count:
                self._came.clear()
                await self._came.wait()
        return self.answers


async def until(condition: Callable[[], Any], what: str = "", timeout_s: float = 120.0) -> None:
    """Returns once `condition()` holds; fails if it never does. For states that are not reported."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, what or "the condition never held"
        await asyncio.sleep(0.002)


async def turns(count: int = 20) -> None:
    """Lets the loop go round: everything that is ready has run."""
    for _ in range(count):
        await asyncio.sleep(0)


def filled_store(settings: StoreSettings, count: int) -> Path:
    """The folder of a stopped store with so many messages with tags and keys in two queues, and with a table."""

    async def fill() -> None:
        async with opened(settings) as store:
            for n in range(count):
                properties = f"TAGS\x01a{n % 3}\x02KEYS\x01k{n}\x02"
                await store.writes.put(message(b"body %d" % n * 8, queue=n % 2, properties=properties))

    asyncio.run(fill())
    config = settings.root / "config"
    config.mkdir()
    for name in ("topics.json", "topics.json.bak"):
        (config / name).write_text('{"topicConfigTable":{"T":{"topicName":"T"}}}')
    return settings.root
