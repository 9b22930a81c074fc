"""A master as RocketMQ 4.8 has it, as far as a slave sees it: its port for slaves, its requests, and its registration.

The log is a value: a test makes it with `records`, and the master sends it as it is. `lie` changes a part before it is
sent, `cuts` ends connections after so many bytes.

Source: HAConnection, AdminBrokerProcessor and DefaultMessageStore.checkStoreStatus of RocketMQ 4.8.0.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

from ports import free_port

from tallystick.node.nameserver.registration import WHOLE_FIELD
from tallystick.node.remoting.client import RemotingClient
from tallystick.node.remoting.codes import RequestCode
from tallystick.node.remoting.command import Command
from tallystick.node.remoting.connection import Connection
from tallystick.node.remoting.server import RemotingServer, bind
from tallystick.store import fastjson
from tallystick.store._kernel import Door, Log
from tallystick.store.formats.message import Host

Part = tuple[int, int, bytes]
"""Position and size as the header says, and the bytes."""
TABLES: dict[int, dict[str, Any]] = {
    RequestCode.GET_ALL_TOPIC_CONFIG: {"topicConfigTable": {}, "dataVersion": {"counter": 1, "timestamp": 1}},
    RequestCode.GET_ALL_CONSUMER_OFFSET: {"offsetTable": {}},
    RequestCode.GET_ALL_DELAY_OFFSET: {"offsetTable": {}},
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: {"subscriptionGroupTable": {}},
}


class LogMaker:
    """Makes the bytes of a log with the kernel, in `folder`."""

    def __init__(self, folder: Path, segment_bytes: int) -> None:
        self._folder, self._segment_bytes = folder, segment_bytes
        host = Host("10.1.1.1", 10911).encode()
        self._log = Log(
            Door(), str(folder), segment_bytes=segment_bytes, max_message_bytes=4 << 20, store_host=host,
            suffix=b"", region="R", trace_on=False,
        )  # fmt: skip
        self._log.start(0, 0)

    def add(self, count: int, *, topic: str = "T", size: int = 300, seed: int = 0) -> bytes:
        """Appends messages to four queues of `topic`; the whole log."""
        for n in range(count):
            body = bytes((seed + n + i) % 251 for i in range((size * (n % 7 + 1)) // 4))
            self._log.append(
                topic.encode(), n % 4, body, b"KEYS\x01k%d\x02" % n, now_ms=1_700_000_000_000 + seed + n,
                born_timestamp=1, born_host=Host("10.2.2.2", 1).encode(),
            )  # fmt: skip
        return self.written()

    def add_transactions(self, count: int, *, seed: int = 0, apart: int = 0) -> bytes:
        """Appends half messages, `apart` messages of topic T, and then the ends of all transactions; the whole log."""
        host, begun = Host("10.2.2.2", 1).encode(), []
        for n in range(count):
            begun.append(self._one("RMQ_SYS_TRANS_HALF_TOPIC", b"half %d %d" % (seed, n), host))
        self.add(apart, seed=seed)
        for n, pos in enumerate(begun):
            self._one("T", b"end %d %d" % (seed, n), host, sys_flag=8, prepared_offset=pos)
        return self.written()

    def _one(self, topic: str, body: bytes, host: bytes, *, sys_flag: int = 0, prepared_offset: int = 0) -> int:
        pos, *_ = self._log.append(
            topic.encode(), 0, body, b"", now_ms=1_700_000_000_000, born_timestamp=1, born_host=host,
            sys_flag=sys_flag, prepared_offset=prepared_offset,
        )  # fmt: skip
        return pos

    def add_batch(self, count: int, size: int = 900) -> bytes:
        """Appends a batch, which lies in one segment; the whole log."""
        one = b"".join(n.to_bytes(4) for n in (4 * 5 + size + 2, 0, 0, 0, size)) + b"b" * size + bytes(2)
        self._log.append_batch(
            b"T", 0, one * count, b"", now_ms=1_700_000_000_000, born_timestamp=1,
            born_host=Host("10.2.2.2", 1).encode(),
        )  # fmt: skip
        return self.written()

    def written(self) -> bytes:
        """The whole log."""
        end = self._log.write_out()
        return b"".join(
            (self._folder / f"{begin:020}").read_bytes()[: end - begin] for begin in range(0, end, self._segment_bytes)
        )


class RocketmqMaster:
    """The master `name`. `log` begins at position 0; what is before `begin` is deleted."""

    def __init__(self, log: bytes, segment_bytes: int, *, name: str = "b", part_bytes: int = 32 << 10) -> None:
        self.log, self.begin = log, 0
        self.name = name
        self.segment_bytes = segment_bytes
        self.settings = {
            "brokerName": name,
            "brokerRole": "ASYNC_MASTER",
            "brokerId": "0",
            "brokerPermission": "6",
            "slaveReadEnable": "false",
            "mappedFileSizeCommitLog": str(segment_bytes),
            "enableDLegerCommitLog": "false",
        }
        self.tables: dict[int, dict[str, Any]] = dict(TABLES)
        self.lie: Callable[[Part], Part] = lambda part: part
        self.cuts: Iterator[int] = iter(())
        """Bytes after which each of the next connections is cut."""
        self.ends: dict[str, dict[int, int]] = {}
        """The next offsets of the queues of topics, which it tells."""
        self.reports: list[int] = []
        self.asked: list[int] = []
        self.changes: list[dict[str, str]] = []
        self.refuses: set[int] = set()
        self.queued: list[bytes] = []
        """Logs as sends will leave them that are past the check of the role, and wait for the thread of sends."""
        self.locked_looks = 0
        """How often it still tells that a put holds the lock of its log. Then the put is done: `locked`."""
        self.locked = b""
        self.heartbeat_s = 0.05
        self._part_bytes = part_bytes
        self._grown = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._nameserver = ""
        self._server: RemotingServer | None = None
        self._ha: asyncio.Server | None = None
        self._client = RemotingClient(name="master")
        self._ports = free_port(), free_port()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._ports[0]}"

    @property
    def end(self) -> int:
        return len(self.log)

    async def start(self, nameserver: str) -> Self:
        """Serves and registers; again after `stop`, at the same ports."""
        routes: dict[int, Any] = dict.fromkeys(TABLES, self._table) | {
            RequestCode.GET_BROKER_RUNTIME_INFO: self._runtime,
            RequestCode.GET_BROKER_CONFIG: self._config,
            RequestCode.UPDATE_BROKER_CONFIG: self._change,
            RequestCode.GET_TOPIC_STATS_INFO: self._ends,
            RequestCode.SEND_MESSAGE: self._send,
        }
        self._server = RemotingServer(routes, name="master")
        await self._server.serve(await bind("127.0.0.1", self._ports[0]))
        self._ha = await asyncio.start_server(self._serve, "127.0.0.1", self._ports[1])
        self._nameserver = nameserver
        await self.register()
        return self

    async def register(self) -> None:
        """Registers as its settings say."""
        body = fastjson.dumps({"filterServerList": [], "topicConfigSerializeWrapper": self.tables[21]})
        ext = {
            "brokerName": self.name, "brokerAddr": self.address, "clusterName": "C", "compressed": "false",
            "brokerId": self.settings["brokerId"], "haServerAddr": f"127.0.0.1:{self._ports[1]}",
            "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF), WHOLE_FIELD: "true",
        }  # fmt: skip
        answer = await self._client.call(self._nameserver, Command(RequestCode.REGISTER_BROKER, ext=ext, body=body), 5)
        assert answer.code == 0, answer.remark

    async def stop(self) -> None:
        """Ends at once."""
        assert self._server is not None and self._ha is not None
        self._ha.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.stop()

    async def close(self) -> None:
        """Ends for good."""
        await self.stop()
        await self._client.close(grace_s=0)

    def grow(self, log: bytes) -> bool:
        """Stores messages, unless it is fenced."""
        if self.settings["brokerRole"] == "SLAVE":
            return False
        self.straggle(log)
        return True

    def straggle(self, log: bytes) -> None:
        """Stores messages, fenced or not."""
        self.log = log
        self._grown.set()
        self._grown = asyncio.Event()

    def end_puts(self) -> None:
        """What was past the check of the role is stored now."""
        for log in (*self.queued, *([self.locked] if self.locked else [])):
            self.straggle(log)
        self.queued, self.locked, self.locked_looks = [], b"", 0

    # -- requests ------------------------------------------------------------------------------------------------------

    def _table(self, _: Connection, command: Command) -> Command:
        if command.code in self.refuses:
            return command.reply(1, remark="out of order")
        return command.reply(body=fastjson.dumps(self.tables[command.code]))

    def _ends(self, _: Connection, command: Command) -> Command:
        topic = (command.ext or {})["topic"]
        rows = [
            ({"brokerName": self.name, "queueId": queue_id, "topic": topic}, {"maxOffset": end, "minOffset": end})
            for queue_id, end in self.ends.get(topic, {}).items()
        ]
        body = b"{%s}" % b",".join(fastjson.dumps(queue) + b":" + fastjson.dumps(row) for queue, row in rows)
        return command.reply(body=b'{"offsetTable":' + body + b"}")

    def _runtime(self, _: Connection, command: Command) -> Command:
        begin = self.begin if self.log else -1
        held_ms = 0
        if self.locked and self.settings["brokerRole"] == "SLAVE":
            self.locked_looks -= 1
            if self.locked_looks > 0:
                held_ms = 700
            else:
                self.end_puts()
        table = {
            "commitLogMinOffset": str(begin), "commitLogMaxOffset": str(self.end),
            "pageCacheLockTimeMills": str(held_ms),
        }  # fmt: skip
        return command.reply(body=fastjson.dumps({"table": table}))

    def _send(self, _: Connection, command: Command) -> Command:
        """One thread serves sends, in their order. What comes after the fence is refused in any case."""
        while self.queued:
            self.straggle(self.queued.pop(0))
        return command.reply(1, remark="request queueId[1000000] is illegal")

    def _config(self, _: Connection, command: Command) -> Command:
        return command.reply(body="".join(f"{key}={text}\n" for key, text in self.settings.items()).encode())

    async def _change(self, _: Connection, command: Command) -> Command:
        if RequestCode.UPDATE_BROKER_CONFIG in self.refuses:
            return command.reply(1, remark="not me")
        changes = dict(line.split("=", 1) for line in command.body.decode().splitlines())
        self.changes.append(changes)
        self.settings |= changes
        if "brokerPermission" in changes:
            await self.register()
        return command.reply()

    # -- the port for slaves -------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        room = next(self.cuts, 1 << 62)
        reports: asyncio.Task[None] | None = None
        try:
            pos = int.from_bytes(await reader.readexactly(8), signed=True)
            self.asked.append(pos)
            if pos == 0:
                pos = self.end - self.end % self.segment_bytes
            reports = asyncio.ensure_future(self._read_reports(reader))
            while room > 0:
                data = self.log[pos : pos + min(self._part_bytes, self.segment_bytes - pos % self.segment_bytes)]
                header, size, data = self.lie((pos, len(data), data))
                sent = (struct.pack(">qi", header, size) + data)[:room]
                writer.write(sent)
                await writer.drain()
                room -= len(sent)
                pos += len(data)
                if not data:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(self.heartbeat_s):
                            await self._grown.wait()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            if reports is not None:
                reports.cancel()
            writer.close()
            self._tasks.discard(task)

    async def _read_reports(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                self.reports.append(int.from_bytes(await reader.readexactly(8), signed=True))


class RocketmqNameServer:
    """A name server as RocketMQ has it: of two brokers with one name and id, the one that registered last is known."""

    def __init__(self) -> None:
        self.addresses: dict[str, dict[int, str]] = {}
        self.address = ""
        self._server: RemotingServer | None = None

    async def start(self) -> Self:
        """Serves."""
        routes: dict[int, Any] = {
            RequestCode.REGISTER_BROKER: self._register,
            RequestCode.UNREGISTER_BROKER: lambda _, command: command.reply(),
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster,
        }
        self._server = RemotingServer(routes, name="nameserver")
        listeners = await bind("127.0.0.1", 0)
        await self._server.serve(listeners)
        self.address = f"127.0.0.1:{listeners[0].getsockname()[1]}"
        return self

    async def close(self) -> None:
        """Ends for good."""
        assert self._server is not None
        await self._server.stop()

    def _register(self, _: Connection, command: Command) -> Command:
        ext = command.ext or {}
        self.addresses.setdefault(ext["brokerName"], {})[int(ext["brokerId"])] = ext["brokerAddr"]
        return command.reply(ext={})

    def _cluster(self, _: Connection, command: Command) -> Command:
        table = {
            name: {"brokerAddrs": {str(n): each for n, each in ids.items()}} for name, ids in self.addresses.items()
        }
        return command.reply(body=fastjson.dumps({"brokerAddrTable": table}))
