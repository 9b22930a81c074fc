"""The reads of the admin core, with two real brokers of this process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from admin_steps import PATIENCE_S, consume, create_topic, register, send
from two_brokers import TwoBrokers

from tallystick.admin import Admin
from tallystick.admin.consumption import ages_of_lag
from tallystick.admin.models import Disagreement, GroupState, MessageSummary, Role, TopicKind, json_of
from tallystick.admin.servers import Place
from tallystick.client import Client, ConfigurationError, ConnectionFailed, NotFound, Tags
from tallystick.client.core.queue import Queue
from tallystick.client.testing import Broker
from tallystick.client.wire import fastjson
from tallystick.client.wire.codec import decode
from tallystick.client.wire.codes import RequestCode
from tallystick.client.wire.frames import FrameSplitter


async def test_clusters_have_their_brokers(cluster: TwoBrokers, admin: Admin) -> None:
    (found,) = await admin.clusters.list()
    assert found.name == "DefaultCluster"
    assert [(each.name, each.address, each.role) for each in found.brokers] == [
        ("broker-a", cluster.a.address, Role.MASTER),
        ("broker-b", cluster.b.address, Role.MASTER),
    ]
    for broker in found.brokers:
        assert broker.reachable and broker.is_tallystick and broker.problem is None
        assert broker.disk.total_bytes is not None and broker.disk.used_ratio is not None
        assert broker == await admin.brokers.get(broker.address) or broker.runtime
    with pytest.raises(NotFound, match="no broker has the address"):
        await admin.brokers.get("127.0.0.1:1")


async def test_topics_have_their_queues_on_both_brokers(cluster: TwoBrokers, admin: Admin) -> None:
    await create_topic(admin.client, cluster.addresses, "Orders", 2)
    await send(admin.client, "Orders", 8)
    (topic,) = (await admin.topics.list()).items
    assert (topic.name, topic.kind, topic.messages, topic.agree) == ("Orders", TopicKind.NORMAL, 8, True)
    assert sorted(topic.configs) == ["broker-a", "broker-b"] and topic.configs["broker-a"].write_queues == 2
    assert topic.rates.in_per_s > 0
    detail = await admin.topics.get("Orders")
    assert [(each.broker, each.queue, each.min) for each in detail.queues] == [
        ("broker-a", 0, 0),
        ("broker-a", 1, 0),
        ("broker-b", 0, 0),
        ("broker-b", 1, 0),
    ]
    assert sum(each.max for each in detail.queues) == 8 and detail.problems == []
    with pytest.raises(NotFound, match="no broker has the topic Missing"):
        await admin.topics.get("Missing")


async def test_topics_that_brokers_made_are_shown_if_asked_for(admin: Admin) -> None:
    assert (await admin.topics.list()).items == []
    kinds = {each.name: each.kind for each in (await admin.topics.list(system=True)).items}
    assert kinds["TBW102"] is kinds["broker-a"] is kinds["DefaultCluster"] is TopicKind.SYSTEM


async def test_brokers_that_disagree_about_a_topic_are_shown(cluster: TwoBrokers, admin: Admin) -> None:
    await create_topic(admin.client, [cluster.a.address], "Orders", 2)
    await create_topic(admin.client, [cluster.b.address], "Orders", 4)
    before = (await admin.topics.get("Orders")).topic
    assert not before.agree and before.configs["broker-b"].read_queues == 4
    await create_topic(admin.client, [cluster.b.address], "Orders", 2)
    after = (await admin.topics.get("Orders")).topic
    assert after.agree and after.etag != before.etag


async def test_lists_come_in_parts(cluster: TwoBrokers, admin: Admin) -> None:
    for name in ("Beta", "alpha", "Gamma", "Delta"):
        await create_topic(admin.client, [cluster.a.address], name, 1)
    first = await admin.topics.list(limit=3)
    assert [each.name for each in first.items] == ["Beta", "Delta", "Gamma"] and first.cursor is not None
    second = await admin.topics.list(limit=3, cursor=first.cursor)
    assert [each.name for each in second.items] == ["alpha"] and second.cursor is None
    assert [each.name for each in (await admin.topics.list(search="AL")).items] == ["alpha"]
    for cursor in ("?", "abc", "WzFd"):
        with pytest.raises(ConfigurationError, match="cursor"):
            await admin.topics.list(cursor=cursor)
    with pytest.raises(ConfigurationError, match="limit"):
        await admin.topics.list(limit=0)


async def test_a_group_has_its_lag_and_members(cluster: TwoBrokers, admin: Admin) -> None:
    await create_topic(admin.client, cluster.addresses, "Orders", 1)
    await send(admin.client, "Orders", 4)
    async with Client(cluster.nameserver) as client:
        await consume(client, "shop", "Orders", 4)
        await send(client, "Orders", 6)
    (group,) = (await admin.groups.list()).items
    assert (group.name, group.state, group.members, group.topics) == ("shop", GroupState.OFFLINE, 0, ["Orders"])
    assert group.lag == 6 and group.lag_s is not None and group.lag_s > 0
    detail = await admin.groups.get("shop")
    rows = [(each.broker, each.broker_offset, each.consumer_offset, each.lag) for each in detail.queues]
    assert rows == [
        *(("broker-a", 0, 0, 0), ("broker-b", 0, 0, 0)),  # the topic of retries
        *(("broker-a", 5, 2, 3), ("broker-b", 5, 2, 3)),
    ]
    assert all(each.lag_s is not None and each.lag_s > 0 for each in detail.queues if each.lag)
    with pytest.raises(NotFound, match="no broker has the group nothing"):
        await admin.groups.get("nothing")


async def test_members_whose_subscriptions_disagree_are_found(cluster: TwoBrokers, admin: Admin) -> None:
    await create_topic(admin.client, cluster.addresses, "Orders", 1)
    async with Client(cluster.nameserver, client_id="one") as one, Client(cluster.nameserver, client_id="two") as two:
        first = one.consumer("shop", "Orders", where=Tags("a", "b"))
        second = two.consumer("shop", "Orders", where=Tags("c"))
        async with first, second:
            detail = await admin.groups.get("shop")
            async with asyncio.timeout(PATIENCE_S):  # until the members have shared the queues
                while sum(each.queues or 0 for each in detail.members) != 4:
                    await asyncio.sleep(0.05)
                    detail = await admin.groups.get("shop")
            (listed,) = (await admin.groups.list()).items
    assert detail.disagreements == [Disagreement("Orders", {"a || b": ["one"], "c": ["two"]})]
    assert detail.group.disagrees and listed.disagrees and listed.members == 2
    assert [each.connection.client_id for each in detail.members] == ["one", "two"]
    assert [each.connection.brokers for each in detail.members] == [["broker-a", "broker-b"]] * 2
    assert {each.client_id for each in detail.queues} <= {"one", "two"}
    assert detail.group.mode == "clustering" and detail.problems == []


async def test_members_that_agree_are_not_reported(cluster: TwoBrokers, admin: Admin) -> None:
    await create_topic(admin.client, cluster.addresses, "Orders", 1)
    async with Client(cluster.nameserver, client_id="one") as one, Client(cluster.nameserver, client_id="two") as two:
        first = one.consumer("shop", "Orders", where=Tags("a", "b"))
        async with first, two.consumer("shop", "Orders", where=Tags("b", "a")):
            assert (await admin.groups.get("shop")).disagreements == []
            assert not (await admin.groups.list()).items[0].disagrees


# --- messages ---


async def test_a_message_is_found_by_id_key_and_unique_key(cluster: TwoBrokers, admin: Admin) -> None:
    await create_topic(admin.client, cluster.addresses, "Orders", 1)
    sent = await send(admin.client, "Orders", 4, tag="new", keys=["order-1", "vip"], properties={"colour": "red"})
    for result in sent:
        message = await admin.messages.get(result.message_id)
        assert message.summary.unique_key == result.unique_key and message.summary.offset == result.offset
        assert message.summary.broker == result.queue.broker and message.body_crc_ok
        assert message.text in ("0", "1", "2", "3") and message.properties["colour"] == "red"
        assert message.summary.born_host.startswith("127.0.0.1:")
        (found,) = await admin.messages.by_unique_key("Orders", result.unique_key)
        assert found == message.summary
    by_key = await admin.messages.by_key("Orders", "vip")
    assert {each.unique_key for each in by_key} == {each.unique_key for each in sent}
    assert [each.stored_ms for each in by_key] == sorted((each.stored_ms for each in by_key), reverse=True)
    assert len(await admin.messages.by_key("Orders", "vip", limit=3)) == 3
    assert await admin.messages.by_key("Orders", "nothing") == []
    with pytest.raises(NotFound):
        await admin.messages.by_key("Missing", "vip")


async def test_ids_of_other_servers_open_no_connection(admin: Admin) -> None:
    """Who may ask for a message must not make the server of the console connect to any address."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        port = listening.getsockname()[1]
        with pytest.raises(NotFound, match="no broker that is registered"):
            await admin.messages.get(f"7F000001{port:08X}{0:016X}")
        with pytest.raises(BlockingIOError):
            listening.accept()
    with pytest.raises(ConfigurationError, match="message id"):
        await admin.messages.get("abc")


