"""Requests of newer tools: several topics or groups at once, one topic or group, producers, subscriptions."""

from types import SimpleNamespace
from typing import Any

import pytest
from table_broker import TableBroker, Wire

from tallystick.node.broker.group.leader_only import CHANGES, HERE, LOG, QUESTIONS
from tallystick.node.broker.processors.newer_admin import NewerAdminProcessor
from tallystick.node.broker.tables.clients import Client
from tallystick.node.broker.tables.subscriptions import SubscriptionData
from tallystick.node.remoting.codes import RequestCode
from tallystick.replication.member.status import PeerProgress
from tallystick.store import fastjson


def topic(name: str, **changes: Any) -> dict[str, Any]:
    fields = {"topicName": name, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "topicFilterType": "SINGLE_TAG"}
    return fields | {"topicSysFlag": 0, "order": False, "attributes": {}} | changes


async def test_topics_are_created_together() -> None:
    made = TableBroker()
    body = {"topicConfigList": [topic("T1"), topic("T2", readQueueNums=2)]}
    assert (await made.ask(18, body=body)).code == 0
    assert made.registered == 1, "name servers are told once"
    answer = await made.ask(351, {"topic": "T2"})
    config = fastjson.loads(answer.body)
    assert (config["topicName"], config["readQueueNums"], config["writeQueueNums"]) == ("T2", 2, 4)


@pytest.mark.parametrize(
    "wrong", [topic("T 2"), topic("TBW102"), topic("T2", writeQueueNums=-1), {"perm": 6}, topic("")]
)
async def test_of_topics_with_a_wrong_one_none_is_created(wrong: dict[str, Any]) -> None:
    made = TableBroker()
    answer = await made.ask(18, body={"topicConfigList": [topic("T1"), wrong]})
    assert answer.code == 1 and answer.remark
    assert made.topics.get("T1") is None


@pytest.mark.parametrize("body", [b"", b"[]", b'{"topicConfigList": 7}', b'{"topicConfigList": [7]}'])
async def test_a_body_of_another_form_is_refused(body: bytes) -> None:
    made = TableBroker()
    for code in (18, 225):
        answer = await made.ask(code, body=body.replace(b"topic", b"topic" if code == 18 else b"group"))
        assert answer.code == 1


async def test_groups_are_created_together_or_not_at_all() -> None:
    made = TableBroker()
    body = {"groupConfigList": [{"groupName": "g1", "retryMaxTimes": 3}, {"groupName": "g2"}]}
    assert (await made.ask(225, body=body)).code == 0
    assert fastjson.loads((await made.ask(352, {"group": "g1"})).body)["retryMaxTimes"] == 3
    answer = await made.ask(225, body={"groupConfigList": [{"groupName": "g3"}, {"groupName": "g 4"}]})
    assert answer.code == 1
    assert made.groups.find("g3") is None


async def test_what_does_not_exist_has_a_code_of_its_own() -> None:
    made = TableBroker()
    for code, ext, expected in ((351, {"topic": "none"}, 17), (352, {"group": "none"}, 26)):
        answer = await made.ask(code, ext)
        assert (answer.code, "none" in str(answer.remark)) == (expected, True)


async def test_producers_of_all_groups() -> None:
    made = TableBroker()
    assert fastjson.loads((await made.ask(328)).body) == {"data": {}}
    wire: Any = Wire()
    made.producers.register("pg", Client(wire, "c1", "JAVA", 373, 7))
    assert fastjson.loads((await made.ask(328)).body) == {
        "data": {
            "pg": [
                {
                    "clientId": "c1",
                    "language": "JAVA",
                    "lastUpdateTimestamp": 7,
                    "remoteIP": str(wire.remote),
                    "version": 373,
                }
            ]
        }
    }


async def test_topics_and_subscription_of_a_group() -> None:
    made = TableBroker()
    made.offsets.commit("g", "T2", 0, 5)
    made.offsets.commit("g", "T1", 0, 5)
    assert fastjson.loads((await made.ask(343, {"group": "g"})).body) == {"topicList": ["T1", "T2"]}
    none = fastjson.loads((await made.ask(345, {"group": "g", "topic": "T1"})).body)
    assert none == {"group": "g", "topic": "T1"}
    wire: Any = Wire()
    data = SubscriptionData.build("T1", "a||b")
    made.consumers.register("g", Client(wire, "c1", "JAVA", 373, 7), subscriptions=[data])
    found = fastjson.loads((await made.ask(345, {"group": "g", "topic": "T1"})).body)
    assert found["subscriptionData"]["subString"] == "a||b"


async def test_expired_segments_are_deleted_on_request() -> None:
    made = TableBroker()
    assert (await made.ask(329)).code == 0
    assert made.store.deletions_asked == 1


async def test_the_copies_of_a_broker_alone_and_of_a_group() -> None:
    made: Any = TableBroker()
    alone = fastjson.loads((await made.ask(907)).body)
    assert (alone["master"], alone["haConnectionInfo"], alone["masterCommitLogMaxOffset"]) == (True, [], 1000)

    common: dict[str, Any] = {"voter": True, "seconds_since_heard": 0.1, "disk": None, "doubt": None}
    near = PeerProgress(
        1, address=("10.0.0.2", 7), connected=True, match_index=9, lag_bytes=0, state="pipeline", **common
    )
    far = PeerProgress(2, address=None, connected=False, match_index=1, lag_bytes=900, state="probe", **common)
    made.group = SimpleNamespace(leads=True, peers=lambda: (near, far))
    group = fastjson.loads((await made.ask(907)).body)
    assert [(row["addr"], row["slaveAckOffset"], row["diff"], row["inSync"]) for row in group["haConnectionInfo"]] == [
        ("10.0.0.2:7", 1000, 0, True),
        ("", 100, 900, False),
    ]
    assert (group["master"], group["inSyncSlaveNums"]) == (True, 1)

    unknown: dict[str, Any] = {"match_index": None, "lag_bytes": None, "state": None}
    made.group = SimpleNamespace(
        leads=False, peers=lambda: (PeerProgress(1, address=None, connected=True, **unknown, **common),)
    )
    follower = fastjson.loads((await made.ask(907)).body)
    assert (follower["master"], follower["haConnectionInfo"]) == (False, [])


def test_each_request_is_served_in_a_group() -> None:
    made: Any = TableBroker()
    assert NewerAdminProcessor(made).routes().keys() <= CHANGES | QUESTIONS | LOG | HERE
    assert RequestCode.UPDATE_AND_CREATE_TOPIC_LIST in CHANGES
