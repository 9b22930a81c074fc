"""The name server as a whole: recorded conversations, its file, its connections."""

import asyncio
import base64
import errno
import inspect
import json
import lzma
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tallystick.node.core.settings import NameServerSettings
from tallystick.node.nameserver.registration import QueueData, RegisterBody
from tallystick.node.nameserver.server import NameServer
from tallystick.node.remoting.client import RemotingClient
from tallystick.node.remoting.codec import decode, encode
from tallystick.node.remoting.codes import RequestCode
from tallystick.node.remoting.command import Command, ResponseError
from tallystick.node.remoting.server import Connection
from tallystick.store import fastjson, tables
from tallystick.store._kernel import Door
from tallystick.store.finding_log import FindingLog
from tallystick.store.tables import DataVersion

NAME_SERVER_PORT = 22331  # in the recordings


class World:
    """A name server that listens, and a client. Time is `now_ms`."""

    def __init__(self, folder: Path) -> None:
        self.door = Door()
        self.now_ms = 1_000_000
        self.contest_s = 0.2
        self.settings = NameServerSettings(0, "127.0.0.1", str(folder / "namesrv" / "kvConfig.json"))
        self.server = self.new_server()
        self.client = RemotingClient()
        self.address = ""

    def new_server(self) -> NameServer:
        return NameServer(self.settings, door=self.door, now_ms=lambda: self.now_ms, contest_s=self.contest_s)

    async def start(self) -> None:
        self.address = f"127.0.0.1:{await self.server.start()}"

    async def restart(self) -> None:
        await self.server.stop()
        self.server = self.new_server()
        await self.start()

    async def ask(
        self, code: RequestCode, ext: dict[str, str] | None = None, body: bytes = b"", *, version: int = 373
    ) -> Command:
        return await self.client.call(self.address, Command(code, ext=ext, body=body, version=version), 60.0)

    async def json(self, code: RequestCode, ext: dict[str, str] | None = None) -> Any:
        answer = await self.ask(code, ext)
        assert answer.code == 0, answer
        return fastjson.loads(answer.body)

    async def register(self, **changes: Any) -> Command:
        body = changes.get("body", registration())
        ext = IDENTITY | {"haServerAddr": "10.0.0.1:10912", "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF)}
        return await self.ask(RequestCode.REGISTER_BROKER, ext | changes.get("ext", {}), body)


async def until(condition: Callable[[], bool]) -> None:
    """Turns the loop until something becomes true; ten seconds at most."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  # the conditions are of the code under test, which sets no events
            await asyncio.sleep(0.001)


IDENTITY = {"brokerName": "broker-a", "brokerAddr": "10.0.0.1:10911", "clusterName": "C", "brokerId": "0"}


def registration(*topics: str, counter: int = 0) -> bytes:
    table = {topic: {"readQueueNums": 4, "writeQueueNums": 4, "perm": 6} for topic in topics or ("T",)}
    wrapper = {"dataVersion": {"counter": counter, "timestamp": 5}, "topicConfigTable": table}
    return fastjson.dumps({"filterServerList": [], "topicConfigSerializeWrapper": wrapper})


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path)
    await world.start()
    yield world
    await world.client.close()
    await world.server.stop()


# --- recorded conversations ---


def conversations(golden_folder: Path) -> Iterator[tuple[str, list[tuple[Command, Command]]]]:
    for path in sorted((golden_folder / "wire").glob("*.jsonl.xz")):
        waiting: dict[tuple[int, int], Command] = {}
        pairs = []
        with lzma.open(path) as lines:
            for row in map(json.loads, lines):
                if row["port"] == NAME_SERVER_PORT:
                    command = decode(row["serializeType"], base64.b64decode(row["raw"]), base64.b64decode(row["body"]))
                    if row["dir"] == "request":
                        waiting[row["conn"], command.opaque] = command
                    else:
                        pairs.append((waiting.pop((row["conn"], command.opaque)), command))
        yield path.name, pairs


async def test_recorded_requests_get_the_recorded_answers(golden_folder: Path, tmp_path: Path) -> None:
    """Byte for byte. Brokers of most recordings registered unseen, so what they told is taken from the answers."""
    count = 0
    for name, pairs in conversations(golden_folder):
        server = NameServer(NameServerSettings(kvConfigPath=str(tmp_path / name)), contest_s=0.001)
        for request, recorded in pairs:
            assume(server, request, recorded)
            answer = await handle(server, request)
            if request.code == RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:  # a set: in no order
                assert set(json.loads(answer.body)["topicList"]) == set(json.loads(recorded.body)["topicList"])
                answer.body = recorded.body
            assert encode(answer) == encode(recorded), (name, request)
            count += 1
    if not count:
        pytest.skip("needs the recorded frames")


def assume(server: NameServer, request: Command, recorded: Command) -> None:
    """Whatever brokers must have told for this answer."""

    counter = 0

    def learn(broker: dict[str, Any], topics: dict[str, QueueData]) -> None:
        for broker_id, address in broker["brokerAddrs"].items():
            nonlocal counter
            counter += 1
            server.routes.register(
                broker["cluster"],
                broker["brokerName"],
                broker_id,
                address,
                "ha",
                RegisterBody(DataVersion(counter, id(recorded)), topics),
                owner=None,
                now_ms=0,
            )

    somebody = {"brokerAddrs": {0: "127.0.0.1:22421"}, "brokerName": "broker-a", "cluster": "PeerCluster"}
    match request.code, recorded.code:
        case RequestCode.GET_ROUTEINFO_BY_TOPIC, 0:
            assert request.ext is not None
            route = fastjson.loads(recorded.body)
            for broker, data in zip(route["brokerDatas"], route["queueDatas"], strict=True):
                queues = QueueData(data["readQueueNums"], data["writeQueueNums"], data["perm"], data["topicSynFlag"])
                learn(broker, {request.ext["topic"]: queues})
        case RequestCode.GET_ROUTEINFO_BY_TOPIC, 17:
            assert request.ext is not None
            server.routes.delete_topic(request.ext["topic"])
        case RequestCode.GET_BROKER_CLUSTER_INFO, 0:
            for broker in fastjson.loads(recorded.body)["brokerAddrTable"].values():
                learn(broker, {})
        case RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, 0:
            wanted = json.loads(recorded.body)["topicList"]
            for topic in set(server.routes.topics()) - set(wanted):
                server.routes.delete_topic(topic)
            learn(somebody, {topic: QueueData() for topic in wanted})
        case RequestCode.WIPE_WRITE_PERM_OF_BROKER, 0:
            assert recorded.ext is not None
            for topic in server.routes.topics():
                server.routes.delete_topic(topic)
            learn(somebody, {f"T{n}": QueueData() for n in range(int(recorded.ext["wipeTopicCount"]))})


async def handle(server: NameServer, request: Command) -> Command:
    """What the server would answer, without its sockets."""
    try:
        result = server.server.routes[request.code](Connection(server.server), request)
        answer = await result if inspect.isawaitable(result) else result
    except ResponseError as error:
        answer = request.reply(error.code, remark=error.remark)
    assert isinstance(answer, Command)
    return answer


# --- brokers ---


async def test_a_broker_registers_and_clients_find_it(world: World) -> None:
    assert (await world.register()).ext == {}
    route = {
        "brokerDatas": [{"brokerAddrs": {0: "10.0.0.1:10911"}, "brokerName": "broker-a", "cluster": "C"}],
        "filterServerTable": {},
        "queueDatas": [
            {"brokerName": "broker-a", "perm": 6, "readQueueNums": 4, "topicSynFlag": 0, "writeQueueNums": 4}
        ],
    }
    assert await world.json(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}) == route
    assert await world.json(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == {"topicList": ["T"]}
    assert await world.json(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "C"}) == {"topicList": ["T"]}
    assert await world.json(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS) == {
        "brokerAddr": "10.0.0.1:10911",
        "topicList": ["C", "broker-a"],
    }
    for code in (311, 312, 313):
        assert await world.json(RequestCode(code)) == {"topicList": []}
    assert (await world.ask(RequestCode.UNREGISTER_BROKER, IDENTITY)).code == 0
    answer = await world.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
    assert (answer.code, (answer.remark or "").partition("\n")[0]) == (
        17,
        "No topic route info in name server for the topic: T",
    )


async def test_new_clients_and_strict_ones_get_strict_json(world: World) -> None:
    await world.register()
    code, topic = RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}
    bare, quoted = b'{"brokerAddrs":{0:"10', b'{"brokerAddrs":{"0":"10'
    assert bare in (await world.ask(code, topic, version=400)).body
    assert quoted in (await world.ask(code, topic, version=401)).body
    assert quoted in (await world.ask(code, topic | {"acceptStandardJsonOnly": "true"})).body


async def test_a_registration_is_refused_for_what_is_wrong_with_it(world: World) -> None:
    refusals = [
        await world.register(ext={"bodyCrc32": "1"}),
        await world.register(body=b"nonsense"),
        await world.register(ext={"brokerId": "first"}),
        await world.register(ext={"compressed": "true"}),
        await world.ask(RequestCode.REGISTER_BROKER, {"brokerName": "a"}),
        await world.ask(RequestCode.QUERY_DATA_VERSION, IDENTITY, b"nonsense"),
    ]
    assert [(answer.code, (answer.remark or "")[:36]) for answer in refusals] == [
        (1, "crc32 not match"),
        (1, "the body is not JSON: no value at ch"),
        (1, "the custom field <brokerId> is no 64"),
        (1, "the body is not compressed: Error -3"),
        (1, "the custom field <brokerAddr> is nul"),
        (1, "the body is not a DataVersion: no va"),
    ]
    assert world.server.routes.cluster_info()["brokerAddrTable"] == {}


async def test_a_registration_without_a_checksum_or_without_a_body_is_fine(world: World) -> None:
    assert (await world.register(ext={"bodyCrc32": "0"})).code == 0
    assert (await world.register(body=b"")).code == 0
    assert world.server.routes.topics() == ["T"]


async def test_a_broker_older_than_3_0_11_sends_the_table_alone(world: World) -> None:
    body = b'{"dataVersion":{"counter":1,"timestamp":1},"topicConfigTable":{"Old":{"perm":6}}}'
    answer = await world.ask(RequestCode.REGISTER_BROKER, IDENTITY | {"haServerAddr": "h:1"}, body, version=36)
    assert answer.code == 0 and world.server.routes.topics() == ["Old"]


async def test_a_slave_learns_the_address_of_its_master(world: World) -> None:
    await world.register()
    answer = await world.register(ext={"brokerId": "1", "brokerAddr": "10.0.0.2:10911"})
    assert answer.ext == {"haServerAddr": "10.0.0.1:10912", "masterAddr": "10.0.0.1:10911"}


async def test_a_broker_asks_whether_it_has_to_register(world: World) -> None:
    async def changed(counter: int) -> tuple[str, bytes]:
        body = fastjson.dumps({"counter": counter, "timestamp": 5})
        answer = await world.ask(RequestCode.QUERY_DATA_VERSION, IDENTITY, body)
        assert answer.ext is not None
        return answer.ext["changed"], answer.body

    assert await changed(0) == ("true", b"")
    await world.register()
    assert await changed(0) == ("false", b'{"counter":0,"timestamp":5}')
    assert await changed(1) == ("true", b'{"counter":0,"timestamp":5}')
    # A broker whose topics did not change asks, and does not register again: that is a sign of life.
    world.now_ms += 100_000
    assert (await changed(0))[0] == "false"
    world.now_ms += 100_000
    world.server.expire()
    assert world.server.routes.topics() == ["T"]


async def test_a_broker_is_forgotten_when_it_is_silent_or_its_connection_is_lost(world: World) -> None:
    await world.register()
    world.now_ms += 120_000
    world.server.expire()
    assert world.server.routes.topics() == ["T"]
    world.now_ms += 1
    world.server.expire()
    assert world.server.routes.topics() == []
    await until(lambda: not world.client.connections)  # the server closed it
    await world.register()
    assert world.server.routes.topics() == ["T"]
    await world.client.close()
    await until(lambda: not world.server.routes.topics())


async def test_another_connection_cannot_register_or_unregister_a_broker_that_answers(world: World) -> None:
    await world.register()
    route = await world.json(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
    stranger = RemotingClient()
    body = registration("X", counter=9)
    answer = await stranger.call(world.address, Command(RequestCode.UNREGISTER_BROKER, ext=IDENTITY))
    assert answer.code == 1 and "refused: another live connection holds" in (answer.remark or "")
    for changes in ({"groupTerm": str(1 << 39), "brokerAddr": "127.0.0.1:1"}, {"brokerId": "1", "allTopics": "true"}):
        ext = IDENTITY | {"haServerAddr": "h:1"} | changes
        answer = await stranger.call(world.address, Command(RequestCode.REGISTER_BROKER, ext=ext, body=body))
        assert answer.code == 1 and "refused: another live connection holds broker-a id 0" in (answer.remark or "")
    answer = await stranger.call(world.address, Command(RequestCode.UNREGISTER_BROKER, ext=IDENTITY))
    assert answer.code == 0  # its own claim, which waited
    assert await world.json(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}) == route
    assert world.server.brokers.refused == {"held": 2, "farewell": 1}
    await stranger.close()
    assert await world.json(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}) == route


async def test_an_impossible_term_is_refused(world: World) -> None:
    answer = await world.register(ext={"groupTerm": str(1 << 62)})
    assert answer.code == 1 and "groupTerm 4611686018427387904" in (answer.remark or "")
    assert (await world.register(ext={"groupTerm": "7"})).code == 0


async def test_a_broker_whose_connection_is_dead_is_replaced_by_itself(world: World) -> None:
    """The old connection is open without answers, as after a power loss of the broker's host."""
    ext = IDENTITY | {"haServerAddr": "h:1"}
    host, port = world.address.split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(encode(Command(RequestCode.REGISTER_BROKER, opaque=1, ext=ext, body=registration())))
    await until(lambda: world.server.routes.topics() == ["T"])
    moved = {"brokerAddr": "10.0.0.9:10911"}
    assert (await world.register(ext=moved, body=registration("T", "U"))).code == 0  # another address, as a new pod has
    route = await world.json(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "U"})
    assert route["brokerDatas"][0]["brokerAddrs"] == {0: "10.0.0.9:10911"}
    assert world.server.brokers.displaced == 1
    writer.close()
    await until(lambda: len(world.server.routes.claims) == 1)
    assert world.server.routes.topics() == ["T", "U"]


