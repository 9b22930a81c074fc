"""Users of ACL 2.0: how they are read, what their policies permit, and the requests that manage them."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.node.access.acl_users import AclUser, subject_name
from tallystick.node.access.addresses import AddressError, AddressPattern
from tallystick.node.access.fields import AclError
from tallystick.node.access.plain_acl import PlainAcl, dump, parse, read_principal
from tallystick.node.access.policies import CLUSTER, Action, Resource, ResourceKind, Rules
from tallystick.node.access.sealing import KeySealer
from tallystick.node.access.signatures import sign
from tallystick.node.broker.broker import Broker
from tallystick.node.core.settings import BrokerSettings
from tallystick.node.remoting.client import RemotingClient
from tallystick.node.remoting.codes import RequestCode as Code
from tallystick.node.remoting.command import Command
from tallystick.store import fastjson
from tallystick.store.settings import StoreSettings

PASSWORD = "password-of-alice"
FILE = 'accounts:\n- {accessKey: administrator, secretKey: "12345678", admin: true}\n'
HERE = "127.0.0.1"

words = st.text("abc%RETY_*", min_size=1, max_size=6)
entries = st.fixed_dictionaries(
    {
        "resource": st.one_of(st.just("*"), st.builds("{}:{}".format, st.sampled_from(["Topic", "Group"]), words)),
        "actions": st.lists(st.sampled_from(["Pub", "Sub", "Get", "All"]), min_size=1, max_size=3),
        "decision": st.sampled_from(["Allow", "Deny"]),
    },
    optional={"sourceIps": st.lists(st.sampled_from(["10.0.0.0/8", "::1", "192.168.1.1"]), min_size=1, max_size=2)},
)
policies = st.lists(
    st.fixed_dictionaries({"policyType": st.sampled_from(["Custom", "Default"]), "entries": st.lists(entries)}),
    max_size=3,
)


def entry(resource: str, *actions: str, decision: str = "Allow", **more: Any) -> dict[str, Any]:
    return {"resource": resource, "actions": list(actions), "decision": decision, **more}


def user(*written: dict[str, Any], default: tuple[dict[str, Any], ...] = (), **fields: Any) -> AclUser:
    rows = [{"policyType": "Custom", "entries": list(written)}, {"policyType": "Default", "entries": list(default)}]
    return AclUser.read({"username": "alice", "password": PASSWORD, "policies": rows, **fields})


def allows(who: AclUser, kind: ResourceKind, name: str, action: Action, source: str = HERE) -> bool:
    return Rules(who.user()).allows(Resource(kind, name), action, source)


def twin_merged(policy: list[Any], given: list[Any]) -> list[Any]:
    """A policy after entries were added, resource by resource."""
    if not policy:
        return given
    merged = {str(number): each for number, each in enumerate(policy)}
    for each in given:
        places = [place for place, old in merged.items() if old["resource"] == each["resource"]]
        merged[places[0] if places else str(len(merged))] = each
    return list(merged.values())


# -- reading -----------------------------------------------------------------------------------------------------------


@given(policies, st.booleans(), st.booleans())
def test_a_user_is_read_as_it_was_written(rows: list[dict[str, Any]], is_super: bool, is_enabled: bool) -> None:
    kind, status = "Super" if is_super else "Normal", "enable" if is_enabled else "disable"
    fields = {"username": "alice", "password": PASSWORD, "userType": kind, "userStatus": status, "policies": rows}
    found = AclUser.read(fields)
    assert (found.is_super, found.is_enabled) == (is_super, is_enabled)
    assert read_principal(found.fields()) == found
    assert parse(dump(PlainAcl({"alice": found}))).accounts == {"alice": found}
    for kind, entries in (("Custom", found.custom), ("Default", found.default)):
        given = [row["entries"] for row in rows if row["policyType"] == kind]
        assert [each.fields() for each in entries] == functools.reduce(twin_merged, given, [])
    assert PASSWORD not in repr(found)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"username": " "}, "username is blank"),
        ({"password": " "}, "password is blank"),
        ({"password": 7}, "password is not a text"),
        ({"userType": "root"}, "'root' must be one of super, normal"),
        ({"userStatus": "off"}, "'off' must be one of enable, disable"),
        ({"policies": {}}, "policies is not a list"),
        ({"policies": ["x"]}, "policies has an element that is not a map"),
        ({"policies": [{"policyType": "Other"}]}, "'Other' is not a type of policy"),
        ({"policies": [{"entries": [entry("orders", "Pub")]}]}, "'orders' is not a resource"),
        ({"policies": [{"entries": [entry("Topic:", "Pub")]}]}, "'Topic:' is not a resource"),
        ({"policies": [{"entries": [entry("Namespace:x", "Pub")]}]}, "'Namespace:x' is not a resource"),
        ({"policies": [{"entries": [entry("Topic:x")]}]}, "actions is empty"),
        ({"policies": [{"entries": [entry("Topic:x", "Any")]}]}, "'Any' is not a action"),
        ({"policies": [{"entries": [entry("Topic:x", "Pub", decision="Maybe")]}]}, "'Maybe' is not a decision"),
        ({"policies": [{"entries": [entry("Topic:x", "Pub", sourceIps=["10.0.0.*"])]}]}, "neither an address"),
    ],
)
def test_a_user_that_cannot_be_used_is_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(AclError, match=reason.replace("*", r"\*")) as caught:
        AclUser.read({"username": "alice", "password": PASSWORD, **fields})
    assert PASSWORD not in str(caught.value)


def test_a_name_belongs_to_one_account_or_user() -> None:
    both = FILE + "users:\n- {username: administrator, password: x}\n"
    with pytest.raises(AclError, match="'administrator' is an account or a user already"):
        parse(both.encode())


def test_a_subject_names_a_user() -> None:
    assert subject_name("User:alice") == subject_name("user:alice") == "alice"
    for wrong in ("alice", "User:", "Role:alice"):
        with pytest.raises(AclError):
            subject_name(wrong)


def test_the_password_is_sealed() -> None:
    sealer = KeySealer(b"k" * 32)
    sealed = sealer.seal(user())
    assert PASSWORD not in str(sealed.fields())
    assert sealer.open(sealed) == user()


@given(st.ip_addresses(v=4), st.integers(0, 32), st.ip_addresses(v=4))
def test_a_network_has_the_addresses_with_its_prefix(first: Any, length: int, other: Any) -> None:
    mask = (1 << 32) - (1 << (32 - length))
    pattern = AddressPattern.parse_network(f"{first}/{length}")
    assert pattern.matches(str(first))
    assert pattern.matches(str(other)) == (int(first) & mask == int(other) & mask)
    assert not pattern.matches("::1")


def test_networks_of_ipv6() -> None:
    assert AddressPattern.parse_network("2001:db8::/33").matches("2001:db8:7fff::1")
    assert not AddressPattern.parse_network("2001:db8::/33").matches("2001:db8:8000::1")
    for wrong in ("", "10.0.0.1/33", "10.0.0", "*"):
        with pytest.raises(AddressError):
            AddressPattern.parse_network(wrong)


# -- what policies permit ----------------------------------------------------------------------------------------------


def test_a_prefix_and_a_name() -> None:
    who = user(entry("Topic:orders*", "Pub"), entry("Topic:orders-secret", "All", decision="Deny"))
    assert allows(who, ResourceKind.TOPIC, "orders-1", Action.PUB)
    assert not allows(who, ResourceKind.TOPIC, "orders-secret", Action.PUB)
    assert not allows(who, ResourceKind.TOPIC, "orders-1", Action.SUB)
    assert not allows(who, ResourceKind.GROUP, "orders-1", Action.PUB)


def test_a_default_policy_decides_last() -> None:
    who = user(entry("Topic:*", "Pub", decision="Deny"), default=(entry("Topic:x", "All"),))
    assert not allows(who, ResourceKind.TOPIC, "x", Action.PUB)
    assert allows(who, ResourceKind.TOPIC, "x", Action.SUB)


def test_a_policy_of_some_addresses() -> None:
    who = user(entry("*", "All", sourceIps=["10.0.0.0/8"]))
    assert allows(who, ResourceKind.TOPIC, "x", Action.PUB, "10.1.2.3")
    assert not allows(who, ResourceKind.TOPIC, "x", Action.PUB, "11.1.2.3")


def test_a_super_user_needs_no_policy_and_a_disabled_one_has_none() -> None:
    deny = entry("*", "All", decision="Deny")
    assert allows(user(deny, userType="super"), ResourceKind.TOPIC, "x", Action.PUB)
    assert not allows(user(userType="super", userStatus="disable"), ResourceKind.TOPIC, "x", Action.PUB)
    assert not allows(user(entry("*", "All"), userStatus="disable"), ResourceKind.TOPIC, "x", Action.PUB)


@pytest.mark.parametrize(
    ("resource", "cluster", "expected"), [("*", "c1", True), ("c*", "c1", True), ("c1", "c1", True)]
)
def test_a_policy_of_the_cluster(resource: str, cluster: str, expected: bool) -> None:
    rules = user(entry(f"Cluster:{resource}", "Update")).user()
    assert Rules(rules, cluster).allows(CLUSTER, Action.UPDATE, HERE) == expected
    assert not Rules(rules, cluster).allows(CLUSTER, Action.GET, HERE)
    assert Rules(rules, "other").allows(CLUSTER, Action.UPDATE, HERE) == (resource == "*")


# -- requests ----------------------------------------------------------------------------------------------------------


class World:
    """A broker whose account file has one administrator."""

    def __init__(self, broker: Broker, file: Path) -> None:
        self.broker, self.file = broker, file
        self.client = RemotingClient()

    async def call(
        self, code: Code, ext: dict[str, str], body: Any = None, user: tuple[str, str] = ("administrator", "12345678")
    ) -> Command:
        command = Command(code, ext=ext, body=b"" if body is None else fastjson.dumps(body))
        sign(command, *user)
        return await self.client.call(str(self.broker.host), command)

    async def ask(self, code: Code, **ext: str) -> Any:
        """The body of an answer; None without one."""
        answer = await self.call(code, ext)
        assert answer.code == 0, answer.remark
        return fastjson.loads(answer.body) if answer.body else None

    async def send(self, topic: str = "Orders", password: str = PASSWORD) -> str:
        """Why a message of alice was refused; empty if it was stored."""
        fields = {"a": "g", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
        answer = await self.call(Code.SEND_MESSAGE_V2, fields | {"i": "", "j": "0"}, "body", ("alice", password))
        return (answer.remark or "").partition("AclException: ")[2] if answer.code else ""

    async def create(self, *entries: dict[str, Any]) -> None:
        fields = {"username": "ignored", "password": PASSWORD, "userType": "Normal"}
        assert (await self.call(Code.AUTH_CREATE_USER, {"username": "alice"}, fields)).code == 0
        if entries:
            await self.policy(*entries)

    async def policy(self, *entries: dict[str, Any], kind: str | None = None) -> None:
        policies = [{"policyType": kind, "entries": list(entries)}]
        body = {"subject": "User:alice", "policies": policies}
        answer = await self.call(Code.AUTH_CREATE_ACL, {"subject": "User:alice"}, body)
        assert answer.code == 0, answer.remark


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    file = tmp_path / "plain_acl.yml"
    file.write_text(FILE)
    settings = BrokerSettings(
        brokerIP1=HERE, bindAddress=HERE, listenPort=0, brokerName="b", aclEnable=True, aclFile=str(file)
    )
    small = StoreSettings(str(tmp_path / "store"), mappedFileSizeCommitLog=1 << 20, maxHashSlotNum=100, maxIndexNum=400)
    world = World(await Broker.start(settings, small), file)
    try:
        yield world
    finally:
        await world.client.close()
        await world.broker.stop()


async def test_a_user_sends_what_its_policies_permit(world: World) -> None:
    assert await world.send() == "No acl config for alice"
    await world.create()
    assert await world.send() == "No default permission for topic:Orders"
    await world.policy(entry("Topic:Ord*", "Pub"))
    for _ in range(3):  # decided in Python, then in the kernel
        assert await world.send() == ""
    assert await world.send(password="wrong") == "Check signature failed for accessKey=alice"
    assert await world.send("Bills") == "No default permission for topic:Bills"
    await world.policy(entry("Topic:Orders", "Pub", decision="Deny"))
    assert await world.send() == "No default permission for topic:Orders", "grants in the kernel end"


async def test_a_changed_user(world: World) -> None:
    await world.create(entry("*", "All"))
    assert await world.send() == ""
    await world.call(Code.AUTH_UPDATE_USER, {"username": "alice"}, {"userStatus": "disable"})
    assert await world.send() == "User:alice is disabled"
    reply = await world.call(Code.SEND_REPLY_MESSAGE_V2, {"b": "r"}, None, ("alice", PASSWORD))
    assert "User:alice is disabled" in (reply.remark or ""), "also for requests that need a signature alone"
    await world.call(Code.AUTH_UPDATE_USER, {"username": "alice"}, {"userStatus": "enable", "password": "another"})
    assert await world.send() == "Check signature failed for accessKey=alice"
    assert await world.send(password="another") == ""
    await world.call(Code.AUTH_DELETE_USER, {"username": "alice"})
    assert await world.send(password="another") == "No acl config for alice"


async def test_what_the_admin_tool_sees(world: World) -> None:
    assert await world.ask(Code.AUTH_LIST_USER) == []
    assert await world.ask(Code.AUTH_GET_USER, username="alice") is None
    await world.create()
    alice = {"username": "alice", "password": "******", "userType": "Normal", "userStatus": "enable"}
    assert await world.ask(Code.AUTH_GET_USER, username="alice") == alice
    assert await world.ask(Code.AUTH_LIST_USER, filter="lic") == [alice]
    assert await world.ask(Code.AUTH_LIST_USER, filter="bob") == []
    assert await world.ask(Code.AUTH_GET_ACL, subject="User:alice") is None
    first, second = entry("Topic:orders", "Pub"), entry("Group:g", "Sub", sourceIps=["10.0.0.0/8"])
    await world.policy(first, second)
    await world.policy(entry("Topic:*", "Get"), kind="Default")
    custom, default = (
        {"policyType": "Custom", "entries": [first, second]},
        {"policyType": "Default", "entries": [entry("Topic:*", "Get")]},
    )
    everything = {"subject": "User:alice", "policies": [custom, default]}
    assert await world.ask(Code.AUTH_GET_ACL, subject="User:alice") == everything
    assert await world.ask(Code.AUTH_LIST_ACL) == [everything]
    one = {"subject": "User:alice", "policies": [{"policyType": "Custom", "entries": [second]}]}
    assert await world.ask(Code.AUTH_LIST_ACL, subjectFilter="alice", resourceFilter="Group") == [one]
    assert await world.ask(Code.AUTH_LIST_ACL, subjectFilter="bob") == []
    await world.ask(Code.AUTH_DELETE_ACL, subject="User:alice", policyType="Default")
    await world.ask(Code.AUTH_DELETE_ACL, subject="User:alice", resource="Topic:orders")
    assert await world.ask(Code.AUTH_GET_ACL, subject="User:alice") == one
    await world.ask(Code.AUTH_DELETE_ACL, subject="User:alice")
    assert await world.ask(Code.AUTH_GET_ACL, subject="User:alice") is None
    assert PASSWORD in world.file.read_text(), "the account file has the user"


@pytest.mark.parametrize(
    ("code", "ext", "body", "answer"),
    [
        (Code.AUTH_CREATE_USER, {}, {"password": "x"}, (29, "The username is blank")),
        (Code.AUTH_CREATE_USER, {"username": "alice"}, {"password": "x"}, (16, "The user is existed")),
        (Code.AUTH_CREATE_USER, {"username": "administrator"}, {"password": "x"}, (16, "The user is existed")),
        (Code.AUTH_CREATE_USER, {"username": "bob"}, {}, (16, "user 'bob': password is blank")),
        (Code.AUTH_CREATE_USER, {"username": "bob"}, [], (29, "the body is not a JSON object")),
        (Code.AUTH_UPDATE_USER, {"username": "bob"}, {"password": "x"}, (16, "The user is not exist")),
        (Code.AUTH_UPDATE_USER, {"username": "administrator"}, {"password": "x"}, (16, "The user is not exist")),
        (Code.AUTH_CREATE_ACL, {"subject": "alice"}, {}, (29, "'alice' is not a subject: User:NAME")),
        (Code.AUTH_CREATE_ACL, {"subject": "User:bob"}, {}, (16, "The subject of User:bob is not exist.")),
        (Code.AUTH_CREATE_ACL, {"subject": "User:alice"}, {}, (16, "The body of acl is null")),
        (Code.AUTH_GET_ACL, {"subject": "User:bob"}, None, (16, "The subject of User:bob is not exist.")),
        (Code.AUTH_DELETE_ACL, {"subject": "User:alice"}, None, (16, "The acl is not exist.")),
        (Code.AUTH_DELETE_USER, {"username": "bob"}, None, (0, None)),
        (Code.UPDATE_AND_CREATE_ACL_CONFIG, {"accessKey": "alice", "secretKey": "12345678"}, None, (209, None)),
        (Code.DELETE_ACL_CONFIG, {"accessKey": "alice"}, None, (210, "there is no account 'alice'")),
    ],
)
async def test_requests_that_change_nothing(
    world: World, code: Code, ext: dict[str, str], body: Any, answer: tuple[int, str | None]
) -> None:
    await world.create()
    before = world.file.read_bytes()
    found = await world.call(code, ext, body)
    assert found.code == answer[0]
    assert answer[1] is None or found.remark == answer[1]
    assert world.file.read_bytes() == before


async def test_users_are_for_administrators(world: World) -> None:
    await world.create(entry("Topic:*", "All"), entry("Group:*", "All"))
    for code in (Code.AUTH_CREATE_USER, Code.AUTH_UPDATE_USER, Code.AUTH_DELETE_USER, Code.AUTH_GET_USER):
        assert (await world.call(code, {"username": "alice"}, {}, ("alice", PASSWORD))).code == 1
    for code in (
        Code.AUTH_CREATE_ACL,
        Code.AUTH_DELETE_ACL,
        Code.AUTH_GET_ACL,
        Code.AUTH_LIST_ACL,
        Code.AUTH_LIST_USER,
    ):
        assert (await world.call(code, {"subject": "User:alice"}, {}, ("alice", PASSWORD))).code == 1
