"""What users delete by mistake, and settings that no broker starts with: all of it under load, nothing is lost."""

from __future__ import annotations

import pytest
from harness import pods
from harness.brokers import Brokers
from harness.lab import Lab
from harness.load import Load, loaded
from harness.waiting import NotYetError, wait_for
from harness.watching import watching

_BACK_S = 300


def _judge(lab: Lab, load: Load) -> None:
    load.finish()
    verdict = load.verdict()
    lab.goals.lost.add(verdict.lost)
    assert verdict.problems == [], f"reasons of failed sends: {load.history.reasons()}"


def _claims(brokers: Brokers) -> dict[str, str]:
    """UIDs of the claims of all members."""
    wanted = {f"data-{brokers.name}-0-{member}" for member in range(brokers.replicas())}
    found = brokers.api.list("persistentvolumeclaims", brokers.namespace)
    uids = {each["metadata"]["name"]: each["metadata"]["uid"] for each in found}
    return {name: uid for name, uid in uids.items() if name in wanted}


@pytest.mark.parametrize("kind", ["statefulsets", "brokernodes"])
def test_an_object_of_the_leader_is_deleted(orders: Brokers, lab: Lab, kind: str) -> None:
    """With it goes the pod. Both are created again, on the same volume."""
    claims = _claims(orders)
    with loaded(orders, lab.images.node) as load:
        leader = orders.leader()
        uid = orders.pod(leader)["metadata"]["uid"]
        lab.api.delete(kind, orders.namespace, leader)
        orders.replaced(leader, uid, _BACK_S)
        orders.whole()
        _judge(lab, load)
    assert _claims(orders) == claims


def test_two_claims_are_deleted_at_once(orders: Brokers, lab: Lab) -> None:
    """Of the followers. Their pods use them, so nothing is lost until they stop, and they stop one after the other."""
    before = _claims(orders)
    with loaded(orders, lab.images.node) as load:
        with watching(orders) as watched:
            leader = orders.leader()
            lost = sorted(f"data-{node}" for node in orders.nodes() if node != leader)
            for name in lost:
                lab.api.delete("persistentvolumeclaims", orders.namespace, name)

            def look() -> None:
                orders.look_whole()
                now = _claims(orders)
                if len(now) != len(before) or any(now[name] == before[name] for name in lost):
                    raise NotYetError(f"{now}, {orders.status().get('step')}")

            wait_for("both members have other volumes", look, _BACK_S)
        _judge(lab, load)
    assert watched.most_unready <= 1, watched.unready
    assert load.failed() == 0, load.history.reasons()


def test_a_setting_that_no_broker_starts_with(orders: Brokers, lab: Lab) -> None:
    """It stops one member, and the status has the words of the broker."""
    with loaded(orders, lab.images.node) as load:
        with watching(orders) as watched:
            orders.change({"config": {"fileReservedTime": "never"}})

            def told() -> None:
                status = orders.status()
                found = {each["type"]: each for each in status.get("conditions") or ()}
                error = str(status["groups"][0].get("lastError"))
                if found["UpdateBlocked"]["reason"] != "MemberNotReady" or "fileReservedTime" not in error:
                    raise NotYetError(f"{found['UpdateBlocked']}, {error}")

            wait_for("the status says why the update stopped", told, 120)
            orders.change({"config": {"fileReservedTime": None}})
            orders.whole()
        _judge(lab, load)
    assert watched.most_unready <= 1, watched.unready
    assert load.failed() == 0, load.history.reasons()


def test_a_group_is_added(lab: Lab, namespace: str) -> None:
    """Existing Topics get queues on it, and messages go to both."""
    brokers = Brokers(lab.api, namespace, "wider")
    brokers.apply({"groups": 1, "replicas": 1, "nameServers": {"replicas": 1}})
    brokers.whole()
    brokers.topic("wide", 2)
    shell = pods.shell(lab.api, namespace, lab.images.node, brokers.name_servers(1))
    assert shell.queues("wide") == 2
    brokers.change({"groups": 2})

    def look() -> None:
        status = brokers.status()
        if (status.get("phase"), status.get("leaders")) != ("Ready", "2/2") or shell.queues("wide") != 4:
            raise NotYetError(f"{status.get('phase')}, {status.get('leaders')}, {shell.queues('wide')} queues")

    wait_for("the Topic has queues on both groups", look, 240)
    shell.tally("produce", "wide", "--count", "400")
    assert len(shell.tally("consume", "wide", "--count", "400").splitlines()) >= 400