async def test_an_unregistration_over_a_new_connection_counts_if_the_old_one_is_dead(world: World) -> None:
    host, port = world.address.split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    ext = IDENTITY | {"haServerAddr": "h:1"}
    writer.write(encode(Command(RequestCode.REGISTER_BROKER, opaque=1, ext=ext, body=registration())))
    await until(lambda: world.server.routes.topics() == ["T"])
    assert (await world.ask(RequestCode.UNREGISTER_BROKER, IDENTITY)).code == 0
    assert world.server.routes.topics() == []
    writer.close()


async def test_a_successor_is_answered_when_the_leader_before_it_gives_way(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.contest_s = 30.0  # nothing here waits for it
    world.server = world.new_server()
    await world.start()
    await world.register(ext={"groupTerm": "3"})
    second = RemotingClient()
    ext = IDENTITY | {"haServerAddr": "h:1", "groupTerm": "4", "brokerAddr": "10.0.0.2:10911"}
    request = Command(RequestCode.REGISTER_BROKER, ext=ext, body=registration("T", "U"))
    answer = asyncio.create_task(second.call(world.address, request, 20))
    await until(lambda: len(world.server.routes.claims) == 2)
    assert (await world.register(ext={"groupTerm": "4", "brokerId": "1"})).code == 0
    assert (await answer).code == 0
    route = await world.json(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "U"})
    assert route["brokerDatas"][0]["brokerAddrs"] == {0: "10.0.0.2:10911", 1: "10.0.0.1:10911"}
    await second.close()
    await world.client.close()
    await world.server.stop()


