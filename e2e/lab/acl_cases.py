"""Account files and requests of access control, made from a seed.

Each `Round` is one `plain_acl.yml` with requests for it. The files use what RocketMQ 4.8 reads: every spelling of
permissions and addresses, defaults, retry topics, administrators with and without permissions of their own.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import yaml

from tallystick.node.access.signatures import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, sign
from tallystick.node.remoting.codes import RequestCode as Code
from tallystick.node.remoting.command import Command

TOPICS = ("Orders", "Bills", "topic-3", "orders")
GROUPS = ("g1", "g2", "orders-group")
SOURCES = tuple(f"127.0.0.{part}" for part in range(1, 9))
_SENTINEL_SECRET = "sentinel-secret"
_SENTINEL_SOURCE = "127.0.1.1"
"""No global white list has it: with one, the request would be allowed while the file before is still in use."""
_NO_RETRY = frozenset(
    {
        *(Code.QUERY_MESSAGE, Code.HEART_BEAT, Code.PULL_MESSAGE),
        *(Code.QUERY_CONSUMER_OFFSET, Code.UPDATE_CONSUMER_OFFSET),
    }
)
"""RocketMQ 5.5 takes a retry topic as a topic in a query, and does not check it in the other requests: a user pulls the
retries of any group with another group. Here the topic is its group in all requests."""
_PERMS = ("PUB", "SUB", "PUB|SUB", "SUB|PUB", "DENY", "ANY", "", " PUB ", "pub", "PUB | SUB")
_ADDRESSES = ("127.0.0.2", "127.0.0.3-5", "127.0.0.{6,7}", "127.0.0.*", "127.0.0.4,127.0.0.8", "10.1.2.*", "127.0.*.*")


@dataclass(frozen=True, slots=True)
class Request:
    """One request: from which address, with what signature, and for what."""

    name: str
    source: str
    command: Command = field(repr=False)


@dataclass(frozen=True, slots=True)
class Round:
    """One account file and its requests. `sentinel` is allowed only when this file is in use."""

    content: str
    requests: list[Request]
    sentinel: Request


@dataclass(frozen=True, slots=True)
class PolicyRound:
    """Users of ACL 2.0 and their policies, as requests of an administrator, with requests of these users."""

    commands: list[Command]
    requests: list[Request]


def make_policy_round(
    seed: int, number: int, count: int, message: Callable[[], int], administrator: tuple[str, str]
) -> PolicyRound:
    """Each round has users of other names: RocketMQ caches users and policies."""
    rng = random.Random(f"{seed}/{number}/policies")
    accounts, commands = [], []
    for index in range(5):
        name = f"user{number}x{index}"
        accounts.append({"accessKey": name, "secretKey": f"secret-of-{name}"})
        commands += _user(rng, name, f"secret-of-{name}", disabled=index == 4 and rng.random() < 0.5)
    for command in commands:
        sign(command, *administrator)
    return PolicyRound(commands, [_request(rng, accounts, message, _NO_RETRY) for _ in range(count)])


def _user(rng: random.Random, name: str, password: str, *, disabled: bool) -> list[Command]:
    fields = {"username": name, "password": password, "userType": rng.choice(["Normal", "Normal", "Normal", "Super"])}
    found = [Command(Code.AUTH_CREATE_USER, ext={"username": name}, body=json.dumps(fields).encode())]
    for kind in ("Custom", "Default"):
        if entries := [_entry(rng) for _ in range(rng.choice([0, 1, 3, 6]))]:
            subject = f"User:{name}"
            body = {"subject": subject, "policies": [{"policyType": kind, "entries": entries}]}
            found.append(Command(Code.AUTH_CREATE_ACL, ext={"subject": subject}, body=json.dumps(body).encode()))
    if disabled:
        body = {"username": name, "userStatus": "disable"}
        found.append(Command(Code.AUTH_UPDATE_USER, ext={"username": name}, body=json.dumps(body).encode()))
    return found


def _entry(rng: random.Random) -> dict[str, Any]:
    resource = rng.choice(
        ["*", "Cluster:*", "Topic:*", "Group:*", "Topic:O*", "Topic:Or*", "Topic:topic-3*", "Group:g*", "Group:or*"]
        + [f"Topic:{name}" for name in TOPICS]
        + [f"Group:{name}" for name in GROUPS]
    )
    actions = rng.sample(["Pub", "Sub", "Create", "Update", "Delete", "Get", "List", "All"], rng.choice([1, 2, 4]))
    entry = {"resource": resource, "actions": actions, "decision": rng.choice(["Allow", "Allow", "Deny"])}
    if rng.random() < 0.3:
        entry["sourceIps"] = rng.sample(["127.0.0.2", "127.0.0.4/31", "127.0.0.0/24", "10.0.0.0/8"], rng.randint(1, 2))
    return entry


def make_round(seed: int, number: int, count: int, message: Callable[[], int]) -> Round:
    """`message`: the position of a message of the topic `Orders`, the same for both brokers' requests."""
    rng = random.Random(f"{seed}/{number}")
    accounts = [_account(rng, f"account{index}") for index in range(5)]
    sentinel = _members("", "sentinel", message)
    key = f"sentinel-{number}"
    sign(sentinel, key, _SENTINEL_SECRET)
    watch = {"accessKey": key, "secretKey": _SENTINEL_SECRET, "groupPerms": ["sentinel=SUB"]}
    root = {"accessKey": "administrator", "secretKey": "12345678", "admin": True}
    document: dict[str, Any] = {"accounts": [*accounts, root, watch]}
    if rng.random() < 0.4:
        document["globalWhiteRemoteAddresses"] = rng.sample(_ADDRESSES[:5], rng.randint(1, 2))
    requests = [_request(rng, accounts, message) for _ in range(count)]
    return Round(yaml.safe_dump(document), requests, Request("sentinel", _SENTINEL_SOURCE, sentinel))


