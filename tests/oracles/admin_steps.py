"""Steps that tests of the admin core and of its commands share: topics, messages, consumers."""

from __future__ import annotations

import asyncio
from typing import Any

from tallystick.client import Client, SendResult, Start
from tallystick.client.wire import fastjson
from tallystick.client.wire.codes import RequestCode

PATIENCE_S = 60.0
"""For steps that take a second on an idle machine."""


async def create_topic(client: Client, addresses: list[str], topic: str, queues: int = 2) -> None:
    """Creates a topic at brokers."""
    for address in addresses:
        ext = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(queues), "writeQueueNums": str(queues)}
        ext |= {"perm": "6", "topicFilterType": "SINGLE_TAG"}
        await client.ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, ext)


async def register(client: Client, name: str, address: str, topic: str) -> None:
    """Registers a broker, which may not exist, with one topic."""
    ext = {"brokerName": name, "brokerAddr": address, "clusterName": "DefaultCluster", "brokerId": "0"}
    ext |= {"haServerAddr": address, "compressed": "false", "bodyCrc32": "0"}
    row = {"topicName": topic, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    wrapper = {"topicConfigTable": {topic: row}, "dataVersion": {"counter": 1, "timestamp": 1}}
    body = fastjson.dumps({"topicConfigSerializeWrapper": wrapper, "filterServerList": []})
    await client.ask_nameserver(RequestCode.REGISTER_BROKER, ext, body)


async def send(client: Client, topic: str, count: int, **fields: Any) -> list[SendResult]:
    """Sends the bodies 0, 1, 2, ..."""
    async with client.producer("writers") as producer:
        return [await producer.send(topic, b"%d" % number, **fields) for number in range(count)]


async def consume(client: Client, group: str, topic: str, count: int) -> list[bytes]:
    """Consumes this number of messages. Returns their bodies."""
    bodies: list[bytes] = []
    async with asyncio.timeout(PATIENCE_S), client.consumer(group, topic, start=Start.FIRST) as consumer:
        async for message in consumer:
            async with message.process(reraise=True):
                bodies.append(message.body)
            if len(bodies) == count:
                return bodies
    raise AssertionError("the consumer ended")


async def bury(client: Client, group: str, topic: str, count: int) -> None:
    """Makes dead letters of messages."""
    async with asyncio.timeout(PATIENCE_S), client.consumer(group, topic, start=Start.FIRST) as consumer:
        async for message in consumer:
            await message.dead_letter()
            count -= 1
            if not count:
                return
