"""Requests about clients, offsets, locks, topics and groups, against a broker made of its tables and a store of lists.

Where a recording of real RocketMQ has the request, its answer is compared with ours: the state is made from the
recorded answer, so the values must come back, in the same fields.
"""

from __future__ import annotations

import base64
import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from table_broker import NOW, Extension, TableBroker, Wire

from tallystick.node.broker.tables import offsets as offset_table
from tallystick.node.broker.tables.bloom import set_bits
from tallystick.node.broker.tables.clients import Client
from tallystick.node.broker.tables.consumer_groups import SubscriptionGroup
from tallystick.node.broker.tables.message_queue import MessageQueue
from tallystick.node.broker.tables.subscriptions import SubscriptionData
from tallystick.node.broker.tables.topics import TopicConfig
from tallystick.node.core.java_properties import parse_properties
from tallystick.node.remoting.command import Command
from tallystick.store import fastjson
from tallystick.store.formats.message import Host
from tallystick.store.formats.message_id import encode_message_id
from tallystick.store.formats.record import Record


class Exchange(NamedTuple):
    """One recorded request to the broker and its answer."""

    connection: int
    code: int
    ext: dict[str, str] | None
    body: bytes
    answer_code: int
    answer_ext: dict[str, str] | None
    answer_remark: str | None
    answer_body: bytes


def exchanges(golden_folder: Path, *names: str) -> Iterator[Exchange]:
    """In the order of the requests; answers may have overtaken each other."""
    for name in names:
        requests: dict[tuple[int, int], dict[str, Any]] = {}
        answers: dict[tuple[int, int], dict[str, Any]] = {}
        with lzma.open(golden_folder / "wire" / f"{name}.jsonl.xz", "rt") as lines:
            for line in lines:
                row = json.loads(line)
                header = row["header"]
                key = (row["conn"], header["opaque"])
                if row["dir"] == "request" and row["from"] == "client" and row["port"] == 22411:
                    requests[key] = row
                elif row["dir"] == "response" and row["from"] == "server":
                    answers[key] = row
        for key, request in requests.items():
            if key in answers:
                header = answers[key]["header"]
                yield Exchange(
                    request["conn"],
                    request["header"]["code"],
                    request["header"].get("extFields"),
                    base64.b64decode(request["body"]),
                    header["code"],
                    header.get("extFields"),
                    header.get("remark"),
                    base64.b64decode(answers[key]["body"]),
                )


def recorded(golden_folder: Path, code: int, answer_code: int = 0, *names: str) -> list[Exchange]:
    found = [
        exchange
        for exchange in exchanges(golden_folder, *(names or ("admin", "mqadmin", "consume", "pull")))
        if exchange.code == code and exchange.answer_code == answer_code
    ]
    assert found, f"no recording of {code}"
    return found


def same_answer(ours: Command, theirs: Exchange) -> None:
    assert ours.code == theirs.answer_code
    assert (ours.ext or {}).keys() == (theirs.answer_ext or {}).keys()
    assert (fastjson.loads(ours.body) if ours.body else None) == (
        fastjson.loads(theirs.answer_body) if theirs.answer_body else None
    )


# --- clients ---


def beat(group: str = "cg", *subs: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "clientID": "10.0.0.1@1",
        "consumerDataSet": [
            {
                "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
                "consumeType": "CONSUME_PASSIVELY",
                "groupName": group,
                "messageModel": "CLUSTERING",
                "subscriptionDataSet": list(subs),
                "unitMode": False,
                **fields,
            }
        ],
        "producerDataSet": [{"groupName": "pg"}],
    }


SUB = {"topic": "T", "subString": "A||B", "tagsSet": ["A", "B"], "codeSet": [65, 66], "subVersion": 5}


async def test_a_heartbeat_makes_the_group_its_retry_topic_and_the_member() -> None:
    broker, wire, other = TableBroker(), Wire(), Wire()
    assert (await broker.ask(34, body=beat("cg", SUB), wire=wire)).code == 0
    assert broker.groups.find("cg") == SubscriptionGroup("cg")
    assert broker.topics.get("%RETRY%cg") == TopicConfig("%RETRY%cg", 1, 1, 6)
    assert broker.consumers.client_ids("cg") == ["10.0.0.1@1"]
    assert broker.producers.pick("pg") is wire
    assert [command.code for command in wire.sent] == [40]
    assert wire.sent[0].ext == {"consumerGroup": "cg"}
    second = {**beat("cg", SUB), "clientID": "10.0.0.2@1"}
    await broker.ask(34, body=second, wire=other)
    assert [command.code for command in wire.sent] == [40, 40], "the first member is told of the second"
    assert len(other.sent) == 1
    await broker.ask(35, {"clientID": "10.0.0.2@1", "consumerGroup": "cg", "producerGroup": "pg"}, wire=other)
    assert len(wire.sent) == 3
    assert broker.consumers.client_ids("cg") == ["10.0.0.1@1"]


async def test_members_are_not_notified_if_the_group_disables_it() -> None:
    broker, wire = TableBroker(), Wire()
    broker.groups.update(SubscriptionGroup("cg", notify_consumer_ids_changed_enable=False))
    await broker.ask(34, body=beat("cg", SUB), wire=wire)
    assert wire.sent == []