def _account(rng: random.Random, key: str) -> dict[str, Any]:
    found: dict[str, Any] = {"accessKey": key, "secretKey": f"secret-of-{key}"}
    if rng.random() < 0.3:
        found["whiteRemoteAddress"] = rng.choice(_ADDRESSES)
    if rng.random() < 0.3:
        found["admin"] = rng.random() < 0.7
    for name in ("defaultTopicPerm", "defaultGroupPerm"):
        if rng.random() < 0.7:
            found[name] = rng.choice(_PERMS)
    if rng.random() < 0.7:
        names = rng.sample([*TOPICS, "%RETRY%g1", "%RETRY%g2"], rng.randint(1, 4))
        found["topicPerms"] = [f"{name}={rng.choice(_PERMS) or 'DENY'}" for name in names]
    if rng.random() < 0.6:
        names = rng.sample(GROUPS, rng.randint(1, 3))
        found["groupPerms"] = [f"{name}={rng.choice(_PERMS) or 'DENY'}" for name in names]
    return found


def _request(
    rng: random.Random, accounts: list[dict[str, Any]], message: Callable[[], int], no_retry: Collection[Code] = ()
) -> Request:
    code = rng.choice(list(_MAKERS))
    topic = rng.choice(TOPICS if code in no_retry else [*TOPICS, "%RETRY%g1"])
    group = rng.choice(GROUPS)
    command = _MAKERS[code](topic, group, message)
    account = rng.choice(accounts)
    how = rng.choices(list(_SIGNATURES), [12, 1, 1, 1, 1, 1, 1])[0]
    _SIGNATURES[how](command, account["accessKey"], account["secretKey"])
    source = rng.choice(SOURCES)
    name = f"{Code(code).name} topic={topic} group={group} as {account['accessKey']} from {source}, {how}"
    return Request(name, source, command)


def _send(topic: str, group: str, _: Callable[[], int]) -> Command:
    fields = {"producerGroup": group, "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": "4"}
    fields |= {"queueId": "0", "sysFlag": "0", "bornTimestamp": "1", "flag": "0", "properties": "", "batch": "false"}
    return Command(Code.SEND_MESSAGE, ext=fields, body=b"body")


def _send_v2(topic: str, group: str, _: Callable[[], int]) -> Command:
    fields = {
        "a": group,
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": "0",
        "f": "0",
        "g": "1",
        "h": "0",
        "i": "",
        "j": "0",
    }
    return Command(Code.SEND_MESSAGE_V2, ext=fields | {"m": "false"}, body=b"body")


