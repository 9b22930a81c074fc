"""The name server's tables, one sentence of the protocol's description a test."""

import json
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.node.nameserver.registration import (
    QueueData,
    RegisterBody,
    RegistrationError,
    decode_compressed,
    decode_json,
    decode_wrapper,
)
from tallystick.node.nameserver.routes import MasterAddress, RouteTable
from tallystick.store.tables import DataVersion

V1, V2 = DataVersion(1, 1000), DataVersion(2, 2000)
QUEUES = QueueData(4, 8, 6, 0)


class Table(RouteTable):
    """A route table with short words for a test."""

    def add(
        self,
        name: str = "a",
        broker_id: int = 0,
        address: str = "10.0.0.1:10911",
        topics: dict[str, QueueData] | None = None,
        version: DataVersion = V1,
        owner: object = None,
        now_ms: int = 0,
        cluster: str = "C",
        filters: list[str] | None = None,
        whole: bool = False,
    ) -> MasterAddress:
        body = RegisterBody(version, {"T": QUEUES} if topics is None else topics, filters)
        return self.register(
            cluster, name, broker_id, address, address + "+1", body, owner=owner, now_ms=now_ms, whole=whole
        )

    def addresses(self, topic: str = "T") -> dict[str, dict[int, str]]:
        route = self.route(topic)
        return {broker["brokerName"]: broker["brokerAddrs"] for broker in route["brokerDatas"]} if route else {}


def test_a_route_names_queues_and_brokers() -> None:
    table = Table()
    table.add("b", address="10.0.0.2:10911", topics={"T": QueueData(1, 2, 4, 3)}, filters=["f:1"])
    table.add("a")
    assert table.route("T") == {
        "brokerDatas": [
            {"brokerAddrs": {0: "10.0.0.1:10911"}, "brokerName": "a", "cluster": "C"},
            {"brokerAddrs": {0: "10.0.0.2:10911"}, "brokerName": "b", "cluster": "C"},
        ],
        "filterServerTable": {"10.0.0.2:10911": ["f:1"]},
        "queueDatas": [
            {"brokerName": "b", "perm": 4, "readQueueNums": 1, "topicSynFlag": 3, "writeQueueNums": 2},
            {"brokerName": "a", "perm": 6, "readQueueNums": 4, "topicSynFlag": 0, "writeQueueNums": 8},
        ],
    }
    assert table.route("other") is None


def test_a_partial_registration_is_merged() -> None:
    table = Table()
    table.add(topics={"T": QUEUES, "U": QUEUES})
    table.add(topics={"V": QUEUES}, version=V2)
    assert table.topics() == ["T", "U", "V"]
    table.add(topics={"T": QueueData(1, 1, 2, 0)}, version=DataVersion(3, 3))
    assert table.topics() == ["T", "U", "V"]
    assert table.route("T")["queueDatas"][0]["readQueueNums"] == 1


def test_a_whole_registration_takes_away_what_it_has_not() -> None:
    table = Table()
    table.add("a", topics={"T": QUEUES, "U": QUEUES, "V": QUEUES})
    table.add("b", address="10.0.0.2:10911", topics={"U": QUEUES})
    table.add("a", topics={"T": QUEUES}, whole=True)  # of the same version: nothing has changed
    assert table.topics() == ["T", "U", "V"]
    table.add("a", 1, "10.0.0.3:10911", topics={}, version=V2, whole=True)  # a slave has none to tell of
    assert table.topics() == ["T", "U", "V"]
    table.add("a", topics={"T": QUEUES}, version=V2, whole=True)
    assert table.topics() == ["T", "U"]
    assert list(table.addresses("U")) == ["b"]
    assert list(table.addresses("T")) == ["a"]


def test_topics_are_taken_only_if_the_data_version_changed_or_it_is_the_first_registration() -> None:
    table = Table()
    table.add()
    table.add(topics={"U": QUEUES})
    assert table.topics() == ["T"]
    table.add(topics={"U": QUEUES}, version=V2)
    assert table.topics() == ["T", "U"]
    table.unregister("10.0.0.1:10911")
    table.add(topics={"U": QUEUES}, version=V2)
    assert table.topics() == ["U"]


