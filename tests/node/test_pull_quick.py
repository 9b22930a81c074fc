"""A pull is recognized by its shape and answered by the kernel, or read and answered in full: the same bytes."""

import asyncio
import dataclasses
import errno
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from wire import Wire

from tallystick.node.broker.broker import Broker
from tallystick.node.broker.tables.clients import Client
from tallystick.node.broker.tables.consumer_groups import SubscriptionGroup
from tallystick.node.broker.tables.subscriptions import SubscriptionData
from tallystick.node.broker.tables.topics import TopicConfig
from tallystick.node.core.settings import PERMISSION_READ, PERMISSION_WRITE, BrokerSettings
from tallystick.node.remoting.connection import Connection
from tallystick.node.remoting.turns import Turns
from tallystick.store._kernel import DamageError
from tallystick.store.formats import properties
from tallystick.store.settings import StoreSettings

TOPIC, GROUP = "Orders", "readers"
COMMIT, SUSPEND, SUBSCRIPTION = 1, 2, 4


class World:
    """A broker, and a connection into it whose bytes a test writes itself."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.wire = Wire()
        self.connection = Connection(broker._server)
        self.connection.connection_made(self.wire)  # type: ignore[arg-type]
        self.connection._turns = Turns(lambda: 0.0)  # a test sends many requests in one turn of the event loop
        self.full_ways = 0
        handler = broker._server.routes[11]

        def counting(connection, command):
            self.full_ways += 1
            return handler(connection, command)

        broker._server.routes[11] = counting

    def pull(self, header: bytes) -> bytes:
        self.connection.data_received(frame(header))
        return self.wire.take()

    def both(self, header: bytes) -> tuple[bytes, bytes]:
        """The answers of the short way, if there is one, and of the full way."""
        self.pull(header)  # its shape is learnt now at the latest
        return self.pull(header), self.pull(header.replace(b'{"code"', b'{ "code"'))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    settings = BrokerSettings(
        brokerIP1="127.0.0.1", bindAddress="127.0.0.1", listenPort=0, brokerName="b", vipListenerEnable=False
    )
    small = StoreSettings(str(tmp_path), mappedFileSizeCommitLog=1 << 20, maxHashSlotNum=100, maxIndexNum=400)
    broker = await Broker.start(settings, small)
    try:
        broker.topics.update(TopicConfig(TOPIC, 4, 4))
        world = World(broker)
        await fill(broker, random.Random(1))
        yield world
    finally:
        await broker.stop()


async def fill(broker: Broker, dice: random.Random) -> None:
    for _ in range(400):
        text = properties.encode({"TAGS": dice.choice("abc")}) if dice.random() < 0.8 else ""
        body = dice.randbytes(dice.choice((0, 10, 300, 5000)))
        broker.store.log.append(
            TOPIC.encode(),
            dice.randrange(3),
            body,
            text.encode(),
            now_ms=1_700_000_000_000,
            born_timestamp=1,
            born_host=broker.store.store_host.encode(),
        )
    await broker.store.flush()
    while broker.store.dispatched_pos < broker.store.max_pos:  # noqa: ASYNC110  # dispatch has no event to wait for
        await asyncio.sleep(0.001)


def frame(header: bytes) -> bytes:
    return (len(header) + 4).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header


def pull_header(opaque: int = 7, code: int = 11, flag: int = 0, **fields: object) -> bytes:
    ext = {
        "queueId": 0,
        "maxMsgNums": 32,
        "sysFlag": SUBSCRIPTION,
        "suspendTimeoutMillis": 15000,
        "subVersion": 1,
        "commitOffset": 0,
        "topic": TOPIC,
        "queueOffset": 0,
        "consumerGroup": GROUP,
        "subscription": "*",
        "expressionType": "TAG",
    } | fields
    texts = {name: str(value) for name, value in ext.items() if value is not None}
    command = {
        "code": code,
        "extFields": texts,
        "flag": flag,
        "language": "JAVA",
        "opaque": opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": 373,
    }
    return json.dumps(command, separators=(",", ":")).encode()


def numbered(answer: bytes, opaque: int) -> bytes:
    """The answer with another opaque of the same length."""
    return answer.replace(b'"opaque":7', b'"opaque":%d' % opaque)


async def test_both_ways_give_the_same_bytes(world: World) -> None:
    dice = random.Random(3)
    short_ways = 0
    for _ in range(600):
        header = pull_header(
            opaque=dice.choice((0, 7, 2**31 - 1, -5)),
            queueId=dice.choice((0, 1, 2, 3, 9)),
            maxMsgNums=dice.choice((1, 5, 32, 2000, -1)),
            queueOffset=dice.choice((0, 1, 40, 100, 133, 10_000, -3)),
            commitOffset=dice.choice((0, 17)),
            sysFlag=dice.choice((SUBSCRIPTION, SUBSCRIPTION | COMMIT, 0)),
            subscription=dice.choice(("*", "a", "a || b", "nothing")),
            topic=dice.choice((TOPIC, TOPIC, TOPIC, "Unknown")),
            code=dice.choice((11, 361)),
        )
        world.pull(header)
        before = world.full_ways
        short, full = world.both(header)
        assert short == full, header
        short_ways += world.full_ways == before
    assert short_ways > 100


async def test_only_the_numbers_may_differ(world: World) -> None:
    world.pull(pull_header())
    world.full_ways = 0
    assert numbered(world.pull(pull_header()), 8) == world.pull(pull_header(opaque=8))
    first, second = world.pull(pull_header(queueOffset=1)), world.pull(pull_header(queueOffset=30))
    assert first and second and first != second
    assert world.full_ways == 0
    for other in ({"queueId": 1}, {"subscription": "a"}, {"maxMsgNums": 3}, {"suspendTimeoutMillis": 1}):
        world.pull(pull_header(**other))
    assert world.full_ways == 4


async def test_what_was_changed_holds_for_the_next_pull(world: World) -> None:
    broker = world.broker
    header = pull_header()
    found, _ = world.both(header)
    assert b'"code":0' in found

    broker.topics.update(TopicConfig(TOPIC, 4, 4, perm=PERMISSION_WRITE))
    refused, full = world.both(header)
    assert refused == full and b'"code":16' in refused
    broker.topics.update(TopicConfig(TOPIC, 4, 4))
    assert world.pull(header) == found

    broker.groups.update(dataclasses.replace(broker.groups.get(GROUP), consume_enable=False))
    assert b'"code":16' in world.pull(header)
    broker.groups.update(SubscriptionGroup(GROUP))
    assert world.pull(header) == found

    broker.change_settings({"brokerPermission": str(PERMISSION_WRITE)})
    assert b'"code":16' in world.pull(header)
    broker.change_settings({"brokerPermission": str(PERMISSION_READ | PERMISSION_WRITE)})
    assert world.pull(header) == found

    broker.topics.delete(TOPIC)
    assert b'"code":17' in world.pull(header)


async def test_a_known_subscription_is_looked_up_each_time(world: World) -> None:
    header = pull_header(sysFlag=0, subscription=None)
    assert b'"code":24' in world.pull(header)
    for version, tags in ((1, "a"), (2, "b"), (3, "*")):
        subscription = SubscriptionData.build(TOPIC, tags, "TAG", version)
        client = Client(world.connection, "client", "JAVA", 373, world.broker.now_ms())
        world.broker.consumers.register(GROUP, client, message_model="CLUSTERING", subscriptions=[subscription])
        short, full = world.both(header)
        assert short == full and b'"code":0' in short


async def test_offsets_and_statistics_count_either_way(world: World) -> None:
    offsets, stats = world.broker.offsets, world.broker.stats
    header = pull_header(sysFlag=SUBSCRIPTION | COMMIT, commitOffset=12)
    world.pull(header)
    world.full_ways = 0
    for way in (header, header.replace(b'{"code"', b'{ "code"')):
        offsets.commit(GROUP, TOPIC, 0, 3)
        got = stats._gets[TOPIC, GROUP].copy()
        world.pull(way)
        assert offsets.query(GROUP, TOPIC, 0) == 12
        assert [now - then for now, then in zip(stats._gets[TOPIC, GROUP], got, strict=True)][:2] == [1, 32]
    assert world.full_ways == 1
    world.broker.settings = dataclasses.replace(world.broker.settings, brokerId=1)
    offsets.commit(GROUP, TOPIC, 0, 3)
    world.pull(header)
    assert offsets.query(GROUP, TOPIC, 0) == 3, "a slave keeps no offsets"


async def test_requests_of_a_connection_keep_their_order(world: World) -> None:
    header = pull_header(opaque=7)
    world.pull(header)
    unknown = b'{"code":9999,"flag":0,"opaque":1,"version":373}'
    world.connection.data_received(frame(header) + frame(unknown) + frame(pull_header(opaque=8)))
    sent = world.wire.take()
    places = [sent.index(b'"opaque":%d' % opaque) for opaque in (7, 1, 8)]
    assert places == sorted(places)


async def test_a_reader_that_does_not_read_gets_no_more(world: World) -> None:
    header = pull_header()
    world.pull(header)
    world.full_ways = 0
    world.wire.unsent_bytes = 2 << 20
    world.connection.pause_writing()
    world.connection.data_received(frame(header) * 3)
    assert world.full_ways == 1, "the full way knows when to stop"
    assert world.wire.take().count(b'"remark":"FOUND"') == 1
    world.wire.unsent_bytes = 0
    world.connection.resume_writing()
    assert world.wire.take().count(b'"remark":"FOUND"') == 2


async def test_headers_that_cannot_be_recognized_are_read_in_full(world: World) -> None:
    odd = [
        pull_header().replace(b'"queueOffset":"0"', b'"queueOffset":0'),
        pull_header().replace(b'"opaque":7', b'"opaque":7.0'),
        pull_header(subscription='a"b'),
        pull_header(flag=2),
        pull_header(commitOffset=None),
        pull_header(code=12),
        pull_header(topic=None),
        pull_header()[:-1],
    ]
    for header in odd:
        world.connection = Connection(world.broker._server)
        world.connection.connection_made(world.wire)  # type: ignore[arg-type]
        first = world.pull(header)
        again = world.pull(header)
        assert again in (first, b""), header  # an invalid header ends the connection


# -- when files cannot be mapped ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [OSError(errno.ENOMEM, "Cannot allocate memory"), DamageError("short")])
async def test_a_failure_of_the_short_way_takes_the_full_way(world, monkeypatch, error):
    header = pull_header(consumerGroup=GROUP, topic=TOPIC, queueOffset=0, commitOffset=0)
    world.pull(header)
    answered = world.pull(header)

    def failing(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(world.broker.store.reads, "get_frame", failing)
    before = world.full_ways
    assert world.pull(header) == answered
    assert world.full_ways == before + 1


async def test_a_pull_that_cannot_be_read_is_answered_with_an_error(world, monkeypatch):
    """The client asks again over the same connection."""
    header = pull_header(consumerGroup=GROUP, topic=TOPIC, queueOffset=0, commitOffset=0)
    world.pull(header)
    answered = world.pull(header)

    def failing(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    with monkeypatch.context() as patches:
        for name in ("get_frame", "get_message"):
            patches.setattr(world.broker.store.reads, name, failing)
        refused = world.pull(header)
        assert json.loads(refused[8 : 8 + int.from_bytes(refused[5:8])])["code"] == 1
    assert world.pull(header) == answered
