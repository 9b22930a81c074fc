"""New clusters that take the place of a RocketMQ cluster, over a simulated one: what is started where, when a group
becomes the master, and what users are told."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from simulated_cluster import CLUSTER, NAMESPACE, Cluster, OldMaster

from tallystick.operator.clusters.adoption_plan import AdoptionPlan, find_plan
from tallystick.operator.clusters.adoption_source import OldBroker
from tallystick.operator.clusters.recovery_source import Problem
from tallystick.operator.clusters.spec import Cluster as Adopting
from tallystick.operator.clusters.spec import ClusterSpec
from tallystick.operator.core import kube

MARKS = ("tallystick.dev/adopted", "tallystick.dev/broker-name")
OLD = {"nameServers": ["old-ns-1:9876", "old-ns-2:9876"]}
AUTOMATIC = {**OLD, "switch": "Automatic"}


@pytest.fixture
def world() -> Cluster:
    return prepared()


def prepared(seed: int = 5) -> Cluster:
    """A RocketMQ cluster with two masters."""
    made = Cluster(random.Random(seed))
    made.old = {"broker-a": OldMaster("10.0.0.1:10911"), "broker-b": OldMaster("10.0.0.2:10911", 90)}
    return made


def create(world: Cluster, **spec: Any) -> None:
    world.create(**{"groups": 2, "adoptFrom": OLD, **spec})


def run(world: Cluster, passes: int = 10, seconds: float = 2.0) -> None:
    for _ in range(passes):
        world.one_pass()
        world.tick(seconds)


def written_until(world: Cluster, done: Callable[[], Any]) -> None:
    """Processes end after one write more than the one before, until something is done."""
    for writes in range(100):
        if done():
            return
        world.one_pass(writes=writes)
        world.tick(1.0)
    raise AssertionError("not done")


def told(world: Cluster) -> tuple[str, str, str]:
    found = world.condition("Adopted")
    return (found["status"], found["reason"], found["message"]) if found else ("", "", "")


def until(world: Cluster, reason: str) -> None:
    world.run_until(lambda: told(world)[1] == reason)


def rows(world: Cluster) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in (world.status.get("adoption") or {}).get("groups") or ()}


def marks(world: Cluster) -> dict[str, tuple[str | None, ...]]:
    claims = {each["metadata"]["name"]: each["metadata"] for each in world.api.all("persistentvolumeclaims")}
    return {name: tuple((each.get("annotations") or {}).get(mark) for mark in MARKS) for name, each in claims.items()}


def environment(world: Cluster, group: int = 0, member: int = 0) -> dict[str, str]:
    body = world.api.get("statefulsets", f"{CLUSTER}-{group}-{member}")
    assert body is not None
    return {each["name"]: each.get("value", "") for each in body["spec"]["template"]["spec"]["containers"][0]["env"]}


def name_servers_of_brokers(world: Cluster) -> str:
    body = world.api.get("configmaps", f"{CLUSTER}-config")
    assert body is not None
    return next(line for line in body["data"]["broker.toml"].splitlines() if line.startswith("namesrvAddr"))


def events(world: Cluster) -> list[tuple[str, str]]:
    bodies = sorted(world.api.all("events"), key=lambda each: int(each["metadata"]["resourceVersion"]))
    return [(each["type"], each["reason"]) for each in bodies if each["involvedObject"]["kind"] == "BrokerCluster"]


def pods(world: Cluster) -> set[str]:
    return {each["metadata"]["uid"] for each in world.api.all("pods") if "nameserver" not in each["metadata"]["name"]}


# -- the way it goes ---------------------------------------------------------------------------------------------------


def test_groups_follow_their_masters_until_a_user_switches(world: Cluster) -> None:
    create(world)
    until(world, "ReadyToSwitch")
    body = world.api.get("brokerclusters", CLUSTER)
    assert body is not None
    uid = body["metadata"]["uid"]
    names = {name: "broker-a" if name.startswith("data-orders-0") else "broker-b" for name in marks(world)}
    assert marks(world) == {name: (uid, names[name]) for name in names} and len(names) == 6
    first = environment(world)
    assert (first["TALLY_BROKERNAME"], first["TALLY_DLEGERGROUP"]) == ("broker-a", "orders-0")
    assert first["TALLY_BROKERROLE"] == "SLAVE"
    assert name_servers_of_brokers(world).endswith(';old-ns-1:9876;old-ns-2:9876"')
    assert world.status["phase"] == "Adopting" and world.condition("Ready")["reason"] == "Adopting"
    assert world.condition("AdoptionReady")["status"] == "True"
    assert world.condition("Recovered") == {}
    row = rows(world)["orders-1"]
    assert (row["state"], row["brokerName"], row["master"]) == ("following", "broker-b", "10.0.0.2:10911")
    assert row["lagMessages"] == 0
    assert row["rehearsal"] == "2 queues, 1 offsets and 10 messages compared with 10.0.0.2:10911"
    run(world, 10, 30.0)
    assert world.switches == [] and told(world)[1] == "ReadyToSwitch", "no user has permitted the switch"
    before = pods(world)

    world.change({"adoptFrom": AUTOMATIC})
    world.run_until(lambda: world.switches == ["broker-a"])
    world.settle()
    assert world.switches == ["broker-a", "broker-b"] and told(world)[:2] == ("True", "Adopted")
    assert world.status["adoption"]["state"] == "Adopted"
    assert rows(world)["orders-0"]["verification"].endswith("compared with 10.0.0.1:10911")
    assert pods(world) == before, "no pod was restarted"
    assert "TALLY_BROKERROLE" not in environment(world), "members that are created later do not follow"
    assert environment(world)["TALLY_BROKERNAME"] == "broker-a"
    found = events(world)
    assert found.count(("Normal", "SwitchGroup")) == 2 and found.count(("Normal", "Adopted")) == 1
    assert ("Normal", "Copying") in found or ("Normal", "Starting") in found
    writes = len(world.api.writes)
    run(world, 3)
    assert world.api.writes[writes:] == []


def adopted(world: Cluster) -> None:
    """The cluster has taken the places of all masters, once each, and nothing is left to do."""
    world.settle()
    assert told(world)[:2] == ("True", "Adopted"), world.status
    assert sorted(world.switches) == sorted(world.old)
    assert [each.name for each in world.groups.values()] == ["broker-a", "broker-b"][: len(world.groups)]
    assert all(group.is_promoted and group.voters == {0, 1, 2} for group in world.groups.values())


def test_an_automatic_adoption_needs_no_user(world: Cluster) -> None:
    create(world, adoptFrom=AUTOMATIC)
    adopted(world)


def test_the_next_group_waits_until_clients_have_new_routes(world: Cluster) -> None:
    create(world, adoptFrom={**AUTOMATIC, "pauseSeconds": 60})
    world.run_until(lambda: world.switches == ["broker-a"])
    began = world.time
    world.run_until(lambda: len(world.switches) == 2)
    assert world.time - began >= 60


def test_clients_outside_find_the_brokers_at_the_old_name_servers(world: Cluster) -> None:
    """RocketMQ's name servers know one address of a broker: clients outside cannot use that of a Service."""
    create(world, listeners={"external": {"type": "NodePort"}})
    world.one_pass()
    body = world.api.get("configmaps", f"{CLUSTER}-config")
    assert body is not None
    assert 'externalNamesrvAddr = "old-ns-1:9876;old-ns-2:9876"' in body["data"]["broker.toml"]
    assert "old-ns" not in name_servers_of_brokers(world)