async def test_a_broker_that_has_two_connections_is_answered_over_both(world: World) -> None:
    """As one that was told of a name server by its name and by its address."""
    await world.register()
    second = RemotingClient()
    ext = IDENTITY | {"haServerAddr": "10.0.0.1:10912"}
    request = Command(RequestCode.REGISTER_BROKER, ext=ext, body=registration())
    assert (await second.call(world.address, request)).code == 0
    await world.client.close()
    await until(lambda: len(world.server.routes.claims) == 1)
    assert world.server.routes.topics() == ["T"]
    await second.close()


async def test_the_number_of_entries_has_a_limit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tallystick.node.nameserver.kv.MAX_ENTRIES", 2)
    for key in ("k1", "k2", "k2"):
        assert (await world.ask(RequestCode.PUT_KV_CONFIG, item(key, "x"))).code == 0
    answer = await world.ask(RequestCode.PUT_KV_CONFIG, item("k3", "x", "other"))
    assert answer.code == 1 and "the limit is 2" in (answer.remark or "")


async def test_write_permission_is_wiped_and_topics_are_deleted(world: World) -> None:
    await world.register(body=registration("T", "U"))
    answer = await world.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})
    assert answer.ext == {"wipeTopicCount": "2"}
    answer = await world.ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})
    assert answer.ext == {"addTopicCount": "2"}
    route = await world.json(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
    assert route["queueDatas"][0]["perm"] == 6
    await world.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})
    route = await world.json(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
    assert route["queueDatas"][0]["perm"] == 4
    assert (await world.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "T"})).code == 0
    assert world.server.routes.topics() == ["U"]