async def test_a_heartbeat_in_unit_mode_marks_the_retry_topic() -> None:
    broker = TableBroker()
    await broker.ask(34, body=beat("cg", SUB, unitMode=True))
    assert broker.topics.get("%RETRY%cg") == TopicConfig("%RETRY%cg", 1, 1, 6, topic_sys_flag=2)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1]",
        b"{}",
        {"clientID": ""},
        {"clientID": 5},
        {"clientID": "c", "consumerDataSet": 5},
        {"clientID": "c", "consumerDataSet": [5]},
        {"clientID": "c", "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [{"subString": "*"}]}]},
        {"clientID": "c", "consumerDataSet": [{"groupName": "g"}], "producerDataSet": [{}]},
        {"clientID": "c", "producerDataSet": [{"groupName": "g"}] * 1025},
    ],
)
async def test_a_heartbeat_with_a_mistake_is_refused_and_changes_nothing(body: Any) -> None:
    broker = TableBroker()
    answer = await broker.ask(34, body=body)
    assert answer.code == 1
    assert answer.remark
    assert list(broker.consumers) == [] and broker.producers.groups() == []


async def test_a_group_with_a_path_for_a_name_makes_no_topic() -> None:
    broker = TableBroker()
    await broker.ask(34, body=beat("../../x", SUB))
    assert not [name for name in broker.topics if ".." in name]
    assert "../../x" not in broker.groups


async def test_recorded_heartbeats_farewells_and_member_lists(golden_folder: Path) -> None:
    broker, wires = TableBroker(), dict[int, Wire]()
    for exchange in exchanges(golden_folder, "consume"):
        if exchange.code in (34, 35, 38):
            wire = wires.setdefault(exchange.connection, Wire())
            ours = await broker.ask(exchange.code, exchange.ext, exchange.body, wire=wire)
            assert ours.code == exchange.answer_code
            assert ours.ext == exchange.answer_ext
            assert sorted(ours.body) == sorted(exchange.answer_body), "the members' order is Java's"
    told = sum(len(wire.sent) for wire in wires.values())
    assert told > 0 and {command.code for wire in wires.values() for command in wire.sent} == {40}


async def test_an_empty_group_is_a_separate_error() -> None:
    answer = await TableBroker().ask(38, {"consumerGroup": "nobody"})
    assert (answer.code, answer.remark) == (1, "no consumer for this group, nobody")


async def test_recorded_config_checks(golden_folder: Path) -> None:
    broker = TableBroker(enablePropertyFilter=True)
    for exchange in recorded(golden_folder, 46) + recorded(golden_folder, 46, 23):
        assert (await broker.ask(46, body=exchange.body)).code == exchange.answer_code
    off = await TableBroker().ask(46, body=recorded(golden_folder, 46)[0].body)
    assert (off.code, off.remark) == (1, "The broker does not support consumer to filter message by SQL92")
    tags = {"clientId": "c", "group": "g", "subscriptionData": {"topic": "T", "subString": "A"}}
    assert (await TableBroker().ask(46, body=tags)).code == 0
    other = {"subscriptionData": {"topic": "T", "subString": "x", "expressionType": "JS"}}
    assert (await broker.ask(46, body=other)).code == 23


# --- offsets ---


async def test_a_group_that_never_committed_starts_at_the_beginning_if_that_is_near() -> None:
    broker = TableBroker()
    ask = {"consumerGroup": "g", "topic": "T", "queueId": "0"}
    assert (await broker.ask(14, ask)).ext == {"offset": "0"}, "nothing was ever stored"
    broker.store.fill("T", 0, [NOW] * 5)
    assert (await broker.ask(14, ask)).ext == {"offset": "0"}
    assert (await broker.ask(14, {**ask, "setZeroIfNotFound": "false"})).code == 22
    broker.store.in_memory = False
    assert (await broker.ask(14, ask)).code == 22, "the first message is on disk only"
    broker.store.in_memory = True
    broker.store.fill("T", 0, [NOW] * 5, first=3)
    assert (await broker.ask(14, ask)).code == 22, "the queue no longer begins at 0"
    broker.offsets.commit("g", "T", 0, 7)
    assert (await broker.ask(14, ask)).ext == {"offset": "7"}


async def test_an_offset_whose_answer_is_awaited_is_saved_before_it() -> None:
    broker = TableBroker()
    broker.topics.update(TopicConfig("T"))
    file: Any = broker.offsets._file
    commit = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "7"}
    assert (await broker.ask(15, commit)).code == 0
    assert file.value["offsetTable"] == {"T@g": {0: 7}}
    file.broken = True
    answer = await broker.ask(15, {**commit, "commitOffset": "8"})
    assert answer.code == 1
    assert "No space left" in (answer.remark or "")


async def test_there_is_a_limit_of_offsets_and_known_ones_go_on_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_table, "MAX_OFFSETS", 3)
    broker = TableBroker()
    broker.topics.update(TopicConfig("T"))
    commit = {"consumerGroup": "g", "topic": "T", "commitOffset": "7"}
    codes = [(await broker.ask(15, {**commit, "queueId": str(number)})).code for number in range(5)]
    assert codes == [0, 0, 0, 1, 1]
    assert len(broker.offsets) == 3
    assert (await broker.ask(15, {**commit, "queueId": "2", "commitOffset": "9"})).code == 0
    assert broker.offsets.query("g", "T", 2) == 9
    assert not broker.offsets.commit("other", "T", 0, 1), "nor does a pull add one"
    assert broker.offsets.query("other", "T", 0) == -1
    clone = await broker.ask(314, {"srcGroup": "g", "destGroup": "h", "topic": "T", "offline": "true"})
    assert clone.code == 1 and "there are 3 already" in (clone.remark or "")
    assert broker.offsets.topics_of("h") == set(), "all of a topic's queues are cloned, or none"
    assert (await broker.ask(314, {"srcGroup": "g", "destGroup": "g", "topic": "T", "offline": "true"})).code == 0
    broker.offsets.remove_group("g")
    assert len(broker.offsets) == 0
    assert (await broker.ask(15, {**commit, "queueId": "4"})).code == 0


