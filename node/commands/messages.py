"""`tally produce` and `tally consume`: for a person at a terminal, not for applications.

tally produce greetings "hello" "world"      each argument is a message; without any, each line of standard input
tally produce load --count 100000 --size 1024
tally consume greetings                      everything from the first message on, then new ones until Ctrl-C
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

from tallystick.node.client import ClusterClient, QueueAddress, RequestRefusedError
from tallystick.node.commands.terminal import Progress, good
from tallystick.node.commands.topics import nameserver_option
from tallystick.node.remoting.codes import ResponseCode
from tallystick.store import properties
from tallystick.store.record import Record

_AUTO_CREATE_TOPIC = "TBW102"
# Requests under way at once: enough to keep a broker busy over one connection, few enough to stop quickly.
_OUTSTANDING = 64
_WAIT_S = 10.0


def add_parsers(commands: Any) -> None:
    """Adds `produce` and `consume`."""
    produce = commands.add_parser("produce", help="send messages: arguments, lines of standard input, or --count")
    produce.add_argument("topic")
    produce.add_argument("body", nargs="*", help="messages")
    produce.add_argument("--count", type=int, help="send this many messages made up here")
    produce.add_argument("--size", type=int, default=128, help="bytes of a made-up message (128)")
    produce.add_argument("--tag", default="", help="tag of all messages")
    produce.add_argument("--key", default="", help="key of all messages, to query by")
    produce.set_defaults(call=lambda args: asyncio.run(_produce(args)))

    consume = commands.add_parser("consume", help="print a topic's messages")
    consume.add_argument("topic")
    consume.add_argument("--tags", default="*", help="'A || B' (*)")
    consume.add_argument("--group", default="tally", help="consumer group whose offsets are used with --commit")
    consume.add_argument("--commit", action="store_true", help="go on where the group stopped, and note where we stop")
    consume.add_argument("--new", action="store_true", help="only messages from now on")
    consume.add_argument("--count", type=int, help="stop after this many messages")
    consume.add_argument("--once", action="store_true", help="stop at the end instead of waiting for more")
    consume.add_argument("--json", action="store_true", help="a JSON object a message, with all its fields")
    consume.add_argument("--quiet", action="store_true", help="count only")
    consume.set_defaults(call=lambda args: asyncio.run(_consume(args)))
    for parser in (produce, consume):
        nameserver_option(parser)


async def _bodies(args: argparse.Namespace) -> AsyncIterator[bytes]:
    if args.count is not None:
        for number in range(args.count):
            yield f"message {number} ".encode().ljust(args.size, b".")[: args.size]
    elif args.body:
        for text in args.body:
            yield text.encode()
    else:
        while line := await asyncio.to_thread(sys.stdin.buffer.readline):
            yield line.rstrip(b"\r\n")


async def _produce(args: argparse.Namespace) -> int:
    begin = time.perf_counter()
    sent = 0
    async with ClusterClient(args.nameserver) as client:
        queues = await _writable_queues(client, args.topic)
        progress = Progress("sent", args.count)
        under_way: set[asyncio.Task[tuple[str, int]]] = set()
        number = 0
        async for body in _bodies(args):
            queue = queues[number % len(queues)]
            number += 1
            under_way.add(asyncio.ensure_future(client.send(queue, body, tag=args.tag, key=args.key)))
            if len(under_way) >= _OUTSTANDING:
                done, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                sent += _all_stored(done)
                progress.at(sent)
        if under_way:
            done, _ = await asyncio.wait(under_way)
            sent += _all_stored(done)
        progress.clear()
    seconds = time.perf_counter() - begin
    print(f"{good(f'{sent:,} messages')} stored in {seconds:.2f} s ({sent / seconds:,.0f} a second)")
    return 0


def _all_stored(tasks: set[asyncio.Task[tuple[str, int]]]) -> int:
    for task in tasks:
        task.result()
    return len(tasks)


async def _writable_queues(client: ClusterClient, topic: str) -> list[QueueAddress]:
    """The topic's queues; of a topic that does not exist yet, those that sending will make."""
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
    async with ClusterClient(args.nameserver) as client:
        queues = await client.queues(args.topic, writable=False)
        if not queues:
            raise RequestRefusedError("name server", ResponseCode.TOPIC_NOT_EXIST, f"topic {args.topic} cannot be read")
        readers = [asyncio.ensure_future(_read_queue(client, queue, args, printer)) for queue in queues]
        enough = asyncio.ensure_future(printer.enough.wait())
        try:
            waiting: set[asyncio.Future[Any]] = {enough, *readers}
            while not enough.done() and len(waiting) > 1:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            for task in (enough, *readers):
                task.cancel()
            await asyncio.gather(enough, *readers, return_exceptions=True)
            printer.progress.clear()
    if args.quiet or sys.stderr.isatty():
        print(f"{printer.count:,} messages", file=sys.stderr)
    return 0


class _Printer:
    """Shows messages, and knows when there were enough of them."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.count = 0
        self.enough = asyncio.Event()
        self.progress = Progress("read", args.count)
        self._args = args

    def show(self, record: Record) -> bool:
        """False: there were enough before this one."""
        if self.enough.is_set():
            return False
        self.count += 1
        if self._args.quiet:
            self.progress.at(self.count)
        elif self._args.json:
            print(json.dumps(_as_json(record)), flush=True)
        else:
            print(record.body.decode(errors="replace"), flush=True)
        if self.count == self._args.count:
            self.enough.set()
        return True


def _as_json(record: Record) -> dict[str, Any]:
    return {
        "topic": record.topic,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "messageId": record.message_id,
        "storeTimestamp": record.store_timestamp_ms,
        "bornHost": str(record.born_host),
        "properties": record.property_table(),
        "body": record.body.decode(errors="replace"),
    }


async def _read_queue(client: ClusterClient, queue: QueueAddress, args: argparse.Namespace, printer: _Printer) -> None:
    low, high = await client.offset_range(queue)
    offset = high if args.new else low
    if args.commit and (committed := await client.committed(queue, args.group)) is not None:
        offset = committed
    wanted = {tag.strip() for tag in args.tags.split("||")} if args.tags.strip() not in ("", "*") else None
    try:
        while True:
            wait_s = 0 if args.once else _WAIT_S
            pulled = await client.pull(queue, offset, group=args.group, tags=args.tags, wait_s=wait_s)
            for record in pulled.records:
                # The broker filters by hash; two tags may share one.
                if wanted is None or record.property_table().get(properties.TAGS, "") in wanted:
                    if not printer.show(record):
                        return
                offset = record.queue_offset + 1
            offset = max(offset, pulled.next_offset)
            if args.once and not pulled.records and offset >= pulled.max_offset:
                return
    finally:
        if args.commit:
            await asyncio.shield(client.commit(queue, args.group, offset))
