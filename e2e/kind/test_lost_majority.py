"""Two of three volumes are lost for good under load, and the group continues with the third one.

The steps are those of docs/kubernetes/operations.md, with the commands that are stated there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from harness import pods
from harness.brokers import Brokers, now_s
from harness.jobs import Jobs
from harness.lab import Lab
from harness.load import loaded
from harness.progress import ConsumerProgress
from harness.recoveries import NOT_PUBLISHED, Recovery
from harness.shell import kubectl
from harness.waiting import NotYetError, wait_for

NAMESPACE, NAME = "e2e-lost-majority", "survivors"
_LOST_S, _STOPPED_S = 180, 120


@pytest.fixture
def brokers(installed: Lab) -> Iterator[Brokers]:
    installed.namespace(NAMESPACE)
    found = Brokers(installed.api, NAMESPACE, NAME)
    found.apply({"config": {"flushConsumerOffsetInterval": "500"}})
    found.whole()
    yield found
    kubectl("delete", "namespace", NAMESPACE, "--timeout=180s", timeout_s=200)


def _lose(brokers: Brokers, nodes: list[str]) -> None:
    """Their volumes are deleted while the pods get no time to do anything. WaitError: volumes are left."""
    claims = [f"data-{node}" for node in nodes]
    before = {name: brokers.api.get("persistentvolumeclaims", NAMESPACE, name)["metadata"]["uid"] for name in claims}
    kubectl("delete", "persistentvolumeclaims", *claims, "--namespace", NAMESPACE, "--wait=false")
    kubectl("delete", "pods", *(f"{node}-0" for node in nodes), "--namespace", NAMESPACE, "--grace-period=0", "--force")

    def gone() -> None:
        found = [brokers.api.find("persistentvolumeclaims", NAMESPACE, name) for name in claims]
        left = [each["metadata"]["name"] for each in found if each and each["metadata"]["uid"] in before.values()]
        if left:
            raise NotYetError(", ".join(left))

    wait_for("both volumes are lost", gone, _LOST_S)


def _until_without_leader(brokers: Brokers) -> None:
    def look() -> None:
        degraded, leader = brokers.condition("Degraded"), brokers.status()["groups"][0].get("leader")
        if degraded.get("status") != "True" or leader:
            raise NotYetError(f"leader {leader}, {degraded}")

    wait_for("the status says that the group has no leader", look, _LOST_S)


def _until_stopped(brokers: Brokers) -> None:
    def look() -> None:
        condition = brokers.condition("Fenced")
        if brokers.pods() or condition.get("reason") != "QuorumLost":
            raise NotYetError(f"{sorted(brokers.pods())}, {condition}")

    wait_for("all members are stopped", look, _STOPPED_S)


def test_a_group_continues_with_the_member_that_is_left(brokers: Brokers, installed: Lab) -> None:
    """The former leader has all that was acknowledged: nothing is lost, and consumers are where they were."""
    shell = pods.shell(installed.api, NAMESPACE, installed.images.node, brokers.name_server)
    progress = ConsumerProgress(shell)
    progress.begin(brokers)
    with loaded(brokers, installed.images.node) as load:
        load.served_again(0)
        survivor = brokers.leader()
        lost = sorted(set(brokers.nodes()) - {survivor})
        _lose(brokers, lost)
        _until_without_leader(brokers)

        began_s, since_s = time.monotonic(), now_s()
        brokers.annotate(fenced="*")
        _until_stopped(brokers)
        beside = Jobs(installed.api, NAMESPACE, NAME).beside
        recover = ("tally", "group", "recover", "/out/store")
        shown = beside(f"data-{survivor}", installed.images.node, *recover, writable=True)
        assert "nothing was changed" in shown, shown
        confirmed = ("--accept-loss", "--yes", f"{NAME}-0")
        done = beside(f"data-{survivor}", installed.images.node, *recover, *confirmed, writable=True)
        assert "is the only voter" in done, done
        brokers.annotate(fenced=",".join(lost))
        load.served_again(since_s, 180)
        served_s = time.monotonic() - began_s
        assert brokers.leader() == survivor
        brokers.annotate(fenced=None)
        brokers.whole()
        whole_s = time.monotonic() - began_s
        condition = brokers.condition("LossAccepted")
        assert condition["status"] == "True" and survivor in condition["message"], condition
        load.finish()
        verdict = load.verdict()
        installed.goals.lost.add(verdict.lost)
        name = "two of three volumes lost, by hand"
        row = Recovery(name, served_s, whole_s, verdict.acknowledged, verdict.lost, NOT_PUBLISHED)
        installed.recoveries.append(row)
        assert verdict.lost == 0 and verdict.problems == [], verdict.problems
    progress.continues(brokers)
