"""Members that a user stops by annotation: one is fenced under load, and the whole cluster hibernates."""

from __future__ import annotations

import json

from harness.brokers import Brokers
from harness.lab import Lab
from harness.load import loaded
from harness.waiting import NotYetError, wait_for

_STOPPED_S = 180


def _claims(lab: Lab, brokers: Brokers) -> dict[str, str]:
    """UIDs of the volumes of all members."""
    names = [f"data-{node}" for node in brokers.nodes()]
    return {name: lab.api.get("persistentvolumeclaims", brokers.namespace, name)["metadata"]["uid"] for name in names}


def test_a_fenced_leader_hands_over_stops_and_comes_back(orders: Brokers, lab: Lab) -> None:
    claims = _claims(lab, orders)
    with loaded(orders, lab.images.node) as load:
        node = orders.leader()
        orders.annotate(fenced=node)

        def stopped() -> None:
            condition = orders.condition("Fenced")
            phase = (orders.nodes()[node].get("status") or {}).get("phase")
            if node in orders.pods() or condition.get("reason") != "MembersFenced" or phase != "Fenced":
                raise NotYetError(f"{phase}, {json.dumps(condition)}")

        wait_for(f"{node} is fenced", stopped, _STOPPED_S)
        assert orders.leader() != node
        assert orders.condition("Degraded")["status"] == "True", "a fence costs redundancy, and the status says so"
        orders.annotate(fenced=None)
        orders.whole()
        load.finish()
        verdict = load.verdict()
        lab.goals.lost.add(verdict.lost)
        assert verdict.problems == [] and load.failed() == 0
    assert _claims(lab, orders) == claims


def test_a_cluster_hibernates_and_wakes_up_with_all_messages(orders: Brokers, lab: Lab) -> None:
    claims = _claims(lab, orders)
    with loaded(orders, lab.images.node) as load:
        load.finish()
        orders.annotate(hibernation="on")

        def asleep() -> None:
            status = orders.status()
            servers = [
                each["metadata"]["name"]
                for each in lab.api.list("pods", orders.namespace)
                if each["metadata"]["labels"].get("app.kubernetes.io/component") == "nameserver"
            ]
            if orders.pods() or servers or status.get("phase") != "Hibernated":
                raise NotYetError(f"{status.get('phase')}, {sorted(orders.pods())}, {servers}")

        wait_for("no pod of the cluster is left", asleep, _STOPPED_S)
        assert orders.condition("Degraded")["status"] == "False", "nothing of it is missing"
        orders.annotate(hibernation="off")
        orders.whole()
        verdict = load.verdict()
        lab.goals.lost.add(verdict.lost)
        assert verdict.problems == []
    assert _claims(lab, orders) == claims
