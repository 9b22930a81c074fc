"""Two operators: one holds the lease and works, the other one waits, and takes over when the first is gone."""

from __future__ import annotations

from harness.brokers import Brokers, now_s
from harness.lab import Lab
from harness.release import NAMESPACE
from harness.waiting import NotYetError, wait_for

_TAKEOVER_S = 60


def test_one_works_at_a_time(orders: Brokers, lab: Lab) -> None:
    """The holder is killed; the other one holds the lease, and does what is asked for from then on."""
    lab.release.scale(2)
    try:
        first = wait_for("somebody holds the lease", lab.release.holder, 60)
        names = {pod["metadata"]["name"] for pod in lab.release.pods()}
        assert any(first.startswith(name) for name in names), (first, names)
        pod = next(name for name in names if first.startswith(name))
        begin_s = now_s()
        lab.api.delete("pods", NAMESPACE, pod, grace_s=0)

        def look() -> str:
            holder = lab.release.holder()
            if holder == first:
                raise NotYetError(f"{holder} still holds it")
            return holder

        second = wait_for("another one holds the lease", look, _TAKEOVER_S)
        print(f"taken over after {now_s() - begin_s:.1f} s")
        orders.topic("taken-over")
        assert lab.release.holder() == second, "the new one keeps it"
    finally:
        lab.release.scale(1)
    orders.whole()
