"""Two operators: one holds the lease and works, the other one waits, and takes over when the first is silent.

The two of one release, and two releases that watch the same namespace.
"""

from __future__ import annotations

import json

from harness.api import Json
from harness.brokers import Brokers, now_s, restart_count
from harness.faults import signal_process
from harness.lab import Lab
from harness.places import CHART, WORK
from harness.release import NAME, NAMESPACE
from harness.shell import kubectl, run
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


_SECOND = "second"
_TOLD_S = 150
"""The holder of a namespace reads every 30 s who waits for it, and forgets an operator after 90 s without a sign."""


def _conflict(orders: Brokers, status: str) -> str:
    """The message of the condition. NotYetError: it has another status."""
    found = {each["type"]: each for each in orders.get()["status"]["conditions"]}["OperatorConflict"]
    if found["status"] != status:
        raise NotYetError(str(found))
    return str(found["message"])


def test_of_two_releases_that_watch_a_namespace_one_waits(orders: Brokers, lab: Lab) -> None:
    """Nothing is written twice, and both sides tell it."""
    second = f"e2e-{_SECOND}"
    kubectl("create", "namespace", second)
    scope = {"clusterWide": False, "secretNamespaces": [], "watchNamespaces": [orders.namespace]}
    values = lab.release.values(lab.images.tag) | scope | {"crds": {"install": "never"}}
    file = WORK / "second.json"
    file.write_text(json.dumps(values))
    install = ["helm", "install", _SECOND, str(CHART), "--namespace", second, "--values", str(file)]
    before = {name: body["metadata"]["generation"] for name, body in _stateful_sets(orders).items()}
    try:
        run(*install, "--wait", "--timeout=120s", timeout_s=180)
        told = wait_for("the condition names the second release", lambda: _conflict(orders, "True"), _TOLD_S)
        assert f"{second}/{_SECOND}-tallystick" in told

        def event() -> None:
            found = lab.api.list("events", orders.namespace)
            if not any(each["reason"] == "OperatorWaits" for each in found):
                raise NotYetError("no event OperatorWaits")

        wait_for("the second release says that it waits", event, 30)
        lease = lab.api.get("leases", orders.namespace, "operator.tallystick.dev")
        assert lease["spec"]["holderIdentity"] == f"{NAMESPACE}/{NAME}"
        assert {name: body["metadata"]["generation"] for name, body in _stateful_sets(orders).items()} == before
    finally:
        run("helm", "uninstall", _SECOND, "--namespace", second, "--wait", "--timeout=120s", timeout_s=180)
        kubectl("delete", "namespace", second, "--wait=false")
    wait_for("the condition is False again", lambda: _conflict(orders, "False"), _TOLD_S)
    orders.whole()


def _stateful_sets(orders: Brokers) -> dict[str, Json]:
    return {body["metadata"]["name"]: body for body in orders.api.list("statefulsets", orders.namespace)}