# -- what hinders it ---------------------------------------------------------------------------------------------------


def _without(world: Cluster) -> None:
    del world.old["broker-b"]


def _row(**changes: Any) -> Any:
    return lambda world: world.old["broker-b"].row.update(changes)


HINDRANCES = [
    (_without, "GroupsMismatch", "set spec.groups to 1", False),
    (lambda world: world.old.clear(), "OldClusterEmpty", "know no broker", True),
    (lambda world: setattr(world, "old_names_answer", False), "OldClusterUnreachable", "no name server answers", True),
    (_row(cluster="Other"), "OldClusterUnclear", "to one of: DefaultCluster, Other", False),
    (lambda world: setattr(world.old["broker-b"], "is_up", False), "MasterUnreachable", "broker-b: its master", True),
    (_row(obstacles=["haListenPort is 0"]), "NotSupported", "broker-b: haListenPort is 0", False),
    (_row(version="V5_1_0"), "NotSupported", "its version is V5_1_0", False),
    (_row(broker="orders-5"), "NameConflict", "orders-5 would be the name of another group", False),
    (_row(broker="a/b"), "NameConflict", "is no name that a broker can have", False),
    (_row(addresses={"0": "10.0.0.2:10911", "2": "10.0.0.3:10911"}), "IdTaken", "10.0.0.3:10911 of broker-b has", True),
    (_row(settings={"messageDelayLevel": "1s 7s"}), "SettingsDiffer", "messageDelayLevel to '1s 7s'", False),
    (_row(settings={"maxMessageSize": str(1 << 30)}), "SettingsDiffer", "larger storage.segmentBytes", False),
    (_row(bytes=10 << 30), "StorageTooSmall", "raise spec.storage.size", False),
    (_row(addresses="x"), "PlanFailed", "invalid answer", True),
]


