"""The release goes and comes: clusters serve meanwhile. A cluster goes and comes: its messages are on its volumes."""

from __future__ import annotations

from harness.brokers import Brokers, now_s
from harness.lab import Lab
from harness.load import loaded
from harness.release import NAMESPACE
from harness.shell import kubectl
from harness.waiting import NotYetError, wait_for


def test_clusters_serve_without_the_release(orders: Brokers, lab: Lab) -> None:
    """`helm uninstall` takes the operator alone; the next `helm install` finds all, and restarts nothing."""
    image = next(iter(orders.images().values()))
    tag = image.rpartition(":")[2]
    with loaded(orders, lab.images.node) as load:
        before = {name: pod["metadata"]["uid"] for name, pod in orders.pods().items()}
        lab.release.uninstall()
        wait_for("the operator is deleted", lambda: _none(lab), 60)
        load.served_again(now_s())
        assert orders.api.find("brokerclusters", orders.namespace, orders.name) is not None
        lab.release.install(tag=tag)
        orders.whole()
        assert {name: pod["metadata"]["uid"] for name, pod in orders.pods().items()} == before
        orders.topic("after-the-release")
        load.finish()
        verdict = load.verdict()
    lab.goals.lost.add(verdict.lost)
    assert verdict.problems == []
    assert load.failed() == 0, load.history.reasons()


def _none(lab: Lab) -> None:
    pods = lab.api.list("pods", NAMESPACE, "app.kubernetes.io/name=tallystick-operator")
    if pods:
        raise NotYetError(f"{len(pods)} pods")


def test_a_cluster_comes_back_with_its_messages(orders: Brokers, lab: Lab) -> None:
    """Deleted and applied again under the same name: every acknowledged message is there."""
    with loaded(orders, lab.images.node) as load:
        load.finish()
        spec = orders.get()["spec"]
        kubectl("delete", "brokercluster", orders.name, "-n", orders.namespace, "--wait=true", "--timeout=60s")

        def gone() -> None:
            if orders.pods():
                raise NotYetError(str(sorted(orders.pods())))

        wait_for("its pods are deleted", gone, 150)
        orders.apply(spec)
        orders.whole()
        verdict = load.verdict()
    lab.goals.lost.add(verdict.lost)
    assert verdict.problems == []
