"""Quotas: what users and clients may send, receive and ask per second, topics of a user, connections of an address."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from fake_broker import FakeBroker
from signed_sends import SECRET, send, settings, small

from tallystick.node.access.fields import AclError
from tallystick.node.access.plain_acl import dump, parse
from tallystick.node.access.signatures import sign
from tallystick.node.access.user_quota import Quota
from tallystick.node.broker import quotas
from tallystick.node.broker.broker import Broker
from tallystick.node.remoting.client import RemotingClient
from tallystick.node.remoting.codes import RequestCode as Code
from tallystick.node.remoting.codes import ResponseCode
from tallystick.node.remoting.command import Command, HeaderType
from tallystick.node.remoting.errors import RemotingError
from tallystick.store import fastjson
from tallystick.store._kernel import Meter
from tallystick.store.clock import wall_ms

HOUR = 3600
FILE = """
accounts:
- {accessKey: producer, secretKey: "12345678", topicPerms: [Orders=PUB|SUB], groupPerms: [g=SUB]}
- {accessKey: administrator, secretKey: "12345678", admin: true}
users:
- username: limited
  password: "12345678"
  userType: Normal
  policies:
  - policyType: Custom
    entries: [{resource: "*", actions: [All], decision: Allow}]
  quota: {messagesPerSecond: 1, topics: 2}
