"""Signed pulls on the fast path: the kernel checks each signature, and the accounts decide who takes it."""

import asyncio
import base64
import hmac
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from signed_sends import SECRET, send, settings, small
from wire import Wire

from tallystick.node.access.signatures import ACCESS_KEY, SIGNATURE, is_signed, sign
from tallystick.node.broker.broker import Broker
from tallystick.node.remoting import turns
from tallystick.node.remoting.codec import decode, encode
from tallystick.node.remoting.codes import RequestCode as Code
from tallystick.node.remoting.command import Command, HeaderType
from tallystick.node.remoting.connection import Connection
from tallystick.node.remoting.frames import FrameSplitter

FILE = """
accounts:
- {accessKey: consumer, secretKey: "12345678", topicPerms: [Orders=PUB|SUB], groupPerms: [g=SUB]}
- {accessKey: another1, secretKey: "12345678", topicPerms: [Orders=SUB], groupPerms: [g=SUB]}
- {accessKey: nothing, secretKey: "12345678"}
"""
COUNT = 5


class World:
    """A broker with access control and five messages, and a connection into it whose bytes a test writes."""

    def __init__(self, broker: Broker, file: Path) -> None:
        self.broker, self.file = broker, file
        self.wire = Wire()
        self.connection = Connection(broker._server)
        self.connection.connection_made(self.wire)  # type: ignore[arg-type]
        self.full = 0
        handler: Any = broker._server.routes[Code.PULL_MESSAGE]

        def counting(connection: Connection, command: Command) -> Any:
            self.full += 1
            return handler(connection, command)

        broker._server.routes[Code.PULL_MESSAGE] = counting

    async def ask(self, frame: bytes) -> Command:
        self.connection.data_received(frame)
        while not (data := self.wire.take()):  # noqa: ASYNC110 -- its turn may be a later one
            await asyncio.sleep(0)
        (answer,) = [decode(*each) for each in FrameSplitter().feed(data)]
        return answer

    def accounts(self, text: str) -> None:
        access = self.broker.access
        assert access is not None
        before = access.control.accounts
        self.file.write_text(text)
        while access.control.accounts is before:
            access.look()


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(turns, "TURN_S", 60.0)  # on a busy machine a turn is over early, and what is left is not fast
    file = tmp_path / "plain_acl.yml"
    file.write_text(FILE)
    broker = await Broker.start(settings(aclFile=str(file)), small(tmp_path / "store"))
    world = World(broker, file)
    for _ in range(COUNT):
        command = send("Orders", HeaderType.JSON)
        sign(command, "consumer", SECRET)
        result = broker._server.routes[Code.SEND_MESSAGE_V2](world.connection, command)
        answer = await result  # type: ignore[misc]
        assert answer is not None and answer.code == 0, answer
    async with asyncio.timeout(60):
        while broker.store.queues.max_offset("Orders", 0) < COUNT:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    try:
        yield world
    finally:
        await broker.stop()


def pull(offset: int = 0, user: str | None = "consumer", body: bytes = b"", **fields: str) -> bytes:
    ext = {
        "consumerGroup": "g", "topic": "Orders", "queueId": "0", "queueOffset": str(offset), "maxMsgNums": "32",
        "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
    }  # fmt: skip
    command = Command(Code.PULL_MESSAGE, opaque=7, ext=ext | fields, body=body)
    if user is not None:
        sign(command, user, SECRET)
    return encode(command)


async def test_signed_pulls_take_the_fast_path_and_get_the_same_answer(world: World) -> None:
    first = await world.ask(pull())
    assert first.code == 0 and world.full == 1
    for offset in (0, 3, 0, 1):
        answer = await world.ask(pull(offset))
        assert answer.code == 0 and answer.ext is not None and answer.ext["nextBeginOffset"] == str(COUNT)
        assert len(answer.body) == len(first.body) // COUNT * (COUNT - offset)
    assert await world.ask(pull()) == first
    assert world.full == 1