async def test_a_message_is_found_when_its_broker_has_another_address(tmp_path: Path) -> None:
    """Ids have the address that the store had: a broker moves, or clients reach it at another address."""
    async with Broker(tmp_path) as former, Admin(former.nameserver) as admin:
        await create_topic(admin.client, [former.address], "Orders", 1)
        first, second = await send(admin.client, "Orders", 2)
    host, _, port = former.address.partition(":")
    async with AsyncExitStack() as stack:
        with socket.create_server((host, int(port))):  # so that the broker gets another port
            moved = await stack.enter_async_context(Broker(tmp_path))
        admin = await stack.enter_async_context(Admin(moved.nameserver))
        for sent in (first, second):
            message = await admin.messages.get(sent.message_id)
            assert (message.summary.id, message.summary.unique_key) == (sent.message_id, sent.unique_key)
        elsewhere = f"0A000001{first.message_id[8:]}"  # the position is right, the address is not
        with pytest.raises(NotFound, match="or has the message itself"):
            await admin.messages.get(elsewhere)


async def test_a_position_without_a_message_is_not_found(cluster: TwoBrokers, admin: Admin) -> None:
    await create_topic(admin.client, cluster.addresses, "Orders", 1)
    (sent,) = await send(admin.client, "Orders", 1)
    with pytest.raises(NotFound, match="no message"):
        await admin.messages.get(sent.message_id[:-1] + "7")