async def test_a_code_of_a_broker_is_not_supported(world: World) -> None:
    answer = await world.ask(RequestCode.SEND_MESSAGE_V2)
    assert (answer.code, answer.remark) == (3, " request type 310 not supported")


# --- the key-value configuration ---


def item(key: str, value: str | None = None, namespace: str = "ORDER_TOPIC_CONFIG") -> dict[str, str]:
    return {"namespace": namespace, "key": key} | ({} if value is None else {"value": value})


async def test_key_value_configuration_survives_a_restart(world: World) -> None:
    assert (await world.ask(RequestCode.GET_KV_CONFIG, item("T"))).code == 22
    assert (await world.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "ORDER_TOPIC_CONFIG"})).code == 22
    for key, value in (("T", "broker-a:4"), ("U", "broker-a:2"), ("T", "broker-a:8")):
        assert (await world.ask(RequestCode.PUT_KV_CONFIG, item(key, value))).code == 0
    assert (await world.ask(RequestCode.DELETE_KV_CONFIG, item("U"))).code == 0
    assert (await world.ask(RequestCode.DELETE_KV_CONFIG, item("never"))).code == 0
    await world.restart()
    assert (await world.ask(RequestCode.GET_KV_CONFIG, item("T"))).ext == {"value": "broker-a:8"}
    table = {"table": {"T": "broker-a:8"}}
    assert await world.json(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "ORDER_TOPIC_CONFIG"}) == table
    assert fastjson.loads((await world.register()).body) == table
    stored = tables.decode(await asyncio.to_thread(Path(world.settings.kvConfigPath).read_bytes))
    assert stored == {"configTable": {"ORDER_TOPIC_CONFIG": {"T": "broker-a:8"}}}


