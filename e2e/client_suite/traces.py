"""Message traces: the records of this client beside those of RocketMQ's Java client, and what mqadmin shows of them."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

from lab.peer import Peer
from lab.processes import ProcessError, run

from tallystick.client import Client, Outcome, Start, Stored

TOPIC = "RMQ_SYS_TRACE_TOPIC"
_PATIENCE_S = 60.0
_KINDS = (
    (r"\d{13}", "time"),
    (r"\d{1,6}", "number"),
    (r"[0-9A-F]{32}", "key"),
    (r"\d+\.\d+\.\d+\.\d+@.+", "client"),
    (r"\d+\.\d+\.\d+\.\d+:\d+", "address"),
)
Shape = tuple[str, ...]


async def traces(client: Client, name: str, peer: Peer) -> list[str]:
    """Records of each type have the fields of the Java client's, and mqadmin reads them."""
    java, ours = f"{name}-java", f"{name}-ours"
    source = Path(__file__).with_name("JavaTraces.java")
    command = peer.client_command(source, client.nameservers, f"{java}-g", java)
    status, output = await asyncio.to_thread(run, command, timeout_s=120, log=peer.log)
    if status != 0 or "done" not in output:
        raise ProcessError(f"JavaTraces ended with status {status}: {output[-500:]}")
    key = await _ours(client, ours)
    types: tuple[str, ...] = ("Pub", "SubBefore", "SubAfter")
    wanted = await _records(client, java, types)
    if "EndTransaction" in wanted:
        types = (*types, "EndTransaction")
    found = await _records(client, ours, types)
    wrong = []
    for each in types:
        for shape in found[each]:
            if not any(shape[: len(other)] == other for other in wanted[each]):
                wrong.append(f"{each}: {shape}, and not one of {sorted(wanted[each])}")
    return wrong + await asyncio.to_thread(_shown, client, peer, key, f"{ours}-g")


async def _ours(client: Client, name: str) -> str:
    """Does what JavaTraces does. Returns the unique key of the message."""

    async def check(_: Stored) -> Outcome:
        return Outcome.ROLLBACK

    fields = {"tag": "A", "keys": [f"k1-{name}", "k2"]}
    async with client.producer(f"{name}-g-p", trace=True) as producer:
        sent = await producer.send(name, b"hello", timeout=_PATIENCE_S, **fields)
    async with (
        client.transactional(f"{name}-g-t", check=check, trace=True) as transactional,
        transactional.begin(name, b"hello", **fields) as transaction,
    ):
        transaction.outcome = Outcome.ROLLBACK
    async with client.consumer(f"{name}-g", name, start=Start.FIRST, trace=True) as consumer:
        async with asyncio.timeout(_PATIENCE_S):
            async for message in consumer:
                async with message.process(reraise=True):
                    pass
                break
    return sent.unique_key


async def _records(client: Client, name: str, types: tuple[str, ...]) -> dict[str, set[Shape]]:
    """The shapes of the records about a topic, by type, once all types are there."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while True:
        found: dict[str, set[Shape]] = {}
        for record in await _all_records(client):
            if name in "\x01".join(record):
                found.setdefault(record[0], set()).add(tuple(_kind(field, name) for field in record))
        if found.keys() >= set(types):
            return found
        if time.monotonic() > deadline_s:
            raise ProcessError(f"traces of {name} are missing: {sorted(found)}")
        await asyncio.sleep(0.2)


async def _all_records(client: Client) -> list[list[str]]:
    pull = client.pull(TOPIC)
    found = []
    for queue in await pull.queues():
        offset, end = await pull.range(queue)
        while offset < end:
            pulled = await pull.fetch(queue, offset)
            offset = pulled.next_offset
            for message in pulled.messages:
                for text in message.body.decode().split("\x02")[:-1]:
                    record = text.split("\x01")
                    if record[0] in ("Pub", "EndTransaction") and record[5] not in message.keys:
                        found.append(["the message of this record cannot be found by its key", *record])
                    found.append(record)
    return found


def _kind(field: str, name: str) -> str:
    for pattern, kind in _KINDS:
        if re.fullmatch(pattern, field):
            return kind
    return re.sub(r"-g-[pt]$", "-PRODUCERS", field.replace(name, "NAME"))


def _shown(client: Client, peer: Peer, key: str, group: str) -> list[str]:
    status, output = peer.call("mqadmin", "queryMsgTraceById", "-i", key, "-n", client.nameservers)
    wanted = ("Pub", "Sub", group, "success")
    missing = [text for text in wanted if text not in output]
    return [f"mqadmin queryMsgTraceById ({status}) shows no {text}: {output[-800:]}" for text in missing]