async def test_topics_without_a_row_that_have_messages_are_named_and_stay() -> None:
    broker = TableBroker()
    assert (await broker.ask(316)).remark is None
    broker.store.unused = {"Lost": 12}
    answer = await broker.ask(316)
    assert answer.code == 0
    assert "Lost (12 messages)" in (answer.remark or "")
    assert "deleteTopic" in (answer.remark or "")


async def test_a_deleted_topic_is_answered_when_a_kill_does_not_bring_back_its_queues() -> None:
    broker = TableBroker()
    broker.topics.update(TopicConfig("T"))
    assert (await broker.ask(215, {"topic": "T"})).code == 0
    assert broker.store.saved_progress


async def test_offsets_are_committed_for_queues_that_can_be() -> None:
    broker = TableBroker()
    broker.topics.update(TopicConfig("T", 4, 4))
    commit = {"consumerGroup": "g", "topic": "T", "queueId": "1", "commitOffset": "5"}
    answer = await broker.ask(15, commit)
    assert (answer.code, answer.ext) == (0, {})
    assert broker.offsets.query("g", "T", 1) == 5
    assert (await broker.ask(15, {**commit, "topic": "unknown"})).code == 17
    assert (await broker.ask(15, {**commit, "queueId": "-1"})).code == 1
    assert (await broker.ask(15, {**commit, "commitOffset": "-1"})).code == 1
    assert (await broker.ask(15, {**commit, "commitOffset": "x"})).code == 1
    assert (await broker.ask(15, {**commit, "consumerGroup": "../g"})).code == 1
    missing = await broker.ask(15, {"consumerGroup": "g"})
    assert (missing.code, missing.remark) == (1, "the custom field <topic> is null")
    assert broker.offsets.to_json() == {"offsetTable": {"T@g": {1: 5}}}


async def test_ends_beginnings_and_times_of_a_queue() -> None:
    broker = TableBroker()
    broker.store.fill("T", 0, [100, 200, 200, 300], first=10)
    queue = {"topic": "T", "queueId": "0"}
    assert (await broker.ask(30, queue)).ext == {"offset": "14"}
    assert (await broker.ask(31, queue)).ext == {"offset": "10"}
    assert (await broker.ask(32, queue)).ext == {"timestamp": "100"}
    assert (await broker.ask(32, {"topic": "none", "queueId": "0"})).ext == {"timestamp": "-1"}

    async def at(timestamp: int, boundary: str | None = None) -> str:
        ext = {**queue, "timestamp": str(timestamp), **({"boundaryType": boundary} if boundary else {})}
        return ((await broker.ask(29, ext)).ext or {})["offset"]

    assert await at(210) == "11"
    assert [await at(when, "LOWER") for when in (0, 100, 101, 200, 201, 300, 301)] == [
        *("10", "10", "11", "11", "13", "13", "14")
    ]
    assert [await at(when, "upper") for when in (0, 100, 101, 200, 201, 300, 301)] == [
        *("10", "10", "10", "12", "12", "13", "13")
    ]


async def test_recorded_offset_answers_have_the_same_fields(golden_folder: Path) -> None:
    broker = TableBroker()
    for exchange in exchanges(golden_folder, "pull", "consume"):
        if exchange.code in (14, 15, 29, 30, 31, 32) and exchange.answer_code == 0:
            broker.topics.create_on_send_back((exchange.ext or {})["topic"], 4)
            ours = await broker.ask(exchange.code, exchange.ext)
            assert ours.code == 0
            assert (ours.ext or {}).keys() == (exchange.answer_ext or {}).keys()


# --- locks ---


async def test_recorded_locks(golden_folder: Path) -> None:
    broker = TableBroker()
    for exchange in recorded(golden_folder, 41):
        same_answer(await broker.ask(41, body=exchange.body), exchange)
    unlock = recorded(golden_folder, 42)[0]
    same_answer(await broker.ask(42, body=unlock.body), unlock)


async def test_a_queue_that_another_client_holds_is_left_out() -> None:
    broker = TableBroker()
    queues = [MessageQueue("T", "broker-a", number).to_json() for number in range(3)]
    await broker.ask(41, body={"clientId": "c1", "consumerGroup": "g", "mqSet": queues[:1]})
    answer = await broker.ask(41, body={"clientId": "c2", "consumerGroup": "g", "mqSet": queues})
    assert fastjson.loads(answer.body) == {"lockOKMQSet": queues[1:]}
    bad = {"clientId": "c2", "consumerGroup": "g", "mqSet": [{"topic": "T"}]}
    assert (await broker.ask(41, body=bad)).code == 1


# --- topics and groups ---

