"""The load of one turn with tallystick.client: see bench.py for the arguments and the line that is printed."""

from __future__ import annotations

import asyncio
import sys

from turn import Arguments, Counter

from tallystick.client import BufferFull, Client, SendResult, Start
from tallystick.client.producing.producer import ProducerOptions


async def send(given: Arguments, counter: Counter) -> None:
    """Messages one by one, so many at the same time."""
    async with Client(given.server) as client, client.producer("bench-ours") as producer:
        await producer.send(given.topic, given.body)

        async def work() -> None:
            while counter.goes_on:
                await producer.send(given.topic, given.body)
                counter.add(1)

        await asyncio.gather(*(work() for _ in range(given.outstanding)))


async def nowait(given: Arguments, counter: Counter, *, coalesce: bool) -> None:
    """Messages with `send_nowait`; with `coalesce` they leave as batches."""
    options: ProducerOptions = {"coalesce": coalesce, "buffer_bytes": given.buffer_bytes}
    async with Client(given.server) as client, client.producer("bench-ours", **options) as producer:
        await producer.send(given.topic, given.body)

        def done(future: asyncio.Future[SendResult]) -> None:
            future.result()
            counter.add(1)

        while counter.goes_on:
            try:
                producer.send_nowait(given.topic, given.body).add_done_callback(done)
            except BufferFull:
                await producer.room()
        await producer.flush()


async def consume(given: Arguments, counter: Counter) -> None:
    """A consumer of a group that acknowledges each message."""
    client = Client(given.server)
    async with client, client.consumer(given.group, given.topic, start=Start.FIRST) as consumer:
        async for message in consumer:
            async with message.process():
                assert len(message.body) == given.size
            counter.add(1)
            if not counter.goes_on:
                break


async def batches(given: Arguments, counter: Counter) -> None:
    """The same with batches of at most 32 messages."""
    client = Client(given.server)
    async with client, client.consumer(given.group, given.topic, start=Start.FIRST, concurrency=1000) as consumer:
        async for batch in consumer.batches(32):
            async with batch.process():
                for message in batch:
                    assert len(message.body) == given.size
            counter.add(len(batch))
            if not counter.goes_on:
                break


def main() -> None:
    given = Arguments.parse(sys.argv[1:])
    counter = Counter(given)
    asyncio.run(
        {
            "send": lambda: send(given, counter),
            "nowait": lambda: nowait(given, counter, coalesce=False),
            "batch": lambda: nowait(given, counter, coalesce=True),
            "consume": lambda: consume(given, counter),
            "batches": lambda: batches(given, counter),
        }[given.mode]()
    )
    counter.report()


if __name__ == "__main__":
    main()