@pytest.mark.parametrize(("spoil", "reason", "text", "waits"), HINDRANCES, ids=[str(each[2]) for each in HINDRANCES])
def test_a_plan_that_does_not_fit_starts_nothing(
    world: Cluster, spoil: Any, reason: str, text: str, waits: bool
) -> None:
    good = {name: OldMaster(each.address, each.length) for name, each in world.old.items()}
    spoil(world)
    create(world)
    world.run_until(lambda: told(world)[1] == reason)
    run(world)
    assert told(world)[:2] == ("False", reason) and text in told(world)[2]
    assert marks(world) == {}
    assert not [each for each in world.api.all("statefulsets") if "nameserver" not in each["metadata"]["name"]]
    assert world.status["phase"] == ("Creating" if waits else "Failed")
    assert world.condition("Ready")["reason"] == reason and world.status["adoption"]["state"] == reason
    assert events(world).count(("Normal" if waits else "Warning", reason)) == 1
    assert (world.one_pass() or 99) <= 5.0, "no event of the old cluster reaches the operator"
    world.old, world.old_names_answer = good, True
    until(world, "ReadyToSwitch")


def test_a_group_keeps_the_master_that_its_claims_name() -> None:
    cluster = Adopting("shop", "orders", "uid", 1, False, ClusterSpec.parse({"groups": 2, "adoptFrom": OLD}, "node:1"))
    survey = [OldBroker(name, version="V4_8_0") for name in ("broker-b", "broker-a")]
    for named in ({}, {0: "broker-b"}, {1: "broker-a"}):
        found = find_plan(cluster, survey, named)
        assert isinstance(found, AdoptionPlan)
        names = {number: each.name for number, each in found.brokers.items()}
        assert names == ({0: "broker-b", 1: "broker-a"} if named else {0: "broker-a", 1: "broker-b"})
    gone = find_plan(cluster, survey, {0: "broker-c"})
    assert isinstance(gone, Problem) and gone.reason == "MasterUnreachable" and "broker-c" in gone.message


def test_the_cluster_is_chosen_by_its_name(world: Cluster) -> None:
    world.old["broker-b"].row["cluster"] = "Other"
    create(world, groups=1, adoptFrom={**AUTOMATIC, "cluster": "Other"})
    world.settle()
    assert world.switches == ["broker-b"] and rows(world)["orders-0"]["brokerName"] == "broker-b"
    assert world.old["broker-a"].accepts


