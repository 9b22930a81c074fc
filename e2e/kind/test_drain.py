"""`kubectl drain` under load: of the node of the leader, and of a second node meanwhile."""

from __future__ import annotations

import pytest
from harness.brokers import Brokers
from harness.faults import drain, uncordon
from harness.lab import Lab
from harness.load import loaded
from harness.shell import ToolError

_DRAIN_S = 180
_SECOND_DRAIN_S = 15


def test_a_drain_of_the_leaders_node(orders: Brokers, lab: Lab) -> None:
    """The leader hands over, and no send fails. The budgets do not permit a drain of a second node meanwhile: the
    volume of the first member cannot move."""
    with loaded(orders, lab.images.node) as load:
        leader = orders.leader()
        machine = orders.machine(leader)
        other = next(orders.machine(node) for node in sorted(orders.nodes()) if orders.machine(node) != machine)
        try:
            drain(machine, _DRAIN_S)
            assert leader not in {name for name, pod in orders.pods().items() if pod["spec"].get("nodeName")}
            orders.led_by_another(leader)
            with pytest.raises(ToolError) as refused:
                drain(other, _SECOND_DRAIN_S)
            assert "disruption budget" in refused.value.said
            assert len([pod for pod in orders.pods().values() if pod["spec"].get("nodeName")]) == 2
        finally:
            uncordon(machine)
            uncordon(other)
        orders.whole()
        load.finish()
        verdict = load.verdict()
    lab.goals.lost.add(verdict.lost)
    lab.goals.failed.add(load.failed())
    assert verdict.problems == []
    assert load.failed() == 0, load.history.reasons()
