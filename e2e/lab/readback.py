"""Reads everything back through a broker, ours or RocketMQ, and holds it against the ledger."""

from __future__ import annotations

import asyncio
import random
import time

from lab.ledger import ANYWHERE, SCHEDULE_TOPIC, Ledger, Problems
from lab.load import TOPICS
from lab.searching import search

from tallystick.node.core.client import ClusterClient, QueueAddress
from tallystick.node.remoting.codes import RequestCode
from tallystick.store import fastjson
from tallystick.store.formats.record import Record

GROUP = "crash-reader"
_DELIVERY_S = 60.0
_KEY_SAMPLE = 20


async def check_everything(
    broker: str, ledger: Ledger, rng: random.Random, problems: Problems, *, since: int = 0, keys: bool = True
) -> int:
    """Every queue from end to end, nothing missing, and some messages by their keys. How many messages were read.

    `since`: only queues of what was acknowledged after that many messages. `keys`: also by keys.
    """
    count = 0
    async with ClusterClient("", timeout_s=30.0) as client:
        ledger.check_rows(await _topics(client, broker), problems)
        if problems.count:
            return count
        wanted = {(topic, queue_id) for topic, queues in TOPICS.items() for queue_id in range(queues)}
        wanted = set() if since else wanted | ledger.destinations
        for topic, queue_id in sorted(wanted | set(ledger.queues_since(since))):
            first, records = await _read(client, QueueAddress(topic, "", broker, queue_id), problems)
            ledger.check_queue(topic, queue_id, first, records, problems)
            count += len(records)
        ledger.check_places(problems)
        if keys:
            await _check_keys(client, broker, ledger, rng, problems)
    return count


async def wait_for_deliveries(broker: str, ledger: Ledger, rng: random.Random, problems: Problems) -> int:
    """Waits until every delayed and committed message has come. How many came more than once."""
    end = time.monotonic() + _DELIVERY_S
    while True:
        await check_everything(broker, ledger, rng, problems)
        if not ledger.missing_deliveries() or time.monotonic() > end or problems.count:
            return ledger.check_deliveries(problems)
        await asyncio.sleep(0.5)


async def _topics(client: ClusterClient, broker: str) -> set[str]:
    answer = await client.call(broker, RequestCode.GET_ALL_TOPIC_CONFIG, {})
    return set(fastjson.loads(answer.body)["topicConfigTable"])


async def _read(client: ClusterClient, queue: QueueAddress, problems: Problems) -> tuple[int, list[Record]]:
    """A queue's lowest offset, and all records from there."""
    low, high = await client.offset_range(queue)
    records: list[Record] = []
    at = low
    while at < high:
        pulled = await client.pull(queue, at, group=GROUP)
        records += pulled.records
        # The schedule service writes on while we read: what is behind `high` is read, too, and does no harm.
        if not pulled.records or pulled.next_offset != at + len(pulled.records):
            problems.add(f"{queue.topic} queue {queue.queue_id}: no message at {at}, although the queue ends at {high}")
            break
        at = pulled.next_offset
    return low, records


async def _check_keys(
    client: ClusterClient, broker: str, ledger: Ledger, rng: random.Random, problems: Problems
) -> None:
    """Some acknowledged messages, found by their unique keys."""
    names = [name for name, place in ledger.places.items() if place.topic != SCHEDULE_TOPIC]
    for name in rng.sample(names, min(_KEY_SAMPLE, len(names))):
        place, sent = ledger.places[name], ledger.sent[name]
        found = [record.pos for record in await search(client, broker, place.topic, sent.unique_key)]
        if not found or place.pos not in (ANYWHERE, *found):
            problems.add(f"{name}: its key {sent.unique_key} does not find position {place.pos}, but {found}")
