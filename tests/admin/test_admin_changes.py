"""The changes of the admin core, with two real brokers of this process. Each has a dry run, which changes nothing."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from admin_steps import PATIENCE_S, bury, consume, create_topic, register, send
from two_brokers import TwoBrokers

from tallystick.admin import Admin, ChangedError, OffsetTarget
from tallystick.admin.config import HIDDEN, is_secret
from tallystick.admin.models import Change, Consumption, StepState, TopicConfig, TopicKind
from tallystick.client import Client, ConfigurationError, ConnectionFailed, NotFound, Start, Stored, Tags
from tallystick.client.core.message import decode_stored
from tallystick.client.wire.codes import RequestCode
from tallystick.client.wire.command import Command
from tallystick.node.core.settings import AuditTopic

PLANNED, DONE, UNCHANGED, FAILED = StepState.PLANNED, StepState.DONE, StepState.UNCHANGED, StepState.FAILED


def states(change: Change) -> list[StepState]:
    return [step.state for step in change.steps]


# --- topics ---


async def test_a_topic_is_created_changed_and_deleted_at_both_brokers(cluster: TwoBrokers, admin: Admin) -> None:
    wanted = {"read_queues": 3, "write_queues": 3}
    planned = await admin.topics.put("Orders", wanted, dry_run=True)
    assert planned.dry_run and states(planned) == [PLANNED] * 2
    assert [(step.target, step.before) for step in planned.steps] == [(each, None) for each in cluster.addresses]
    assert (await admin.topics.list()).items == [], "a dry run changes nothing"

    assert states(await admin.topics.put("Orders", wanted)) == [DONE] * 2
    topic = (await admin.topics.get("Orders")).topic
    assert topic.configs == {"broker-a": TopicConfig(3, 3), "broker-b": TopicConfig(3, 3)}
    assert states(await admin.topics.put("Orders", wanted)) == [UNCHANGED] * 2
    changed = await admin.topics.put("Orders", {"perm": 4})
    assert states(changed) == [DONE] * 2
    assert changed.steps[0].before["perm"] == 6 and changed.steps[0].after == changed.steps[0].before | {"perm": 4}

    planned = await admin.topics.delete("Orders", dry_run=True)
    assert states(planned) == [PLANNED] * 3, "two brokers and a name server"
    assert (await admin.topics.get("Orders")).topic.configs["broker-a"].perm == 4
    assert states(await admin.topics.delete("Orders")) == [DONE] * 3
    with pytest.raises(NotFound):
        await admin.topics.delete("Orders")


async def test_a_topic_that_one_broker_lacks_is_completed_from_the_other(cluster: TwoBrokers, admin: Admin) -> None:
    await create_topic(admin.client, [cluster.b.address], "Orders", 5)
    assert states(await admin.topics.put("Orders", {})) == [DONE, UNCHANGED]
    assert (await admin.topics.get("Orders")).topic.configs["broker-a"] == TopicConfig(5, 5)


async def test_a_topic_that_was_changed_meanwhile_stays(cluster: TwoBrokers, admin: Admin) -> None:
    await admin.topics.put("Orders", {}, if_match="")
    seen = (await admin.topics.get("Orders")).topic.etag
    await admin.topics.put("Orders", {"perm": 4}, if_match=seen)
    for stale in (seen, ""):
        with pytest.raises(ChangedError) as caught:
            await admin.topics.put("Orders", {"perm": 2}, if_match=stale)
        assert caught.value.etag == (await admin.topics.get("Orders")).topic.etag
        with pytest.raises(ChangedError):
            await admin.topics.delete("Orders", if_match=stale)
    assert (await admin.topics.get("Orders")).topic.configs["broker-a"].perm == 4


async def test_attributes_are_set_and_removed(cluster: TwoBrokers, admin: Admin) -> None:
    await admin.topics.put("Orders", {"attributes": {"retention.hours": "24"}})
    topic = (await admin.topics.get("Orders")).topic
    assert topic.configs["broker-b"].attributes == {"retention.hours": "24"}
    await admin.topics.put("Orders", {"perm": 4})
    assert (await admin.topics.get("Orders")).topic.configs["broker-b"].attributes == {"retention.hours": "24"}
    await admin.topics.put("Orders", {"attributes": {"retention.hours": None}})
    assert (await admin.topics.get("Orders")).topic.configs["broker-b"].attributes == {}


async def test_an_ordered_topic_has_its_queues_at_the_name_servers(cluster: TwoBrokers, admin: Admin) -> None:
    change = await admin.topics.put("Orders", {"order": True, "write_queues": 2, "read_queues": 2})
    assert states(change) == [DONE] * 3 and change.steps[2].after == "broker-a:2;broker-b:2"
    topic = (await admin.topics.get("Orders")).topic
    assert topic.kind is TopicKind.ORDERED and topic.configs["broker-a"].order
    assert states(await admin.topics.put("Orders", {"order": False}))[-1] is DONE
    assert (await admin.topics.get("Orders")).topic.kind is TopicKind.NORMAL


@pytest.mark.parametrize(
    ("name", "changes", "text"),
    [
        ("a b", {}, "name of a topic"),
        ("a" * 128, {}, "name of a topic"),
        ("Orders", {"queues": 1}, "no field 'queues'"),
        ("Orders", {"perm": 7}, "perm"),
        ("Orders", {"read_queues": -1}, "read_queues"),
        ("Orders", {"read_queues": True}, "read_queues"),
        ("Orders", {"read_queues": 65_536}, "read_queues"),
        ("Orders", {"order": 1}, "order"),
        ("Orders", {"attributes": "a"}, "attributes"),
    ],
)
async def test_wrong_topics_are_refused(admin: Admin, name: str, changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        await admin.topics.put(name, changes)


async def test_a_step_at_a_broker_that_is_gone_fails_alone(cluster: TwoBrokers) -> None:
    async with Admin(cluster.nameserver, timeout=1.0) as admin, Client(cluster.nameserver) as client:
        await register(client, "broker-c", "127.0.0.1:1", "Other")
        change = await admin.topics.put("Orders", {})
        assert states(change) == [DONE, DONE, FAILED] and not change.ok
        assert change.steps[2].target == "127.0.0.1:1" and "refused" in (change.steps[2].error or "")


# --- groups ---


async def test_a_group_is_created_changed_and_deleted_at_both_brokers(cluster: TwoBrokers, admin: Admin) -> None:
    assert states(await admin.groups.put("shop", {"max_retries": 3}, dry_run=True)) == [PLANNED] * 2
    assert (await admin.groups.list()).items == []
    assert states(await admin.groups.put("shop", {"max_retries": 3})) == [DONE] * 2
    assert states(await admin.groups.put("shop", {"max_retries": 3})) == [UNCHANGED] * 2
    seen = (await admin.groups.list()).items[0]
    assert {each.max_retries for each in seen.configs.values()} == {3}
    await admin.groups.put("shop", {"consume_enable": False}, if_match=seen.etag)
    now = (await admin.groups.list()).items[0]
    assert not now.configs["broker-b"].consume_enable and now.configs["broker-b"].max_retries == 3
    with pytest.raises(ChangedError):
        await admin.groups.delete("shop", if_match=seen.etag)
    assert states(await admin.groups.delete("shop", dry_run=True)) == [PLANNED] * 2
    assert states(await admin.groups.delete("shop", if_match=now.etag)) == [DONE] * 2
    with pytest.raises(NotFound):
        await admin.groups.delete("shop")
    for changes, text in (({"retries": 1}, "no field"), ({"max_retries": "1"}, "max_retries")):
        with pytest.raises(ConfigurationError, match=text):
            await admin.groups.put("shop", changes)


async def test_fields_of_a_group_that_are_not_shown_stay(cluster: TwoBrokers, admin: Admin) -> None:
    row = {"groupName": "shop", "whichBrokerWhenConsumeSlowly": 7, "notifyConsumerIdsChangedEnable": False}
    for address in cluster.addresses:
        await admin.client.ask(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json.dumps(row).encode())
    await admin.groups.put("shop", {"max_retries": 2})
    answer = await admin.client.ask(cluster.a.address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    found = json.loads(answer.body)["subscriptionGroupTable"]["shop"]
    assert (found["whichBrokerWhenConsumeSlowly"], found["notifyConsumerIdsChangedEnable"]) == (7, False)


async def test_a_group_with_members_is_not_deleted(cluster: TwoBrokers, admin: Admin) -> None:
    await create_topic(admin.client, cluster.addresses, "Orders", 1)
    async with Client(cluster.nameserver) as client, client.consumer("shop", "Orders"):
        change = await admin.groups.delete("shop")
        assert states(change) == [FAILED] * 2 and "1 connected members" in (change.steps[0].error or "")
    assert states(await admin.groups.delete("shop", topics=True))[:2] == [DONE] * 2
    names = {each.name for each in (await admin.topics.list(system=True)).items}
    assert "%RETRY%shop" not in names


# --- offsets ---


async def offsets(admin: Admin, group: str, topic: str) -> dict[tuple[str, int], int | None]:
    detail = await admin.groups.get(group)
    return {(each.broker, each.queue): each.consumer_offset for each in detail.queues if each.topic == topic}


async def test_offsets_of_a_group_without_members_are_reset(cluster: TwoBrokers, admin: Admin) -> None:
    await create_topic(admin.client, cluster.addresses, "Orders", 1)
    await send(admin.client, "Orders", 10)
    async with Client(cluster.nameserver) as client:
        await consume(client, "shop", "Orders", 10)
    a, b = ("broker-a", 0), ("broker-b", 0)
    assert await offsets(admin, "shop", "Orders") == {a: 5, b: 5}
    planned = await admin.offsets.reset("shop", "Orders", OffsetTarget.earliest(), dry_run=True)
    assert [(each.before, each.after, each.state) for each in planned.steps] == [(5, 0, PLANNED)] * 2
    assert await offsets(admin, "shop", "Orders") == {a: 5, b: 5}, "a dry run changes nothing"
    for target, queues, expected in (
        (OffsetTarget.earliest(), None, {a: 0, b: 0}),
        (OffsetTarget.latest(), None, {a: 5, b: 5}),
        (OffsetTarget.shift(-2), None, {a: 3, b: 3}),
        (OffsetTarget.shift(100), [a], {a: 5, b: 3}),
        (OffsetTarget.offset(1), [b], {a: 5, b: 1}),
        (OffsetTarget.offset(99), None, {a: 5, b: 5}),
        (OffsetTarget.timestamp(0), None, {a: 0, b: 0}),
    ):
        change = await admin.offsets.reset("shop", "Orders", target, queues=queues)
        assert not change.online and all(each.state in (DONE, UNCHANGED) for each in change.steps)
        assert await offsets(admin, "shop", "Orders") == expected, target
    with pytest.raises(ConfigurationError, match="no queue"):
        await admin.offsets.reset("shop", "Orders", OffsetTarget.earliest(), queues=[("broker-a", 1)])
    with pytest.raises(NotFound):
        await admin.offsets.reset("shop", "Missing", OffsetTarget.earliest())


async def test_members_take_a_reset_and_consume_again(cluster: TwoBrokers, admin: Admin) -> None:
    await create_topic(admin.client, cluster.addresses, "Orders", 1)
    await send(admin.client, "Orders", 4)
    async with Client(cluster.nameserver) as client:
        await consume(client, "shop", "Orders", 4)  # so that each queue has an offset
        async with client.consumer("shop", "Orders", start=Start.FIRST) as consumer:
            refused = await admin.offsets.reset("shop", "Orders", OffsetTarget.shift(-1))
            assert [each.state for each in refused.steps] == [FAILED] * 2
            assert "stop them" in (refused.steps[0].error or "")
            change = await admin.offsets.reset("shop", "Orders", OffsetTarget.earliest())
            assert change.online and [(each.after, each.state) for each in change.steps] == [(0, DONE)] * 2
            found = set()
            async with asyncio.timeout(PATIENCE_S):
                async for message in consumer:
                    async with message.process(reraise=True):
                        found.add(message.body)
                    if len(found) == 4:
                        break
    assert found == {b"0", b"1", b"2", b"3"}


async def test_offsets_are_cloned_to_another_group(cluster: TwoBrokers, admin: Admin) -> None:
    await create_topic(admin.client, cluster.addresses, "Orders", 1)
    await send(admin.client, "Orders", 6)
    async with Client(cluster.nameserver) as client:
        await consume(client, "shop", "Orders", 6)
    planned = await admin.offsets.clone("shop", "audit", "Orders", dry_run=True)
    assert [(each.before, each.after, each.state) for each in planned.steps] == [(None, 3, PLANNED)] * 2
    change = await admin.offsets.clone("shop", "audit", "Orders")
    assert [each.state for each in change.steps] == [DONE] * 2
    again = await admin.offsets.clone("shop", "audit", "Orders")
    assert [each.state for each in again.steps] == [UNCHANGED] * 2
    with pytest.raises(ConfigurationError, match="no offsets"):
        await admin.offsets.clone("nothing", "audit", "Orders")
    async with Client(cluster.nameserver) as client, client.consumer("busy", "Orders"):
        refused = await admin.offsets.clone("shop", "busy", "Orders")
        assert [each.state for each in refused.steps] == [FAILED] * 2


# --- messages ---


async def test_dead_letters_are_listed_and_sent_again(cluster: TwoBrokers, admin: Admin) -> None:
    await create_topic(admin.client, cluster.addresses, "Orders", 1)
    sent = await send(admin.client, "Orders", 5, tag="new", keys=["k"], properties={"colour": "red"})
    async with Client(cluster.nameserver) as client:
        await bury(client, "shop", "Orders", 5)
    ((group, count),) = await admin.dead_letters.groups()
    assert (group, count) == ("shop", 5)
    (listed,) = [each for each in (await admin.groups.list()).items if each.name == "shop"]
    assert listed.dead_letters == 5
    first = await admin.dead_letters.list("shop", limit=3)
    rest = await admin.dead_letters.list("shop", cursor=first.cursor)
    letters = first.items + rest.items
    assert len(first.items) == 3 and rest.cursor is None
    assert sorted(each.unique_key for each in letters) == sorted(each.unique_key for each in sent)

    planned = await admin.dead_letters.resend("shop", None, dry_run=True)
    assert [each.state for each in planned] == [PLANNED] * 5
    one = await admin.dead_letters.resend("shop", [letters[0].id, sent[0].message_id, "nonsense"])
    assert [each.state for each in one] == [DONE, FAILED, FAILED]
    assert "not a dead letter" in (one[1].error or "") and one[0].new_message_id
    again = await admin.dead_letters.resend("shop", None)
    assert [each.state for each in again] == [DONE] * 5
    async with Client(cluster.nameserver) as client, client.consumer("shop", "Orders") as consumer:
        found = []
        async with asyncio.timeout(PATIENCE_S):
            async for message in consumer:
                async with message.process(reraise=True):
                    found.append((message.body, message.topic, message.tag, message.properties["colour"]))
                if len(found) == 6:
                    break
    assert sorted(set(found)) == [(b"%d" % number, "Orders", "new", "red") for number in range(5)]
    with pytest.raises(NotFound):
        await admin.dead_letters.list("nothing")


async def test_tracks_say_which_group_consumed_a_message(cluster: TwoBrokers, admin: Admin) -> None:
    await create_topic(admin.client, cluster.addresses, "Orders", 1)
    (first,) = await send(admin.client, "Orders", 1, tag="a", queue=0)
    async with Client(cluster.nameserver) as client:
        await consume(client, "done", "Orders", 1)
        second, *_ = await send(client, "Orders", 1, tag="a", queue=0)
        async with client.consumer("filters", "Orders", where=Tags("b"), start=Start.FIRST) as consumer:
            await admin.offsets.reset("filters", "Orders", OffsetTarget.latest())
            del consumer
            message = await admin.messages.get(first.message_id)
            tracks = {each.group: each for each in await admin.messages.tracks(message)}
    assert tracks["done"].state is Consumption.CONSUMED and "offset is 1" in tracks["done"].reason
    assert tracks["filters"].state in (Consumption.FILTERED, Consumption.NOT_CONSUMED)
    later = await admin.messages.get(second.message_id)
    states_of_later = {each.group: each.state for each in await admin.messages.tracks(later)}
    assert states_of_later["done"] is Consumption.OFFLINE


class Member:
    """A consumer that consumes the messages that an administrator sends to it."""

    def __init__(self, result: str) -> None:
        self.result = result
        self.bodies: list[bytes] = []

    def heartbeat(self) -> dict[str, Any]:
        data = {"topic": "Orders", "subString": "*", "expressionType": "TAG", "subVersion": 1}
        return {
            "groupName": "shop",
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "subscriptionDataSet": [data],
        }

    def members_changed(self) -> None:
        pass

    def asked(self, request: Command) -> Command:
        (message,) = decode_stored(request.body, "broker", Stored)
        self.bodies.append(message.body)
        answer = {"consumeResult": self.result, "remark": "a reason", "order": False, "autoCommit": True}
        return request.reply(body=json.dumps(answer).encode())


async def test_a_message_is_delivered_to_one_member_again(cluster: TwoBrokers, admin: Admin) -> None:
    await create_topic(admin.client, cluster.addresses, "Orders", 1)
    (sent,) = await send(admin.client, "Orders", 1)
    message = await admin.messages.get(sent.message_id)
    async with Client(cluster.nameserver, client_id="one") as client:
        await client.route("Orders")
        member = Member("CR_SUCCESS")
        await client._session.add_member("shop", member)
        assert (await admin.messages.resend(message, "shop", "one", dry_run=True)).state is PLANNED
        assert member.bodies == []
        resent = await admin.messages.resend(message, "shop", "one")
        assert (resent.state, resent.target, resent.error, member.bodies) == (DONE, "one", None, [b"0"])
        member.result = "CR_LATER"
        failed = await admin.messages.resend(message, "shop", "one")
        assert (failed.state, failed.error) == (FAILED, "CR_LATER a reason")
        other = await admin.messages.resend(message, "shop", "two")
        assert other.state is FAILED and "not a member" in (other.error or "")
    copied = await admin.messages.resend(message, "shop")
    assert (copied.state, copied.target) == (DONE, "%RETRY%shop")
    async with Client(cluster.nameserver) as client, client.consumer("shop", "Orders") as consumer:
        async with asyncio.timeout(PATIENCE_S):
            async for copy in consumer:
                async with copy.process(reraise=True):
                    if copy.stored_in == "%RETRY%shop":
                        break
    assert (copy.topic, copy.unique_key, copy.body) == ("Orders", sent.unique_key, b"0")


async def test_the_trace_of_a_message_has_what_clients_recorded(cluster: TwoBrokers, admin: Admin) -> None:
    await create_topic(admin.client, cluster.addresses, "Orders", 1)
    (sent,) = await send(admin.client, "Orders", 1)
    key = sent.unique_key
    lines = [
        ["Pub", "1000", "R", "writers", "Orders", key, "", "", "h:1", "1", "7", "0", "ID", "true", "10.0.0.1"],
        ["SubBefore", "2000", "R", "shop", "req", key, "0", "", "10.0.0.2"],
        ["SubAfter", "req", key, "30", "false", "", "0"],
        ["SubBefore", "1", "R", "shop", "other", "ANOTHER", "0", "", "10.0.0.2"],
        ["Pub", "broken"],
    ]
    body = "".join("\x01".join(line) + "\x02" for line in lines).encode()
    async with admin.client.producer("traces") as producer:
        await producer.send("RMQ_SYS_TRACE_TOPIC", body, keys=[key])
    steps = await admin.messages.trace(await admin.messages.get(sent.message_id))
    found = [(each.kind, each.at_ms, each.duration_ms, each.client, each.group, each.success) for each in steps]
    assert found[:3] == [
        ("sent", 1000, 7, "10.0.0.1", "writers", True),
        ("delivered", 2000, None, "10.0.0.2", "shop", None),
        ("failed", 2030, 30, "10.0.0.2", "shop", False),
    ]
    assert [each[0] for each in found[3:]] == ["stored"]


# --- brokers and settings ---


async def test_settings_are_compared_and_changed(cluster: TwoBrokers, admin: Admin) -> None:
    settings = {each.name: each for each in await admin.config.settings("DefaultCluster")}
    assert settings["maxMessageSize"].agree and not settings["maxMessageSize"].per_broker
    assert settings["brokerName"].per_broker and not settings["brokerName"].agree
    changes = {"maxMessageSize": "100000"}
    planned = await admin.config.set(cluster.a.address, changes, dry_run=True)
    assert states(planned) == [PLANNED] and planned.steps[0].after == changes
    assert states(await admin.config.set(cluster.a.address, changes)) == [DONE]
    changed = {each.name: each for each in await admin.config.settings()}["maxMessageSize"]
    assert not changed.agree and changed.values[cluster.a.address] == "100000"
    assert states(await admin.config.set("DefaultCluster", changes)) == [UNCHANGED, DONE]
    wrong = await admin.config.set("DefaultCluster", {"maxMessageSize": "many"})
    assert states(wrong) == [FAILED] * 2
    for target, given, text in (
        ("nothing", changes, "no broker or cluster nothing"),
        (cluster.a.address, {}, "no setting"),
        (cluster.a.address, {"a": "b\nc=d"}, "cannot be sent"),
        (cluster.a.address, {"a=b": "c"}, "cannot be sent"),
    ):
        with pytest.raises(ConfigurationError, match=text):
            await admin.config.set(target, given)


def test_values_of_secrets_are_recognized() -> None:
    for name in ("tlsKeyPassword", "aclSecretKey", "adminToken"):
        assert is_secret(name)
    for name in ("adminTokenFile", "aclCredentialsFile", "maxMessageSize"):
        assert not is_secret(name)
    assert HIDDEN


async def test_producers_are_kept_from_a_broker_and_let_back(cluster: TwoBrokers, admin: Admin) -> None:
    await create_topic(admin.client, cluster.addresses, "Orders", 1)
    assert states(await admin.brokers.wipe_write_permission("broker-a", dry_run=True)) == [PLANNED]
    assert len((await admin.client.route("Orders")).write) == 2
    assert states(await admin.brokers.wipe_write_permission("broker-a")) == [DONE]
    assert [queue.broker for queue in (await admin.client.route("Orders")).write] == ["broker-b"]
    assert states(await admin.brokers.restore_write_permission("broker-a")) == [DONE]
    assert len((await admin.client.route("Orders")).write) == 2
    with pytest.raises(NotFound):
        await admin.brokers.wipe_write_permission("broker-z")


async def test_without_a_name_server_changes_raise() -> None:
    async with Admin("127.0.0.1:1", timeout=0.5) as admin:
        with pytest.raises(ConnectionFailed):
            await admin.topics.put("Orders", {})


async def test_brokers_without_a_group_have_no_raft_group(cluster: TwoBrokers, admin: Admin) -> None:
    assert await admin.raft.groups() == []
    change = await admin.raft.transfer("broker-a")
    assert states(change) == [FAILED] and "not in a replicated group" in (change.steps[0].error or "")
    with pytest.raises(NotFound):
        await admin.raft.remove("nothing", 1)


async def test_lines_of_the_audit_come_newest_first() -> None:
    async with TwoBrokers(auditTopic=AuditTopic.on) as cluster, Admin(cluster.nameserver, timeout=10.0) as admin:
        assert (await admin.audit.lines()).items == []
        for number in range(3):
            await admin.topics.put(f"T{number}", {})
        async with asyncio.timeout(PATIENCE_S):
            while len((await admin.audit.lines()).items) < 6:  # noqa: ASYNC110  # brokers store lines soon
                await asyncio.sleep(0.05)
        first = await admin.audit.lines(limit=4)
        second = await admin.audit.lines(limit=4, cursor=first.cursor)
        lines = first.items + second.items
        assert len(first.items) == 4 and second.cursor is None and len(lines) == 6
        for broker in ("broker-a", "broker-b"):
            assert [each.resource for each in lines if each.broker == broker] == ["T2", "T1", "T0"]
        assert {each.action for each in lines} == {"UPDATE_AND_CREATE_TOPIC"} and all(each.allowed for each in lines)