def _pull(topic: str, group: str, _: Callable[[], int]) -> Command:
    fields = {"consumerGroup": group, "topic": topic, "queueId": "0", "queueOffset": "0", "maxMsgNums": "1"}
    fields |= {"sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "1"}
    return Command(Code.PULL_MESSAGE, ext=fields)


def _query(topic: str, _: str, __: Callable[[], int]) -> Command:
    fields = {"topic": topic, "key": "k", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "1"}
    return Command(Code.QUERY_MESSAGE, ext=fields)


def _send_back(_: str, group: str, message: Callable[[], int]) -> Command:
    fields = {"offset": str(message()), "group": group, "delayLevel": "1", "originTopic": "Orders"}
    fields |= {"originMsgId": "0" * 32, "unitMode": "false", "maxReconsumeTimes": "16"}
    return Command(Code.CONSUMER_SEND_MSG_BACK, ext=fields)


def _heartbeat(topic: str, group: str, _: Callable[[], int]) -> Command:
    subscription = {"topic": topic, "subString": "*", "tagsSet": [], "codeSet": [], "subVersion": 1}
    consumer = {"groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING"}
    consumer["consumeFromWhere"] = "CONSUME_FROM_LAST_OFFSET"
    data = {
        "clientID": "c",
        "producerDataSet": [],
        "consumerDataSet": [{**consumer, "subscriptionDataSet": [subscription]}],
    }
    return Command(Code.HEART_BEAT, ext={}, body=json.dumps(data).encode())


def _unregister(_: str, group: str, __: Callable[[], int]) -> Command:
    return Command(Code.UNREGISTER_CLIENT, ext={"clientID": "c", "consumerGroup": group})


def _members(_: str, group: str, __: Callable[[], int]) -> Command:
    return Command(Code.GET_CONSUMER_LIST_BY_GROUP, ext={"consumerGroup": group})


def _commit(topic: str, group: str, _: Callable[[], int]) -> Command:
    fields = {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": "0"}
    return Command(Code.UPDATE_CONSUMER_OFFSET, ext=fields)


def _make_topic(topic: str, _: str, __: Callable[[], int]) -> Command:
    fields = {"topic": f"made-{topic}".replace("%", "-"), "defaultTopic": "TBW102", "readQueueNums": "1"}
    fields |= {"writeQueueNums": "1", "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0"}
    return Command(Code.UPDATE_AND_CREATE_TOPIC, ext=fields | {"order": "false"})


def _delete_topic(_: str, __: str, ___: Callable[[], int]) -> Command:
    return Command(Code.DELETE_TOPIC_IN_BROKER, ext={"topic": "deleted"})


def _configure(_: str, __: str, ___: Callable[[], int]) -> Command:
    return Command(Code.UPDATE_BROKER_CONFIG, ext={}, body=b"fileReservedTime=72\n")


def _make_group(_: str, group: str, __: Callable[[], int]) -> Command:
    return Command(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, ext={}, body=json.dumps({"groupName": group}).encode())


def _delete_group(_: str, __: str, ___: Callable[[], int]) -> Command:
    return Command(Code.DELETE_SUBSCRIPTIONGROUP, ext={"groupName": "deleted"})


def _ends(topic: str, _: str, __: Callable[[], int]) -> Command:
    return Command(Code.GET_MAX_OFFSET, ext={"topic": topic, "queueId": "0"})


def _consumed(topic: str, group: str, _: Callable[[], int]) -> Command:
    return Command(Code.QUERY_CONSUMER_OFFSET, ext={"consumerGroup": group, "topic": topic, "queueId": "0"})


def _configuration(_: str, __: str, ___: Callable[[], int]) -> Command:
    return Command(Code.GET_BROKER_CONFIG, ext={})


_MAKERS: dict[Code, Callable[[str, str, Callable[[], int]], Command]] = {
    Code.SEND_MESSAGE: _send,
    Code.SEND_MESSAGE_V2: _send_v2,
    Code.PULL_MESSAGE: _pull,
    Code.QUERY_MESSAGE: _query,
    Code.CONSUMER_SEND_MSG_BACK: _send_back,
    Code.HEART_BEAT: _heartbeat,
    Code.UNREGISTER_CLIENT: _unregister,
    Code.GET_CONSUMER_LIST_BY_GROUP: _members,
    Code.UPDATE_CONSUMER_OFFSET: _commit,
    Code.UPDATE_AND_CREATE_TOPIC: _make_topic,
    Code.DELETE_TOPIC_IN_BROKER: _delete_topic,
    Code.UPDATE_BROKER_CONFIG: _configure,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _make_group,
    Code.DELETE_SUBSCRIPTIONGROUP: _delete_group,
    Code.GET_MAX_OFFSET: _ends,
    Code.QUERY_CONSUMER_OFFSET: _consumed,
    Code.GET_BROKER_CONFIG: _configuration,
}


def _token(command: Command, key: str, secret: str) -> None:
    command.ext = dict(command.ext or {}) | {SECURITY_TOKEN: "a-token"}
    sign(command, key, secret)


def _changed(command: Command, key: str, secret: str) -> None:
    sign(command, key, secret)
    assert command.ext is not None
    command.ext["z"] = "added after the signature"


def _unsigned(command: Command, key: str, _: str) -> None:
    command.ext = dict(command.ext or {}) | {ACCESS_KEY: key}


def _empty(command: Command, key: str, _: str) -> None:
    command.ext = dict(command.ext or {}) | {ACCESS_KEY: key, SIGNATURE: ""}


_SIGNATURES: dict[str, Callable[[Command, str, str], None]] = {
    "signed": sign,
    "signed with a token": _token,
    "wrong secret": lambda command, key, _: sign(command, key, "another-secret"),
    "unknown account": lambda command, _, secret: sign(command, "unknown-account", secret),
    "no account": lambda *_: None,
    "changed after the signature": _changed,
    "empty signature": _empty,
}
