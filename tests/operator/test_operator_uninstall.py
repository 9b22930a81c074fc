"""Before the operator is removed: it stops, and nothing is left that only it could remove."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import kopf
import pytest
from operator_process import SETTINGS, holder, until
from simulated_cluster import NAMESPACE, Cluster, InlineKube

from tallystick.operator import main, uninstall
from tallystick.operator.core import kube
from tallystick.operator.core.lease import Lease, LeaseLostError
from tallystick.operator.core.namespace_leases import NAME, NamespaceLeases
from tallystick.operator.topics.kinds import CONSUMER_GROUP, TOPIC

OURS = replace(SETTINGS, lease_seconds=1.0)
OTHERS = "example.com/backup"


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    async def no_events(**_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(kopf, "operator", no_events)
    world = Cluster(random.Random(1))
    declare(world, kube.TOPICS, "held", TOPIC.finalizer, OTHERS)
    declare(world, kube.CONSUMER_GROUPS, "readers", CONSUMER_GROUP.finalizer)
    declare(world, kube.TOPICS, "elsewhere", TOPIC.finalizer, namespace="bank")
    declare(world, kube.TOPICS, "kept", OTHERS)
    return world


def declare(world: Cluster, resource: kube.Resource, name: str, *finalizers: str, namespace: str = NAMESPACE) -> None:
    metadata = {"name": name, "finalizers": list(finalizers)}
    spec = {"clusterName": "orders", "deletionPolicy": "Delete" if finalizers != (OTHERS,) else "Retain"}
    world.by_hand("POST", resource.path(namespace), {"metadata": metadata, "spec": spec})


def finalizers(world: Cluster) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for plural in ("topics", "consumergroups"):
        found |= {body["metadata"]["name"]: body["metadata"].get("finalizers") or [] for body in world.api.all(plural)}
    return found


RELEASED = {"held": [OTHERS], "readers": [], "elsewhere": [], "kept": [OTHERS]}


async def test_only_our_finalizers_go_and_no_operator_sets_them_again_meanwhile(world: Cluster) -> None:
    await uninstall.prepare_uninstall(OURS, InlineKube(world.api))
    assert finalizers(world) == RELEASED
    assert holder(world) == "uninstall-operator-0"
    lease = world.api.objects["leases", "system", "tallystick-operator"]["spec"]
    assert 10 <= lease["leaseDurationSeconds"] <= 30, "as long as helm needs, and an installation waits no longer"
    for namespace in ("shop", "bank"):
        assert world.api.objects["leases", namespace, NAME]["spec"]["holderIdentity"] == ""


async def test_the_operator_that_runs_stops_first(world: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(main.os, "_exit", ended.append)
    monkeypatch.setattr(main.logging, "shutdown", lambda: None)
    world.create()
    api = InlineKube(world.api)
    running = asyncio.create_task(main.run(OURS, api))
    await until(lambda: world.api.get("statefulsets", "orders-0-2") is not None and world.status)
    working = asyncio.create_task(uninstall.prepare_uninstall(replace(OURS, pod_name="hook"), api))
    async with asyncio.timeout(30):
        await running
        assert ended == [main.LEASE_LOST]
        assert TOPIC.finalizer in finalizers(world)["held"], "not before the operator has ended"
        await working
    assert finalizers(world) == RELEASED
    assert holder(world) == "uninstall-hook"


async def test_watched_namespaces_are_all_that_is_touched(world: Cluster) -> None:
    await uninstall.prepare_uninstall(replace(OURS, watch_namespaces=("bank",)), InlineKube(world.api))
    assert finalizers(world)["held"] == [TOPIC.finalizer, OTHERS]
    assert finalizers(world)["elsewhere"] == []


async def test_what_another_release_manages_is_left_to_it(world: Cluster) -> None:
    others = NamespaceLeases(InlineKube(world.api), "mq/other", lambda: 0.0, lambda error: None)
    assert await others.obstacle("shop") == ""
    await uninstall.prepare_uninstall(OURS, InlineKube(world.api))
    assert finalizers(world)["held"] == [TOPIC.finalizer, OTHERS]
    assert finalizers(world)["elsewhere"] == []
    assert world.api.objects["leases", "shop", NAME]["spec"]["holderIdentity"] == "mq/other"


async def test_a_lease_that_is_renewed_meanwhile_is_seized_all_the_same(world: Cluster) -> None:
    """As often as can happen by chance; one that changes without an end is an error."""
    api = InlineKube(world.api)
    await Lease(api, "system", "tallystick-operator", "operator-9", 1.0, lambda: 0.0).acquire()
    renewals = 0

    def renew(method: str, resource: kube.Resource, key: Any, body: Any, subresource: str) -> None:
        nonlocal renewals
        if method == "PUT" and renewals > 0:
            renewals -= 1
            world.api.objects[key]["metadata"]["resourceVersion"] += "x"

    world.api.hook = renew
    renewals = 3
    lease = Lease(api, "system", "tallystick-operator", "hook", 20.0, lambda: 0.0)
    assert await lease.seize() == 1.0
    assert await lease.seize() == 0.0, "it is ours already"
    renewals = 100
    with pytest.raises(kube.ConflictError):
        await lease.seize()


async def test_a_refusal_is_an_error_that_helm_shows(world: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(method: str, resource: kube.Resource, key: Any, body: Any, subresource: str) -> None:
        if resource is kube.TOPICS:
            raise kube.ForbiddenError("PATCH: no", status=403)

    world.api.hook = refuse
    assert await main._uninstall(OURS, InlineKube(world.api)) == 1
    world.api.hook = lambda *args: None
    assert await main._uninstall(OURS, InlineKube(world.api)) == 0
    assert finalizers(world) == RELEASED


async def test_one_whose_lease_is_taken_stops(world: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    api = InlineKube(world.api)
    await Lease(api, "system", "tallystick-operator", "operator-9", 3.0, lambda: 0.0).acquire()
    monkeypatch.setattr(uninstall, "HOLD_SECONDS", 0.3)
    working = asyncio.create_task(uninstall.prepare_uninstall(replace(OURS, pod_name="hook"), api))
    await until(lambda: holder(world) == "uninstall-hook")
    await Lease(api, "system", "tallystick-operator", "second-hook", 20.0, lambda: 0.0).seize()
    with pytest.raises(LeaseLostError):
        await working
    assert finalizers(world)["held"] == [TOPIC.finalizer, OTHERS]
