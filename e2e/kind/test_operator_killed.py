"""The operator is killed during an upgrade: the next one continues at that point, one member at a time."""

from __future__ import annotations

from harness.brokers import Brokers
from harness.faults import signal_process
from harness.lab import Lab
from harness.load import loaded
from harness.waiting import NotYetError, wait_for
from harness.watching import watching

_ROLL_S = 360


def test_in_the_middle_of_an_upgrade(orders: Brokers, lab: Lab) -> None:
    """kill -9, as soon as the first member is on its way."""
    current = next(iter(orders.images().values()))
    wanted = lab.images.next_node if current == lab.images.node else lab.images.node
    with loaded(orders, lab.images.node) as load:
        with watching(orders) as watched:
            orders.change({"image": wanted})

            def begun() -> None:
                if not watched.unready:
                    raise NotYetError("all nodes are ready")

            wait_for("the first member is being created", begun, 60, every_s=0.1)
            for pod in lab.release.pods():
                signal_process(lab.kind, pod, "tally-operator", "KILL")

            orders.rolled(wanted, _ROLL_S)
        load.finish()
        verdict = load.verdict()
    lab.goals.lost.add(verdict.lost)
    lab.goals.failed.add(load.failed())
    assert watched.most_unready <= 1, watched.unready
    assert sorted(watched.replaced) == sorted(orders.nodes()), watched.replaced
    assert verdict.problems == []
    assert load.failed() == 0, load.history.reasons()
    orders.change({"image": None if current == lab.images.node else current})
