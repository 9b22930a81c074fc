"""`tally produce` and `tally consume`: for a person at a terminal, not for applications.

tally produce greetings "hello" "world"      each argument is a message; without any, each line of standard input
tally produce load --count 100000 --size 1024
tally consume greetings                      everything from the first message on, then new ones until Ctrl-C
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import sys
import time
import zlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from tallystick.node.commands.admin_command import add_cluster_options
from tallystick.node.commands.terminal import InputError, Progress, bad, good, lines, number
from tallystick.node.commands.tls_options import cluster_client
from tallystick.node.core.client import ClusterClient, QueueAddress, RequestRefusedError
from tallystick.node.remoting.codes import ResponseCode
from tallystick.store.formats import properties
from tallystick.store.formats.message import SysFlag
from tallystick.store.formats.record import Record

_AUTO_CREATE_TOPIC = "TBW102"
# Requests in progress at once: enough to keep a broker busy over one connection, few enough to stop quickly.
_OUTSTANDING = 64
_WAIT_S = 10.0
_MANY = 10**12
_MAX_BODY_BYTES = 16 << 20


def add_parsers(commands: Any) -> None:
    """Adds `produce` and `consume`."""
    produce = commands.add_parser(
        "produce", help="send messages: the arguments, the lines of standard input, or --count messages"
    )
    produce.add_argument("topic", help="name of the topic")
    produce.add_argument("body", nargs="*", help="bodies of the messages")
    produce.add_argument("--count", type=number(1, _MANY), help="send this number of generated messages")
    produce.add_argument(
        "--size", type=number(1, _MAX_BODY_BYTES), default=128, help="bytes of a generated message (128)"
    )
    produce.add_argument("--tag", default="", help="tag of all messages")
    produce.add_argument("--key", default="", help="key of all messages, for queries")
    produce.set_defaults(call=lambda args: asyncio.run(_produce(args)))

    consume = commands.add_parser("consume", help="print the messages of a topic")
    consume.add_argument("topic", help="name of the topic")
    consume.add_argument("--tags", default="*", help="tags of the messages to print, such as 'A || B' (*)")
    consume.add_argument("--group", default="tally", help="consumer group whose offsets are used with --commit")
    consume.add_argument("--commit", action="store_true", help="begin at the group's committed offsets, and commit")
    consume.add_argument("--new", action="store_true", help="print only messages that are stored from now on")
    consume.add_argument("--count", type=number(1, _MANY), help="stop after this many messages")
    consume.add_argument(
        "--once", action="store_true", help="stop at the end of the queues instead of waiting for messages"
    )
    consume.add_argument("--json", action="store_true", help="print one JSON object per message, with all its fields")
    consume.add_argument("--quiet", action="store_true", help="print only the number of messages")
    consume.set_defaults(call=lambda args: asyncio.run(_consume(args)))
    for parser in (produce, consume):
        add_cluster_options(parser)


async def _bodies(args: argparse.Namespace) -> AsyncIterator[bytes]:
    if args.count is not None:
        for count in range(args.count):
            yield f"message {count} ".encode().ljust(args.size, b".")[: args.size]
    elif args.body:
        for text in args.body:
            yield text.encode(errors="surrogateescape")  # the bytes of the command line, also if they are not UTF-8
    else:
        async for some in lines(None if sys.stdin is None else sys.stdin.buffer):
            for line in some:
                yield line


async def _produce(args: argparse.Namespace) -> int:
    if args.count is not None and args.body:
        raise InputError("give either messages or --count")
    async with cluster_client(args) as client:
        queues = await _writable_queues(client, args.topic)
        sending = _Sending(client, args)
        try:
            count = 0
            async for body in _bodies(args):
                await sending.start(queues[count % len(queues)], body)
                count += 1
            await sending.finish()
        except BaseException:
            await sending.abandon()
            print(sending.summary(bad) + ", then stopped", file=sys.stderr)
            raise
        print(sending.summary(good))
    return 0


class _Sending:
    """At most _OUTSTANDING sends in progress. The next call raises the first error."""

    def __init__(self, client: ClusterClient, args: argparse.Namespace) -> None:
        self._client = client
        self._args = args
        self._begin = time.perf_counter()
        self._progress = Progress("sent", args.count)
        self._under_way: set[asyncio.Task[tuple[str, int]]] = set()
        self._stored = 0

    async def start(self, queue: QueueAddress, body: bytes) -> None:
        """Sends one message as soon as fewer than _OUTSTANDING are in progress."""
        send = self._client.send(queue, body, tag=self._args.tag, key=self._args.key)
        self._under_way.add(asyncio.ensure_future(send))
        if len(self._under_way) >= _OUTSTANDING:
            await self._collect(asyncio.FIRST_COMPLETED)
            self._progress.at(self._stored)

    async def finish(self) -> None:
        """Waits for all sends."""
        while self._under_way:
            await self._collect(asyncio.FIRST_EXCEPTION)

    async def abandon(self) -> None:
        """Counts the sends that have ended, and does not wait for the others."""
        for task in self._under_way:
            task.cancel()
        for result in await asyncio.gather(*self._under_way, return_exceptions=True):
            self._stored += not isinstance(result, BaseException)

    def summary(self, colour: Callable[[str], str]) -> str:
        """Returns the line with the result."""
        self._progress.clear()
        seconds = time.perf_counter() - self._begin
        messages = colour(f"{self._stored:,} message{'' if self._stored == 1 else 's'}")
        return f"{messages} stored in {seconds:.2f} s ({self._stored / seconds:,.0f} a second)"

    async def _collect(self, when: str) -> None:
        done, self._under_way = await asyncio.wait(self._under_way, return_when=when)
        failures = [task.exception() for task in done]
        self._stored += failures.count(None)
        for failure in failures:
            if failure is not None:
                raise failure


async def _writable_queues(client: ClusterClient, topic: str) -> list[QueueAddress]:
    """Returns the writable queues of a topic; if it does not exist, those that the first send will create."""
    try:
        queues = await client.queues(topic, writable=True)
    except RequestRefusedError as error:
        if error.code != ResponseCode.TOPIC_NOT_EXIST:
            raise
        model = await client.queues(_AUTO_CREATE_TOPIC, writable=True)
        queues = [
            QueueAddress(topic, queue.broker_name, queue.address, queue.queue_id)
            for queue in model
            if queue.queue_id < 4  # the number of queues that `send` asks for
        ]
    if not queues:
        raise RequestRefusedError("name server", ResponseCode.TOPIC_NOT_EXIST, f"topic {topic} has no queue to write")
    return queues


async def _consume(args: argparse.Namespace) -> int:
    printer = _Printer(args)
    async with cluster_client(args) as client:
        queues = await client.queues(args.topic, writable=False)
        if not queues:
            raise RequestRefusedError("name server", ResponseCode.TOPIC_NOT_EXIST, f"topic {args.topic} cannot be read")
        readers = [_QueueReader(client, queue, args, printer) for queue in queues]
        tasks = [asyncio.ensure_future(reader.run()) for reader in readers]
        enough = asyncio.ensure_future(printer.enough.wait())
        try:
            waiting: set[asyncio.Future[Any]] = {enough, *tasks}
            while not enough.done() and len(waiting) > 1:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            for task in (enough, *tasks):
                task.cancel()
            await asyncio.gather(enough, *tasks, return_exceptions=True)
            printer.progress.clear()
            if args.commit:  # also after Ctrl-C: what was printed is consumed
                for reader in readers:
                    await reader.commit()
    if args.quiet or sys.stderr.isatty():
        print(f"{printer.count:,} message{'' if printer.count == 1 else 's'}", file=sys.stderr)
    return 0


class _Printer:
    """Prints messages, up to the requested number."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.count = 0
        self.enough = asyncio.Event()
        self.progress = Progress("read", args.count)
        self._args = args

    def show(self, record: Record) -> bool:
        """Prints a message. Returns False if the requested number was reached before."""
        if self.enough.is_set():
            return False
        self.count += 1
        if self._args.quiet:
            self.progress.at(self.count)
        elif self._args.json:
            print(json.dumps(_as_json(record)))
        else:
            sys.stdout.buffer.write(_body(record) + b"\n")  # as bytes: it need not be text
        if self.count == self._args.count:
            self.enough.set()
        return True


