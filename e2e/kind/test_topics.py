"""The life of a Topic: made at once, kept as it is declared, refused where it must be, gone only as it was asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from harness.api import Json
from harness.brokers import API_VERSION, Brokers, now_s
from harness.lab import Lab
from harness.pods import Shell
from harness.shell import ToolError, apply, kubectl
from harness.waiting import NotYetError, wait_for

_GONE_S = 30
_THOUSAND = 1000
_THOUSAND_S = 180  # more than the goal, so that a miss has a figure


def _applied(brokers: Brokers, name: str, annotations: dict[str, str] | None = None, **spec: Any) -> None:
    metadata: Json = {"name": name, "namespace": brokers.namespace, "annotations": annotations or {}}
    wanted = {"clusterName": brokers.name, **spec}
    apply({"apiVersion": API_VERSION, "kind": "Topic", "metadata": metadata, "spec": wanted})


def _told(brokers: Brokers, name: str, says: Callable[[Json], bool], what: str, timeout_s: float = 75) -> Json:
    """The status of a Topic, once it says so."""

    def look() -> Json:
        status: Json = brokers.api.get("topics", brokers.namespace, name).get("status") or {}
        if not says(status):
            raise NotYetError(str(status))
        return status

    return wait_for(f"the Topic {name} {what}", look, timeout_s, every_s=0.2)


def _condition(status: Json, name: str) -> Json:
    return next((each for each in status.get("conditions") or () if each["type"] == name), {})


def _gone(brokers: Brokers, name: str) -> None:
    def look() -> None:
        found = brokers.api.find("topics", brokers.namespace, name)
        if found is not None:
            raise NotYetError(str(found.get("status")))

    wait_for(f"the Topic {name} is deleted", look, _GONE_S)


@pytest.mark.ci
def test_ready_at_once(orders: Brokers, shell: Shell, lab: Lab) -> None:
    """From before it is applied to its status; and the brokers have it."""
    for number in range(5):
        begin_s = now_s()
        _applied(orders, f"at-once-{number}", queues=4)
        orders.topic_ready(f"at-once-{number}")
        lab.goals.topic_ready.add(now_s() - begin_s)
    assert shell.queues("at-once-4") == 4


def test_more_queues_come_and_fewer_are_refused(orders: Brokers, shell: Shell) -> None:
    """The second by the API server itself, with a sentence."""
    orders.topic("growing", 2)
    orders.topic("growing", 6)
    assert shell.queues("growing") == 6
    with pytest.raises(ToolError, match="queues cannot be lowered"):
        _applied(orders, "growing", queues=3)


def test_drift_is_repaired(orders: Brokers, shell: Shell) -> None:
    """A user deletes it with the command; the operator creates it again within a minute."""
    orders.topic("drifting", 4)
    shell.tally("topic", "delete", "drifting")

    def look() -> None:
        found = shell.queues("drifting")
        if found != 4:
            raise NotYetError(f"{found} queues")

    wait_for("the brokers have the topic again", look, 75, every_s=3)


def test_a_topic_of_others_is_taken_only_when_asked(orders: Brokers, shell: Shell) -> None:
    """Refused with the way out in the message; adopted with the annotation."""
    shell.tally("topic", "create", "theirs", "--queues", "8")
    _applied(orders, "theirs", queues=12)
    status = _told(orders, "theirs", lambda status: status.get("phase") == "Refused", "is refused")
    ready = _condition(status, "Ready")
    assert ready["reason"] == "AlreadyExists" and "tallystick.dev/adopt" in ready["message"], ready
    _applied(orders, "theirs", {"tallystick.dev/adopt": "true"}, queues=12)
    orders.topic_ready("theirs")


def test_what_becomes_of_it(orders: Brokers, shell: Shell) -> None:
    """Retain keeps it on the brokers, Delete takes it away, DeleteIfEmpty waits while there are messages."""
    for name, policy in (("retained", "Retain"), ("deleted", "Delete"), ("emptied", "DeleteIfEmpty")):
        orders.topic(name, 2, deletionPolicy=policy)
    shell.tally("produce", "emptied", "hello")
    for name in ("retained", "deleted", "emptied"):
        kubectl("delete", "topic", name, "-n", orders.namespace, "--wait=false")
    _gone(orders, "retained")
    _gone(orders, "deleted")
    status = _told(orders, "emptied", lambda status: status.get("phase") == "Deleting", "reports why it stays")
    assert _condition(status, "Ready").get("reason") == "NotEmpty", status
    assert (shell.queues("retained"), shell.queues("emptied")) == (2, 2)
    with pytest.raises(ToolError, match=r"not exist|No topic route"):
        shell.queues("deleted")
    kubectl("patch", "topic", "emptied", "-n", orders.namespace, "--type=merge", "-p", _RETAIN)
    _gone(orders, "emptied")


_RETAIN = json.dumps({"spec": {"deletionPolicy": "Retain"}})


def test_a_thousand(orders: Brokers, lab: Lab) -> None:
    """From the first one's creation until all are Ready."""
    names = [f"thousand-{number}" for number in range(_THOUSAND)]

    def create(name: str) -> None:
        metadata = {"name": name, "namespace": orders.namespace, "labels": {"e2e": "thousand"}}
        manifest = {"apiVersion": API_VERSION, "kind": "Topic", "metadata": metadata}
        lab.api.create("topics", orders.namespace, {**manifest, "spec": {"clusterName": orders.name, "queues": 1}})

    def look() -> None:
        found = lab.api.list("topics", orders.namespace, "e2e=thousand")
        ready = sum((topic.get("status") or {}).get("phase") == "Ready" for topic in found)
        if ready != _THOUSAND:
            raise NotYetError(f"{ready} of {len(found)}")

    begin_s = now_s()
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(create, names))
    created_s = now_s() - begin_s
    wait_for("1 000 Topics are Ready", look, _THOUSAND_S, every_s=1)
    lab.goals.thousand_topics.add(now_s() - begin_s)
    print(f"created in {created_s:.1f} s, Ready {now_s() - begin_s:.1f} s after the first one was applied")
    lab.release.note_memory()
    kubectl("delete", "topics", "-l", "e2e=thousand", "-n", orders.namespace, "--wait=false", timeout_s=180)