NEW_TOPIC = {
    **{"topic": "AdmT", "defaultTopic": "TBW102", "readQueueNums": "3", "writeQueueNums": "3"},
    **{"perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "true"},
}


async def test_a_topic_is_created_on_disk_and_registered() -> None:
    broker = TableBroker()
    answer = await broker.ask(17, NEW_TOPIC)
    assert (answer.code, answer.body) == (0, b"")
    assert broker.topics.get("AdmT") == TopicConfig("AdmT", 3, 3, 6, order=False), "the request's order has no effect"
    assert not broker.topics.dirty
    assert broker.registered == 1


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({"topic": "../x"}, "illegal characters"),
        ({"topic": "x" * 128}, "longer"),
        ({"topic": " "}, "blank"),
        ({"topic": "TBW102"}, "The topic[TBW102] is conflict with system topic."),
        ({"topic": "broker-a"}, "conflict with system topic"),
        ({"topic": "rmq_sys_x"}, "conflict with system topic"),
        ({"writeQueueNums": "-1"}, "writeQueueNums"),
        ({"readQueueNums": "1000000"}, "readQueueNums"),
        ({"readQueueNums": "many"}, "readQueueNums"),
        ({"perm": "99"}, "perm"),
        ({"topicFilterType": "?"}, "topicFilterType"),
    ],
)
async def test_a_topic_that_cannot_be_is_refused(changes: dict[str, str], remark: str) -> None:
    broker = TableBroker()
    before = len(broker.topics)
    answer = await broker.ask(17, {**NEW_TOPIC, **changes})
    assert answer.code == 1
    assert remark in str(answer.remark)
    assert len(broker.topics) == before


async def test_a_deleted_topic_leaves_nothing() -> None:
    broker = TableBroker()
    await broker.ask(17, NEW_TOPIC)
    broker.store.fill("AdmT", 0, [NOW])
    broker.offsets.commit("g", "AdmT", 0, 1)
    broker.stats.put("AdmT", 1, 1)
    assert (await broker.ask(215, {"topic": "AdmT"})).code == 0
    assert "AdmT" not in broker.topics
    assert broker.store.queues.names() == []
    assert broker.offsets.to_json() == {"offsetTable": {}}
    assert (await broker.ask(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "AdmT"})).code == 1
    assert (await broker.ask(215, {"topic": "AdmT"})).code == 0, "mqadmin asks every broker"
    assert (await broker.ask(215, {"topic": "SCHEDULE_TOPIC_XXXX"})).code == 1
    assert (await broker.ask(215, {"topic": "../../etc"})).code == 1


async def test_recorded_topic_statistics(golden_folder: Path) -> None:
    for exchange in recorded(golden_folder, 202):
        broker = TableBroker()
        topic = (exchange.ext or {})["topic"]
        table = fastjson.object_keys(fastjson.loads(exchange.answer_body)["offsetTable"])
        broker.topics.update(TopicConfig(topic, len(table), len(table)))
        for queue, row in table.items():
            count = row["maxOffset"] - row["minOffset"]
            broker.store.fill(topic, queue["queueId"], [row["lastUpdateTimestamp"]] * count, row["minOffset"])
        answer = await broker.ask(202, exchange.ext)
        same_answer(answer, exchange)
        assert b'{{"brokerName"' in answer.body, "object keys stand bare in the key's place, as fastjson has them"
    assert (await TableBroker().ask(202, {"topic": "none"})).code == 17


async def test_recorded_groups(golden_folder: Path) -> None:
    broker = TableBroker()
    made = recorded(golden_folder, 200)[0]
    same_answer(await broker.ask(200, body=made.body), made)
    group = broker.groups.find("AdmG")
    assert group is not None and not group.consume_broadcast_enable and not group.consume_from_min_enable
    listing = recorded(golden_folder, 201)[0]
    ours = fastjson.loads((await broker.ask(201)).body)
    theirs = fastjson.loads(listing.answer_body)
    assert ours.keys() == theirs.keys()
    assert ours["subscriptionGroupTable"]["TOOLS_CONSUMER"] == theirs["subscriptionGroupTable"]["TOOLS_CONSUMER"]
    broker.offsets.commit("AdmG", "T", 0, 4)
    assert (await broker.ask(207, {"groupName": "AdmG"})).code == 0
    assert broker.groups.find("AdmG") is None
    assert broker.offsets.query("AdmG", "T", 0) == 4
    assert (await broker.ask(207, {"groupName": "AdmG", "cleanOffset": "true"})).code == 0
    assert broker.offsets.query("AdmG", "T", 0) == -1
    assert (await broker.ask(200, body={"groupName": "a/b"})).code == 1
    assert (await broker.ask(200, body={"retryMaxTimes": 1})).code == 1
    assert (await broker.ask(200, body=b"?")).code == 1


async def test_recorded_listing_of_topics(golden_folder: Path) -> None:
    broker = TableBroker()
    exchange = recorded(golden_folder, 21)[0]
    theirs = fastjson.loads(exchange.answer_body)
    answer = await broker.ask(21)
    ours = fastjson.loads(answer.body)
    assert answer.ext == {}
    assert ours.keys() == theirs.keys()
    for name in ("TBW102", "SCHEDULE_TOPIC_XXXX", "PeerCluster", "broker-a", "PeerCluster_REPLY_TOPIC"):
        assert ours["topicConfigTable"][name] == theirs["topicConfigTable"][name]
    assert "BenchmarkTest" in fastjson.loads((await broker.ask(305)).body)["topicList"]
    assert (await broker.ask(306)).code == 0
    assert (await broker.ask(316)).code == 0
    assert {"TBW102", "RMQ_SYS_TRANS_HALF_TOPIC"} <= broker.store.kept


# --- the broker itself ---


async def test_settings_on_the_list_are_changed_and_others_refused() -> None:
    broker = TableBroker()
    answer = await broker.ask(25, body=b"#a comment\n\nbrokerPermission=4\n")
    assert answer.code == 0
    assert broker.settings.brokerPermission == 4
    assert broker.registered == 1
    for body, word in (
        (b"listenPort=1\n", "listenPort"),
        (b"brokerPermission=4\nstorePathRootDir=/etc\n", "storePathRootDir"),
        (b"rocketmqHome=/\n", "rocketmqHome"),
        (b"brokerPermission=99\n", "brokerPermission"),
        (b"nonsense", "nonsense is not a setting"),
        (b"\xff\xfe", "not UTF-8 text"),
    ):
        refusal = await broker.ask(25, body=body)
        assert refusal.code == 1
        assert word in str(refusal.remark)
    assert broker.settings.brokerPermission == 4


