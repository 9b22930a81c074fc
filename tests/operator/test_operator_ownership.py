"""Objects of other owners that have names of a cluster: they are reported, and never changed or deleted."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
from foreign_objects import NAMES, OF_OTHERS, Foreign, uncollected
from simulated_cluster import CLUSTER, NAMESPACE, Cluster

from tallystick.operator.core import kube
from tallystick.operator.core.ownership import suffix

BY_PLURAL = {resource.plural: resource for resource in kube.RESOURCES}


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Cluster:
    return uncollected(Cluster(random.Random(7)))


def passes(world: Cluster, count: int = 12) -> None:
    for _ in range(count):
        world.one_pass()
        world.tick()


@pytest.mark.parametrize("whose", OF_OTHERS)
@pytest.mark.parametrize(("plural", "name"), [each for each in NAMES if "-external" not in each[1]][:12])
def test_a_taken_name_is_reported_and_the_object_stays(world: Cluster, plural: str, name: str, whose: str) -> None:
    foreign = Foreign(world)
    foreign.put(plural, name, **OF_OTHERS[whose])
    world.create()
    passes(world)
    foreign.check()
    for kind, status in (("Ready", "False"), ("Progressing", "False"), ("UpdateBlocked", "True")):
        condition = world.condition(kind)
        assert (condition["status"], condition["reason"]) == (status, "NameTaken"), condition
        assert f"{BY_PLURAL[plural].kind} {name} exists" in condition["message"]
    assert world.status["phase"] == "Failed"
    assert [each["reason"] for each in world.api.all("events")].count("NameTaken") == 1
    others = [each["metadata"]["name"] for each in world.api.all("statefulsets") if each["metadata"]["name"] != name]
    assert not [each for each in others if each != "orders-nameserver"], "a broker would use the foreign object"
    world.delete(kube.CLUSTERS, CLUSTER)
    passes(world)
    foreign.check()
    world.create()
    foreign.remove()
    world.settle()


def test_a_member_that_is_added_waits_for_its_names(world: Cluster) -> None:
    world.create(replicas=1)
    world.settle()
    foreign = Foreign(world)
    foreign.put("services", "orders-0-2")
    foreign.put("pods", "orders-0-1-0")
    world.change({"replicas": 3})
    passes(world, 30)
    foreign.check()
    assert world.condition("Ready")["reason"] == "NodesNotReady"
    assert "Service orders-0-2 exists and has no owner" in world.condition("UpdateBlocked")["message"]
    foreign.remove()
    world.settle()


def test_an_object_that_another_user_replaces_is_left_alone_and_no_pod_is_stopped(world: Cluster) -> None:
    world.create(image="node:1")
    world.settle()
    world.api.remove(("configmaps", NAMESPACE, "orders-config"))
    foreign = Foreign(world)
    foreign.put("configmaps", "orders-config")
    world.change({"image": "node:2"})
    pods = {pod["metadata"]["uid"] for pod in world.api.all("pods")}
    passes(world, 30)
    foreign.check()
    assert {pod["metadata"]["uid"] for pod in world.api.all("pods")} == pods
    assert world.condition("Ready")["status"] == "True", "it still serves"
    assert world.condition("UpdateBlocked")["reason"] == "NameTaken"
    foreign.remove()
    world.settle()


def test_a_step_that_is_due_waits_while_a_name_is_taken(world: Cluster) -> None:
    """Its pod would come back on a foreign object. This step needs no StatefulSet to be written before it."""
    world.create()
    world.settle()
    world.api.remove(("configmaps", NAMESPACE, "orders-config"))
    foreign = Foreign(world)
    foreign.put("configmaps", "orders-config")
    world.annotate_node("orders-0-2", {"tallystick.dev/replace": "true"})
    world.judge.may_lose.add("data-orders-0-2")
    pods = {pod["metadata"]["uid"] for pod in world.api.all("pods")}
    passes(world, 20)
    assert {pod["metadata"]["uid"] for pod in world.api.all("pods")} == pods
    assert world.condition("UpdateBlocked")["reason"] == "NameTaken"
    foreign.remove()
    world.settle()
    assert {pod["metadata"]["uid"] for pod in world.api.all("pods")} != pods


def test_an_object_of_ours_without_its_labels_is_still_ours(world: Cluster) -> None:
    world.create()
    world.settle()
    body = world.api.get("services", "orders-nameserver")
    assert body is not None
    del body["metadata"]["labels"]
    passes(world, 4)
    body = world.api.get("services", "orders-nameserver")
    assert body is not None and body["metadata"]["labels"]["tallystick.dev/cluster"] == CLUSTER
    assert world.condition("UpdateBlocked")["reason"] == "NothingHeld"


def test_a_claim_with_the_labels_of_its_member_is_used(world: Cluster) -> None:
    """A volume that was restored from a snapshot, or that an earlier cluster left."""
    labels = {
        "tallystick.dev/cluster": CLUSTER,
        "app.kubernetes.io/managed-by": "tallystick-operator",
        "tallystick.dev/group": "0",
        "tallystick.dev/member": "0",
    }
    world.api._store(
        ("persistentvolumeclaims", NAMESPACE, "data-orders-0-0"),
        {
            "metadata": {"name": "data-orders-0-0", "labels": labels},
            "spec": {"resources": {"requests": {"storage": "10Gi"}}},
        },
    )
    uid = world.api.objects["persistentvolumeclaims", NAMESPACE, "data-orders-0-0"]["metadata"]["uid"]
    world.create()
    world.settle()
    claim = world.api.get("persistentvolumeclaims", "data-orders-0-0")
    assert claim is not None and claim["metadata"]["uid"] == uid


def test_a_secret_of_another_owner_is_not_used(world: Cluster) -> None:
    foreign = Foreign(world)
    for name in ("orders-admin", "orders-reader"):
        foreign.put("secrets", name)
    world.create()
    world.settle()
    foreign.check()
    body = world.api.get("brokerclusters", CLUSTER)
    assert body is not None
    digest = suffix(body["metadata"]["uid"])
    used = {
        volume["secret"]["secretName"]
        for pod in world.api.all("pods")
        for volume in pod["spec"]["volumes"]
        if "secret" in volume
    }
    assert used == {f"orders-admin-{digest}", f"orders-reader-{digest}"}


@pytest.mark.parametrize("seed", range(6))
def test_nothing_of_others_is_touched_whenever_it_appears(seed: int) -> None:
    """Objects of every kind and name appear at any moment, also between a read of the operator and its write."""
    chance = random.Random(seed)
    world = uncollected(Cluster(random.Random(seed)))
    foreign, hook = Foreign(world), world.api.hook

    def appear(*about: Any) -> None:
        if chance.random() < 0.05:
            foreign.put(*chance.choice(NAMES), **copy.deepcopy(chance.choice(list(OF_OTHERS.values()))))
        _, resource, key, _, _ = about
        if chance.random() < 0.05 and resource is not kube.EVENTS and key[0] != "brokerclusters":
            foreign.put(key[0], key[2], **copy.deepcopy(chance.choice(list(OF_OTHERS.values()))))
        hook(*about)

    world.api.hook = appear
    world.create(listeners={"external": {"type": "NodePort"}})
    for turn in range(60):
        world.one_pass(chance.randint(0, 20) if chance.random() < 0.3 else None)
        world.tick()
        foreign.check()
        match turn % 10:
            case 3:
                world.change({"replicas": chance.choice((1, 3, 5)), "image": f"node:{turn}"})
            case 6:
                world.change({"listeners": {"external": {"type": chance.choice(("None", "NodePort"))}}})
            case 7:
                world.change({"networkPolicy": {"enabled": chance.random() < 0.5}})
            case 9 if chance.random() < 0.3:
                world.delete(kube.CLUSTERS, CLUSTER)
                world.one_pass()
                world.tick(100.0)
                world.create(listeners={"external": {"type": "NodePort"}})
    assert foreign.made, "this seed shows nothing"
    world.api.hook = hook
    foreign.remove()
    world.settle()