@pytest.mark.parametrize("change", ["offset", "commit", "signature", "key", "unsigned", "body"])
async def test_a_pull_with_a_wrong_signature_is_refused_by_the_normal_path(world: World, change: str) -> None:
    await world.ask(pull())
    assert (await world.ask(pull(1))).code == 0 and world.full == 1
    right = decode(*FrameSplitter().feed(pull(1))[0])
    assert right.ext is not None
    match change:
        case "offset":
            right.ext["queueOffset"] = "2"
        case "commit":
            right.ext["commitOffset"] = "2"
        case "signature":
            right.ext[SIGNATURE] = base64.b64encode(bytes(20)).decode()
        case "key":
            right.ext[ACCESS_KEY] = "another1"
        case "unsigned":
            del right.ext[SIGNATURE]
        case "body":
            right.body = b"x"
    assert (await world.ask(encode(right))).code == 1
    assert (await world.ask(pull(1))).code == 0, "the next right one is served"


async def test_accounts_that_changed_are_asked_again(world: World) -> None:
    await world.ask(pull())
    assert (await world.ask(pull())).code == 0 and world.full == 1
    world.accounts(FILE.replace("groupPerms: [g=SUB]}", "groupPerms: [g=DENY]}", 1))
    assert (await world.ask(pull())).code == 1
    world.accounts(FILE.replace('consumer, secretKey: "12345678"', 'consumer, secretKey: "87654321"'))
    assert (await world.ask(pull())).code == 1
    world.accounts(FILE)
    assert (await world.ask(pull())).code == 0


async def test_who_may_not_pull_never_takes_the_fast_path(world: World) -> None:
    for user in ("nothing", "stranger", None):
        assert [(await world.ask(pull(user=user))).code for _ in range(3)] == [1, 1, 1]
    await world.ask(pull())
    assert (await world.ask(pull(user="another1"))).code == 0


async def test_the_source_address_of_a_policy_counts(world: World) -> None:
    policy = '{resource: "*", actions: [All], decision: Allow, sourceIps: [127.0.0.1]}'
    user = f'- {{username: near, password: "12345678", policies: [{{policyType: Custom, entries: [{policy}]}}]}}'
    world.accounts(FILE + "users:\n" + user)
    world.full = 0
    for _ in range(2):
        assert (await world.ask(pull(user="near"))).code == 0
    assert world.full == 1
    far = World(world.broker, world.file)
    far.connection.remote = type(far.connection.remote)("127.0.0.9", 5555)
    assert (await far.ask(pull(user="near"))).code == 1


async def test_signed_pulls_count_for_the_quota_of_their_user(world: World) -> None:
    world.broker.change_settings({"quotaBurstSeconds": "3600"})
    quota = f"groupPerms: [g=SUB], quota: {{messagesPerSecond: {COUNT}}}}}"
    world.accounts(FILE.replace("groupPerms: [g=SUB]}", quota, 1))
    meter = world.broker.quotas.of_user("consumer")
    assert meter is not None
    meter.take(3600 * COUNT - 3 * COUNT, 0, 0)
    await world.ask(pull())
    world.full = 0
    assert (await world.ask(pull())).code == 0 and world.full == 0
    meter.take(1000 * COUNT, 0, 0)
    world.connection.data_received(pull())
    assert world.full == 1 and world.wire.take() == b"", "it waits on the normal path"


def test_a_query_by_unique_key_is_signed_with_or_without_its_mark() -> None:
    """Clients of 4.8 do not sign the field, clients of 5.x do."""
    ext = {ACCESS_KEY: "consumer", "topic": "Orders", "_UNIQUE_KEY_QUERY": "true", "key": "k"}
    for names, expected in (
        ((ACCESS_KEY, "key", "topic"), True),
        ((ACCESS_KEY, "_UNIQUE_KEY_QUERY", "key", "topic"), True),
        (("_UNIQUE_KEY_QUERY", "key", "topic"), False),
    ):
        digest = hmac.digest(SECRET.encode(), "".join(ext[name] for name in names).encode(), "sha1")
        given = ext | {SIGNATURE: base64.b64encode(digest).decode()}
        assert is_signed(SECRET, given, b"") is expected
        assert not is_signed("another-secret", given, b"")