def test_properties_are_read_as_java_writes_them() -> None:
    assert parse_properties(b"a=b\n  c = d=e \n#x=y\n!z\naddr=10.0.0.1\\:9876\n") == {
        "a": "b",
        "c": "d=e",
        "addr": "10.0.0.1:9876",
    }


async def test_recorded_configuration_and_runtime(golden_folder: Path) -> None:
    broker = TableBroker()
    exchange = recorded(golden_folder, 26)[0]
    answer = await broker.ask(26)
    version = fastjson.loads((exchange.answer_ext or {})["version"])
    assert fastjson.loads((answer.ext or {})["version"]).keys() == version.keys()
    assert parse_properties(answer.body) == broker.configuration()
    table = fastjson.loads((await broker.ask(28)).body)["table"]
    for recording in recorded(golden_folder, 28):
        theirs = fastjson.loads(recording.answer_body)["table"]
        missing = {key for key in theirs if not key.startswith("scheduleMessageOffset_")} - table.keys()
        assert not missing
    assert all(isinstance(value, str) for value in table.values())
    assert table["putMessageEntireTimeMax"] == "7", "the store knows its own keys better"
    assert table["remainHowManyDataToFlush"] == "10 B"
    assert float(table["putTps"].split(" ")[0]) == 0.0


async def test_recorded_counters(golden_folder: Path) -> None:
    broker = TableBroker()
    shape = fastjson.loads(recorded(golden_folder, 315)[0].answer_body)
    missing = recorded(golden_folder, 315, 1)[0]
    refusal = await broker.ask(315, missing.ext)
    assert (refusal.code, refusal.remark) == (1, missing.answer_remark)
    broker.stats.put("BenchmarkTest", 3, 300)
    ours = fastjson.loads((await broker.ask(315, missing.ext)).body)
    assert ours.keys() == shape.keys()
    assert ours["statsDay"].keys() == shape["statsDay"].keys()
    assert ours["statsMinute"]["sum"] == 3


async def test_delay_offsets_have_bare_numbers_for_keys() -> None:
    assert (await TableBroker().ask(45)).body == b'{"offsetTable":{1:0,3:12}}'


# --- progress of groups ---


async def test_recorded_progress_of_groups(golden_folder: Path) -> None:
    for exchange in recorded(golden_folder, 208):
        broker = TableBroker()
        group = (exchange.ext or {})["consumerGroup"]
        theirs = fastjson.loads(exchange.answer_body)
        table = fastjson.object_keys(theirs["offsetTable"])
        sizes: dict[str, int] = {}
        for queue, row in table.items():
            topic, queue_id = queue["topic"], queue["queueId"]
            sizes[topic] = max(sizes.get(topic, 0), queue_id + 1)
            broker.store.fill(topic, queue_id, [row["lastTimestamp"]] * row["brokerOffset"])
            broker.offsets.commit(group, topic, queue_id, row["consumerOffset"])
        for topic, size in sizes.items():
            broker.topics.create_on_send_back(topic, size)
        answer = await broker.ask(208, exchange.ext)
        ours = fastjson.loads(answer.body)
        assert fastjson.object_keys(ours["offsetTable"]) == table
        assert ours.keys() == theirs.keys()
        whole = fastjson.loads((await broker.ask(317, {"isOrder": "false"})).body)
        if group in broker.groups or broker.groups.get(group):
            whole = fastjson.loads((await broker.ask(317, {"isOrder": "false"})).body)
            rows = next(row[group] for row in whole["consumeStatsList"] if group in row)
            assert sum(len(row["offsetTable"]) for row in rows) == (len(table) if table else 0)
    recording = fastjson.loads(recorded(golden_folder, 317)[0].answer_body)
    assert whole.keys() == recording.keys()
    assert whole["brokerAddr"] == recording["brokerAddr"]


async def test_a_topic_the_connected_group_no_longer_subscribes_is_left_out() -> None:
    broker = TableBroker()
    for topic in ("T", "U"):
        broker.topics.update(TopicConfig(topic, 1, 1))
        broker.offsets.commit("g", topic, 0, 0)
    broker.heartbeat("g", Wire(), "c1", "T")
    table = fastjson.loads((await broker.ask(208, {"consumerGroup": "g"})).body)["offsetTable"]
    assert {key["topic"] for key in fastjson.object_keys(table)} == {"T"}


async def test_who_consumes_a_topic(golden_folder: Path) -> None:
    broker = TableBroker()
    assert (
        (await broker.ask(300, {"topic": "T"})).body
        == recorded(golden_folder, 300)[2].answer_body
        == b'{"groupList":[]}'
    )
    broker.offsets.commit("then", "T", 0, 1)
    broker.heartbeat("now", Wire(), "c1", "T")
    assert fastjson.loads((await broker.ask(300, {"topic": "T"})).body) == {"groupList": ["now", "then"]}


