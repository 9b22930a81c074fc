"""`tally bench`: how many messages a cluster stores and delivers per second, with the Python client."""

from __future__ import annotations

import argparse
import asyncio
import time
import uuid
from typing import TYPE_CHECKING, Any

from tallystick.node.commands.admin_command import reads
from tallystick.node.commands.output import emit
from tallystick.node.commands.terminal import good, number

if TYPE_CHECKING:
    from tallystick.admin.admin import Admin

_MAX_BODY_BYTES = 4 << 20


def add_parsers(commands: Any) -> None:
    """Adds `bench`."""
    bench = commands.add_parser(
        "bench", help="measure sends and deliveries, with a topic that is deleted afterwards (see also `make bench`)"
    )
    bench.add_argument("--count", type=number(1, 100_000_000), default=20_000, help="number of messages (20000)")
    bench.add_argument("--size", type=number(1, _MAX_BODY_BYTES), default=1024, help="bytes of a message (1024)")
    bench.add_argument("--queues", type=number(1, 1024), default=4, help="queues on each broker (4)")
    bench.add_argument("--concurrency", type=number(1, 10_000), default=64, help="sends at the same time (64)")
    reads(bench, _bench)


async def _bench(admin: Admin, args: argparse.Namespace) -> int:
    topic = group = f"tally-bench-{uuid.uuid4().hex[:12]}"
    await admin.topics.put(topic, {"read_queues": args.queues, "write_queues": args.queues})
    try:
        sent_s, latencies = await _send(admin, args, topic)
        received_s = await _receive(admin, args, topic, group)
    finally:
        await admin.topics.delete(topic)
        await admin.groups.delete(group, topics=True)
    latencies.sort()
    result = {
        "messages": args.count,
        "bytes": args.size,
        "sentPerSecond": args.count / sent_s,
        "receivedPerSecond": args.count / received_s,
        "latencyMs": {
            name: latencies[min(len(latencies) - 1, int(len(latencies) * part))] * 1000
            for name, part in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
        },
    }
    emit(args, result, lambda: _text(result))
    return 0


async def _send(admin: Admin, args: argparse.Namespace, topic: str) -> tuple[float, list[float]]:
    """Seconds of all sends, and of each."""
    body = b"." * args.size
    latencies: list[float] = []
    left = iter(range(args.count))
    async with admin.client.producer("tally-bench") as producer:

        async def worker() -> None:
            for _ in left:
                begin = time.perf_counter()
                await producer.send(topic, body)
                latencies.append(time.perf_counter() - begin)

        begin = time.perf_counter()
        async with asyncio.TaskGroup() as workers:
            for _ in range(args.concurrency):
                workers.create_task(worker())
        return time.perf_counter() - begin, latencies


async def _receive(admin: Admin, args: argparse.Namespace, topic: str, group: str) -> float:
    from tallystick.client import Start

    left = args.count
    begin = time.perf_counter()
    async with admin.client.consumer(group, topic, start=Start.FIRST) as consumer:
        async for batch in consumer.batches(1024):
            async with batch.process():
                left -= len(batch)
            if left <= 0:
                return time.perf_counter() - begin
    raise AssertionError("the consumer ended")


def _text(result: dict[str, Any]) -> str:
    latency = result["latencyMs"]
    return "\n".join(
        (
            f"sent      {good(format(result['sentPerSecond'], ',.0f'))} messages of {result['bytes']} bytes a second",
            f"received  {good(format(result['receivedPerSecond'], ',.0f'))} a second",
            f"a send took {latency['p50']:.1f} ms (p50), {latency['p99']:.1f} ms (p99), {latency['max']:.1f} ms (max)",
        )
    )
