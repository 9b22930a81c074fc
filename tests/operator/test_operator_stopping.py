"""Fencing and hibernation over a simulated cluster: what stops, in which order, what stays, and what users are told."""

from __future__ import annotations

import random
from typing import Any

import pytest
from simulated_cluster import CLUSTER, Cluster

from tallystick.operator.core import kube
from tallystick.operator.core.node_api import NodeRefusedError

FENCED, HIBERNATION = "tallystick.dev/fenced", "tallystick.dev/hibernation"
MEMBERS = tuple(f"{CLUSTER}-0-{number}" for number in range(3))
KEPT = ("persistentvolumeclaims", "secrets", "services", "configmaps", "brokernodes")


@pytest.fixture
def world() -> Cluster:
    made = Cluster(random.Random(11))
    made.create()
    made.settle()
    return made


def run(world: Cluster, passes: int = 30) -> None:
    for _ in range(passes):
        world.one_pass()
        world.tick(3.0)


def pods(world: Cluster) -> list[str]:
    return sorted(each["metadata"]["name"] for each in world.api.all("pods"))


def brokers(world: Cluster) -> list[str]:
    return [name for name in pods(world) if "nameserver" not in name]


def uids(world: Cluster) -> set[tuple[str, str]]:
    return {(kind, each["metadata"]["uid"]) for kind in KEPT for each in world.api.all(kind)}


def lengths(world: Cluster) -> int:
    return world.groups[0].acknowledged


def warnings(world: Cluster) -> list[str]:
    return [each["reason"] for each in world.api.all("events") if each["type"] == "Warning"]


def fenced(world: Cluster) -> tuple[str, str]:
    condition = world.condition("Fenced")
    return condition["status"], condition["reason"]


def test_a_follower_is_fenced_and_comes_back_with_its_volume(world: Cluster) -> None:
    leader = world.groups[0].leader
    number = next(each for each in range(3) if each != leader)
    before = uids(world)
    world.change(annotations={FENCED: MEMBERS[number]})
    world.run_until(lambda: fenced(world) == ("True", "MembersFenced"))
    assert f"{MEMBERS[number]}-0" not in pods(world)
    assert len(brokers(world)) == 2
    assert uids(world) == before
    assert world.groups[0].leader == leader, "nobody else was stopped"
    assert world.node(MEMBERS[number])["status"]["phase"] == "Fenced"
    assert world.condition("QuorumAtRisk")["status"] == "True"
    assert "fenced" in world.condition("Degraded")["message"]
    world.change(annotations={FENCED: None})
    world.settle()
    assert fenced(world) == ("False", "NotFenced")
    assert uids(world) == before


def test_a_leader_hands_over_before_it_is_fenced(world: Cluster) -> None:
    leader = world.groups[0].leader
    assert leader is not None
    term = world.groups[0].term
    world.change(annotations={FENCED: MEMBERS[leader]})
    world.run_until(lambda: fenced(world) == ("True", "MembersFenced"))
    assert world.groups[0].leader not in (None, leader)
    assert world.groups[0].term == term + 1, "no election: leadership was transferred"


