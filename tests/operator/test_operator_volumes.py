"""Volumes of another class or size: what claims ask for, and members that are replaced for it, one at a time."""

from __future__ import annotations

import random

import pytest
from simulated_api import Json
from simulated_cluster import CLUSTER, Cluster

from tallystick.operator.clusters.observed import Claim
from tallystick.operator.clusters.spec import ClusterSpec, SpecError, Storage
from tallystick.operator.clusters.volumes import class_of, difference, size_of

PLACE = Storage("10Gi", "fast")
REPLACED = Storage("10Gi", "fast", replaces=True)


@pytest.mark.parametrize(
    ("storage", "claim", "size", "storage_class", "told"),
    [
        (PLACE, None, "10Gi", "fast", ""),
        (PLACE, Claim("c", requested="20Gi", storage_class="fast"), "20Gi", "fast", ""),
        (PLACE, Claim("c", requested="5Gi", storage_class="fast"), "10Gi", "fast", ""),
        (PLACE, Claim("c", requested="5Gi", storage_class="slow"), "10Gi", "slow", "storage class slow, wanted fast"),
        (REPLACED, Claim("c", requested="10240Mi", storage_class="fast"), "10240Mi", "fast", ""),
        (REPLACED, Claim("c", requested="20Gi", storage_class="fast"), "20Gi", "fast", "size 20Gi, wanted 10Gi"),
        (REPLACED, Claim("c", requested="5Gi", storage_class="fast"), "5Gi", "fast", "size 5Gi, wanted 10Gi"),
        (REPLACED, Claim("c", requested="10Gi"), "10Gi", None, "storage class not set, wanted fast"),
        (Storage("10Gi", replaces=True), Claim("c", requested="10Gi", storage_class="slow"), "10Gi", "slow", ""),
    ],
)
def test_what_a_claim_asks_for_and_how_it_differs(
    storage: Storage, claim: Claim | None, size: str, storage_class: str | None, told: str
) -> None:
    assert (size_of(storage, claim), class_of(storage, claim)) == (size, storage_class)
    assert claim is None or difference(storage, claim) == told


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(SpecError, match=r"storage\.changePolicy"):
        ClusterSpec.parse({"storage": {"changePolicy": "Move"}}, "node:1")


@pytest.fixture
def world() -> Cluster:
    found = Cluster(random.Random(7))
    found.create(storage={"size": "10Gi", "storageClassName": "slow"})
    found.settle()
    return found


def claims(world: Cluster) -> dict[str, Json]:
    return {each["metadata"]["name"]: each for each in world.api.all("persistentvolumeclaims")}


def replacements(world: Cluster) -> int:
    samples = next(iter(world.metrics.steps.collect())).samples
    found = {each.labels["action"]: int(each.value) for each in samples if each.name.endswith("_total")}
    return found.get("ReplaceNode", 0)


def passes(world: Cluster, count: int) -> None:
    for _ in range(count):
        world.one_pass()
        world.tick(2.0)


def test_members_get_volumes_of_another_class_one_at_a_time(world: Cluster) -> None:
    """The judge fails the pass that stops a second member, the leader, or a majority."""
    before, leader = claims(world), world.groups[0].leader
    assert leader is not None
    acknowledged = world.groups[0].acknowledged
    world.change({"storage": {"storageClassName": "fast", "size": "5Gi", "changePolicy": "ReplaceMembers"}})
    world.run_until(lambda: replacements(world) == 1)
    condition = world.condition("StorageResizing")
    assert (condition["status"], condition["reason"]) == ("True", "Replacing")
    assert "storage class slow, wanted fast; size 10Gi, wanted 5Gi" in condition["message"]
    assert world.status["phase"] == "Updating"
    world.settle()
    after = claims(world)
    assert replacements(world) == 3
    for name, claim in after.items():
        assert claim["metadata"]["uid"] != before[name]["metadata"]["uid"]
        assert (
            claim["spec"]["storageClassName"] == "fast" and claim["spec"]["resources"]["requests"]["storage"] == "5Gi"
        )
        assert claim["metadata"]["annotations"]["tallystick.dev/formed"] == "true"
        assert world.disks[claim["metadata"]["uid"]].length >= acknowledged
    assert world.condition("StorageResizing")["reason"] == "AsSpecified"
    writes = len(world.api.writes)
    passes(world, 5)
    assert world.api.writes[writes:] == []


def test_without_the_policy_nothing_is_replaced_and_the_status_tells_how(world: Cluster) -> None:
    """As for a cluster that was created again, with another class, on claims that were kept."""
    before = claims(world)
    world.change({"storage": {"storageClassName": "fast"}})
    passes(world, 10)
    condition = world.condition("StorageResizing")
    assert (condition["status"], condition["reason"]) == ("False", "ClassDiffers")
    assert "ReplaceMembers" in condition["message"]
    assert claims(world) == before and replacements(world) == 0
    assert world.status["phase"] == "Ready" and world.condition("Progressing")["reason"] == "AsSpecified"


def test_a_class_that_does_not_exist_stops_one_member_and_can_be_taken_back(world: Cluster) -> None:
    world.missing_classes.add("typo")
    world.change({"storage": {"storageClassName": "typo", "changePolicy": "ReplaceMembers"}})
    passes(world, 60)
    assert replacements(world) == 1 and world.status["readyNodes"] == "2/3"
    assert world.condition("UpdateBlocked")["reason"] == "MemberNotReady"
    world.change({"storage": {"storageClassName": "slow"}})
    world.settle()
    assert {each["spec"]["storageClassName"] for each in claims(world).values()} == {"slow"}


def test_a_paused_cluster_keeps_its_volumes(world: Cluster) -> None:
    before = claims(world)
    world.change({"storage": {"size": "5Gi", "changePolicy": "ReplaceMembers"}}, {"tallystick.dev/paused": "true"})
    passes(world, 10)
    assert world.status["phase"] == "Paused" and claims(world).keys() == before.keys() and replacements(world) == 0
    assert f"ReplaceNode {CLUSTER}-0-" in world.condition("UpdateBlocked")["message"]
