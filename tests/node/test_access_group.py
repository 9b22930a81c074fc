"""Accounts in a group's log: equal on every member, changed at the leader, sealed where they are stored."""

from dataclasses import replace
from pathlib import Path

import pytest
from fake_member import FakeMember

from tallystick.node.access.acl_users import AclUser
from tallystick.node.access.plain_acl import Account, PlainAcl
from tallystick.node.access.sealing import KeySealer, Sealer
from tallystick.node.broker.group.replicated import GroupTables
from tallystick.node.broker.tables.accounts import AccountTable
from tallystick.node.broker.tables.saving import FollowsError, NoFile
from tallystick.replication.metadata import snapshot
from tallystick.replication.metadata.tables import ReplicatedTables
from tallystick.store._kernel import Door

KEY = b"k" * 32


def acl(*keys: str, secret: str = "secret01", white: tuple[str, ...] = ()) -> PlainAcl:
    accounts = {key: Account.read({"accessKey": key, "secretKey": secret}) for key in keys}
    return PlainAcl(accounts, white, {"timestamp": 5, "counter": 1})


class One:
    """One member with its accounts."""

    def __init__(self, folder: Path, number: int, own: PlainAcl, sealer: Sealer) -> None:
        self.member = FakeMember(number)
        self.taken = 0
        self.table = AccountTable(own, sealer, self._took)
        folder.mkdir(exist_ok=True)
        committed = snapshot.load(folder) or ReplicatedTables()
        self.group = GroupTables(self.member, committed, [(self.table, NoFile())], door=Door(), folder=folder)
        self.member.on_apply.append(self.group.on_apply)
        self.member.on_ready.append(lambda term: self.group.on_ready())
        self.member.on_role.append(lambda role, term, leader: None if leader == number else self.group.on_lost())

    def _took(self) -> None:
        self.taken += 1


class Pair:
    """A leader and a follower, which began with other accounts in its file."""

    def __init__(self, folder: Path, sealer: Sealer, follower_sealer: Sealer | None = None) -> None:
        self.leader = One(folder / "n0", 0, acl("account1", "account2", white=("10.0.0.1",)), sealer)
        self.follower = One(folder / "n1", 1, acl("account9"), follower_sealer or sealer)
        self.follower.member.follow(1, 0)
        self.leader.member.lead(1)

    def sync(self) -> None:
        leader, follower = self.leader.member, self.follower.member
        leader.commit()
        follower.replicate(list(leader.log), leader.committed_index)


@pytest.fixture(params=[Sealer(), KeySealer(KEY)], ids=["plain", "sealed"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Pair:
    return Pair(tmp_path, request.param)


def test_the_first_leader_puts_its_accounts_into_the_log(pair: Pair) -> None:
    assert list(pair.follower.table.acl.accounts) == ["account9"]
    pair.sync()
    assert pair.follower.table.acl == pair.leader.table.acl == acl("account1", "account2", white=("10.0.0.1",))
    assert pair.follower.taken == 1, "the checks use them at once"


def test_a_change_reaches_the_follower(pair: Pair) -> None:
    pair.sync()
    changed = replace(acl("account1", "account3", white=("10.0.0.2",)), version={"timestamp": 6, "counter": 2})
    pair.leader.table.set(changed)
    pair.sync()
    assert pair.follower.table.acl == changed


def test_a_user_with_policies_reaches_the_follower(pair: Pair) -> None:
    pair.sync()
    policies = [
        {"policyType": "Custom", "entries": [{"resource": "Topic:a*", "actions": ["Pub"], "decision": "Allow"}]}
    ]
    user = AclUser.read({"username": "alice", "password": "secret01", "policies": policies})
    pair.leader.table.set(pair.leader.table.acl.with_account(user))
    pair.sync()
    assert pair.follower.table.acl.accounts["alice"] == user
    pair.leader.table.set(pair.leader.table.acl.with_account(user.without_policy("", "")))
    pair.sync()
    assert pair.follower.table.acl.accounts["alice"] == user.without_policy("", "")
    pair.leader.table.set(pair.leader.table.acl.without_account("alice"))
    pair.sync()
    assert "alice" not in pair.follower.table.acl.accounts


def test_only_the_white_list_changes(pair: Pair) -> None:
    pair.sync()
    changed = replace(pair.leader.table.acl, white_addresses=(), version={"timestamp": 6, "counter": 2})
    pair.leader.table.set(changed)
    pair.sync()
    assert pair.follower.table.acl == changed


def test_a_follower_changes_no_account(pair: Pair) -> None:
    pair.sync()
    with pytest.raises(FollowsError):
        pair.follower.table.set(acl("account4"))
    assert "account4" not in pair.follower.table.acl.accounts


def test_a_change_that_was_not_committed_is_gone_with_leadership(pair: Pair) -> None:
    pair.sync()
    pair.leader.table.set(acl("account4"))
    pair.leader.member.follow(2, 1)
    assert list(pair.leader.table.acl.accounts) == ["account1", "account2"]


def test_with_a_key_no_secret_is_in_the_log(tmp_path: Path) -> None:
    pair = Pair(tmp_path, KeySealer(KEY))
    pair.leader.table.set(acl("account1", "account5", secret="secret02"))
    pair.sync()
    log = b"".join(entry.body for entry in pair.leader.member.log)
    assert b"account5" in log and b"secret0" not in log
    assert b"secret0" not in pair.leader.group.encoded()


def test_an_account_that_cannot_be_decrypted_is_refused_and_named(tmp_path: Path) -> None:
    pair = Pair(tmp_path, KeySealer(KEY), KeySealer(b"x" * 32))
    pair.sync()
    assert pair.follower.table.acl.accounts == {}
    assert "was not sealed with the key" in pair.follower.table.problem
