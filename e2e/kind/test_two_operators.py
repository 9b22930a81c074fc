"""Two operators: one holds the lease and works, the other one waits, and takes over when the first is silent."""

from __future__ import annotations

from harness.brokers import Brokers, now_s, restart_count
from harness.faults import signal_process
from harness.lab import Lab
from harness.release import NAMESPACE
from harness.waiting import NotYetError, wait_for

_TAKEOVER_S = 60


def test_one_works_at_a_time(orders: Brokers, lab: Lab) -> None:
    """The holder stands still, as a machine that hangs: the other one takes over and works. The first one, when it
    continues, finds that it has lost the lease, and ends before it does anything."""
    lab.release.scale(2)
    try:
        first = wait_for("an operator holds the lease", lab.release.holder, 60)
        pods = {pod["metadata"]["name"]: pod for pod in lab.release.pods()}
        assert first in pods, (first, sorted(pods))
        begin_s = now_s()
        signal_process(lab.kind, pods[first], "tally-operator", "STOP")
        try:

            def look() -> str:
                holder = lab.release.holder()
                if holder == first:
                    raise NotYetError(f"{holder} still holds the lease")
                return holder

            second = wait_for("another operator holds the lease", look, _TAKEOVER_S)
            print(f"taken over after {now_s() - begin_s:.1f} s")
            orders.topic("taken-over")
        finally:
            signal_process(lab.kind, pods[first], "tally-operator", "CONT")

        def ended() -> None:
            pod = lab.api.get("pods", NAMESPACE, first)
            if restart_count(pod) <= restart_count(pods[first]):
                raise NotYetError("its process continues")

        wait_for("the first operator has ended", ended, _TAKEOVER_S)
        assert lab.release.holder() == second
    finally:
        lab.release.scale(1)
    orders.whole()
