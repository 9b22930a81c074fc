"""A namespace is deleted after the operator was removed: nothing blocks the deletion."""

from __future__ import annotations

from harness.brokers import Brokers
from harness.lab import Lab
from harness.shell import kubectl
from harness.waiting import NotYetError, wait_for

_GONE_S = 150


def _gone(lab: Lab, namespace: str) -> None:
    """WaitError: what holds it is in its status."""

    def look() -> None:
        found = lab.api.find("namespaces", "", namespace)
        if found is not None:
            told = [each.get("message") for each in found["status"].get("conditions") or () if each["status"] == "True"]
            raise NotYetError(str(told))

    wait_for(f"the namespace {namespace} is deleted", look, _GONE_S)


def _filled(lab: Lab, namespace: str, policy: str) -> None:
    """A cluster with a topic in it."""
    brokers = Brokers(lab.api, namespace, "doomed")
    brokers.apply({"replicas": 1, "nameServers": {"replicas": 1}})
    brokers.whole()
    brokers.topic("held", 1, deletionPolicy=policy)


def test_with_no_operator(installed: Lab) -> None:
    """Topics that are kept on the brokers, which is the default."""
    installed.namespace("e2e-orphaned")
    _filled(installed, "e2e-orphaned", "Retain")
    installed.release.scale(0)
    try:
        kubectl("delete", "namespace", "e2e-orphaned", "--wait=false")
        _gone(installed, "e2e-orphaned")
    finally:
        installed.release.scale(1)


def test_topics_that_are_to_be_deleted(installed: Lab) -> None:
    """They are held for the operator, which was to take them off the brokers. As soon as it is back, it lets go."""
    installed.namespace("e2e-held")
    _filled(installed, "e2e-held", "Delete")
    installed.release.scale(0)
    try:
        kubectl("delete", "namespace", "e2e-held", "--wait=false")
        wait_for("the cluster in it is deleted", lambda: _no_cluster(installed, "e2e-held"), _GONE_S)
    finally:
        installed.release.scale(1)
    _gone(installed, "e2e-held")


def test_topics_that_are_to_be_deleted_and_no_release_any_more(installed: Lab) -> None:
    """`helm uninstall` leaves no finalizer: neither a Topic nor its namespace waits for an operator."""
    installed.namespace("e2e-left")
    _filled(installed, "e2e-left", "Delete")
    assert installed.api.get("topics", "e2e-left", "held")["metadata"]["finalizers"] == ["tallystick.dev/topic"]
    installed.release.uninstall()
    try:
        assert not installed.api.get("topics", "e2e-left", "held")["metadata"].get("finalizers")
        kubectl("delete", "topic", "held", "-n", "e2e-left", "--wait=true", "--timeout=30s")
        kubectl("delete", "namespace", "e2e-left", "--wait=false")
        _gone(installed, "e2e-left")
    finally:
        installed.release.install()


def _no_cluster(lab: Lab, namespace: str) -> None:
    if found := lab.api.list("brokerclusters", namespace):
        raise NotYetError(str(found[0]["metadata"]))