async def pages(admin: Admin, begin_ms: int, end_ms: int, limit: int) -> list[MessageSummary]:
    page = await admin.messages.search("Orders", begin_ms, end_ms, limit=limit)
    found = page.items
    while page.cursor is not None:
        page = await admin.messages.search("Orders", begin_ms, end_ms, limit=limit, cursor=page.cursor)
        assert len(page.items) <= limit
        found += page.items
    return found


@pytest.mark.parametrize("limit", [1, 7, 100])
async def test_a_window_has_each_of_its_messages_once(cluster: TwoBrokers, admin: Admin, limit: int) -> None:
    await create_topic(admin.client, cluster.addresses, "Orders", 2)
    sent = await send(admin.client, "Orders", 40)
    everything = await pages(admin, 0, 1 << 60, limit)
    assert sorted(each.unique_key for each in everything) == sorted(each.unique_key for each in sent)
    times = [each.stored_ms for each in everything]
    assert times == sorted(times)
    for begin, end in (
        (times[0], times[0]),
        (times[5], times[20]),
        (times[-1], times[-1] + 1),
        (times[-1] + 1, 1 << 60),
    ):
        expected = [each.unique_key for each in everything if begin <= each.stored_ms <= end]
        assert [each.unique_key for each in await pages(admin, begin, end, limit)] == expected


async def test_a_window_of_a_topic_without_messages_is_empty(cluster: TwoBrokers, admin: Admin) -> None:
    await create_topic(admin.client, cluster.addresses, "Orders", 1)
    assert (await admin.messages.search("Orders", 0, 1 << 60)).items == []
    with pytest.raises(NotFound):
        await admin.messages.search("Missing", 0, 1)
    with pytest.raises(ConfigurationError, match="before its begin"):
        await admin.messages.search("Orders", 2, 1)


# --- brokers that do not answer ---


@asynccontextmanager
async def silent(cluster: TwoBrokers) -> AsyncIterator[tuple[str, list[int]]]:
    """A broker that accepts connections and answers nothing, registered as broker-c. Its address, and the codes of the
    requests that it got."""
    connections: list[asyncio.StreamWriter] = []
    codes: list[int] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        frames = FrameSplitter()
        while data := await reader.read(65536):
            codes.extend(decode(*frame).code for frame in frames.feed(data))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with Client(cluster.nameserver) as registering:
        await register(registering, "broker-c", address, "Orders")
        yield address, codes
    for writer in connections:
        writer.close()
    server.close()