def test_a_slave_brings_no_topics_and_learns_of_its_master() -> None:
    table = Table()
    assert table.add(broker_id=1, address="s:1") == MasterAddress()
    assert table.topics() == []
    assert table.add() == MasterAddress()
    assert table.add(broker_id=1, address="s:1") == MasterAddress("10.0.0.1:10911+1", "10.0.0.1:10911")
    assert table.addresses() == {"a": {0: "10.0.0.1:10911", 1: "s:1"}}


def test_an_address_has_one_id() -> None:
    table = Table()
    table.add(address="m:1")
    table.add(broker_id=1, address="s:1")
    table.add(broker_id=0, address="s:1", version=V2)  # the slave took over
    assert table.addresses() == {"a": {0: "s:1"}}
    table.add(broker_id=1, address="m:1")
    assert table.addresses() == {"a": {0: "s:1", 1: "m:1"}}


def test_a_name_is_removed_with_its_last_address_and_its_queues_with_it() -> None:
    table = Table()
    table.add("a", topics={"T": QUEUES, "U": QUEUES})
    table.add("a", broker_id=1, address="s:1")
    table.add("b", address="10.0.0.2:10911", cluster="D")
    table.unregister("10.0.0.1:10911")
    assert table.topics() == ["T", "U"] and table.addresses("U") == {"a": {1: "s:1"}}
    table.unregister("s:1")
    table.unregister("s:1")
    assert table.topics() == ["T"] and table.addresses() == {"b": {0: "10.0.0.2:10911"}}
    assert table.cluster_info()["clusterAddrTable"] == {"D": ["b"]}
    table.unregister("10.0.0.2:10911")
    assert (table.topics(), table.system_names(), table.any_address()) == ([], [], None)


def test_a_silent_broker_expires_and_a_question_for_its_version_is_a_sign_of_life() -> None:
    table = Table()
    owners = [object(), object(), object()]
    for n, owner in enumerate(owners):
        table.add(f"b{n}", address=f"h:{n}", owner=owner, now_ms=1000)
    table.touch("h:1", 50_000, owners[1])
    table.touch("h:0", 50_000, owners[1])  # a stranger does not keep a broker alive
    table.touch("unknown", 50_000)
    table.add("b2", address="h:2", owner=owners[2], now_ms=60_000)
    assert table.expire(121_000, 120_000) == []
    assert table.expire(121_001, 120_000) == [owners[0]]
    assert set(table.addresses()) == {"b1", "b2"}
    assert table.expire(170_001, 120_000) == [owners[1]]
    assert table.expire(10**9, 120_000) == [owners[2]]
    assert table.topics() == []


def test_a_lost_connection_takes_the_addresses_that_it_registered() -> None:
    table = Table()
    old, new = object(), object()
    table.add("a", address="h:1", owner=old)
    table.add("b", address="h:2", owner=new)
    assert table.owner_lost(old) == ["h:1"]
    assert table.addresses() == {"b": {0: "h:2"}}
    assert table.owner_lost(new) == ["h:2"] and table.owner_lost(new) == []


def test_wiping_takes_the_write_permission_until_the_broker_changes_something() -> None:
    table = Table()
    topics = {"T": QUEUES, "U": QueueData(1, 1, 7)}
    table.add(topics=topics)
    table.add("b", address="h:2")
    assert table.wipe("a") == 2 and table.wipe("nobody") == 0
    assert {data["brokerName"]: data["perm"] for data in table.route("T")["queueDatas"]} == {"a": 4, "b": 6}
    assert table.route("U")["queueDatas"][0]["perm"] == 5
    table.add(topics=topics)
    assert table.route("U")["queueDatas"][0]["perm"] == 5
    table.add(topics=topics, version=V2)
    assert table.route("U")["queueDatas"][0]["perm"] == 7


def test_a_deleted_topic_returns_when_the_broker_registers_it() -> None:
    table = Table()
    table.add()
    table.delete_topic("T")
    table.delete_topic("T")
    assert table.route("T") is None
    table.add(version=V2)
    assert table.route("T") is not None


def test_lists_of_topics() -> None:
    table = Table()
    flags = {f"flag{flag}": QueueData(sys_flag=flag) for flag in range(4)}
    table.add("a", topics={**flags, "T": QUEUES})
    table.add("b", address="h:2", cluster="D")
    assert table.topics_of_cluster("C") == ["T", "flag0", "flag1", "flag2", "flag3"]
    assert table.topics_of_cluster("D") == ["T"] and table.topics_of_cluster("E") == []
    assert table.system_names() == ["C", "D", "a", "b"]
    assert table.unit_topics() == ["flag1", "flag3"]
    assert table.unit_sub_topics() == ["flag2", "flag3"]
    assert table.unit_sub_only_topics() == ["flag2"]
    assert table.any_address() == "10.0.0.1:10911"


