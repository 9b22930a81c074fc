"""Short steps: each returns what is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

from lab.peer import Peer

from client_suite.traces import traces
from tallystick.client import (
    Client,
    Consumer,
    Delivery,
    Message,
    NotFound,
    NotSupported,
    Outcome,
    Sql,
    Start,
    Stored,
    Tags,
)

_PATIENCE_S = 90.0
Step = Callable[[Client, str, Peer], Awaitable[list[str]]]
"""Gets a client, a name that no other step has, and RocketMQ's tools."""


async def _collect(consumer: Consumer, count: int) -> list[Delivery]:
    found: list[Delivery] = []
    async with asyncio.timeout(_PATIENCE_S):
        async for message in consumer:
            async with message.process(reraise=True):
                found.append(message)
            if len(found) == count:
                break
    return found


def _differs(what: str, found: object, wanted: object) -> list[str]:
    return [] if found == wanted else [f"{what}: {found!r}, and not {wanted!r}"]


async def send_and_receive(client: Client, name: str, _: Peer) -> list[str]:
    """Fields, compression, batches."""
    producer = client.producer(f"{name}-pg")
    sent = await producer.send(name, b"z" * 9000, tag="A", keys=["k"], properties={"p": "1"}, flag=3)
    await producer.send_batch([Message(name, b"%d" % number, tag="B") for number in range(3)])
    async with client.consumer(f"{name}-g", name, start=Start.FIRST) as consumer:
        found = await _collect(consumer, 4)
    wrong = _differs("bodies", sorted(each.body for each in found)[:3], [b"0", b"1", b"2"])
    (large,) = [each for each in found if each.tag == "A"]
    wrong += _differs("body", large.body, b"z" * 9000)
    fields = large.keys, large.properties["p"], large.flag, large.unique_key, large.message_id
    return wrong + _differs("fields", fields, (["k"], "1", 3, sent.unique_key, sent.message_id))


async def filters(client: Client, name: str, _: Peer) -> list[str]:
    """Tags with one hash, and SQL."""
    producer = client.producer(f"{name}-pg")
    for number in range(9):
        await producer.send(name, b"%d" % number, tag=("Aa", "BB", "C")[number % 3], properties={"n": str(number)})
    async with client.consumer(f"{name}-tags", name, start=Start.FIRST, where=Tags("Aa", "C")) as consumer:
        tagged = sorted(each.body for each in await _collect(consumer, 6))
    async with client.consumer(f"{name}-sql", name, start=Start.FIRST, where=Sql("n > 5 AND TAGS = 'C'")) as consumer:
        chosen = [each.body for each in await _collect(consumer, 1)]
    wanted = [b"0", b"2", b"3", b"5", b"6", b"8"]
    return _differs("tags", tagged, wanted) + _differs("SQL", chosen, [b"8"])


async def ordered(client: Client, name: str, _: Peer) -> list[str]:
    """The messages of a key in their order, also after one of them has failed."""
    async with client.producer(f"{name}-pg") as producer:
        for number in range(5):
            await producer.send(name, b"%d" % number, order_key="key")
    seen: list[bytes] = []
    async with client.consumer(f"{name}-g", name, start=Start.FIRST, ordered=True) as consumer:
        async with asyncio.timeout(_PATIENCE_S):
            async for message in consumer:
                seen.append(message.body)
                if len(seen) == 3:
                    await message.retry()
                else:
                    await message.ack()
                if message.body == b"4":
                    break
    return _differs("order", seen, [b"0", b"1", b"2", b"2", b"3", b"4"])


async def delays(client: Client, name: str, _: Peer) -> list[str]:
    """A level, and a delay where the broker has timers."""
    producer = client.producer(f"{name}-pg")
    await producer.send(name, b"level", delay_level=1)
    expected = {b"level"}
    try:
        await producer.send(name, b"delay", delay=timedelta(seconds=1.5))
        expected.add(b"delay")
    except NotSupported:
        pass
    async with client.consumer(f"{name}-g", name, start=Start.FIRST) as consumer:
        found = await _collect(consumer, len(expected))
    wrong = _differs("bodies", {each.body for each in found}, expected)
    early = [each for each in found if each.store_ms - each.born_ms < 900]
    return wrong + [f"{each} was stored after {each.store_ms - each.born_ms} ms" for each in early]