def test_a_cluster_that_is_not_there_is_named(world: Cluster) -> None:
    create(world, adoptFrom={**OLD, "cluster": "Nowhere"})
    until(world, "OldClusterUnknown")
    assert told(world)[2] == "spec.adoptFrom.cluster is Nowhere, and there are: DefaultCluster"


def test_a_slave_of_the_group_itself_takes_no_id(world: Cluster) -> None:
    own = f"{CLUSTER}-1-0.{NAMESPACE}.svc:10911"
    world.old["broker-b"].row["addresses"] = {"0": "10.0.0.2:10911", "1": own}
    create(world)
    until(world, "ReadyToSwitch")


def test_differences_are_told_before_the_switch(world: Cluster) -> None:
    world.old["broker-a"].row |= {
        "settings": {"fileReservedTime": "48", "flushDiskType": "ASYNC_FLUSH", "autoCreateTopicEnable": "false"},
        "defaults": {"fileReservedTime": "72", "flushDiskType": "ASYNC_FLUSH", "autoCreateTopicEnable": "true"},
        "different": ["aclEnable: its files are not copied"],
    }
    create(world)
    until(world, "ReadyToSwitch")
    assert rows(world)["orders-0"]["differences"] == [
        "fileReservedTime is 48 there, and 72 here",
        "flushDiskType is ASYNC_FLUSH there, and SYNC_FLUSH here",
        "aclEnable: its files are not copied",
    ]


@pytest.mark.parametrize("spec", [OLD, None])
def test_claims_of_an_earlier_cluster_are_not_written_to(world: Cluster, spec: dict[str, Any] | None) -> None:
    """Neither those of an ordinary one, nor those of an earlier adoption."""
    create(world, adoptFrom=spec)
    if spec is None:
        world.settle()
    else:
        until(world, "ReadyToSwitch")
    world.delete(kube.CLUSTERS, CLUSTER)
    world.reconciler = None
    for _ in range(10):
        world.tick(5.0)
    before = marks(world)
    create(world)
    until(world, "VolumesExist")
    assert "data-orders-0-0" in told(world)[2]
    run(world)
    assert marks(world) == before and pods(world) == set() and world.status["phase"] == "Failed"


def test_an_invalid_field_is_named(world: Cluster) -> None:
    create(world, adoptFrom={"nameServers": ["old-ns-1"]})
    world.one_pass()
    found = world.condition("Ready")
    assert found["reason"] == "InvalidSpec" and "spec.adoptFrom.nameServers" in found["message"]
    world.change({"adoptFrom": {**OLD, "pauseSeconds": -1}})
    world.one_pass()
    assert "spec.adoptFrom.pauseSeconds" in world.condition("Ready")["message"]
    world.change({"adoptFrom": {"pauseSeconds": 1}, "bootstrap": {"recovery": {"backupName": "nightly"}}})
    world.one_pass()
    assert "spec.bootstrap" in world.condition("Ready")["message"]


# -- what goes wrong meanwhile -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem", "reason", "lasting"),
    [("diverged", "CopyFailed", True), ("disk", "Copying", False), ("silent", "Copying", False)],
)
def test_a_copy_that_stops_has_a_name_and_is_not_switched(
    world: Cluster, problem: str, reason: str, lasting: bool
) -> None:
    world.old["broker-b"].problem = problem
    create(world, adoptFrom=AUTOMATIC)
    until(world, reason)
    run(world, 20, 10.0)
    assert told(world)[1] == reason and f"orders-1 (broker-b): {problem}" in told(world)[2]
    row = rows(world)["orders-1"]
    assert (row["state"], row["reason"]) == (problem, f"10.0.0.2:10911 is {problem}")
    assert world.switches == [] and all(each.accepts for each in world.old.values())
    assert (("Warning", reason) in events(world)) is lasting
    world.old["broker-b"].problem = ""
    adopted(world)