async def test_a_value_that_is_not_on_disk_is_not_there(world: World) -> None:
    await world.ask(RequestCode.PUT_KV_CONFIG, item("T", "1"))
    world.door.fail("sync", "kvConfig", errno.EIO)
    for code, ext in ((RequestCode.PUT_KV_CONFIG, item("T", "2")), (RequestCode.DELETE_KV_CONFIG, item("T"))):
        answer = await world.ask(code, ext)
        assert answer.code == 1 and "OSError" in (answer.remark or "")
    world.door.heal()
    assert (await world.ask(RequestCode.GET_KV_CONFIG, item("T"))).ext == {"value": "1"}
    await world.restart()
    assert (await world.ask(RequestCode.GET_KV_CONFIG, item("T"))).ext == {"value": "1"}


async def test_changes_at_the_same_time_do_not_lose_each_other(world: World) -> None:
    await asyncio.gather(
        *(world.ask(RequestCode.PUT_KV_CONFIG, item(f"k{n}", str(n), f"ns{n % 3}")) for n in range(30))
    )
    await world.restart()
    for n in range(30):
        answer = await world.ask(RequestCode.GET_KV_CONFIG, item(f"k{n}", namespace=f"ns{n % 3}"))
        assert answer.ext == {"value": str(n)}


async def test_the_configuration_has_a_limit(world: World) -> None:
    for n in range(16):
        assert (await world.ask(RequestCode.PUT_KV_CONFIG, item(f"k{n}", "x" * 1_000_000))).code == 0
    answer = await world.ask(RequestCode.PUT_KV_CONFIG, item("k16", "x" * 1_000_000))
    assert answer.code == 1 and "the limit is 16777216" in (answer.remark or "")