def test_filter_servers_are_kept_per_address_until_the_list_is_empty() -> None:
    table = Table()
    table.add(filters=["f:1"])
    table.add(filters=None)
    assert table.route("T")["filterServerTable"] == {"10.0.0.1:10911": ["f:1"]}
    table.add(filters=[])
    assert table.route("T")["filterServerTable"] == {}


names = st.text("abcXYZ%_-0123456789", min_size=1, max_size=12)
small = st.integers(-1, 2**31 - 1)
topic_tables = st.dictionaries(names, st.builds(QueueData, small, small, st.integers(0, 7)), max_size=6)
versions = st.builds(DataVersion, st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))


@given(versions, topic_tables, st.lists(names, max_size=3))
def test_both_forms_of_a_registration_say_the_same(
    version: DataVersion, topics: dict[str, QueueData], servers: list[str]
) -> None:
    expected = RegisterBody(version, topics, servers)
    wrapper = {
        "dataVersion": version.to_json(),
        "topicConfigTable": {
            name: {
                "topicName": name,
                "readQueueNums": queues.read_queues,
                "writeQueueNums": queues.write_queues,
                "perm": queues.perm,
            }
            for name, queues in topics.items()
        },
    }
    text = json.dumps({"filterServerList": servers, "topicConfigSerializeWrapper": wrapper}).encode()
    assert decode_json(text) == expected
    assert decode_wrapper(json.dumps(wrapper).encode()) == RegisterBody(version, topics)
    assert decode_compressed(compressed(version, topics, servers)) == expected


def compressed(version: DataVersion, topics: dict[str, QueueData], servers: list[str]) -> bytes:
    lines = [f"{n} {q.read_queues} {q.write_queues} {q.perm} SINGLE_TAG" for n, q in topics.items()]
    parts = [sized(json.dumps(version.to_json()).encode()), struct.pack(">i", len(lines))]
    parts += [sized(line.encode()) for line in lines]
    return zlib.compress(b"".join(parts) + sized(json.dumps(servers).encode()), 9)


def sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


@pytest.mark.parametrize(
    ("body", "match"),
    [
        (b"", "not JSON"),
        (b"[]", "the body is not a JSON object"),
        (b"{}", "topicConfigSerializeWrapper is not a JSON object"),
        (b'{"topicConfigSerializeWrapper":{"topicConfigTable":[1]}}', "topicConfigTable is no"),
        (b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":1}}}', "the topic 'T' is no"),
        (b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"perm":"x"}}}}', "perm of the topic 'T'"),
        (b'{"topicConfigSerializeWrapper":{},"filterServerList":{}}', "filter servers are not a list"),
    ],
)
def test_a_body_that_is_no_registration_is_refused_by_name(body: bytes, match: str) -> None:
    with pytest.raises(RegistrationError, match=match):
        decode_json(body)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "a number is due at 0"),
        (sized(b"{"), "not JSON"),
        (struct.pack(">i", -5), "a text of -5 bytes"),
        (sized(b"{}") + struct.pack(">i", 9), "a number is due"),
        (sized(b"{}") + struct.pack(">i", 1_000_000), "1000000 topics, 250000 are allowed"),
        (sized(b"{}") + struct.pack(">i", 1) + sized(b"T 4"), "not a topic: 'T 4'"),
        (sized(b"{}") + struct.pack(">i", 1) + sized(b"T 4 x 6 S"), "not a topic"),
        (sized(b"{}") + struct.pack(">i", 0) + sized(b"7"), "not a list"),
    ],
)
def test_a_compressed_body_that_is_no_registration_is_refused_by_name(data: bytes, match: str) -> None:
    with pytest.raises(RegistrationError, match=match):
        decode_compressed(zlib.compress(data))


def test_what_is_not_compressed_or_too_large_or_torn() -> None:
    with pytest.raises(RegistrationError, match="is not compressed"):
        decode_compressed(b"plain")
    with pytest.raises(RegistrationError, match="ends too early"):
        decode_compressed(zlib.compress(b"{}" * 100)[:-6])
    with pytest.raises(RegistrationError, match="has more than"):
        decode_compressed(zlib.compress(bytes(70 << 20)))
