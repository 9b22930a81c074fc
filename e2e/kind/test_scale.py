"""1 -> 3 -> 5 -> 3 under load: learners first, one at a time; who leaves hands over first, and its volume stays."""

from __future__ import annotations

from harness.api import Json
from harness.brokers import Brokers, now_s
from harness.lab import Lab
from harness.load import loaded
from harness.shell import kubectl
from harness.waiting import NotYetError, wait_for

_SCALE_S = 300


def _scaled(brokers: Brokers, replicas: int) -> None:
    """As people do it. WaitError."""
    kubectl("scale", f"brokercluster/{brokers.name}", "-n", brokers.namespace, f"--replicas={replicas}")

    def look() -> Json:
        status = brokers.look_whole()
        if len(brokers.nodes()) != replicas or status["replicas"] != replicas:
            raise NotYetError(f"{sorted(brokers.nodes())}, status.replicas {status['replicas']}")
        return status

    begin_s = now_s()
    wait_for(f"{brokers.name} has {replicas} members", look, _SCALE_S)
    print(f"{replicas} members after {now_s() - begin_s:.1f} s")


def test_out_and_in(lab: Lab, namespace: str) -> None:
    """Nothing is lost on the way, each member that is there reads the same, and volumes of who left are kept."""
    brokers = Brokers(lab.api, namespace, "elastic")
    brokers.apply({"replicas": 1, "nameServers": {"replicas": 2}})
    brokers.whole()
    with loaded(brokers, lab.images.node) as load:
        for replicas in (3, 5):
            _scaled(brokers, replicas)
        at_five = now_s()
        load.served_again(at_five)
        _scaled(brokers, 3)
        load.served_again(now_s())
        load.finish()
        verdict = load.verdict()
    lab.goals.lost.add(verdict.lost)
    lab.goals.failed.add(load.failed())
    assert verdict.problems == []
    assert load.failed() == 0, load.history.reasons()
    assert set(brokers.nodes()) == {f"elastic-0-{member}" for member in range(3)}
    claims = {each["metadata"]["name"] for each in lab.api.list("persistentvolumeclaims", namespace)}
    assert claims >= {f"data-elastic-0-{member}" for member in range(5)}
