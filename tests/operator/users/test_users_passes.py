"""Passes over Users: what brokers and name servers get, what is refused, and what is never touched."""

from __future__ import annotations

import random

import pytest
from simulated_api import RefusalError
from users_lab import CLUSTER, NAMESPACE, SECURE, World

from tallystick.node.access.plain_acl import parse
from tallystick.operator.core import kube
from tallystick.operator.users.spec import RESERVED

PERMISSIONS = [
    {"topic": "orders*", "actions": ["Pub", "Sub"], "sourceIps": ["10.0.0.0/8"]},
    {"group": "billing", "actions": ["Sub"], "decision": "Deny"},
]


@pytest.fixture
def world() -> World:
    found = World()
    found.cluster(security=SECURE)
    return found


def uid(world: World, plural: str, name: str) -> str:
    body = world.api.get(plural, name)
    assert body is not None
    return str(body["metadata"]["uid"])


def test_a_user_with_a_generated_password_is_everywhere(world: World) -> None:
    world.user("writer", permissions=PERMISSIONS)
    world.settle()
    password = world.read("writer-user", "password")
    assert world.read("writer-user", "username") == "writer" and len(password) >= 24
    for group in (0, 1):
        assert world.users[group]["writer"] == {
            "username": "writer",
            "password": password,
            "owner": uid(world, "users", "writer"),
            "userType": "Normal",
            "userStatus": "enable",
            "policies": [
                {
                    "policyType": "Custom",
                    "entries": [
                        {
                            "resource": "Topic:orders*",
                            "actions": ["Pub", "Sub"],
                            "decision": "Allow",
                            "sourceIps": ["10.0.0.0/8"],
                        },
                        {"resource": "Group:billing", "actions": ["Sub"], "decision": "Deny"},
                    ],
                }
            ],
        }
    assert (world.status("writer")["phase"], world.reason("writer")) == ("Ready", "Reconciled")
    assert world.status("writer")["groups"] == ["orders-0", "orders-1"]


def test_the_node_reads_the_accounts(world: World) -> None:
    """JSON is YAML, and the operator knows no file formats of the node."""
    world.user("writer", permissions=PERMISSIONS)
    world.user("admin", superUser=True)
    world.user("away", enabled=False)
    world.user("slow", quota={"messagesPerSecond": 100, "topics": 0, "bytesPerSecond": None})
    world.settle()
    acl = parse(world.read(f"{CLUSTER}-access", "plain_acl.yml").encode())
    assert set(acl.accounts) == {RESERVED, "writer", "admin", "away", "slow"}
    users = {name: account.user() for name, account in acl.accounts.items()}
    assert users[RESERVED].is_super and users["admin"].is_super and not users["writer"].is_super
    assert not users["away"].is_enabled and len(users["writer"].policies) == 2
    assert acl.accounts["slow"].fields()["quota"] == {"messagesPerSecond": 100, "topics": 0}
    assert "quota" not in acl.accounts["writer"].fields()
    assert acl.version is not None and acl.version["counter"] >= 1
    assert acl.accounts["writer"].fields()["owner"] == uid(world, "users", "writer")
    assert len(bytes.fromhex(world.read(f"{CLUSTER}-access", "acl.key"))) == 32


def test_nothing_is_written_when_nothing_changes(world: World) -> None:
    world.user("writer", permissions=PERMISSIONS)
    world.settle()
    writes, puts = len(world.api.writes), len(world.puts)
    world.settle()
    assert world.api.writes[writes:] == [] and world.puts[puts:] == []


def test_a_changed_password_reaches_all(world: World) -> None:
    world.secret("chosen", password="first-one")
    world.user("writer", secretName="chosen")
    world.settle()
    world.secret("chosen", password="second-one")
    world.settle()
    assert {world.users[group]["writer"]["password"] for group in (0, 1)} == {"second-one"}
    assert world.stored()["writer"]["password"] == "second-one"
    world.change("writer", metadata={"annotations": {"tallystick.dev/rotate": "1"}})
    world.settle()
    assert world.read("chosen", "password") == "second-one", "the Secret of a user is never changed"