def test_a_master_that_stops_is_waited_for(world: Cluster) -> None:
    create(world)
    until(world, "ReadyToSwitch")
    world.old["broker-a"].is_up = False
    world.change({"adoptFrom": AUTOMATIC})
    run(world, 10, 10.0)
    assert rows(world)["orders-0"]["state"] == "unreachable" and world.switches == []
    assert world.condition("AdoptionReady")["status"] == "False"
    world.old["broker-a"].is_up = True
    adopted(world)


def test_a_rehearsal_that_finds_a_difference_stops_the_switch(world: Cluster) -> None:
    world.promotions = ["differs"]
    create(world, adoptFrom=AUTOMATIC)
    until(world, "RehearsalFailed")
    assert "T queue 0 with 5 messages is missing" in told(world)[2] and world.switches == []
    assert "rehearsal" not in rows(world)["orders-0"]
    adopted(world)


def test_a_switch_that_fails_three_times_is_left_to_a_user(world: Cluster) -> None:
    world.promotions = ["refused"] * 3
    create(world, adoptFrom=AUTOMATIC)
    until(world, "SwitchFailed")
    run(world, 40, 30.0)
    assert "the copy is not complete" in told(world)[2] and rows(world)["orders-0"]["attempts"] == 3
    assert world.promotions == [] and world.switches == [] and all(each.accepts for each in world.old.values())
    assert ("Warning", "SwitchFailed") in events(world)
    world.change({"adoptFrom": {"switch": "Manual"}})
    until(world, "ReadyToSwitch")
    world.change({"adoptFrom": AUTOMATIC})
    adopted(world)


def test_a_switch_whose_answer_is_lost_is_not_repeated(world: Cluster) -> None:
    world.promotions = ["silent"]
    create(world, adoptFrom=AUTOMATIC)
    adopted(world)


def test_a_leader_that_is_killed_behind_the_fence_continues(world: Cluster) -> None:
    world.promotions = ["fenced"]
    create(world, adoptFrom=AUTOMATIC)
    world.run_until(lambda: world.old["broker-a"].is_fenced)
    fenced = world.time
    world.run_until(lambda: world.switches == ["broker-a"])
    assert world.time - fenced < 60, "its producers wait: it is not the time for a pause"
    adopted(world)


def test_the_way_back_is_manual(world: Cluster) -> None:
    world.promotions = ["fenced"]
    create(world, adoptFrom=AUTOMATIC)
    world.run_until(lambda: world.old["broker-a"].is_fenced)
    world.change({"adoptFrom": {**OLD, "switch": "Manual"}})
    world.run_until(lambda: world.old["broker-a"].accepts)
    run(world)
    assert told(world)[1] == "ReadyToSwitch" and world.switches == []
    assert "attempts" not in rows(world)["orders-0"]
    assert ("Normal", "TakeBackFence") in events(world)


def test_a_user_can_stop_between_two_groups(world: Cluster) -> None:
    create(world, adoptFrom={**AUTOMATIC, "pauseSeconds": 60})
    world.run_until(lambda: world.switches == ["broker-a"])
    world.change({"adoptFrom": {"switch": "Manual"}})
    run(world, 15, 10.0)
    assert world.switches == ["broker-a"] and world.old["broker-b"].accepts
    assert told(world)[1] == "ReadyToSwitch" and "1 of 2 groups are masters" in told(world)[2]
    world.change({"adoptFrom": AUTOMATIC})
    adopted(world)


def test_a_fence_does_not_stay_when_nothing_is_tried_any_longer(world: Cluster) -> None:
    world.promotions = ["refused", "refused", "fenced"]
    create(world, adoptFrom=AUTOMATIC)
    world.run_until(lambda: world.old["broker-a"].is_fenced, passes=600)
    world.run_until(lambda: world.old["broker-a"].accepts)
    until(world, "SwitchFailed")