"""


class World:
    """A broker and clients."""

    def __init__(self, broker: Broker, file: Path) -> None:
        self.broker = broker
        self.file = file
        self.clients = [RemotingClient()]
        self.address = str(broker.host)

    async def call(self, command: Command, user: str | None = "producer", client: int = 0) -> Command:
        while len(self.clients) <= client:
            self.clients.append(RemotingClient())
        if user is not None:
            sign(command, user, SECRET)
        return await self.clients[client].call(self.address, command)

    async def sends(
        self, count: int, user: str | None = "producer", client: int = 0, topic: str = "Orders"
    ) -> list[int]:
        answers = [self.call(send(topic, HeaderType.JSON), user, client) for _ in range(count)]
        return [answer.code for answer in await asyncio.gather(*answers)]

    async def connections(self, count: int) -> None:
        """Waits until so many are open."""
        await until(lambda: self.broker.connection_count == count)

    async def accounts(self, text: str) -> None:
        """Uses this file."""
        access = self.broker.access
        assert access is not None
        before = access.control.accounts
        self.file.write_text(text)

        def changed() -> bool:
            access.look()
            return access.control.accounts is not before

        await until(changed)

    async def stop(self) -> None:
        for client in self.clients:
            await client.close()
        await self.broker.stop()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  # nothing tells when it becomes true
            await asyncio.sleep(0.01)


Open = Callable[..., Awaitable[World]]


class Clock:
    """The wall clock of the broker. It stands still unless `runs` is set."""

    def __init__(self) -> None:
        self.runs = False
        self.begin_ms = wall_ms()

    def __call__(self) -> int:
        return wall_ms() if self.runs else self.begin_ms


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("tallystick.node.broker.broker.wall_ms", clock)
    monkeypatch.setattr("tallystick.store.engine.connections.wall_ms", clock)
    return clock


@pytest.fixture
async def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> AsyncIterator[Open]:
    """Starts a broker with these settings. Its answers are late by milliseconds only."""
    monkeypatch.setattr(quotas, "_MOST_PAUSE_S", 0.01)
    monkeypatch.setattr(quotas, "_MOST_WAIT_S", 0.05)
    worlds = []

    async def start(**changes: Any) -> World:
        file = tmp_path / "plain_acl.yml"
        file.write_text(FILE)
        values = {"aclFile": str(file), "quotaBurstSeconds": HOUR} | changes
        worlds.append(World(await Broker.start(settings(**values), small(tmp_path / "store")), file))
        return worlds[-1]

    yield start
    for world in worlds:
        await world.stop()


def pull(offset: int = 0) -> Command:
    fields = {
        "consumerGroup": "g", "topic": "Orders", "queueId": "0", "queueOffset": str(offset), "maxMsgNums": "32",
        "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
    }  # fmt: skip
    return Command(Code.PULL_MESSAGE, ext=fields)


def heartbeat(client_id: str) -> Command:
    body = {"clientID": client_id, "producerDataSet": [{"groupName": "p"}], "consumerDataSet": []}
    return Command(Code.HEART_BEAT, body=fastjson.dumps(body))


# -- users -----------------------------------------------------------------------------------------------------------


async def test_a_user_sends_its_burst_on_any_connection_and_then_gets_busy(opened: Open) -> None:
    world = await opened(userMessagesPerSecond=1, quotaBurstSeconds=10)
    codes = [*await world.sends(6), *await world.sends(40, client=1)]
    assert codes.count(0) == 10 and set(codes) == {0, ResponseCode.SYSTEM_BUSY}
    assert await world.sends(1, "administrator") == [0], "another user has its own"
    throttled = world.broker.quotas.throttled
    assert throttled["user", "messages"] == codes.count(2) and throttled["client", "messages"] == 0


async def test_the_kernel_stores_the_sends_of_users_with_a_quota(opened: Open) -> None:
    world = await opened(userMessagesPerSecond=100_000)
    assert set(await world.sends(1)) == {0}
    handled: list[int] = []
    routes: dict[int, Any] = world.broker._server.routes
    handler = routes[Code.SEND_MESSAGE_V2]

    def noting(connection: Any, command: Command) -> Any:
        handled.append(command.code)
        return handler(connection, command)

    routes[Code.SEND_MESSAGE_V2] = noting
    assert set(await world.sends(20)) == {0}
    assert len(handled) <= 1


async def test_bytes_count_too_and_a_message_above_the_burst_is_paid_later(opened: Open) -> None:
    world = await opened(userBytesPerSecond=1, quotaBurstSeconds=1)
    assert await world.sends(1) == [0], "four bytes, with one that is there"
    assert await world.sends(1) == [ResponseCode.SYSTEM_BUSY]
    assert world.broker.quotas.throttled["user", "bytes"] == 1


async def test_each_message_of_a_batch_counts(opened: Open) -> None:
    world = await opened(userMessagesPerSecond=1, quotaBurstSeconds=3)
    await world.sends(1)
    one = (4 + 4 + 4 + 4 + 4 + 1 + 2).to_bytes(4, "big") + bytes(12) + (1).to_bytes(4, "big") + b"x" + bytes(2)
    batch = send("Orders", HeaderType.JSON)
    assert batch.ext is not None
    batch.code, batch.body, batch.ext = Code.SEND_BATCH_MESSAGE, one * 8, batch.ext | {"m": "true", "i": ""}
    assert (await world.call(batch)).code == 0
    assert await world.sends(1) == [ResponseCode.SYSTEM_BUSY], "1 + 8 messages of a burst of 3"


async def test_a_consumer_that_used_up_its_quota_waits_and_is_told_to_slow_down(opened: Open) -> None:
    world = await opened(userMessagesPerSecond=1, quotaBurstSeconds=30)
    assert set(await world.sends(20)) == {0}
    assert (await world.call(pull())).code == 0, "what it brings is paid afterwards"
    answer = await world.call(pull())
    assert answer.code == ResponseCode.FLOW_CONTROL and "used up its messages per second" in (answer.remark or "")


async def test_a_pull_that_waits_is_served_when_there_is_room(
    opened: Open, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr(quotas, "_MOST_WAIT_S", 60.0)
    world = await opened(userMessagesPerSecond=20, quotaBurstSeconds=1)
    assert (await world.sends(30)).count(0) == 20
    clock.runs = True
    answer = await world.call(pull())
    assert answer.code == 0


async def test_heartbeats_of_a_user_without_room_are_served(opened: Open) -> None:
    world = await opened(userRequestsPerSecond=1, quotaBurstSeconds=1)
    codes = await world.sends(5)
    assert ResponseCode.SYSTEM_BUSY in codes
    assert (await world.call(heartbeat("c1"))).code == 0
    assert world.broker.quotas.throttled["user", "requests"] > 0


async def test_other_requests_count_and_get_busy(opened: Open) -> None:
    world = await opened(userRequestsPerSecond=1, quotaBurstSeconds=2)
    asked = [Command(Code.GET_MAX_OFFSET, ext={"topic": "Orders", "queueId": "0"}) for _ in range(9)]
    codes = [(await world.call(command)).code for command in asked]
    assert codes == [0, 0] + [ResponseCode.SYSTEM_BUSY] * 7


async def test_the_quota_of_a_user_replaces_that_of_the_settings(opened: Open) -> None:
    world = await opened(userMessagesPerSecond=100_000, quotaBurstSeconds=5)
    assert (await world.sends(20, "limited")).count(0) == 5
    assert set(await world.sends(20)) == {0}
    await world.accounts(FILE.replace("messagesPerSecond: 1,", "messagesPerSecond: 0,"))
    assert set(await world.sends(20, "limited")) == {0}, "0: no limit"


async def test_a_changed_account_keeps_what_it_owes(opened: Open) -> None:
    world = await opened(userMessagesPerSecond=1, quotaBurstSeconds=3)
    await world.sends(10)
    update = Command(Code.UPDATE_AND_CREATE_ACL_CONFIG, ext={"accessKey": "producer", "topicPerms": "Orders=PUB"})
    assert (await world.call(update, "administrator")).code == 0
    assert set(await world.sends(9)) == {ResponseCode.SYSTEM_BUSY}


async def test_quotas_of_users_follow_the_settings(opened: Open) -> None:
    world = await opened()
    for name in ("userMessagesPerSecond", "userBytesPerSecond", "userRequestsPerSecond"):
        assert set(await world.sends(9)) == {0}
        world.broker.change_settings({name: "1", "quotaBurstSeconds": "1"})
        assert ResponseCode.SYSTEM_BUSY in await world.sends(9), name
        world.broker.change_settings({name: "0"})
    world.broker.change_settings({"userTopics": "1"})
    assert await world.sends(1, "administrator", topic="First") == [0]
    assert await world.sends(1, "administrator", topic="Second") == [ResponseCode.NO_PERMISSION]
    world.broker.change_settings({"userTopics": "0"})
    assert await world.sends(1, "administrator", topic="Second") == [0]


async def test_the_admin_tool_sees_and_changes_the_quota_of_a_user(opened: Open) -> None:
    world = await opened()
    body = {"password": SECRET, "quota": {"bytesPerSecond": 7}}
    create = Command(Code.AUTH_CREATE_USER, ext={"username": "alice01"}, body=fastjson.dumps(body))
    assert (await world.call(create, "administrator")).code == 0
    text = b'{"quota": {"messagesPerSecond": 5, "bytesPerSecond": null}}'
    update = Command(Code.AUTH_UPDATE_USER, ext={"username": "alice01"}, body=text)
    assert (await world.call(update, "administrator")).code == 0
    answer = await world.call(Command(Code.AUTH_GET_USER, ext={"username": "alice01"}), "administrator")
    assert fastjson.loads(answer.body)["quota"] == {"messagesPerSecond": 5}
    text = b'{"quota": {"messagesPerSecond": -5}}'
    update = Command(Code.AUTH_UPDATE_USER, ext={"username": "alice01"}, body=text)
    assert (await world.call(update, "administrator")).code == ResponseCode.NO_PERMISSION
    assert b"messagesPerSecond: 5" in world.file.read_bytes()


# -- topics ------------------------------------------------------------------------------------------------------------


def update_topic(name: str) -> Command:
    fields = {"topic": name, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
    return Command(Code.UPDATE_AND_CREATE_TOPIC, ext=fields | {"topicFilterType": "SINGLE_TAG"})


async def test_a_user_creates_as_many_topics_as_it_may(opened: Open) -> None:
    world = await opened(userTopics=1)
    await world.accounts(FILE.replace("messagesPerSecond: 1, topics: 2", "topics: 2"))
    assert await world.sends(2, "limited", topic="Mine") == [0, 0]
    assert (await world.call(update_topic("Second"), "limited")).code == 0
    answer = await world.call(update_topic("Third"), "limited")
    assert (answer.code, answer.remark) == (16, "user limited has created 2 topics, and may 2")
    assert await world.sends(1, "limited", topic="Fourth") == [ResponseCode.NO_PERMISSION]
    assert (await world.call(update_topic("Second"), "limited")).code == 0, "it exists"
    assert "Third" not in world.broker.topics and "Fourth" not in world.broker.topics
    assert (await world.call(update_topic("Mine"), "administrator")).code == 0
    assert (await world.call(update_topic("Fifth"), "limited")).code == 16, "a change by another user keeps the owner"
    delete = Command(Code.DELETE_TOPIC_IN_BROKER, ext={"topic": "Mine"})
    assert (await world.call(delete, "limited")).code == 0
    assert (await world.call(update_topic("Third"), "limited")).code == 0


# -- clients -----------------------------------------------------------------------------------------------------------


async def test_anonymous_clients_of_one_address_share_a_quota(opened: Open) -> None:
    world = await opened(aclEnable=False, clientMessagesPerSecond=1, quotaBurstSeconds=6)
    codes = [*await world.sends(4, None), *await world.sends(20, None, client=1)]
    assert codes.count(0) == 6
    for number in range(5):
        await world.call(heartbeat(f"another-{number}"), None, client=2)
    assert set(await world.sends(5, None, client=2)) == {ResponseCode.SYSTEM_BUSY}, "an id that it chose gives nothing"
    assert world.broker.quotas.throttled["client", "messages"] == codes.count(2) + 10


async def test_clients_of_a_user_have_quotas_of_their_own(opened: Open) -> None:
    world = await opened(clientMessagesPerSecond=1, quotaBurstSeconds=5)
    for client in (0, 1):
        assert (await world.call(heartbeat(f"id-{client}"), client=client)).code == 0
        assert (await world.sends(20, client=client)).count(0) == 5


async def test_what_a_client_owes_outlives_its_connection_and_the_table_is_bounded(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "_MOST_COOLING", 3)
    world = await opened(clientMessagesPerSecond=1, quotaBurstSeconds=4)
    table = world.broker.quotas
    for number in range(8):
        assert (await world.call(heartbeat(f"id-{number}"), client=number)).code == 0
        assert 0 in await world.sends(6, client=number)
    assert table.table_size == 8
    for client in world.clients:
        await client.close()
    await world.connections(0)
    assert table.table_size == 3
    world.clients = [RemotingClient()]
    assert (await world.call(heartbeat("id-7"))).code == 0
    assert set(await world.sends(6)) == {ResponseCode.SYSTEM_BUSY}, "the same client"


async def test_clients_that_owe_nothing_are_forgotten() -> None:
    broker = FakeBroker()
    broker.change(clientMessagesPerSecond=10)
    table = quotas.Quotas(broker)  # type: ignore[arg-type]

    class Link:
        def __init__(self, ip: str) -> None:
            self.remote = type("Host", (), {"ip": ip})
            self.attributes: dict[str, Any] = {}

    links: list[Any] = [Link(f"10.0.0.{number}") for number in range(9)] + [Link(f"fd00::{n}") for n in range(9)]
    for link in links:
        table.attach(link)
    assert table.table_size == 10, "a network of IPv6 is one client"
    for link in links:
        table.delivered(link, "", 100, 0)
        table.detach(link)
    links.clear()
    table.look()
    assert table.table_size == 10
    broker.clock.now_ms += 1_000_000
    table.look()
    assert table.table_size == 0


async def test_quotas_of_clients_follow_the_settings(opened: Open) -> None:
    world = await opened(aclEnable=False)
    await world.sends(1, None)
    for name in ("clientMessagesPerSecond", "clientBytesPerSecond", "clientRequestsPerSecond"):
        world.broker.change_settings({name: "1", "quotaBurstSeconds": "1"})
        assert ResponseCode.SYSTEM_BUSY in await world.sends(9, None), name
        world.broker.change_settings({name: "0"})
        assert set(await world.sends(9, None)) == {0}
    world.broker.change_settings({"clientMessagesPerSecond": "1", "quotaBurstSeconds": "20"})
    assert (await world.sends(30, None)).count(0) == 20


async def test_quick_pulls_count(opened: Open) -> None:
    world = await opened(aclEnable=False, clientMessagesPerSecond=1, quotaBurstSeconds=61)
    assert set(await world.sends(20, None)) == {0}
    codes = [(await world.call(pull(), None)).code for _ in range(6)]
    assert codes[:3] == [0, 0, 0] and codes[-1] == ResponseCode.FLOW_CONTROL


async def test_an_address_has_a_number_of_connections(opened: Open) -> None:
    world = await opened(aclEnable=False, maxConnectionsPerAddress=2)
    await world.sends(1, None)
    await world.sends(1, None, client=1)
    with pytest.raises(RemotingError):
        await world.sends(1, None, client=2)
    assert world.broker.connections_refused == {"all": 0, "address": 1}
    await world.clients[0].close()
    await world.connections(1)
    assert await world.sends(1, None, client=3) == [0]


# -- fields and meters -------------------------------------------------------------------------------------------------


def test_quotas_in_the_file_are_read_and_written() -> None:
    acl = parse(FILE.replace("groupPerms: [g=SUB]", "groupPerms: [g=SUB], quota: {bytesPerSecond: 9}").encode())
    assert acl.accounts["producer"].quota == Quota(bytes_per_second=9)
    assert acl.accounts["limited"].quota == Quota(messages_per_second=1, topics=2)
    assert acl.accounts["limited"].user().quota.topics == 2
    assert parse(dump(acl)) == acl


@pytest.mark.parametrize(
    "quota", ["7", "[1]", "{messagesPerSecond: -1}", "{bytesPerSecond: 1e3}", "{topics: ' 5'}", "{speed: 5}",
              "{requestsPerSecond: 99999999999999999}"]
)  # fmt: skip
def test_a_quota_that_is_none_is_refused(quota: str) -> None:
    with pytest.raises(AclError, match="quota"):
        parse(FILE.replace("quota: {messagesPerSecond: 1, topics: 2}", f"quota: {quota}").encode())


def test_meters_refuse_rates_that_are_none() -> None:
    for messages, size, requests, burst_s in (
        (-1.0, 0.0, 0.0, 1.0),
        (0.0, float("nan"), 0.0, 1.0),
        (0.0, 0.0, float("inf"), 1.0),
        (0.0, 0.0, 0.0, -1.0),
    ):
        with pytest.raises(ValueError, match="not negative"):
            Meter(messages, size, requests, burst_s, 0)