async def test_a_broker_that_does_not_answer_is_a_problem(cluster: TwoBrokers) -> None:
    """It gets one request of a question, so that the answer takes the time of one request."""
    async with silent(cluster) as (address, codes), Admin(cluster.nameserver, timeout=0.5) as admin:
        for number in range(100):
            await create_topic(admin.client, [cluster.a.address], f"T{number}", 1)
        await create_topic(admin.client, cluster.addresses, "Orders", 1)
        await send(admin.client, "T1", 3)
        page = await admin.topics.list()
        assert len(page.items) == 101 and [each.subject for each in page.problems] == [address]
        assert codes == [RequestCode.GET_ALL_TOPIC_CONFIG]
        (group_page, figures, clusters) = (
            await admin.groups.list(system=True),
            await admin.clusters.figures(),
            await admin.clusters.list(),
        )
        assert group_page.items and [each.subject for each in group_page.problems] == [address]
        assert figures.topics["T1"].in_per_s > 0 and address in {each.subject for each in figures.problems}
        state = {each.name: each.reachable for each in clusters[0].brokers}
        assert state == {"broker-a": True, "broker-b": True, "broker-c": False}
        window = await admin.messages.search("Orders", 0, 1 << 60)
        assert [each.subject for each in window.problems] == [address]


async def test_a_broker_that_is_gone_is_a_problem(cluster: TwoBrokers, admin: Admin) -> None:
    await create_topic(admin.client, cluster.addresses, "Orders", 1)
    broker = cluster.b._broker
    broker.registration.leave = lambda *_: asyncio.sleep(0)  # it dies: it does not unregister
    await cluster.b.stop_broker()
    page = await admin.topics.list()
    assert [each.name for each in page.items] == ["Orders"] and list(page.items[0].configs) == ["broker-a"]
    if page.problems:
        assert [each.subject for each in page.problems] == [cluster.b.address]


async def test_without_any_broker_reads_raise(cluster: TwoBrokers) -> None:
    async with Admin("127.0.0.1:1", timeout=1.0) as admin:
        for read in (admin.clusters.list, admin.topics.list, admin.groups.list, admin.clusters.figures):
            with pytest.raises(ConnectionFailed):
                await read()


async def test_a_thousand_topics_and_groups_are_listed(cluster: TwoBrokers, admin: Admin) -> None:
    """Whole tables are read, so that the number of requests is that of the part and not of all topics."""
    rows = [
        {"topicName": f"Topic-{number:04}", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
        for number in range(1000)
    ]
    body = fastjson.dumps({"topicConfigList": rows})
    await admin.client.ask(cluster.a.address, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, body)
    groups = fastjson.dumps({"groupConfigList": [{"groupName": f"group-{number:04}"} for number in range(1000)]})
    await admin.client.ask(cluster.a.address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {}, groups)
    topics = await admin.topics.list(limit=1000)
    assert [each.name for each in topics.items] == [row["topicName"] for row in rows] and topics.cursor is None
    found = await admin.groups.list(limit=1000)
    assert len(found.items) == 1000 and found.problems == topics.problems == []


def test_models_become_json() -> None:
    assert json_of(Disagreement("T", {"a": ["one"]})) == {"topic": "T", "expressions": {"a": ["one"]}}


class Answer:
    """A question whose brokers answer with this body."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.body = body

    async def table(self, *_: object) -> dict[str, Any]:
        return self.body


async def test_the_age_of_a_lag_without_an_offset_is_that_of_the_oldest_message() -> None:
    """RocketMQ 4.8 answers with the time since 1970 for a queue in which the group has no offset."""
    now_ms = 1_795_701_600_000
    rows = [
        {"delayTime": 2500, "minTimeStamp": now_ms - 9000},
        {"delayTime": now_ms + 1, "minTimeStamp": now_ms - 9000},
        {"delayTime": now_ms + 1, "minTimeStamp": -1},
        {"delayTime": 0, "minTimeStamp": now_ms - 9000},
    ]
    queues = [{"brokerName": "b", "queueId": number, "topic": "T"} for number in range(len(rows))]
    body = {"consumeTimeSpanSet": [row | {"messageQueue": queue} for row, queue in zip(rows, queues, strict=True)]}
    place = Place("c", "b", 0, "127.0.0.1:1")
    found = await ages_of_lag(Answer(body), place, "g", "T")  # type: ignore[arg-type]
    assert found == {Queue("T", "b", 0): 2.5, Queue("T", "b", 1): 9.0}
