"""The audit: who changed what, and who was refused, as messages of a topic of the system."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from fake_broker import FakeBroker
from signed_sends import SECRET, send, settings, small

from tallystick.node.access.access_log import AUDIT_TOPIC, AccessLog
from tallystick.node.access.control import AccessControl, Accounts, DeniedError, judge
from tallystick.node.access.plain_acl import parse
from tallystick.node.access.request_table import BROKER
from tallystick.node.access.signatures import sign
from tallystick.node.broker.broker import Broker
from tallystick.node.broker.services import audit
from tallystick.node.core.settings import AuditTopic
from tallystick.node.remoting.client import RemotingClient
from tallystick.node.remoting.codes import RequestCode as Code
from tallystick.node.remoting.codes import ResponseCode
from tallystick.node.remoting.command import Command, HeaderType
from tallystick.store.formats import properties
from tallystick.store.formats.message import PutResult, PutStatus
from tallystick.store.formats.record import Record

FILE = """
accounts:
- {accessKey: producer, secretKey: "12345678", defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB}
- {accessKey: administrator, secretKey: "12345678", admin: true}
"""


class World:
    """A broker and a client."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.client = RemotingClient()

    async def call(self, command: Command, user: str | None = "administrator") -> Command:
        if user is not None:
            sign(command, user, SECRET)
        return await self.client.call(str(self.broker.host), command)

    async def lines(self, count: int) -> list[dict[str, Any]]:
        """The lines in the topic, when there are so many."""
        async with asyncio.timeout(60):
            while self.broker.audit.stored < count:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return [json.loads(record.body) for record in self.records()]

    def records(self) -> list[Record]:
        store, found = self.broker.store, []
        store.admission.look_again()
        for offset in range(store.queues.max_offset(AUDIT_TOPIC, 0)):
            found.append(Record.decode(store.reads.get_message(AUDIT_TOPIC, 0, offset, 1).body))
        return found

    async def stop(self) -> None:
        await self.client.close()
        await self.broker.stop()


Open = Callable[..., Awaitable[World]]


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Open]:
    worlds = []

    async def start(**changes: Any) -> World:
        file = tmp_path / "plain_acl.yml"
        file.write_text(FILE)
        values = {"aclFile": str(file)} | changes
        worlds.append(World(await Broker.start(settings(**values), small(tmp_path / "store"))))
        return worlds[-1]

    yield start
    for world in worlds:
        await world.stop()


