"""Another storage class and another size: every member gets a new volume, one at a time, under load."""

from __future__ import annotations

from harness.api import Json
from harness.brokers import Brokers
from harness.lab import Lab
from harness.load import loaded
from harness.shell import apply
from harness.waiting import NotYetError, wait_for
from harness.watching import watching

_CLASS = "e2e-other"
_REPLACED_S = 420


def _claims(brokers: Brokers) -> dict[str, Json]:
    found = brokers.api.list("persistentvolumeclaims", brokers.namespace)
    return {each["metadata"]["name"]: each for each in found}


def _other_class(brokers: Brokers) -> None:
    """Like the default class, with another name. It does not permit expansion either."""
    classes = brokers.api.call("GET", "apis/storage.k8s.io/v1/storageclasses")["items"]
    default = next(each for each in classes if each["metadata"]["name"] == "standard")
    kept = {key: default[key] for key in ("provisioner", "volumeBindingMode", "reclaimPolicy")}
    apply({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": _CLASS}, **kept})


def test_every_member_gets_another_volume(lab: Lab, namespace: str) -> None:
    """Nothing is lost, no send fails, never is more than one member away, and the leader is the last."""
    brokers = Brokers(lab.api, namespace, "moving")
    brokers.apply({})
    brokers.whole()
    _other_class(brokers)
    before, leader = _claims(brokers), brokers.leader()
    with loaded(brokers, lab.images.node) as load:
        with watching(brokers) as watched:
            storage = {"storageClassName": _CLASS, "size": "2Gi", "changePolicy": "ReplaceMembers"}
            brokers.change({"storage": storage})

            def look() -> None:
                brokers.look_whole()
                claims = _claims(brokers)
                classes = {name: each["spec"]["storageClassName"] for name, each in claims.items()}
                if set(classes.values()) != {_CLASS} or len(claims) != len(before):
                    raise NotYetError(f"{classes}, {brokers.status().get('step')}")

            wait_for("all volumes have the other class", look, _REPLACED_S)
        load.finish()
        verdict = load.verdict()
    lab.goals.lost.add(verdict.lost)
    lab.goals.failed.add(load.failed())
    after = _claims(brokers)
    assert {each["spec"]["resources"]["requests"]["storage"] for each in after.values()} == {"2Gi"}
    assert all(after[name]["metadata"]["uid"] != each["metadata"]["uid"] for name, each in before.items())
    assert watched.most_unready <= 1, watched.unready
    assert watched.replaced[-1] == leader and len(watched.replaced) == 3, watched.replaced
    assert verdict.problems == []
    assert load.failed() == 0, load.history.reasons()