def test_a_leader_that_does_not_hand_over_is_fenced_nevertheless(
    world: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = world.groups[0].leader
    assert leader is not None
    world.operator()
    monkeypatch.setattr("simulated_cluster.Nodes._transfer", refuse)
    world.change(annotations={FENCED: MEMBERS[leader]})
    world.run_until(lambda: fenced(world) == ("True", "MembersFenced"))
    assert f"{MEMBERS[leader]}-0" not in pods(world)


def refuse(*_: Any) -> Any:
    raise NodeRefusedError("not done in time", status=409, leader=0)


def test_a_fence_that_costs_the_quorum_is_carried_out_and_told(world: Cluster) -> None:
    world.change(annotations={FENCED: f"{MEMBERS[0]}, {MEMBERS[2]}"})
    world.run_until(lambda: len(brokers(world)) == 1)
    run(world, 3)
    assert fenced(world) == ("True", "QuorumLost")
    message = world.condition("Fenced")["message"]
    assert "2 of 3 voters are fenced; 2 are required" in message, message
    assert warnings(world).count("QuorumLost") == 1
    assert brokers(world) == [f"{MEMBERS[1]}-0"]


def test_everyone_is_fenced_and_the_name_servers_stay(world: Cluster) -> None:
    before, length = uids(world), lengths(world)
    world.change(annotations={FENCED: "*"})
    world.run_until(lambda: not brokers(world))
    run(world, 3)
    assert len(pods(world)) == 2
    assert fenced(world) == ("True", "QuorumLost")
    world.change(annotations={FENCED: None})
    world.settle()
    assert uids(world) == before
    assert lengths(world) >= length


def test_a_rolling_update_waits_and_does_not_end_the_fence(world: Cluster) -> None:
    world.change(annotations={FENCED: MEMBERS[1]})
    world.run_until(lambda: fenced(world) == ("True", "MembersFenced"))
    present = {each["metadata"]["uid"] for each in world.api.all("pods")}
    world.change({"image": "node:2"})
    run(world)
    assert f"{MEMBERS[1]}-0" not in pods(world)
    assert {each["metadata"]["uid"] for each in world.api.all("pods")} == present
    blocked = world.condition("UpdateBlocked")
    assert (blocked["status"], blocked["reason"]) == ("True", "MemberNotReady")
    assert "n1 (fenced)" in blocked["message"]
    world.change(annotations={FENCED: None})
    world.settle()
    assert {each["spec"]["containers"][0]["image"] for each in world.api.all("pods")} == {"node:2"}


def test_a_drain_does_not_take_the_majority_that_a_fence_left(world: Cluster) -> None:
    def evictable() -> int:
        budget = world.api.get("poddisruptionbudgets", f"{CLUSTER}-0")
        assert budget is not None
        return int(budget["spec"]["maxUnavailable"])

    assert evictable() == 1
    world.change(annotations={FENCED: MEMBERS[1]})
    world.run_until(lambda: fenced(world) == ("True", "MembersFenced"))
    assert evictable() == 0
    world.change(annotations={FENCED: None})
    world.settle()
    assert evictable() == 1


def test_an_unknown_member_is_told(world: Cluster) -> None:
    world.change(annotations={FENCED: "orders-0-7"})
    run(world, 3)
    assert fenced(world) == ("False", "UnknownMember")
    assert "orders-0-7" in world.condition("Fenced")["message"]
    assert warnings(world).count("UnknownMember") == 1
    assert world.status["phase"] == "Ready"


def test_a_pause_holds_a_fence_back(world: Cluster) -> None:
    world.change(annotations={FENCED: MEMBERS[1], "tallystick.dev/paused": "true"})
    run(world, 5)
    assert len(brokers(world)) == 3
    assert fenced(world) == ("True", "Fencing")
    assert world.condition("UpdateBlocked")["reason"] == "Paused"


def test_a_wish_to_replace_a_fenced_member_waits(world: Cluster) -> None:
    world.change(annotations={FENCED: MEMBERS[1]})
    world.run_until(lambda: fenced(world) == ("True", "MembersFenced"))
    before = uids(world)
    world.annotate_node(MEMBERS[1], {"tallystick.dev/replace": "true"})
    run(world, 10)
    assert uids(world) == before
    assert world.condition("UpdateBlocked")["reason"] == "Stopped"


def test_a_replica_that_a_user_gives_back_is_stopped_again(world: Cluster) -> None:
    world.change(annotations={FENCED: MEMBERS[1]})
    world.run_until(lambda: fenced(world) == ("True", "MembersFenced"))
    live = world.api.get("statefulsets", MEMBERS[1])
    assert live is not None
    live["spec"]["replicas"] = 1
    world.tick(1.0)
    assert len(brokers(world)) == 3
    world.run_until(lambda: len(brokers(world)) == 2)
    run(world, 3)
    assert fenced(world) == ("True", "MembersFenced")


def test_a_cluster_hibernates_and_comes_back_with_its_data(world: Cluster) -> None:
    before, length = uids(world), lengths(world)
    world.change(annotations={HIBERNATION: "on"})
    order: list[set[str]] = []

    def asleep() -> bool:
        order.append(set(pods(world)))
        return bool(world.condition("Hibernated").get("status") == "True")

    world.run_until(asleep)
    assert pods(world) == []
    for present in order:
        if any("nameserver" not in name for name in present):
            assert len([name for name in present if "nameserver" in name]) == 2, "name servers go last"
    assert uids(world) == before
    assert world.status["phase"] == "Hibernated"
    assert world.condition("Degraded")["status"] == "False"
    assert world.condition("Ready")["reason"] == "Hibernated"
    assert {each["status"]["phase"] for each in world.api.all("brokernodes")} == {"Hibernated"}
    writes = len(world.api.writes)
    run(world, 5)
    assert world.api.writes[writes:] == [], "it rests"
    world.change(annotations={HIBERNATION: "off"})
    world.settle()
    assert uids(world) == before
    assert lengths(world) >= length
    assert world.condition("Hibernated")["reason"] == "NotHibernated"


def test_a_change_of_the_spec_takes_effect_after_the_hibernation(world: Cluster) -> None:
    world.change(annotations={HIBERNATION: "on"})
    world.run_until(lambda: world.status["phase"] == "Hibernated")
    world.change({"image": "node:2", "replicas": 5})
    run(world, 5)
    assert pods(world) == []
    world.change(annotations={HIBERNATION: None})
    world.settle()
    assert world.groups[0].voters == frozenset(range(5))


def test_a_new_cluster_that_hibernates_starts_no_pod() -> None:
    world = Cluster(random.Random(12))
    world.create()
    world.change(annotations={HIBERNATION: "on"})
    run(world, 10)
    assert pods(world) == []
    assert world.status["phase"] == "Hibernated"
    world.change(annotations={HIBERNATION: None})
    world.settle()


def test_a_value_that_is_neither_on_nor_off_is_told(world: Cluster) -> None:
    world.change(annotations={HIBERNATION: "yes"})
    run(world, 3)
    assert len(brokers(world)) == 3
    assert world.condition("Hibernated")["reason"] == "InvalidHibernation"
    assert warnings(world).count("InvalidHibernation") == 1


@pytest.mark.parametrize("writes", range(12))
def test_an_operator_that_ends_between_writes_finishes_the_hibernation(world: Cluster, writes: int) -> None:
    world.change(annotations={HIBERNATION: "on"})
    for _ in range(4):
        world.one_pass(writes)
        world.tick(1.0)
    world.reconciler = None
    world.run_until(lambda: world.status["phase"] == "Hibernated")
    world.change(annotations={HIBERNATION: None})
    world.settle()


def shown(world: Cluster, name: str) -> list[dict[str, str]]:
    """The labels of the series of a metric about the cluster."""
    families = world.metrics.registry.collect()
    samples = [
        sample for family in families for sample in family.samples if sample.name == f"tallystick_operator_{name}"
    ]
    return [
        {key: value for key, value in sample.labels.items() if key not in ("cluster_namespace", "cluster")}
        for sample in samples
        if sample.value == 1
    ]


def test_a_fence_is_told_to_the_alerts_and_needs_no_attention(world: Cluster) -> None:
    number = next(each for each in range(3) if each != world.groups[0].leader)
    world.change(annotations={FENCED: MEMBERS[number]})
    world.run_until(lambda: fenced(world) == ("True", "MembersFenced"))
    run(world, 3)
    assert shown(world, "stopped_members") == [{"node_id": "orders-0", "peer": f"n{number}", "reason": "Fenced"}]
    assert world.status["phase"] == "Degraded" and shown(world, "unplanned_clusters") == []
    other = next(each for each in range(3) if each not in (number, world.groups[0].leader))
    world.broken_images.add("node:1")
    world.delete(kube.PODS, f"{MEMBERS[other]}-0")
    run(world, 5)
    assert shown(world, "unplanned_clusters") == [{"phase": "Degraded"}], "another member is away beside the fence"
    world.broken_images.clear()
    world.change(annotations={FENCED: None})
    world.settle()
    assert (shown(world, "stopped_members"), shown(world, "unplanned_clusters")) == ([], [])


def test_a_fence_of_a_majority_explains_that_no_member_leads(world: Cluster) -> None:
    world.change(annotations={FENCED: "*"})
    run(world, 20)
    assert world.status["phase"] == "Degraded" and shown(world, "unplanned_clusters") == []
    assert {each["peer"] for each in shown(world, "stopped_members")} == {"n0", "n1", "n2"}


def test_a_hibernation_is_told_to_the_alerts(world: Cluster) -> None:
    world.change(annotations={HIBERNATION: "on"})
    run(world, 20)
    assert [each["reason"] for each in shown(world, "stopped_members")] == ["Hibernating"] * 3
    assert shown(world, "unplanned_clusters") == []
    world.api.remove(("brokerclusters", "shop", CLUSTER))
    world.one_pass()
    assert shown(world, "stopped_members") == [], "nothing is shown of a deleted cluster"