async def transactions(client: Client, name: str, _: Peer) -> list[str]:
    """Commit, rollback, and the broker's question."""
    asked = []

    async def check(message: Stored) -> Outcome:
        asked.append(message.body)  # RocketMQ 5 may ask about transactions whose end it has not gathered yet
        return Outcome.ROLLBACK if message.body == b"no" else Outcome.COMMIT

    await client.producer(f"{name}-pg").send(name, b"first")
    async with client.transactional(f"{name}-tg", check=check) as producer:
        for body, outcome in ((b"yes", Outcome.COMMIT), (b"no", Outcome.ROLLBACK), (b"ask", Outcome.UNKNOWN)):
            async with producer.begin(name, body) as transaction:
                transaction.outcome = outcome
        async with client.consumer(f"{name}-g", name, start=Start.FIRST) as consumer:
            found: set[bytes] = set()
            while not found >= {b"ask", b"first", b"yes"}:  # RocketMQ 5 delivers twice what is committed twice
                found |= {each.body for each in await _collect(consumer, 1)}
    return _differs("bodies", found, {b"ask", b"first", b"yes"}) + _differs("asked about it", b"ask" in asked, True)


async def dead_letters(client: Client, name: str, _: Peer) -> list[str]:
    """A message that fails, is delivered once more, and becomes a dead letter."""
    await client.producer(f"{name}-pg").send(name, b"bad", keys=["bad"])
    attempts: list[int] = []
    async with client.consumer(f"{name}-g", name, start=Start.FIRST, max_retries=1) as consumer:
        async with asyncio.timeout(_PATIENCE_S):
            async for message in consumer:
                attempts.append(message.attempts)
                await message.retry()
                if len(attempts) == 2:
                    break
    wrong = _differs("attempts", attempts, [0, 1])
    topic = f"%DLQ%{name}-g"
    async with asyncio.timeout(_PATIENCE_S):
        while True:
            try:
                (addresses,) = (await client.route(topic)).brokers.values()
                answer = await client.ask(addresses[0], 30, {"topic": topic, "queueId": "0"})
                if (answer.ext or {}).get("offset") == "1":
                    return wrong
            except NotFound:
                pass  # the broker has just created the topic
            await asyncio.sleep(0.1)


async def requests(client: Client, name: str, _: Peer) -> list[str]:
    """A request and its reply."""
    async with client.producer(f"{name}-pg") as producer:
        await producer.send(name, b"first")
        async with client.consumer(f"{name}-g", name, start=Start.LAST) as consumer:

            async def answer(message: Delivery) -> None:
                if message.body == b"question":
                    await producer.reply(message, b"answer")

            serving = asyncio.create_task(consumer.run(answer))
            reply = await producer.request(name, b"question", timeout=_PATIENCE_S)
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
    return _differs("reply", reply.body, b"answer")


async def java_producer(client: Client, name: str, peer: Peer) -> list[str]:
    """Messages of RocketMQ's producer."""
    arguments = ("--topic", name, "--count", "20", "--size", "5000", "--tag", "A", "-n", client.nameservers)
    status, output = await asyncio.to_thread(peer.call, "probe", "produce", "--mode", "sync", *arguments)
    if status != 0:
        return [f"the probe ended with status {status}: {output[-300:]}"]
    async with client.consumer(f"{name}-g", name, start=Start.FIRST, where=Tags("A")) as consumer:
        found = await _collect(consumer, 20)
    sizes = {len(each.body) for each in found}
    return _differs("sizes", sizes, {5000})


STEPS: tuple[Step, ...] = (
    send_and_receive,
    filters,
    ordered,
    delays,
    transactions,
    dead_letters,
    requests,
    java_producer,
    traces,
)