async def test_how_late_a_group_is() -> None:
    broker = TableBroker()
    broker.topics.update(TopicConfig("T", 2, 2))
    broker.store.fill("T", 0, [NOW - 3000, NOW - 2000, NOW - 1000])
    broker.offsets.commit("g", "T", 0, 2)
    spans = fastjson.loads((await broker.ask(303, {"topic": "T", "group": "g"})).body)["consumeTimeSpanSet"]
    assert spans[0]["messageQueue"] == {"brokerName": "broker-a", "queueId": 0, "topic": "T"}
    assert {key: spans[0][key] for key in ("minTimeStamp", "maxTimeStamp", "consumeTimeStamp", "delayTime")} == {
        "minTimeStamp": NOW - 3000,
        "maxTimeStamp": NOW - 1000,
        "consumeTimeStamp": NOW - 2000,
        "delayTime": 1000,
    }
    assert spans[1]["delayTime"] == 0
    assert spans[0]["minTimeStampStr"].endswith(",000")
    assert (await broker.ask(303, {"topic": "none", "group": "g"})).code == 17


async def test_offsets_in_bulk() -> None:
    broker = TableBroker()
    broker.topics.update(TopicConfig("T", 2, 2))
    for group, offsets in (("a", (5, 9)), ("b", (7, 3)), ("c", (1, 1))):
        for queue_id, offset in enumerate(offsets):
            broker.offsets.commit(group, "T", queue_id, offset)
    assert (await broker.ask(43)).body == b'{"offsetTable":{"T@a":{0:5,1:9},"T@b":{0:7,1:3},"T@c":{0:1,1:1}}}'
    answer = await broker.ask(308, {"topic": "T", "compareGroup": "c", "filterGroups": "c"})
    assert answer.body == b'{"correctionOffsets":{0:9223372036854775807,1:9223372036854775807}}'
    answer = await broker.ask(308, {"topic": "T", "compareGroup": "a", "filterGroups": "c"})
    assert answer.body == b'{"correctionOffsets":{0:5,1:3}}'
    assert broker.offsets.query("c", "T", 0) == 1, "asking changes nothing"
    assert (await broker.ask(314, {"srcGroup": "a", "destGroup": "d", "topic": "T"})).code == 0
    assert broker.offsets.queues("d", "T") == {0: 5, 1: 9}
    broker.heartbeat("b", Wire(), "c1", "other")
    await broker.ask(314, {"srcGroup": "b", "destGroup": "e"})
    assert broker.offsets.topics_of("e") == set(), "b is connected and no longer wants T"
    await broker.ask(314, {"srcGroup": "b", "destGroup": "e", "offline": "true"})
    assert broker.offsets.queues("e", "T") == {0: 7, 1: 3}


# --- relays ---


async def test_recorded_connections(golden_folder: Path) -> None:
    exchange = recorded(golden_folder, 203)[0]
    theirs = fastjson.loads(exchange.answer_body)
    broker, wire = TableBroker(), Wire()
    member = theirs["connectionSet"][0]
    ip, _, port = member["clientAddr"].partition(":")
    wire.remote = Host(ip, int(port))
    broker.consumers.register(
        (exchange.ext or {})["consumerGroup"],
        Client(wire, member["clientId"], member["language"], member["version"], NOW),
        consume_type=theirs["consumeType"],
        message_model=theirs["messageModel"],
        consume_from_where=theirs["consumeFromWhere"],
        subscriptions=[SubscriptionData.from_json(value) for value in theirs["subscriptionTable"].values()],
    )
    answer = await broker.ask(203, exchange.ext)
    body = fastjson.loads(answer.body)
    more = body.pop("subscriptionsOfClients")  # RocketMQ does not have it
    assert more == {member["clientId"]: list(body["subscriptionTable"].values())}
    answer.body = fastjson.dumps(body)
    same_answer(answer, exchange)
    offline = recorded(golden_folder, 203, 206)[0]
    answer = await broker.ask(203, offline.ext)
    assert (answer.code, answer.remark) == (206, offline.answer_remark)

    exchange = recorded(golden_folder, 204)[0]
    member = fastjson.loads(exchange.answer_body)["connectionSet"][0]
    ip, _, port = member["clientAddr"].partition(":")
    wire.remote = Host(ip, int(port))
    nobody = recorded(golden_folder, 204, 1)[0]
    refusal = await broker.ask(204, nobody.ext)
    assert (refusal.code, refusal.remark) == (1, nobody.answer_remark)
    broker.producers.register(
        (exchange.ext or {})["producerGroup"],
        Client(wire, member["clientId"], member["language"], member["version"], NOW),
    )
    same_answer(await broker.ask(204, exchange.ext), exchange)


async def test_recorded_reset_of_offsets(golden_folder: Path) -> None:
    exchange = recorded(golden_folder, 222)[0]
    ext = exchange.ext or {}
    broker, wire = TableBroker(), Wire()
    assert (await broker.ask(222, ext)).code == 1, "no such topic"
    table = fastjson.object_keys(fastjson.loads(exchange.answer_body)["offsetTable"])
    broker.topics.update(TopicConfig(ext["topic"], len(table), len(table)))
    answer = await broker.ask(222, ext)
    assert (answer.code, answer.remark) == (1, f"THe consumer group <{ext['group']}> not exist")
    for queue in table:
        broker.store.fill(ext["topic"], queue["queueId"], [int(ext["timestamp"]) + 1000] * 10)
        broker.offsets.commit(ext["group"], ext["topic"], queue["queueId"], 10)
    assert (await broker.ask(222, ext)).code == 206, "no consumer is online"
    broker.heartbeat(ext["group"], wire, "c1", ext["topic"])
    wire.sent.clear()
    same_answer(await broker.ask(222, ext), exchange)
    pushed = wire.sent.pop()
    assert pushed.code == 220
    assert pushed.ext == {**ext, "isForce": "false"}
    assert fastjson.loads(pushed.body) == fastjson.loads(exchange.answer_body)
    assert broker.offsets.query(ext["group"], ext["topic"], 0) == 10, "the members commit, not the broker"


