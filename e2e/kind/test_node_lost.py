"""A Kubernetes node that never comes back, with the volume of a member on it."""

from __future__ import annotations

from harness.brokers import Brokers
from harness.faults import start_machine, stop_machine
from harness.lab import Lab
from harness.load import loaded
from harness.shell import kubectl
from harness.waiting import NotYetError, wait_for

_BACK_S = 300


def test_a_node_never_comes_back(orders: Brokers, lab: Lab) -> None:
    """It is stopped and deleted from Kubernetes. A user asks for another volume: the member comes back elsewhere."""
    with loaded(orders, lab.images.node) as load:
        node = next(name for name in sorted(orders.nodes()) if name != orders.leader())
        machine = orders.machine(node)
        stop_machine(machine)
        try:
            orders.degraded(node)
            kubectl("delete", "node", machine, "--wait=false")
            annotations = {"metadata": {"annotations": {"tallystick.dev/replace": "true"}}}
            lab.api.merge("brokernodes", orders.namespace, node, annotations)

            def look() -> None:
                orders.look_whole()
                if orders.machine(node) == machine:
                    raise NotYetError(f"{node} is on {machine}")

            wait_for(f"{node} is ready on another node", look, _BACK_S)
        finally:
            start_machine(lab.api, machine)  # it registers again
        load.finish()
        verdict = load.verdict()
    lab.goals.lost.add(verdict.lost)
    assert verdict.problems == [], f"reasons of failed sends: {load.history.reasons()}"
