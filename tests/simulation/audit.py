"""Reads everything that brokers have, as a client does, and lets the oracle compare."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from simulation.clients import Client
from simulation.oracle import Fate, Oracle, Queue, Sent
from simulation.violation import ViolationError
from tallystick.node.remoting.codes import RequestCode, ResponseCode
from tallystick.node.remoting.errors import RemotingError
from tallystick.store.formats.message_id import decode_message_id
from tallystick.store.formats.record import Record

_GROUP = "audit"
_PATIENCE_S = 5.0
_KEYS = 5
"""So many keys are looked up with each audit."""


def position_of(message_id: str) -> int:
    """Where the record begins, as the broker's id says it; the first one's of a batch."""
    return decode_message_id(message_id.split(",")[0])[1]


async def audit(client: Client, address: Callable[[str], str], oracle: Oracle) -> int:
    """All queues that were ever written to, how many records were read. ViolationError.

    `address(broker)`: where a broker's name is served.
    """
    count, began = 0, client.loop.now
    oracle.unread.clear()
    oracle.seen.clear()
    begins: dict[str, int] = {}
    for queue in list(oracle.by_queue):
        count += await _audit_queue(client, address, queue, oracle, begins)
    for broker in begins:
        begins[broker] = await log_begin(client, address(broker))
    oracle.check_late(began - _PATIENCE_S, begins)
    await _find_keys(client, address, begins, oracle)
    return count


async def _find_keys(client: Client, address: Callable[[str], str], begins: dict[str, int], oracle: Oracle) -> None:
    """Some acknowledged messages, by the index."""
    kept = [
        item
        for item in oracle.sent.values()
        if item.fate is Fate.ACKNOWLEDGED and not item.anywhere and item.pos >= begins[item.queue[0]]
    ]
    for item in client.dice.sample(kept, min(len(kept), _KEYS)):
        deadline = client.loop.now + _PATIENCE_S
        while item.fate is Fate.ACKNOWLEDGED:
            broker, topic, queue_id = item.queue
            try:
                found = await client.find_key(address(broker), topic, item.message.key)
            except RemotingError:
                found = []
            if (queue_id, item.offset) in [(record.queue_id, record.queue_offset) for record in found]:
                break
            if client.loop.now > deadline:
                raise ViolationError("A10", f"{item.message.key}, {item.offset} of {item.queue}, has no index entry")
            await asyncio.sleep(0.5)


async def _audit_queue(
    client: Client, address: Callable[[str], str], queue: Queue, oracle: Oracle, begins: dict[str, int]
) -> int:
    """What was acknowledged before the read has to be there, though perhaps a moment later: queues follow the log.

    `begins`: where the logs begin, as far as they were asked. A broker is asked again if something is missing.
    """
    promised = oracle.promised(queue)
    deadline = client.loop.now + _PATIENCE_S
    while True:
        try:
            first, end, records = await read_queue(client, address(queue[0]), queue, promised, oracle)
            if queue[0] not in begins:
                begins[queue[0]] = await log_begin(client, address(queue[0]))
            begin = begins[queue[0]]
            oracle.check_queue(queue, records, first, end, [item for item in promised if item.pos >= begin], begin > 0)
        except RemotingError as error:
            if client.loop.now > deadline:
                raise ViolationError("L3", f"a broker that serves does not answer: {error}") from error
        except ViolationError:
            begins.pop(queue[0], None)
            if client.loop.now > deadline:
                raise
        else:
            return len(records)
        await asyncio.sleep(0.5)


async def log_begin(client: Client, address: str) -> int:
    """The first byte of the log that is kept: on a full disk the oldest segments are deleted."""
    answer = await client.call(address, RequestCode.GET_BROKER_RUNTIME_INFO, {})
    return int(json.loads(answer.body)["table"]["commitLogMinOffset"])


async def read_queue(
    client: Client, address: str, queue: Queue, promised: list[Sent], oracle: Oracle
) -> tuple[int, int, dict[int, Record]]:
    """First kept offset, the next one, and all records by offset."""
    _, topic, queue_id = queue
    low = await client.offset(address, RequestCode.GET_MIN_OFFSET, topic, queue_id)
    high = await client.offset(address, RequestCode.GET_MAX_OFFSET, topic, queue_id)
    first, end = int((low.ext or {}).get("offset", 0)), int((high.ext or {}).get("offset", 0))
    records: dict[int, Record] = {}
    at, tries = first, 0
    while at < end:
        read = await client.pull(address, _GROUP, topic, queue_id, at)
        if read.code in (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.NO_PERMISSION, ResponseCode.SYSTEM_ERROR):
            if not promised:
                return 0, 0, {}
            raise ViolationError(
                "A1", f"{queue} has acknowledged messages and cannot be read: {read.code} {read.remark}"
            )
        for record in read.records:
            if oracle.hit_header(queue, record, at, read.next_offset):
                continue
            if record.queue_offset in records:
                raise ViolationError("A2", f"offset {record.queue_offset} of {queue} was read twice")
            if (record.topic, record.queue_id) != (topic, queue_id):
                raise ViolationError("A5", f"a read of {queue} brought {record!r}")
            records[record.queue_offset] = record
        tries = 0 if read.records else tries + 1
        if tries > 5:
            raise ViolationError("A4", f"a read of {queue} at {at} leads nowhere: {read.code} {read.remark}")
        at = max(at, read.next_offset)
    return first, end, records