@pytest.mark.parametrize("text", ["nonsense", '{"configTable":{"NS":"x"}}', '{"configTable":7}'])
async def test_a_damaged_file_is_kept_and_reported_and_routes_are_served(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text(text)
    findings = FindingLog(tmp_path)
    server = NameServer(NameServerSettings(0, "127.0.0.1", str(path)), findings=findings)
    await server.start()
    assert server.kv.namespace("NS") is None
    await server.kv.put("NS", "key", "value")
    await server.stop()
    assert (tmp_path / "kvConfig.json.damaged-1").read_text() == text
    assert [finding.file for finding in findings.listed()] == ["kvConfig.json"]


# --- its own settings ---


async def test_the_order_of_topics_is_returned_if_enabled(world: World) -> None:
    await world.register()
    await world.ask(RequestCode.PUT_KV_CONFIG, item("T", "broker-a:4"))
    assert "orderTopicConf" not in await world.json(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
    body = b"# comment\n\norderMessageEnable = true\n"
    assert (await world.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=body)).code == 0
    route = await world.json(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
    assert route["orderTopicConf"] == "broker-a:4"
    text = (await world.ask(RequestCode.GET_NAMESRV_CONFIG)).body.decode()
    assert "orderMessageEnable=true\n" in text and f"kvConfigPath={world.settings.kvConfigPath}\n" in text


async def test_a_setting_that_cannot_be_set_is_named_and_nothing_changes(world: World) -> None:
    for body, remark in (
        (b"orderMessageEnable=true\nrocketmqHome=/", "rocketmqHome is not a setting"),
        (b"orderMessageEnable=true\nlistenPort=1", "listenPort cannot be changed while the process runs"),
        (b"orderMessageEnable=true\nbrokerExpirySeconds=soon", "brokerExpirySeconds"),
        (b"orderMessageEnable=true\nbrokerExpirySeconds=0", "brokerExpirySeconds"),
        (b"\xff=1", "not UTF-8 text"),
    ):
        answer = await world.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=body)
        assert answer.code == 1 and remark in (answer.remark or "")
    assert world.server.settings == world.settings
    await world.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"brokerExpirySeconds=60")
    assert world.server.settings == replace(world.settings, brokerExpirySeconds=60)


async def test_changed_settings_are_kept_for_the_next_start(world: World) -> None:
    answer = await world.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"brokerExpirySeconds=60\norderMessageEnable=true")
    assert answer.code == 0
    await world.restart()
    assert (world.server.settings.brokerExpirySeconds, world.server.settings.orderMessageEnable) == (60, True)
    (Path(world.settings.kvConfigPath).parent / "tally-settings.json").write_bytes(b"{damaged")
    await world.restart()
    assert world.server.settings == world.settings, "a damaged file is set aside, and the name server serves"
