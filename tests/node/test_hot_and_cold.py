"""The kernel stores a plain send directly from the socket, or a processor stores it. The results are equal."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tallystick.node.broker.broker import Broker
from tallystick.node.core.settings import BrokerSettings
from tallystick.node.remoting.client import RemotingClient
from tallystick.node.remoting.codes import RequestCode
from tallystick.node.remoting.command import Command, HeaderType
from tallystick.store.formats import properties
from tallystick.store.formats.message import Host
from tallystick.store.formats.record import Record
from tallystick.store.settings import StoreSettings

TOPIC = "Either"
# The V2 header names its fields by letters; the kernel knows only that one.
LETTERS = {
    "producerGroup": "a",
    "topic": "b",
    "defaultTopic": "c",
    "defaultTopicQueueNums": "d",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsumeTimes": "j",
    "unitMode": "k",
    "batch": "m",
}


class World:
    """A broker on a free port and a client, in one process."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.client = RemotingClient()
        self.address = str(broker.host)
        self.cold: list[int] = []
        for code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2):
            self._watch(int(code))

    def _watch(self, code: int) -> None:
        routes: dict[int, Any] = self.broker._server.routes
        handler = routes[code]

        def noting(connection: Any, command: Command) -> Any:
            self.cold.append(command.code)
            return handler(connection, command)

        routes[code] = noting

    async def send(self, code: int, fields: dict[str, str], body: bytes, header: HeaderType) -> Command:
        ext = fields if code == RequestCode.SEND_MESSAGE else {LETTERS[name]: text for name, text in fields.items()}
        return await self.client.call(self.address, Command(code, ext=ext, body=body, header_type=header))

    def last(self) -> Record:
        """The newest record of queue 0."""
        self.broker.store.admission.look_again()
        end = self.broker.store.queues.max_offset(TOPIC, 0)
        return Record.decode(self.broker.store.reads.get_message(TOPIC, 0, end - 1, 1).body)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    settings = BrokerSettings(brokerIP1="127.0.0.1", bindAddress="127.0.0.1", listenPort=0, brokerName="b")
    small = StoreSettings(str(tmp_path), mappedFileSizeCommitLog=1 << 20, maxHashSlotNum=100, maxIndexNum=400)
    world = World(await Broker.start(settings, small))
    assert world.broker.host.port > 0
    assert world.broker.store.store_host == world.broker.host == Host("127.0.0.1", world.broker.settings.listenPort)
    try:
        await world.send(RequestCode.SEND_MESSAGE, plain(), b"makes the topic", HeaderType.JSON)
        yield world
    finally:
        await world.client.close()
        await world.broker.stop()


def plain(**changes: str) -> dict[str, str]:
    fields = {
        "producerGroup": "writers",
        "topic": TOPIC,
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "1700000000000",
        "flag": "0",
        "properties": properties.encode({"UNIQ_KEY": "0" * 32, "WAIT": "true", "TAGS": "a"}),
        "reconsumeTimes": "0",
        "unitMode": "false",
        "batch": "false",
    }
    return fields | changes


MESSAGES = {
    "plain": (plain(), b"hello"),
    "no properties": (plain(properties=""), b"hello"),
    "unicode": (plain(properties=properties.encode({"TAGS": "😀", "color": "grün", "KEYS": "a b"})), "körper".encode()),
    "flags": (plain(flag="-7", sysFlag="1"), b"\x00\xff" * 50),
    "negative times": (plain(bornTimestamp="-1"), b"x"),
    "retried": (plain(reconsumeTimes="3"), b"again"),
    "large": (plain(), b"z" * 100_000),
    "no pairs": (plain(properties="nothing that separates"), b"x"),
    "no last separator": (plain(properties="a\x01b\x02c\x01d"), b"x"),
    "a name twice": (plain(properties="a\x01b\x02a\x01c\x02"), b"x"),
    "an empty value": (plain(properties="a\x01\x02b\x01c\x02"), b"x"),
    "quotes": (plain(properties=properties.encode({"a": '"\\/\n\t', "b": "\x7f"})), b"q"),
}


# What the kernel may leave to the processor: escapes in JSON, properties that are not pair after pair.
MAY_BE_COLD = {"quotes", "no pairs", "an empty value"}
# A processor brings odd properties into order, as RocketMQ does; the kernel stores what came. Readers find the same.
SAME_PAIRS = {"a name twice"}


@pytest.mark.parametrize("header", list(HeaderType), ids=lambda header: header.name)
@pytest.mark.parametrize("name", MESSAGES)
async def test_both_ways_store_and_answer_the_same(world: World, name: str, header: HeaderType) -> None:
    fields, body = MESSAGES[name]
    world.cold.clear()
    hot_answer = await world.send(RequestCode.SEND_MESSAGE_V2, fields, body, header)
    hot = world.last()
    if name not in MAY_BE_COLD:
        assert world.cold == [], "the kernel did not take it"
    cold_answer = await world.send(RequestCode.SEND_MESSAGE, fields, body, header)
    cold = world.last()
    assert world.cold[-1] == RequestCode.SEND_MESSAGE
    own: dict[str, Any] = {"queue_offset": 0, "pos": 0, "store_timestamp_ms": 0}
    if name in SAME_PAIRS:
        assert hot.property_table() == cold.property_table()
        own["properties"] = ""
    assert hot._replace(**own) == cold._replace(**own)
    assert cold.queue_offset == hot.queue_offset + 1
    assert (hot_answer.code, hot_answer.remark) == (cold_answer.code, cold_answer.remark) == (0, None)
    assert (hot_answer.ext or {}).keys() == (cold_answer.ext or {}).keys()
    assert (hot_answer.ext or {})["msgId"] == hot.message_id
    assert (cold_answer.ext or {})["msgId"] == cold.message_id


async def test_what_one_way_refuses_the_other_refuses_in_the_same_words(world: World) -> None:
    for fields, body in (
        (plain(), b"z" * (4 << 20)),
        (plain(properties=properties.encode({"long": "x" * 32_767})), b"x"),
        (plain(queueId="99"), b"x"),
        (plain(topic="a/b"), b"x"),
        (plain(topic="SCHEDULE_TOPIC_XXXX"), b"x"),
    ):
        world.cold.clear()
        codes = [RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_MESSAGE]
        answers = [await world.send(code, fields, body, HeaderType.JSON) for code in codes]
        assert world.cold == codes, "a refusal is the processor's to word"
        assert answers[0].code == answers[1].code != 0, answers
        assert answers[0].remark == answers[1].remark
