"""Accounts of RocketMQ 4.x: the file, and the same decisions as RocketMQ's permission bits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.node.access.fields import AclError
from tallystick.node.access.plain_acl import Account, PlainAcl, dump, parse, topic_resource
from tallystick.node.access.policies import Action, Resource, ResourceKind, Rules

FILE = b"""
globalWhiteRemoteAddresses:
- 10.10.103.*
- 192.168.0.*

accounts:
- accessKey: RocketMQ
  secretKey: 12345678
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - topicA=DENY
  - topicB=PUB|SUB
  - topicC=SUB
  groupPerms:
  # the group should convert to retry topic
  - groupA=DENY
  - groupB=PUB|SUB
  - groupC=SUB

- accessKey: rocketmq2
  secretKey: "12345678"
  whiteRemoteAddress: 192.168.1.*
  # if it is admin, it could access all resources
  admin: true
"""
PERMS = ("PUB", "SUB", "PUB|SUB", "SUB|PUB", "DENY", "", " SUB ", "sub", "ANY", "nonsense")
NAMES = ("t1", "t2", "%RETRY%g1", "%RETRY%g2")
DENY, PUB, SUB = 1, 4, 8


def test_the_file_of_rocketmq_is_read() -> None:
    acl = parse(FILE)
    assert list(acl.accounts) == ["RocketMQ", "rocketmq2"]
    assert acl.white_addresses == ("10.10.103.*", "192.168.0.*")
    first = Rules(acl.accounts["RocketMQ"].user())
    sub, pub = Action.SUB, Action.PUB
    assert not first.allows(Resource(ResourceKind.TOPIC, "topicA"), sub, "::1")
    assert first.allows(Resource(ResourceKind.TOPIC, "topicB"), pub, "::1")
    assert not first.allows(Resource(ResourceKind.TOPIC, "topicC"), pub, "::1")
    assert first.allows(Resource(ResourceKind.TOPIC, "topicC"), sub, "::1")
    assert first.allows(Resource(ResourceKind.TOPIC, "topicC"), Action.GET, "::1")
    assert not first.allows(Resource(ResourceKind.TOPIC, "other"), Action.GET, "::1")
    assert first.allows(Resource(ResourceKind.GROUP, "other"), sub, "::1")
    assert not first.allows(Resource(ResourceKind.GROUP, "groupA"), sub, "::1")
    assert not first.allows(Resource(ResourceKind.CLUSTER, ""), Action.UPDATE, "::1")
    admin = acl.accounts["rocketmq2"].user()
    assert admin.is_super and admin.secret == "12345678"
    assert admin.trusted_sources[0].matches("192.168.1.7")


def parse_perm(text: str) -> int:
    """As Permission.parsePermFromString."""
    return {"PUB": PUB, "SUB": SUB, "PUB|SUB": PUB | SUB, "SUB|PUB": PUB | SUB}.get(text.strip(), DENY)


def twin_allows(account: Account, name: str, needed: int) -> bool:
    """As PlainPermissionManager.checkPerm, with groups as retry topics."""
    owned: dict[str, int] | None = None
    for prefix, lines in (("%RETRY%", account.group_perms), ("", account.topic_perms)):
        for line in lines:
            resource, perm = line.split("=")
            owned = owned or {}
            owned[prefix + resource] = parse_perm(perm)
    if owned is None and account.admin:
        return True
    if owned is None or name not in owned:
        default = account.default_group_perm if name.startswith("%RETRY%") else account.default_topic_perm
        bits = parse_perm(default)
    else:
        bits = owned[name]
    return not bits & DENY and bool(bits & needed)


perms = st.sampled_from([perm for perm in PERMS if perm])
accounts = st.builds(
    lambda admin, topic, group, topics, groups: Account.read(
        {
            "accessKey": "account",
            "secretKey": "12345678",
            "admin": admin,
            "defaultTopicPerm": topic,
            "defaultGroupPerm": group,
            "topicPerms": [f"{name}={perm}" for name, perm in topics],
            "groupPerms": [f"{name}={perm}" for name, perm in groups],
        }
    ),
    st.booleans(),
    st.sampled_from(PERMS),
    st.sampled_from(PERMS),
    st.lists(st.tuples(st.sampled_from(["t1", "t2", "%RETRY%g1"]), perms), max_size=4),
    st.lists(st.tuples(st.sampled_from(["g1", "g2"]), perms), max_size=3),
)


@given(accounts, st.sampled_from(NAMES), st.sampled_from([Action.PUB, Action.SUB]))
def test_decisions_equal_those_of_permission_bits(account: Account, name: str, action: Action) -> None:
    needed = PUB if action is Action.PUB else SUB
    allowed = Rules(account.user()).allows(topic_resource(name), action, "10.0.0.1")
    assert allowed == twin_allows(account, name, needed)


@given(accounts)
def test_only_an_administrator_administers(account: Account) -> None:
    rules = Rules(account.user())
    for kind in ResourceKind:
        for action in (Action.CREATE, Action.UPDATE, Action.DELETE):
            assert rules.allows(Resource(kind, "t1"), action, "10.0.0.1") == account.admin
    assert rules.allows(Resource(ResourceKind.CLUSTER, ""), Action.GET, "10.0.0.1") == account.admin


@given(st.lists(accounts, max_size=3))
def test_a_written_file_is_read_again(written: list[Account]) -> None:
    acl = PlainAcl({account.access_key: account for account in written}, ("10.0.0.*",), {"timestamp": 5, "counter": 2})
    assert parse(dump(acl)) == acl


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"- a", "not a map"),
        (b"accounts: [", "not YAML in line 1"),
        (b"accounts:\n- accessKey: abcdefgh\n", "secretKey"),
        (b"accounts:\n- accessKey: short\n  secretKey: 12345678\n", "accessKey"),
        (b"accounts: text", "not a list"),
        (b"accounts:\n- 5", "not a map"),
        (FILE.replace(b"10.10.103.*", b"10.10.300.*"), "10.10.300"),
        (FILE.replace(b"192.168.1.*", b"192.168.1"), "192.168.1"),
        (FILE.replace(b"topicA=DENY", b"topicA"), "topicA"),
        (FILE.replace(b"topicA=DENY", b"a=b=DENY"), "a=b"),
        (FILE.replace(b"admin: true", b"admin: perhaps"), "admin"),
        (b"\xff\xfe\x00", "YAML"),
        (b"a: " + b"[" * 5000, "YAML"),
    ],
)
def test_an_invalid_file_is_refused_without_secrets(content: bytes, reason: str) -> None:
    with pytest.raises(AclError, match=reason.replace("*", "")) as caught:
        parse(content)
    assert "12345678" not in str(caught.value)


def test_a_change_keeps_what_is_not_given() -> None:
    account = parse(FILE).accounts["RocketMQ"]
    assert isinstance(account, Account)
    changed = account.changed({"topicPerms": ["x=PUB"], "groupPerms": None, "secretKey": ""})
    assert changed.topic_perms == ("x=PUB",)
    assert changed.secret_key == "12345678" and changed.group_perms == account.group_perms
