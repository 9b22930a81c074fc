"""A broker with access control: signed requests on both paths, changed accounts, and requests that manage them."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from signed_sends import SECRET, send, settings, small

from tallystick.node.access.signatures import SIGNATURE, sign
from tallystick.node.broker.broker import Broker
from tallystick.node.remoting.client import RemotingClient
from tallystick.node.remoting.codes import RequestCode as Code
from tallystick.node.remoting.command import Command, HeaderType
from tallystick.store import fastjson
from tallystick.store.setting import SettingsError

FILE = """
accounts:
- {accessKey: producer, secretKey: "12345678", topicPerms: [Orders=PUB]}
- {accessKey: administrator, secretKey: "12345678", admin: true}
"""
DENIED = "org.apache.rocketmq.acl.common.AclException: "


class World:
    """A broker with an account file, and a client."""

    def __init__(self, broker: Broker, file: Path) -> None:
        self.broker = broker
        self.file = file
        self.client = RemotingClient()
        self.address = str(broker.host)
        self.cold = 0
        routes: dict[int, Any] = broker._server.routes
        handler = routes[Code.SEND_MESSAGE_V2]

        def noting(connection: Any, command: Command) -> Any:
            self.cold += 1
            return handler(connection, command)

        routes[Code.SEND_MESSAGE_V2] = noting

    async def call(self, command: Command, user: str | None = "administrator") -> Command:
        if user is not None:
            sign(command, user, SECRET)
        return await self.client.call(self.address, command)

    async def send(
        self, user: str | None = "producer", topic: str = "Orders", header: HeaderType = HeaderType.JSON
    ) -> str:
        """Returns the remark of the refusal; empty if the message was stored."""
        answer = await self.call(send(topic, header), user)
        assert answer.code in (0, 1)
        return (answer.remark or "").removeprefix(DENIED) if answer.code else ""

    @property
    def stored(self) -> int:
        self.broker.store.admission.look_again()
        return sum(self.broker.store.queues.max_offset("Orders", queue) for queue in range(4))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    file = tmp_path / "plain_acl.yml"
    file.write_text(FILE)
    world = World(await Broker.start(settings(aclFile=str(file)), small(tmp_path / "store")), file)
    try:
        assert await world.send() == ""  # makes the topic
        yield world
    finally:
        await world.client.close()
        await world.broker.stop()


@pytest.mark.parametrize("header", HeaderType)
async def test_sends_that_were_granted_take_the_fast_path(world: World, header: HeaderType) -> None:
    for _ in range(5):
        assert await world.send(header=header) == ""
    assert world.cold <= 2, "the first one is decided in Python"
    assert world.stored == 6


@pytest.mark.parametrize("header", HeaderType)
async def test_the_fast_path_checks_each_signature(world: World, header: HeaderType) -> None:
    assert await world.send(header=header) == "" == await world.send(header=header)
    before = world.stored
    changes: list[tuple[str, str]] = [(name, "7") for name in "abcdefgjkl"] + [("i", "K\x01v\x02"), ("nsd", "x")]
    for name, value in [*changes, ("SecurityToken", "x"), (SIGNATURE, "x" * 28), (SIGNATURE, "")]:
        command = send(header=header)
        sign(command, "producer", SECRET)
        assert command.ext is not None
        command.ext[name] = value
        answer = await world.call(command, None)
        assert answer.remark == DENIED + "Check signature failed for accessKey=producer", name
    replayed = send(header=header)
    sign(replayed, "producer", SECRET)
    replayed.body = b"changed"
    assert (await world.call(replayed, None)).code == 1
    assert world.stored == before
    assert world.broker.access is not None
    assert world.broker.access.control.denied["wrong_signature"] == len(changes) + 4
    assert await world.send(header=header) == ""


@pytest.mark.parametrize("user", [None, "administrator", "unknown1"])
async def test_a_grant_is_of_one_account(world: World, user: str | None) -> None:
    assert await world.send() == "" == await world.send()
    cold, before = world.cold, world.stored
    refused = await world.send(user)
    assert world.cold == cold + 1, "another account is decided in Python"
    assert (refused == "") == (user == "administrator")
    assert world.stored == before + (user == "administrator")


async def test_an_optional_field_is_signed_on_the_fast_path(world: World) -> None:
    await world.send()
    cold = world.cold
    for extra in ({"SecurityToken": "t"}, {"bname": "b", "ns": "1", "nsd": "2", "oway": "false"}, {"l": "3", "n": "b"}):
        command = send()
        assert command.ext is not None
        command.ext |= extra
        assert (await world.call(command, "producer")).code == 0
    assert world.cold == cold


async def test_a_changed_file_revokes_grants(world: World) -> None:
    assert await world.send() == "" == await world.send()
    assert world.broker.access is not None
    world.file.write_text(FILE.replace("Orders=PUB", "Orders=SUB"))
    world.broker.access.look()
    world.broker.access.look()
    assert await world.send() == "No default permission for topic:Orders"
    world.file.write_text(FILE.replace("Orders=PUB", "Orders=")[:-9])
    for _ in range(3):
        world.broker.access.look()
    assert world.broker.access.problem != ""
    assert await world.send("administrator") == "", "the accounts stay as they were"


async def test_a_pull_is_checked_each_time(world: World) -> None:
    def pull(user_topic: str) -> Command:
        fields = {"topic": user_topic, "consumerGroup": "g", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1"}
        fields |= {"sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*"}
        return Command(Code.PULL_MESSAGE, ext=fields | {"subVersion": "0", "expressionType": "TAG"})

    for _ in range(3):
        assert (await world.call(pull("Orders"))).code == 0
        answer = await world.call(pull("Orders"), "producer")
        assert answer.code == 1 and answer.remark == DENIED + "No default permission for topic:Orders"
        assert (await world.call(pull("Orders"), None)).code == 1


async def test_the_admin_tool_manages_accounts(world: World) -> None:
    fields = {"accessKey": "consumer", "secretKey": SECRET, "topicPerms": "Orders=SUB,Other=PUB|SUB", "admin": "false"}
    assert await world.send("consumer", "Other") == "No acl config for consumer"
    assert (await world.call(Command(Code.UPDATE_AND_CREATE_ACL_CONFIG, ext=fields))).code == 0
    assert await world.send("consumer", "Other") == ""
    assert "consumer" in world.file.read_text()
    answer = await world.call(Command(Code.UPDATE_AND_CREATE_ACL_CONFIG, ext={"accessKey": "short"}))
    assert answer.code == 209
    answer = await world.call(Command(Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, ext={"globalWhiteAddrs": "10.0.0.300"}))
    assert answer.code == 211
    answer = await world.call(
        Command(Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, ext={"globalWhiteAddrs": "10.0.0.1,10.1.*"})
    )
    assert answer.code == 0
    shown = await world.call(Command(Code.GET_BROKER_CLUSTER_ACL_CONFIG))
    body = fastjson.loads(shown.body)
    assert body["globalWhiteAddrs"] == ["10.0.0.1", "10.1.*"]
    assert [row["accessKey"] for row in body["plainAccessConfigs"]] == ["producer", "administrator", "consumer"]
    assert SECRET.encode() not in shown.body
    version = await world.call(Command(Code.GET_BROKER_CLUSTER_ACL_INFO))
    assert version.ext is not None and fastjson.loads(version.ext["version"].encode())["counter"] == 2
    assert (await world.call(Command(Code.DELETE_ACL_CONFIG, ext={"accessKey": "consumer"}))).code == 0
    assert await world.send("consumer", "Other") == "No acl config for consumer"
    assert (await world.call(Command(Code.DELETE_ACL_CONFIG, ext={"accessKey": "consumer"}))).code == 210


async def test_a_white_address_needs_no_signature_until_it_is_removed(world: World) -> None:
    white = Command(Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, ext={"globalWhiteAddrs": "127.0.0.*"})
    assert (await world.call(white)).code == 0
    assert await world.send(None) == "" == await world.send(None)
    cold = world.cold
    assert await world.send(None) == "" and world.cold == cold
    other = Command(Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, ext={"globalWhiteAddrs": "10.0.0.1"})
    assert (await world.call(other, None)).code == 0
    assert await world.send(None) == "No accessKey is configured"


async def test_secrets_are_not_among_the_settings(world: World) -> None:
    answer = await world.call(Command(Code.GET_BROKER_CONFIG))
    assert answer.code == 0 and SECRET.encode() not in answer.body


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"aclFile": "missing.yml"}, "aclFile"),
        ({"aclFile": ""}, "aclFile"),
        ({"aclFile": "FILE", "aclKeyFile": "FILE"}, "aclKeyFile"),
        ({"aclFile": "FILE", "aclCredentialsFile": "FILE"}, "aclCredentialsFile"),
    ],
)
async def test_a_start_needs_files_that_can_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], key: str
) -> None:
    monkeypatch.delenv("ROCKETMQ_HOME", raising=False)
    file = tmp_path / "plain_acl.yml"
    file.write_text(FILE)
    given = {name: str(file) if value == "FILE" else value for name, value in changes.items()}
    with pytest.raises(SettingsError) as caught:
        await Broker.start(settings(**given), small(tmp_path / "store"))
    assert caught.value.key == key


async def test_without_access_control_a_signature_is_ignored(tmp_path: Path) -> None:
    world = World(await Broker.start(settings(aclEnable=False), small(tmp_path / "store")), tmp_path)
    try:
        assert await world.send("unknown1") == ""
        cold = world.cold
        assert await world.send("unknown1") == "" and world.cold == cold
        assert (await world.call(Command(Code.GET_BROKER_CLUSTER_ACL_INFO))).code == 3
    finally:
        await world.client.close()
        await world.broker.stop()
