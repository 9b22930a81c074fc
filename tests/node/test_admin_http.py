"""Topics and groups of consumers over HTTP: what may be asked, when it is answered, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from fake_broker import FakeBroker, FakeChannel, MemoryFile
from fake_member import FakeMember

from tallystick.node.broker.group.replicated import GroupTables
from tallystick.node.broker.tables.clients import Client
from tallystick.node.http.admin_api import MAX_ITEMS, AdminView
from tallystick.node.http.server import Probes, application
from tallystick.replication.metadata.tables import ReplicatedTables
from tallystick.store._kernel import Door
from tallystick.store.formats.message import Message

Answer = tuple[int, Any]


JSON = {"Content-Type": "application/json"}


class Node:
    """A broker with fakes below, and its HTTP port. `broker` None: it has not started."""

    def __init__(self) -> None:
        self.fake = FakeBroker()
        self.broker: FakeBroker | None = self.fake
        self.member = FakeMember()
        view = AdminView(lambda: self.broker, lambda: "starting: the store is being recovered", dict)  # type: ignore[arg-type,return-value]
        self.client = TestClient(
            TestServer(application(Probes(lambda: None, lambda: None, lambda form: iter(())), admin=view))
        )

    async def ask(self, method: str, path: str, body: Any = None) -> Answer:
        async with self.client.request(method, path, json=body) as answer:
            return answer.status, await answer.json()

    def join(self, folder: Path) -> GroupTables:
        """The broker becomes a member of a group: its tables are kept in a log."""
        tables = [(table, MemoryFile()) for table in (self.fake.topics, self.fake.groups, self.fake.offsets)]
        group = GroupTables(self.member, ReplicatedTables(), tables, door=Door(), folder=folder)
        self.fake.group = SimpleNamespace(  # type: ignore[assignment]
            member=self.member,
            number=0,
            refusal=lambda: None if group.leads else "this member follows, n1 leads",
        )
        return group

    def lead(self, folder: Path) -> None:
        group = self.join(folder)
        self.member.on_apply.append(group.on_apply)
        self.member.on_ready.append(lambda term: group.on_ready())
        self.member.lead(1)
        self.member.commit()

    async def asked_for(self, count: int) -> None:
        """Returns when so many wait for their entries to be committed."""
        async with asyncio.timeout(10):
            while len(self.member._waiters) < count:  # noqa: ASYNC110  # nothing tells of it
                await asyncio.sleep(0.001)


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    node = Node()
    async with node.client:
        yield node


def _saved(node: Node) -> dict[str, Any]:
    """What the file of topics has."""
    file: Any = node.fake.topics._file
    saved: dict[str, Any] = file.value
    return saved


async def test_a_topic_is_made_changed_shown_and_deleted(node: Node) -> None:
    status, made = await node.ask("PUT", "/topics/orders", {"readQueues": 4, "writeQueues": 4})
    whole = {"name": "orders", "readQueues": 4, "writeQueues": 4, "perm": 6, "order": False}
    whole |= {"retentionHours": 0, "system": False}
    assert (status, made) == (201, whole | {"result": "created"})
    assert _saved(node)["topicConfigTable"]["orders"]["perm"] == 6, "answered when it is in the file"
    assert node.fake.registrations == 1, "name servers are told"
    status, changed = await node.ask("PUT", "/topics/orders", {"perm": 4, "order": True})
    assert (status, changed) == (200, whole | {"perm": 4, "order": True, "result": "updated"})
    version = node.fake.topics.data_version
    assert (await node.ask("PUT", "/topics/orders", {"perm": 4}))[1]["result"] == "unchanged"
    assert node.fake.topics.data_version == version
    for body in (b"a", b"b", b"c"):
        await node.fake.store.writes.put(Message("orders", 1, body))
    status, shown = await node.ask("GET", "/topics/orders")
    assert (status, shown["messages"]) == (200, 3)
    assert shown["queues"][1] == {"queue": 1, "min": 0, "max": 3}
    assert len(shown["queues"]) == 4
    listed = (await node.ask("GET", "/topics"))[1]
    assert [topic for topic in listed["topics"] if not topic["system"]] == [whole | {"perm": 4, "order": True}]
    assert listed["version"] == version.to_json()
    status, refusal = await node.ask("DELETE", "/topics/orders?ifEmpty=true")
    assert (status, refusal["messages"], refusal["leader"]) == (412, 3, None)
    assert await node.ask("DELETE", "/topics/orders") == (200, {"name": "orders", "existed": True})
    assert await node.ask("DELETE", "/topics/orders") == (200, {"name": "orders", "existed": False})
    assert (await node.ask("GET", "/topics/orders"))[0] == 404
    assert "orders" not in _saved(node)["topicConfigTable"]


async def test_names_with_signs_are_written_as_in_any_address(node: Node) -> None:
    assert (await node.ask("PUT", "/topics/%25RETRY%25readers", {}))[1]["name"] == "%RETRY%readers"
    assert "%RETRY%readers" in node.fake.topics


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/topics/a.b", {}, "illegal characters"),
        ("/topics/" + "t" * 128, {}, "max length 127"),
        ("/topics/T", {"readQueues": 0}, "at least one queue"),
        ("/topics/T", {"writeQueues": 65536}, "0 to 65535"),
        ("/topics/T", {"perm": 8}, "perm must be a sum"),
        ("/topics/T", {"perm": -1}, "perm must be a sum"),
        ("/topics/T", {"perm": True}, "perm is a number"),
        ("/topics/T", {"order": 1}, "order is true or false"),
        ("/topics/T", {"queues": 4}, "no field 'queues'"),
        ("/topics/T", {"name": "U"}, "differs from the name in the path"),
        ("/topics/T", [], "not a JSON object"),
        ("/topics/TBW102", {}, "topic of the system"),
        ("/topics/rmq_sys_x", {}, "topic of the system"),
        ("/topics/broker-a", {"perm": 6}, "topic of the system"),
        ("/consumergroups/a.b", {}, "illegal characters"),
        ("/consumergroups/g", {"retryQueueNums": 65536}, "0 to 65535"),
        ("/consumergroups/g", {"brokerId": -1}, "a number from 0"),
        ("/consumergroups/g", {"consumeEnable": "no"}, "true or false"),
        ("/consumergroups/TOOLS_CONSUMER", {}, "group of the system"),
    ],
)
async def test_invalid_requests_are_refused_and_change_nothing(node: Node, path: str, body: Any, words: str) -> None:
    before = node.fake.topics.data_version, node.fake.groups.data_version
    status, answer = await node.ask("PUT", path, body)
    assert status == 400
    assert words in answer["error"]
    assert (node.fake.topics.data_version, node.fake.groups.data_version) == before


@pytest.mark.parametrize("path", ["/topics/SELF_TEST_TOPIC", "/consumergroups/CID_RMQ_SYS_TRANS"])
async def test_system_topics_are_not_deleted(node: Node, path: str) -> None:
    assert (await node.ask("DELETE", path))[0] == 400


async def test_failures_of_the_port_itself_are_json_too(node: Node) -> None:
    assert (await node.ask("GET", "/nothing"))[0] == 404
    assert (await node.ask("PATCH", "/topics/T"))[0] == 405
    async with node.client.put("/topics/T", data=b"{", headers=JSON) as answer:
        assert answer.status == 400
        assert "not JSON" in (await answer.json())["error"]
    async with node.client.post("/topics", data=b" " * (5 << 20), headers=JSON) as answer:
        assert answer.status == 413
        assert "error" in await answer.json()


async def test_there_is_no_broker_yet(node: Node) -> None:
    node.broker = None
    assert await node.ask("GET", "/topics") == (
        503,
        {"error": "starting: the store is being recovered", "leader": None},
    )


async def test_each_of_many_is_done_or_refused_separately(node: Node) -> None:
    await node.ask("PUT", "/topics/known", {"perm": 6})
    items = [
        {"name": "new", "writeQueues": 2},
        {"name": "known", "perm": 4},
        {"name": "known", "perm": 2},
        {"name": "new/er"},
        {"name": "TBW102"},
        {"perm": 6},
        "T",
        {"name": "newer", "queues": 1},
    ]
    status, answer = await node.ask("POST", "/topics", items)
    assert status == 200
    results = [(item["name"], item["result"]) for item in answer["results"]]
    assert results[:3] == [("new", "created"), ("known", "updated"), ("known", "refused")]
    assert {result for _, result in results[3:]} == {"refused"}
    assert all(item["error"] for item in answer["results"][2:])
    known = node.fake.topics.get("known")
    assert known is not None and known.perm == 4
    again = (await node.ask("POST", "/topics", items[:2]))[1]["results"]
    assert [item["result"] for item in again] == ["unchanged", "unchanged"]


async def test_so_many_at_a_time_and_no_more(node: Node) -> None:
    items = [{"name": f"T{number}"} for number in range(MAX_ITEMS + 1)]
    assert (await node.ask("POST", "/topics", items))[0] == 400
    assert (await node.ask("POST", "/topics", []))[0] == 400
    assert "T0" not in node.fake.topics
    assert (await node.ask("POST", "/topics", items[:-1]))[0] == 200
    assert f"T{MAX_ITEMS - 1}" in node.fake.topics


async def test_a_leader_answers_when_the_group_has_committed_it(node: Node, tmp_path: Path) -> None:
    node.lead(tmp_path)
    entries = len(node.member.log)
    items = [{"name": f"T{number}"} for number in range(MAX_ITEMS)]
    asked = asyncio.create_task(node.ask("POST", "/topics", items))
    await node.asked_for(1)
    assert len(node.member.log) == entries + 1, "a thousand topics are one entry"
    assert not asked.done()
    again = asyncio.create_task(node.ask("PUT", "/topics/T7", {}))
    many = asyncio.create_task(node.ask("POST", "/topics", items[:2]))
    await node.asked_for(3)
    assert not again.done() and not many.done(), "what was not to be changed is committed too when it is answered"
    node.member.commit()
    assert (await asked)[0] == 200
    assert (await again)[1]["result"] == "unchanged"
    assert [item["result"] for item in (await many)[1]["results"]] == ["unchanged"] * 2


async def test_leadership_is_lost_on_the_way(node: Node, tmp_path: Path) -> None:
    node.lead(tmp_path)
    asked = asyncio.create_task(node.ask("PUT", "/topics/T", {}))
    await node.asked_for(1)
    node.member.follow(2, 1)
    status, answer = await asked
    assert (status, answer["leader"]) == (503, 1)
    assert "the outcome is unknown" in answer["error"]


async def test_a_follower_shows_what_it_knows_and_says_who_leads(node: Node, tmp_path: Path) -> None:
    node.join(tmp_path)
    node.member.leader = 1
    assert (await node.ask("GET", "/topics"))[0] == 200
    asked: list[tuple[str, str, Any]] = [("PUT", "/topics/T", {}), ("POST", "/topics", [{"name": "T"}])]
    for method, path, body in [*asked, ("DELETE", "/topics/T", None)]:
        assert await node.ask(method, path, body) == (409, {"error": "this member follows, n1 leads", "leader": 1})
    assert "T" not in node.fake.topics


async def test_a_full_disk_is_reported_and_a_retry_succeeds_later(node: Node) -> None:
    file = node.fake.topics._file
    assert isinstance(file, MemoryFile)
    file.broken = True
    status, answer = await node.ask("PUT", "/topics/T", {})
    assert (status, "not on disk" in answer["error"]) == (503, True)
    file.broken = False
    assert (await node.ask("PUT", "/topics/T", {}))[0] == 200
    assert "T" in file.value["topicConfigTable"]


async def test_groups_of_consumers(node: Node) -> None:
    wanted = {"retryMaxTimes": -1, "consumeBroadcastEnable": False}
    status, made = await node.ask("PUT", "/consumergroups/readers", wanted)
    assert (status, made["result"]) == (201, "created")
    fields = {
        "name": "readers",
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "consumeBroadcastEnable": False,
        "retryQueueNums": 1,
        "retryMaxTimes": -1,
        "brokerId": 0,
        "whichBrokerWhenConsumeSlowly": 1,
        "notifyConsumerIdsChangedEnable": True,
        "system": False,
    }
    listed = (await node.ask("GET", "/consumergroups"))[1]
    assert [group for group in listed["consumergroups"] if not group["system"]] == [fields]
    for _ in range(5):
        await node.fake.store.writes.put(Message("orders", 0, b"x"))
    node.fake.offsets.commit("readers", "orders", 0, 2)
    channel = FakeChannel()
    node.fake.consumers.register("readers", Client(channel, "c@1", "JAVA", 373, node.fake.clock.now_ms))
    shown = (await node.ask("GET", "/consumergroups/readers"))[1]
    figures = {"clients": 1, "lag": 3, "topics": [{"topic": "orders", "lag": 3}]}
    assert shown == fields | figures
    assert (await node.ask("DELETE", "/consumergroups/readers?ifEmpty=true"))[0] == 412
    node.fake.consumers.close(channel)
    assert (await node.ask("DELETE", "/consumergroups/readers?ifEmpty=yes"))[0] == 400
    assert (await node.ask("DELETE", "/consumergroups/readers?ifEmpty=true"))[1]["existed"] is True
    assert node.fake.offsets.queues("readers", "orders") == {0: 2}, "they stay unless that is asked for"
    assert (await node.ask("DELETE", "/consumergroups/readers?offsets=true"))[1]["existed"] is False
    assert node.fake.offsets.queues("readers", "orders") == {}