def test_another_generated_password_is_made_once_for_a_request(world: World) -> None:
    world.user("writer")
    world.settle()
    first = world.read("writer-user", "password")
    world.change("writer", metadata={"annotations": {"tallystick.dev/rotate": "1"}})
    world.settle()
    second = world.read("writer-user", "password")
    assert second != first and world.users[0]["writer"]["password"] == second
    world.reconciler = None
    world.settle()
    assert world.read("writer-user", "password") == second


def test_drift_is_corrected(world: World) -> None:
    world.user("writer", permissions=PERMISSIONS)
    world.settle()
    world.users[0]["writer"]["userType"] = "Super"
    del world.users[1]["writer"]
    world.settle()
    assert world.users[0]["writer"]["userType"] == "Normal" and "writer" in world.users[1]


@pytest.mark.parametrize("owner", ["", "another"])
def test_a_user_of_another_owner_is_neither_changed_nor_deleted(world: World, owner: str) -> None:
    theirs = {"username": "writer", "password": "theirs", "userType": "Normal", "userStatus": "enable"}
    world.users[1]["writer"] = dict(theirs, **({"owner": owner} if owner else {}))
    before = dict(world.users[1]["writer"])
    world.user("writer")
    world.settle()
    assert (world.status("writer")["phase"], world.reason("writer")) == ("Refused", "AlreadyExists")
    world.delete(kube.USERS, "writer")
    world.settle()
    assert world.api.get("users", "writer") is None
    assert world.users[1]["writer"] == before and "writer" not in world.users[0]


def test_adoption_takes_a_user_without_an_owner_only(world: World) -> None:
    world.users[0]["writer"] = {"username": "writer", "password": "old", "userType": "Normal", "userStatus": "enable"}
    world.users[1]["other"] = {"username": "other", "password": "old", "owner": "another"}
    for name in ("writer", "other"):
        world.user(name, annotations={"tallystick.dev/adopt": "true"})
    world.settle()
    assert world.reason("writer") == "Reconciled" and world.users[0]["writer"]["owner"] == uid(world, "users", "writer")
    assert world.reason("other") == "AlreadyExists" and world.users[1]["other"]["owner"] == "another"


def test_a_deleted_user_is_gone_everywhere(world: World) -> None:
    world.user("writer")
    world.settle()
    world.silent = {1}
    world.delete(kube.USERS, "writer")
    world.settle()
    assert world.reason("writer") == "GroupUnavailable", "it waits for the group"
    world.silent = set()
    world.settle()
    assert world.api.get("users", "writer") is None
    assert all("writer" not in users for users in world.users.values()) and "writer" not in world.stored()


def test_finalizers_do_not_outlive_the_cluster(world: World) -> None:
    world.user("writer")
    world.settle()
    world.delete(kube.CLUSTERS, CLUSTER)
    world.settle()
    assert world.reason("writer") == "ClusterNotFound"
    world.delete(kube.USERS, "writer")
    world.settle()
    assert world.api.get("users", "writer") is None


def test_of_two_resources_for_one_name_the_older_counts(world: World) -> None:
    world.user("a", userName="writer")
    world.time += 10
    world.user("b", userName="writer")
    world.settle()
    assert (world.reason("a"), world.reason("b")) == ("Reconciled", "Conflict")
    world.delete(kube.USERS, "a")
    world.settle()
    assert world.reason("b") == "Reconciled"
    assert world.users[0]["writer"]["owner"] == uid(world, "users", "b")


def test_without_access_control_the_accounts_wait_in_the_secret() -> None:
    """A cluster that begins to use it starts its pods with all accounts."""
    world = World()
    world.cluster()
    world.user("writer")
    world.settle()
    assert world.reason("writer") == "NoAccessControl" and "writer" in world.stored()
    world.by_hand("PATCH", kube.CLUSTERS.path(NAMESPACE, CLUSTER), {"spec": {"security": SECURE}})
    world.starting = True
    world.settle()
    assert world.reason("writer") == "NoAccessControl"
    world.starting = False
    world.settle()
    assert world.reason("writer") == "Reconciled"