def topic(name: str, code: Code = Code.UPDATE_AND_CREATE_TOPIC) -> Command:
    fields = {"topic": name, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
    return Command(code, ext=fields | {"topicFilterType": "SINGLE_TAG"})


def about(line: dict[str, Any], *names: str) -> list[Any]:
    return [line.get(name) for name in names]


async def test_changes_and_refusals_are_messages_of_the_topic(opened: Open) -> None:
    world = await opened()
    assert (await world.call(topic("Orders"))).code == 0
    assert (await world.call(topic("Orders", Code.DELETE_TOPIC_IN_BROKER), "producer")).code == 1
    assert (await world.call(topic("Orders", Code.DELETE_TOPIC_IN_BROKER))).code == 0
    assert (await world.call(topic("TBW102"))).code == 1
    lines = await world.lines(4)
    names = ("result", "user", "request", "answer", "reason", "by", "broker")
    assert [about(line, *names) for line in lines] == [
        ["allowed", "administrator", "UPDATE_AND_CREATE_TOPIC", 0, None, "signature", "b"],
        ["denied", "producer", "DELETE_TOPIC_IN_BROKER", None, "not_permitted", None, "b"],
        ["allowed", "administrator", "DELETE_TOPIC_IN_BROKER", 0, None, "signature", "b"],
        ["allowed", "administrator", "UPDATE_AND_CREATE_TOPIC", 1, None, "signature", "b"],
    ]
    assert [line["fields"]["topic"] for line in lines] == ["Orders"] * 3 + ["TBW102"]
    assert all(line["from"].startswith("127.0.0.1:") and line["time"] > 0 for line in lines)
    records = world.records()
    tables = [record.property_table() for record in records]
    assert [table[properties.TAGS] for table in tables] == ["allowed", "denied", "allowed", "allowed"]
    assert tables[1][properties.KEYS] == "producer DELETE_TOPIC_IN_BROKER"
    assert [table[properties.UNIQ_KEY] for table in tables] == [line["id"] for line in lines]


async def test_anonymous_changes_are_in_the_log_and_in_the_topic_if_it_is_on(
    opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "tallystick.access"):
        world = await opened(aclEnable=False, auditTopic=AuditTopic.on)
        assert (await world.call(topic("Orders"), None)).code == 0
        assert (await world.call(topic("Orders", Code.DELETE_TOPIC_IN_BROKER), None)).code == 0
        config = Command(Code.UPDATE_BROKER_CONFIG, body=b"fileReservedTime=71\ntraceOn=true\n")
        assert (await world.call(config, None)).code == 0
        group = Command(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName":"billing"}')
        assert (await world.call(group, None)).code == 0
        lines = await world.lines(4)
    fields = [{"topic": "Orders"}, {"topic": "Orders"}, {"settings": "fileReservedTime,traceOn"}, {"group": "billing"}]
    assert [line["fields"] for line in lines] == fields
    assert {line["by"] for line in lines} == {"no access control"}
    logged = [json.loads(each.getMessage()) for each in caplog.records if each.name == "tallystick.access"]
    assert [line["fields"] for line in logged] == fields
    assert (await world.call(send("Orders2", HeaderType.JSON), None)).code == 0
    assert world.broker.audit.stored == 4, "a send is no change"


@pytest.mark.parametrize("changes", [{"aclEnable": False}, {"auditTopic": AuditTopic.off}])
async def test_without_the_topic_nothing_is_stored(opened: Open, changes: dict[str, Any]) -> None:
    world = await opened(**changes)
    assert (await world.call(topic("Orders"))).code == 0
    assert AUDIT_TOPIC not in world.broker.topics and not world.broker.audit.waiting


async def test_clients_can_neither_write_nor_delete_the_topic(opened: Open) -> None:
    world = await opened()
    await world.call(topic("Orders"))
    await world.lines(1)
    assert (await world.call(send(AUDIT_TOPIC, HeaderType.JSON))).code == ResponseCode.NO_PERMISSION
    for code in (Code.DELETE_TOPIC_IN_BROKER, Code.UPDATE_AND_CREATE_TOPIC):
        answer = await world.call(topic(AUDIT_TOPIC, code))
        assert answer.code == 1 and "conflict with system topic" in (answer.remark or "")
    forged = Command(Code.AUDIT_LINES, body=b'{"lines":[{"result":"allowed"}]}')
    assert (await world.call(forged)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert AUDIT_TOPIC in world.broker.topics.system_names()
    assert len(await world.lines(3)) == 3


@pytest.mark.parametrize(
    ("user", "code", "allowed"),
    [
        ("producer", Code.PULL_MESSAGE, False),
        ("producer", Code.QUERY_MESSAGE, False),
        ("producer", Code.GET_MAX_OFFSET, False),
        ("producer", Code.SEND_MESSAGE, False),
        ("administrator", Code.PULL_MESSAGE, True),
    ],
)
def test_no_permission_on_topics_gives_the_lines_to_a_tenant(user: str, code: Code, allowed: bool) -> None:
    command = Command(code, ext={"topic": AUDIT_TOPIC, "consumerGroup": "g"})
    sign(command, user, SECRET)
    accounts = Accounts.of(parse(FILE.encode()))
    try:
        judge(accounts, BROKER[code], "10.0.0.7", command, lambda _: None)
    except DeniedError:
        assert not allowed
    else:
        assert allowed


async def test_lines_wait_while_the_log_takes_nothing_and_are_bounded(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "MOST_LINES", 3)
    monkeypatch.setattr(audit, "_AGAIN_S", 0.01)
    world = await opened()
    writes, full = world.broker.store.writes, PutResult(PutStatus.SERVICE_NOT_AVAILABLE, detail="the disk is full")
    put, refused = writes.put, 0

    async def refuse(message: Any) -> PutResult:
        nonlocal refused
        refused += 1
        return full

    monkeypatch.setattr(writes, "put", refuse)
    for number in range(5):
        assert (await world.call(topic(f"T{number}"))).code == 0, "no request waits for its line"
    assert (world.broker.audit.waiting, world.broker.audit.dropped) == (3, 2)
    while not refused:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    monkeypatch.setattr(writes, "put", put)
    lines = await world.lines(3)
    assert [line["fields"]["topic"] for line in lines] == ["T0", "T1", "T2"]
    assert world.broker.audit.waiting == 0


async def test_changes_above_the_rate_of_the_log_are_in_the_topic(opened: Open) -> None:
    world = await opened()
    for number in range(40):
        assert (await world.call(topic(f"T{number}"))).code == 0
    assert [line["fields"]["topic"] for line in await world.lines(40)] == [f"T{number}" for number in range(40)]


async def test_a_stop_stores_what_waits(tmp_path: Path) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(FILE)
    world = World(await Broker.start(settings(aclFile=str(file)), small(tmp_path / "store")))
    for number in range(5):
        await world.call(topic(f"T{number}"))
    await world.stop()
    assert world.broker.audit.stored == 5 and world.broker.audit.dropped == 0
    again = World(await Broker.start(settings(aclFile=str(file)), small(tmp_path / "store")))
    try:
        assert len(again.records()) == 5
    finally:
        await again.stop()


async def test_secrets_and_signatures_are_in_no_line(opened: Open) -> None:
    world = await opened()
    key = {"accessKey": "another1", "secretKey": "very-secret", "topicPerms": "A=PUB"}
    assert (await world.call(Command(Code.UPDATE_AND_CREATE_ACL_CONFIG, ext=key))).code == 0
    user = Command(Code.AUTH_CREATE_USER, ext={"username": "alice01"}, body=b'{"password":"very-secret"}')
    assert (await world.call(user)).code == 0
    user = Command(Code.AUTH_CREATE_USER, ext={"username": "alice01"}, body=b'{"password":"very-secret"}')
    assert (await world.call(user, "producer")).code == 1
    lines = await world.lines(3)
    text = json.dumps(lines)
    assert "very-secret" not in text and "Signature" not in text
    assert [about(line["fields"], "accessKey", "username") for line in lines] == [
        ["another1", None], [None, "alice01"], [None, "alice01"],
    ]  # fmt: skip


async def test_names_of_strangers_are_not_keys_of_a_message(opened: Open) -> None:
    world = await opened()
    command = topic("Orders")
    sign(command, "a b\x01TAGS\x02c", SECRET)
    assert (await world.call(command, None)).code == 1
    (line,) = await world.lines(1)
    assert line["user"] == "a b\x01TAGS\x02c" and line["result"] == "denied"
    (record,) = world.records()
    assert record.property_table()[properties.KEYS] == "UPDATE_AND_CREATE_TOPIC"


async def test_a_request_that_fails_is_recorded_with_its_code() -> None:
    lines: list[dict[str, Any]] = []
    log = AccessLog()
    log.on_line = lines.append
    control = AccessControl(BROKER, log)
    control.accounts = Accounts.of(parse(FILE.encode()))

    class Link:
        id, certificate_names = "10.0.0.7:5", ()
        remote = type("Host", (), {"ip": "10.0.0.7"})

    async def later(_: Any, command: Command) -> Command:
        raise OSError("the disk is full")

    def at_once(_: Any, command: Command) -> Command:
        raise ValueError("a bug")

    for handler in (later, at_once):
        routes = control.guard({Code.DELETE_TOPIC_IN_BROKER: handler})
        command = topic("Orders", Code.DELETE_TOPIC_IN_BROKER)
        sign(command, "administrator", SECRET)
        with pytest.raises((OSError, ValueError)):
            await routes[Code.DELETE_TOPIC_IN_BROKER](Link(), command)  # type: ignore[arg-type, misc]
    assert [line["answer"] for line in lines] == [1, 1]


async def test_lines_that_the_leader_refuses_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "_AGAIN_S", 0.01)
    broker, answers = FakeBroker(), [ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SERVICE_NOT_AVAILABLE]
    broker.change(auditTopic=AuditTopic.on)
    bodies = []

    async def leader(_: Any, command: Command) -> Command:
        bodies.append(json.loads(command.body)["lines"])
        return command.reply(answers.pop() if answers else ResponseCode.SUCCESS)

    trail = audit.AuditTrail(broker)  # type: ignore[arg-type]
    trail.record({"result": "allowed"})
    trail.start(leader)
    async with asyncio.timeout(60):
        while not trail.stored:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await trail.stop()
    assert len(bodies) == 3 and bodies[0] == bodies[1] == bodies[2] and trail.waiting == 0