def _body(record: Record) -> bytes:
    """Returns the body as it was sent, decompressed if the client compressed it. A damaged one is returned
    unchanged."""
    if not record.sys_flag & SysFlag.COMPRESSED:
        return record.body
    inflater = zlib.decompressobj()
    try:
        body = inflater.decompress(record.body, _MAX_BODY_BYTES)
    except zlib.error:
        return record.body
    return body if inflater.eof else record.body


def _as_json(record: Record) -> dict[str, Any]:
    body = _body(record)
    fields: dict[str, Any] = {
        "topic": record.topic,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "messageId": record.message_id,
        "storeTimestamp": record.store_timestamp_ms,
        "bornHost": str(record.born_host),
        "properties": record.property_table(),
    }
    try:
        return fields | {"body": body.decode()}
    except UnicodeDecodeError:
        return fields | {"bodyBase64": base64.b64encode(body).decode()}


class _QueueReader:
    """Prints the messages of one queue. `offset` is the first message that was not printed."""

    def __init__(self, client: ClusterClient, queue: QueueAddress, args: argparse.Namespace, printer: _Printer) -> None:
        self._client = client
        self._queue = queue
        self._args = args
        self._printer = printer
        self._offset: int | None = None

    async def run(self) -> None:
        """Runs until the requested number is reached, or with --once to the end of the queue."""
        args = self._args
        low, high = await self._client.offset_range(self._queue)
        offset = high if args.new else low
        if args.commit and (committed := await self._client.committed(self._queue, args.group)) is not None:
            offset = committed
        self._offset = offset
        wanted = {tag.strip() for tag in args.tags.split("||")} if args.tags.strip() not in ("", "*") else None
        wait_s = 0 if args.once else _WAIT_S
        while True:
            pulled = await self._client.pull(self._queue, self._offset, group=args.group, tags=args.tags, wait_s=wait_s)
            for record in pulled.records:
                # The broker filters by hash; two tags may share one.
                is_wanted = wanted is None or record.property_table().get(properties.TAGS, "") in wanted
                if is_wanted and not self._printer.show(record):
                    return
                self._offset = record.queue_offset + 1
            sys.stdout.flush()  # once for each pull
            self._offset = pulled.next_offset  # it can go back, if the offset was behind the end
            if args.once and not pulled.records and self._offset >= pulled.max_offset:
                return

    async def commit(self) -> None:
        """Commits the offset for the group."""
        if self._offset is not None:
            await self._client.commit(self._queue, self._args.group, self._offset)