def test_it_is_ready_when_the_name_servers_use_it(world: World) -> None:
    world.name_servers_read = False
    world.user("writer")
    world.settle()
    assert world.reason("writer") == "NameServersPending"
    world.name_servers_read = True
    world.settle()
    assert world.reason("writer") == "Reconciled"


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({}, "SecretMissing"),
        ({"password": ""}, "SecretInvalid"),
        ({"password": "with a line break\n"}, "SecretInvalid"),
        ({"password": "good-one", "username": "another"}, "SecretInvalid"),
    ],
)
def test_a_secret_that_cannot_be_used_is_reported(world: World, values: dict[str, str], reason: str) -> None:
    if values:
        world.secret("chosen", **values)
    world.user("writer", secretName="chosen")
    world.settle()
    assert world.reason("writer") == reason and "writer" not in world.users[0]
    assert "good-one" not in str(world.status("writer"))


def test_a_secret_that_disappears_locks_no_client_out(world: World) -> None:
    world.secret("chosen", password="first-one")
    world.user("writer", secretName="chosen")
    world.settle()
    world.delete(kube.SECRETS, "chosen")
    world.settle()
    assert world.reason("writer") == "SecretMissing"
    assert world.stored()["writer"]["password"] == world.users[0]["writer"]["password"] == "first-one"


@pytest.mark.parametrize("name", [f"{CLUSTER}-access", f"{CLUSTER}-superuser", "writer-user"])
def test_a_secret_of_another_owner_is_neither_used_nor_changed(world: World, name: str) -> None:
    world.secret(name, password="theirs", username="theirs")
    world.user("writer")
    world.settle()
    assert world.status("writer")["phase"] != "Ready"
    assert (world.read(name, "password"), world.read(name, "username")) == ("theirs", "theirs")
    assert "writer" not in world.users[0]
    world.delete(kube.SECRETS, name)
    world.settle()
    assert world.reason("writer") == "Reconciled"


def test_without_permission_for_secrets_users_say_so(world: World) -> None:
    answer = world.api._answer

    def refusing(method: str, resource: kube.Resource, *rest: object) -> object:
        if resource is kube.SECRETS:
            raise RefusalError(403, "Forbidden", "secrets is forbidden")
        return answer(method, resource, *rest)  # type: ignore[arg-type]

    world.api._answer = refusing  # type: ignore[assignment,method-assign]
    world.user("writer")
    world.settle()
    assert world.reason("writer") == "SecretRefused"


@pytest.mark.parametrize("seed", range(8))
def test_users_come_through_ends_of_the_operator(seed: int) -> None:
    """Whatever is interrupted, in the end brokers have exactly the declared users and those of others."""
    dice = random.Random(seed)
    world = World()
    world.cluster(security=SECURE)
    theirs = {"username": "theirs", "password": "theirs", "userType": "Super", "userStatus": "enable"}
    world.users[0]["theirs"] = dict(theirs)
    for number in range(30):
        name = f"u{dice.randrange(4)}"
        if world.api.get("users", name) is None:
            world.user(name, userName="theirs" if dice.random() < 0.1 else name)
        elif dice.random() < 0.3:
            world.delete(kube.USERS, name)
        elif dice.random() < 0.5:
            world.change(name, metadata={"annotations": {"tallystick.dev/rotate": str(number)}})
        world.silent = {dice.randrange(2)} if dice.random() < 0.3 else set()
        world.api.losing = dice.randrange(2) if dice.random() < 0.2 else 0
        world.one_pass(dice.randrange(6) if dice.random() < 0.6 else None)
        world.time += 5
    world.silent, world.api.losing = set(), 0
    world.settle(12)
    assert world.users[0].pop("theirs") == theirs
    declared = {body["metadata"]["name"] for body in world.api.all("users") if body["spec"].get("userName") != "theirs"}
    for group, users in world.users.items():
        ours = {name: each for name, each in users.items() if name not in (RESERVED, "theirs")}
        assert set(ours) == declared, group
        for name, each in ours.items():
            assert each["password"] == world.read(f"{name}-user", "password")


def test_the_superuser_is_kept(world: World) -> None:
    world.settle()
    password = world.read(f"{CLUSTER}-superuser", "password")
    assert world.users[0][RESERVED]["password"] == password and world.users[0][RESERVED]["userType"] == "Super"
    assert world.read(f"{CLUSTER}-access", "tools.yml") == f'{{"accessKey":"{RESERVED}","secretKey":"{password}"}}'
    del world.users[1][RESERVED]
    world.settle()
    assert RESERVED in world.users[1]