async def test_a_reset_goes_backwards_unless_forced_and_to_the_end_with_minus_one() -> None:
    broker, wire = TableBroker(), Wire()
    broker.topics.update(TopicConfig("T", 1, 1))
    broker.store.fill("T", 0, [100, 200, 300, 400])
    broker.offsets.commit("g", "T", 0, 1)
    broker.consumers.register("g", Client(wire, "c1", "CPP", 373, NOW), subscriptions=[])
    wire.sent.clear()
    ask = {"topic": "T", "group": "g", "timestamp": "-1", "isForce": "false"}
    key = MessageQueue("T", "broker-a", 0).key()
    assert fastjson.loads((await broker.ask(222, ask)).body) == {"offsetTable": {key: 1}}
    assert fastjson.loads((await broker.ask(222, {**ask, "isForce": "true"})).body) == {"offsetTable": {key: 4}}
    assert fastjson.loads((await broker.ask(222, {**ask, "timestamp": "90"})).body) == {"offsetTable": {key: 0}}
    body = fastjson.loads(wire.sent[-1].body)
    assert body == {"offsetTable": [{"brokerName": "broker-a", "offset": 0, "queueId": 0, "topic": "T"}]}, "C++"
    old = Wire()
    broker.consumers.register("g", Client(old, "c2", "JAVA", 20, NOW), subscriptions=[])
    assert "does not support" in str((await broker.ask(222, ask)).remark)


async def test_running_info_is_the_clients_own_answer(golden_folder: Path) -> None:
    exchange = recorded(golden_folder, 307)[0]
    ext = exchange.ext or {}
    broker = TableBroker()
    answer = await broker.ask(307, ext)
    assert (answer.code, answer.remark) == (
        1,
        f"The Consumer <{ext['consumerGroup']}> <{ext['clientId']}> not online",
    )
    wire = Wire(Command(0, body=exchange.answer_body))
    broker.heartbeat(ext["consumerGroup"], wire, ext["clientId"])
    answer = await broker.ask(307, ext)
    assert (answer.code, answer.body) == (0, exchange.answer_body)
    assert (wire.sent[-1].code, wire.sent[-1].ext) == (307, ext)
    wire.answer = None
    assert (await broker.ask(307, ext)).code == 207


async def test_a_message_is_consumed_directly() -> None:
    broker, wire = TableBroker(), Wire(Command(0, body=b'{"consumeResult":"CR_SUCCESS"}'))
    broker.heartbeat("g", wire, "c1")
    broker.store.records[500] = b"a record"
    ask = {"consumerGroup": "g", "clientId": "c1", "msgId": encode_message_id(Host("127.0.0.1", 22411), 500)}
    answer = await broker.ask(309, ask)
    assert answer.body == b'{"consumeResult":"CR_SUCCESS"}'
    assert (wire.sent[-1].code, wire.sent[-1].body) == (309, b"a record")
    assert wire.sent[-1].ext == {**ask, "brokerName": "broker-a"}
    gone = {**ask, "msgId": encode_message_id(Host("127.0.0.1", 22411), 501)}
    assert (await broker.ask(309, gone)).code == 1
    assert (await broker.ask(309, {**ask, "msgId": "XYZ"})).code == 1


async def test_status_of_all_members_or_one() -> None:
    broker = TableBroker()
    key = MessageQueue("T", "broker-a", 0).key()
    one = Wire(Command(0, body=fastjson.dumps({"messageQueueTable": {key: 5}})))
    silent, odd = Wire(None), Wire(Command(0, body=b'{"messageQueueTable":"?"}'))
    ask = {"topic": "T", "group": "g"}
    assert (await broker.ask(223, ask)).code == 1
    for name, wire in (("c1", one), ("c2", silent), ("c3", odd)):
        broker.heartbeat("g", wire, name)
    answer = fastjson.loads((await broker.ask(223, ask)).body)
    assert answer == {"consumerTable": {"c1": {key: 5}}, "messageQueueTable": {}}
    silent.sent.clear()
    await broker.ask(223, {**ask, "clientAddr": "c1"})
    assert silent.sent == []


# --- looking inside ---


async def test_units_of_a_queue_with_the_groups_filter() -> None:
    broker = TableBroker()
    broker.store.fill("T", 0, [NOW] * 5)
    broker.consumers.register(
        "g", Client(Wire(), "c1", "JAVA", 373, NOW), subscriptions=[SubscriptionData.build("T", "B", sub_version=1)]
    )
    ask = {"topic": "T", "queueId": "0", "index": "3", "count": "10", "consumerGroup": "g"}
    body = fastjson.loads((await broker.ask(321, ask)).body)
    assert (body["minQueueIndex"], body["maxQueueIndex"]) == (0, 5)
    assert body["queueData"][0] == {"eval": False, "physicOffset": 300, "physicSize": 100, "tagsCode": 65}
    assert len(body["queueData"]) == 2
    assert body["subscriptionData"]["subString"] == "B"
    assert body["filterData"] == "null", "a group with tags has no expression"
    assert "is not exist" in str((await broker.ask(321, {**ask, "index": "50"})).remark)
    gone = fastjson.loads((await broker.ask(321, {**ask, "consumerGroup": "nobody"})).body)
    assert gone["filterData"] == "nobody@T is not online!" and "subscriptionData" not in gone
    alone = fastjson.loads((await broker.ask(321, {key: ask[key] for key in ask if key != "consumerGroup"})).body)
    assert "filterData" not in alone and "subscriptionData" not in alone
    assert (await broker.ask(321, {**ask, "topic": "none"})).code == 1