def test_a_verification_that_finds_a_difference_is_told(world: Cluster) -> None:
    create(world, groups=1, adoptFrom={**AUTOMATIC, "cluster": "One"})
    world.old["broker-a"].row["cluster"] = "One"
    world.run_until(lambda: world.switches == ["broker-a"])
    world.promotions = ["differs"] * 200
    world.run_until(lambda: told(world)[0] == "True", passes=400)
    assert told(world)[1] == "AdoptedWithDifferences" and "broker-a: differs: T queue 0" in told(world)[2]
    assert ("Warning", "AdoptedWithDifferences") in events(world)
    assert 3 < 200 - len(world.promotions) < 20, "late offsets arrive for two minutes, so one look is not enough"


def test_an_old_master_that_is_stopped_after_the_switch_ends_the_adoption(world: Cluster) -> None:
    create(world, adoptFrom=AUTOMATIC)
    world.run_until(lambda: world.switches == ["broker-a"])
    world.old["broker-a"].is_up = False
    adopted(world)
    assert "nothing to compare with" in rows(world)["orders-0"]["verification"]


@pytest.mark.parametrize("annotation", ["paused", "hibernation"])
def test_nothing_is_switched_while_a_user_stops_the_cluster(world: Cluster, annotation: str) -> None:
    create(world)
    until(world, "ReadyToSwitch")
    value = "on" if annotation == "hibernation" else "true"
    world.change({"adoptFrom": AUTOMATIC}, {f"tallystick.dev/{annotation}": value})
    run(world, 15, 10.0)
    assert world.switches == [] and all(each.accepts for each in world.old.values())
    world.change(annotations={f"tallystick.dev/{annotation}": None})
    adopted(world)


def test_nothing_is_switched_while_a_member_is_missing(world: Cluster) -> None:
    create(world)
    until(world, "ReadyToSwitch")
    world.broken_images.add("node:1")
    victim = next(each for each in world.processes.values() if each.group == 1 and each.member == 2)
    body = world.pod(1, 2)
    assert body is not None
    world.delete(kube.PODS, body["metadata"]["name"])
    world.change({"adoptFrom": AUTOMATIC})
    run(world, 10, 10.0)
    assert world.switches == [], victim
    world.broken_images.clear()
    adopted(world)


# -- what changes meanwhile and afterwards -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_an_operator_that_ends_anywhere_is_continued(seed: int) -> None:
    """Each process ends after a number of requests, before, in and after the switches."""
    world = prepared(seed)
    world.promotions = ["", "fenced", "silent"]
    create(world, adoptFrom={**AUTOMATIC, "pauseSeconds": 1})
    for _ in range(60):
        world.one_pass(calls=world.random.randint(20, 90))
        world.reconciler = None
        world.tick(4.0)
    assert world.switches, "the operator did not come so far"
    adopted(world)


def test_a_broker_that_is_added_to_the_old_cluster_changes_no_assignment(world: Cluster) -> None:
    create(world)
    written_until(world, lambda: world.api.get("statefulsets", "orders-0-0"))
    world.old["alpha"] = OldMaster("10.0.0.9:10911")
    run(world)
    names = {name: mark[1] for name, mark in marks(world).items()}
    assert names.get("data-orders-0-0") == "broker-a" and set(names.values()) <= {"broker-a", "broker-b"}
    del world.old["alpha"]
    world.change({"adoptFrom": AUTOMATIC})
    adopted(world)


