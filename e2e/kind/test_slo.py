"""How long producers are without a leader: many changes of each kind, under load. `make slo CHANGES=30` runs it alone.

The order of the kinds is that of their damage. The table is printed at the end of the run, also if a kind failed.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from harness import slo
from harness.brokers import Brokers, now_s
from harness.faults import start_machine, stop_machine, transfer
from harness.lab import Lab
from harness.load import Load, loaded
from harness.slo import Row
from harness.waiting import NotYetError, wait_for

pytestmark = pytest.mark.slo

Change = Callable[[Brokers, Lab, Load], tuple[float, float]]
"""One change of leader. Returns the moment before, and how many seconds after it an outage can begin."""


def _planned(orders: Brokers, lab: Lab, load: Load) -> tuple[float, float]:
    """`tally group transfer`, as the operator does before it stops a leader."""
    leader = orders.leader()
    nodes = sorted(orders.nodes())
    moment_s = transfer(orders, leader, nodes[(nodes.index(leader) + 1) % len(nodes)])
    ended_s = now_s()
    load.served_again(ended_s)
    orders.led_by_another(leader)
    return moment_s, ended_s - moment_s + 1


def _deleted(orders: Brokers, lab: Lab, load: Load) -> tuple[float, float]:
    return _stopped(orders, lab, load, None)


def _forced(orders: Brokers, lab: Lab, load: Load) -> tuple[float, float]:
    return _stopped(orders, lab, load, 0)


def _stopped(orders: Brokers, lab: Lab, load: Load, grace_s: int | None) -> tuple[float, float]:
    leader = orders.leader()
    uid, moment_s = orders.pod(leader)["metadata"]["uid"], now_s()
    lab.api.delete("pods", orders.namespace, f"{leader}-0", grace_s=grace_s)
    load.served_again(moment_s)
    orders.replaced(leader, uid)
    return moment_s, 4


def _node_stopped(orders: Brokers, lab: Lab, load: Load) -> tuple[float, float]:
    leader = orders.leader()
    pod, machine = orders.pod(leader), orders.machine(leader)
    begin_s, end_s = stop_machine(machine)
    try:
        load.served_again(end_s)

        def look() -> None:
            if orders.leader() == leader:
                raise NotYetError(f"according to the status {leader} still leads")

        wait_for(f"a member other than {leader} leads", look, 120)
    finally:
        start_machine(lab.api, machine)
    orders.runs_again(leader, pod)
    return begin_s, end_s - begin_s + 4


KINDS: dict[str, Change] = {
    "planned transfer": _planned,
    "pod deleted": _deleted,
    "pod force-deleted": _forced,
    "Kubernetes node stopped": _node_stopped,
}


@pytest.mark.parametrize("kind", KINDS)
def test_changes_of_leader(orders: Brokers, lab: Lab, slo_rows: list[Row], kind: str) -> None:
    """No acknowledged message is lost in any of them. No send fails in a planned one."""
    row = Row(kind)
    slo_rows.append(row)
    for changes in slo.batches():
        with loaded(orders, lab.images.node) as load:
            moments = []
            for _ in range(changes):
                orders.whole()
                moments.append(KINDS[kind](orders, lab, load))
            orders.whole()
            load.finish()
            row.outages_s += [load.outage_after(moment_s, within_s) for moment_s, within_s in moments]
            verdict = load.verdict()
        row.failed += load.failed()
        row.acknowledged += verdict.acknowledged
        row.lost += verdict.lost
        assert verdict.problems == [], load.history.reasons()
    assert row.lost == 0 and (kind != "planned transfer" or row.failed == 0)