async def test_units_of_a_queue_show_their_extensions() -> None:
    """The texts are what RocketMQ 4.8.0's classes printed for the same values."""
    broker = TableBroker()
    broker.store.fill("T", 0, [NOW] * 4)
    addresses = [-(2**31) - 1, -(2**63), -(2**63) + 20]
    broker.store.tags_codes = dict(enumerate(addresses))
    bits = bytes([1, 2, 128, 0, 0, 0, 0, 3, 9])
    broker.store.extensions = {
        addresses[0]: Extension(29, 66, NOW + 7, bits),
        addresses[1]: Extension(20, 5, NOW + 7, b""),
    }
    subscription = SubscriptionData.build("T", "B", sub_version=1)
    client = Client(Wire(), "c1", "JAVA", 373, NOW)
    broker.consumers.register("g", client, subscriptions=[subscription])
    ask = {"topic": "T", "queueId": "0", "index": "0", "count": "10", "consumerGroup": "g"}
    rows = fastjson.loads((await broker.ask(321, ask)).body)["queueData"]
    assert rows[0] == {
        "physicOffset": 0, "physicSize": 100, "tagsCode": addresses[0], "eval": True,
        "extendDataJson": f'{{"filterBitMap":"AQKAAAAAAAMJ","msgStoreTime":{NOW + 7},"size":29,"tagsCode":66}}',
        "bitMap": "00001001\n0000001100000000000000000000000000000000100000000000001000000001\n",
    }  # fmt: skip
    assert rows[1] == {
        "physicOffset": 100, "physicSize": 100, "tagsCode": addresses[1], "eval": False,
        "extendDataJson": f'{{"msgStoreTime":{NOW + 7},"size":20,"tagsCode":5}}',
    }  # fmt: skip
    assert rows[2]["msg"] == f"Cq extend not exist!addr: {addresses[2]}" and not rows[2]["eval"]
    assert rows[3] == {"physicOffset": 300, "physicSize": 100, "tagsCode": 65, "eval": False}


async def test_a_group_with_an_expression_is_shown_with_it() -> None:
    broker = TableBroker()
    broker.store.fill("T", 0, [NOW] * 3)
    address = -(2**40)
    broker.store.tags_codes = {0: address}
    subscription = SubscriptionData.build("T", "a > 1", sub_version=1, expression_type="SQL92")
    broker.consumers.register("g", Client(Wire(), "c1", "JAVA", 373, NOW), subscriptions=[subscription])
    broker.filters.register("g", [subscription])
    data = broker.filters.get("T", "g")
    assert data is not None
    hit = broker.filters.bloom.empty()
    set_bits(hit, data.bloom_positions)
    ask = {"topic": "T", "queueId": "0", "index": "0", "count": "1", "consumerGroup": "g"}
    missed = broker.filters.bloom.empty()
    for store_ms, bit_map, accepted in (
        (data.born_time + 1, hit, True),
        (data.born_time + 1, missed, False),
        (data.born_time, missed, True),  # the bits are older than the expression
        (data.born_time + 1, missed[1:], True),  # and of another filter
        (data.born_time + 1, b"", True),
    ):
        broker.store.extensions[address] = Extension(20, 65, store_ms, bytes(bit_map))
        body = fastjson.loads((await broker.ask(321, ask)).body)
        assert body["queueData"][0]["eval"] is accepted
    positions = ",".join(map(str, data.bloom_positions))
    begin = f'{{\n\t"bloomFilterData":{{\n\t\t"bitNum":112,\n\t\t"bitPos":[{positions}]\n\t}},\n\t"bornTime":'
    assert body["filterData"].startswith(begin)
    assert '\n\t"expression":"a > 1",\n\t"expressionType":"SQL92",\n\t"topic":"T"\n}' in body["filterData"]


async def test_a_half_message_is_put_back_without_its_checks() -> None:
    broker = TableBroker()
    record = Record(
        queue_id=0,
        flag=0,
        queue_offset=3,
        pos=700,
        sys_flag=0,
        born_timestamp_ms=NOW,
        born_host=Host("10.0.0.1", 1),
        store_timestamp_ms=NOW,
        store_host=Host("10.0.0.2", 2),
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=b"half",
        topic="RMQ_SYS_TRANS_HALF_TOPIC",
        properties="TRAN_MSG\x01true\x02TRANSACTION_CHECK_TIMES\x0115\x02",
    )
    broker.store.records[700] = record.encode()
    msg_id = encode_message_id(Host("10.0.0.2", 2), 700)
    assert (await broker.ask(323, {"msgId": msg_id})).code == 0
    (message,) = broker.store.put_messages
    assert (message.topic, message.body) == ("RMQ_SYS_TRANS_HALF_TOPIC", b"half")
    assert message.properties == "TRAN_MSG\x01true\x02TRANSACTION_CHECK_TIMES\x010\x02"
    broker.store.records[800] = record._replace(topic="T").encode()
    assert (await broker.ask(323, {"msgId": encode_message_id(Host("10.0.0.2", 2), 800)})).code == 1
    assert (await broker.ask(323, {"msgId": "junk"})).code == 1


async def test_every_code_of_mqadmin_that_was_recorded_has_a_processor(golden_folder: Path) -> None:
    mine = TableBroker().routes.keys()
    elsewhere = {10, 11, 12, 33, 36, 37, 310, 320, 324, 325}
    assert {
        exchange.code for exchange in exchanges(golden_folder, "admin", "mqadmin", "consume", "pull")
    } <= mine | elsewhere