def test_without_the_field_brokers_leave_the_old_name_servers_and_keep_their_name(world: Cluster) -> None:
    create(world, adoptFrom=AUTOMATIC)
    adopted(world)
    assert "old-ns-1" in name_servers_of_brokers(world)
    world.change({"adoptFrom": None})
    world.settle()
    assert "old-ns-1" not in name_servers_of_brokers(world)
    assert environment(world)["TALLY_BROKERNAME"] == "broker-a"
    assert told(world)[:2] == ("True", "Adopted") and world.status["adoption"]["state"] == "Adopted"
    assert all(each.name == name for each, name in zip(world.groups.values(), ("broker-a", "broker-b"), strict=True))
    assert world.api.get("statefulsets", "orders-nameserver")["spec"]["template"]["spec"]["volumes"] == [
        {"name": "tmp", "emptyDir": {}}
    ]


def test_a_field_that_is_removed_too_early_switches_nothing(world: Cluster) -> None:
    create(world)
    until(world, "ReadyToSwitch")
    world.change({"adoptFrom": None})
    run(world, 20, 5.0)
    assert told(world)[:2] == ("False", "AdoptionUnfinished") and "promote or delete the group" in told(world)[2]
    assert world.switches == [] and all(each.accepts for each in world.old.values())
    assert environment(world)["TALLY_BROKERROLE"] == "SLAVE", "else a new first leader would serve clients"


def test_claims_whose_adoption_was_removed_before_it_began_are_named(world: Cluster) -> None:
    create(world)
    written_until(world, lambda: any(any(mark) for mark in marks(world).values()))
    assert world.api.get("statefulsets", "orders-0-0") is None
    world.change({"adoptFrom": None})
    run(world)
    assert told(world)[1] == "AdoptionUnfinished" and "data-orders-0-0" in told(world)[2]
    for name, mark in marks(world).items():
        if any(mark):
            world.delete(kube.CLAIMS, name)
    world.old.clear()
    world.settle()
    assert not any(any(mark) for mark in marks(world).values())


def test_a_new_resource_uses_the_volumes_and_the_names(world: Cluster) -> None:
    create(world, adoptFrom=AUTOMATIC)
    adopted(world)
    world.delete(kube.CLUSTERS, CLUSTER)
    world.reconciler = None
    for _ in range(10):
        world.tick(5.0)
    world.create(groups=2)
    world.settle()
    assert environment(world, 1)["TALLY_BROKERNAME"] == "broker-b"
    assert world.groups[1].is_promoted and told(world)[0] == "True"


def test_a_group_that_is_added_waits_and_is_an_ordinary_one(world: Cluster) -> None:
    create(world)
    until(world, "ReadyToSwitch")
    world.change({"groups": 3})
    run(world)
    assert told(world)[1] == "ReadyToSwitch" and world.api.get("statefulsets", "orders-2-0") is None
    found = world.condition("Progressing")
    assert (found["reason"], found["message"]) == (
        "GroupsWait",
        "orders-2: a group is added when the adoption is over",
    )
    world.change({"adoptFrom": AUTOMATIC})
    world.settle()
    assert told(world)[0] == "True" and world.switches == ["broker-a", "broker-b"]
    assert environment(world, 2)["TALLY_BROKERNAME"] == "orders-2" and "TALLY_DLEGERGROUP" not in environment(world, 2)


def test_members_that_are_added_meanwhile_follow_as_well(world: Cluster) -> None:
    create(world)
    until(world, "ReadyToSwitch")
    world.change({"replicas": 5})
    world.run_until(lambda: world.groups[1].voters == {0, 1, 2, 3, 4})
    assert environment(world, 1, 4)["TALLY_BROKERROLE"] == "SLAVE"
    world.change({"adoptFrom": AUTOMATIC})
    world.settle()
    assert told(world)[0] == "True"


def test_an_outdated_pod_is_restarted_before_the_switch(world: Cluster) -> None:
    create(world)
    until(world, "ReadyToSwitch")
    world.change({"image": "node:2", "adoptFrom": AUTOMATIC})
    world.run_until(lambda: world.switches != [], passes=400)
    pods_of_group = [world.pod(0, number) for number in range(3)]
    assert [each and each["spec"]["containers"][0]["image"] for each in pods_of_group] == ["node:2"] * 3
    adopted(world)
