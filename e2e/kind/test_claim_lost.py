"""A member's volume is gone: it comes back with an empty one, and gets everything from the others."""

from __future__ import annotations

from harness.api import Json
from harness.brokers import Brokers
from harness.lab import Lab
from harness.load import Load, loaded
from harness.waiting import NotYetError, wait_for

_BACK_S = 240


def _claim(brokers: Brokers, node: str) -> Json | None:
    return brokers.api.find("persistentvolumeclaims", brokers.namespace, f"data-{node}")


def _renewed(brokers: Brokers, node: str, old_uid: str) -> None:
    """Until its claim is another one and the cluster is whole. WaitError."""

    def look() -> None:
        claim = _claim(brokers, node)
        if claim is None or claim["metadata"]["uid"] == old_uid:
            raise NotYetError(f"claim {'missing' if claim is None else 'as before'}, {brokers.status().get('step')}")
        brokers.look_whole()

    wait_for(f"{node} is ready with another volume", look, _BACK_S)


def _judge(lab: Lab, load: Load) -> None:
    load.finish()
    verdict = load.verdict()
    lab.goals.lost.add(verdict.lost)
    assert verdict.problems == []


def test_a_claim_is_deleted(orders: Brokers, lab: Lab) -> None:
    """By a person, with its pod running on it, under load."""
    with loaded(orders, lab.images.node) as load:
        node = next(name for name in sorted(orders.nodes()) if name != orders.leader())
        claim = _claim(orders, node)
        assert claim is not None
        lab.api.delete("persistentvolumeclaims", orders.namespace, f"data-{node}")
        _renewed(orders, node, claim["metadata"]["uid"])
        _judge(lab, load)


def test_a_replacement_is_asked_for(orders: Brokers, lab: Lab) -> None:
    """By annotation, of the node that leads: another one leads first; the annotation is gone when it is done."""
    with loaded(orders, lab.images.node) as load:
        node = orders.leader()
        claim = _claim(orders, node)
        assert claim is not None
        annotations = {"metadata": {"annotations": {"tallystick.dev/replace": "true"}}}
        lab.api.merge("brokernodes", orders.namespace, node, annotations)
        _renewed(orders, node, claim["metadata"]["uid"])
        assert orders.leader() != node
        left = orders.nodes()[node]["metadata"].get("annotations") or {}
        assert "tallystick.dev/replace" not in left
        _judge(lab, load)
    lab.goals.failed.add(load.failed())
    assert load.failed() == 0, load.history.reasons()
