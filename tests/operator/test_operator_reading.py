"""Objects of the API server and answers of nodes as values, as tables: one object for each row, and what is read."""

from __future__ import annotations

from typing import Any

import pytest

from tallystick.operator.clusters.observed import Underway, understood
from tallystick.operator.clusters.reading import Objects, claim_of, read, running_members, underway_of
from tallystick.operator.clusters.spec import Cluster, ClusterSpec, External, Listener
from tallystick.operator.core.node_api import NodeRefusedError, UnreachableError
from tallystick.operator.core.pods import pod_of
from tallystick.operator.core.times import seconds, timestamp

Body = dict[str, Any]


def pod(status: Body | None = None, **metadata: Any) -> Body:
    return {"metadata": {"name": "p", "uid": "u", **metadata}, "spec": {}, "status": status or {}}


def container(**state: Any) -> Body:
    return {"containerStatuses": [{"state": state}]}


def terminated(code: int, message: str = "", reason: str = "Error") -> Body:
    return {"terminated": {"exitCode": code, "message": message, "reason": reason}}


@pytest.mark.parametrize(
    ("status", "waiting", "message"),
    [
        ({}, "", ""),
        (container(running={}), "", ""),
        (container(waiting={"reason": "ContainerCreating"}), "", ""),
        (container(waiting={"reason": "PodInitializing", "message": "m"}), "", ""),
        (container(waiting={"reason": "ImagePullBackOff", "message": "no image"}), "ImagePullBackOff", "no image"),
        (container(waiting={}), "Waiting", ""),
        (container(**terminated(2, "one\ntwo\n")), "Error", "two"),
        (container(**terminated(137, reason="OOMKilled")), "OOMKilled", "exit status 137"),
        (
            {
                "containerStatuses": [
                    {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": terminated(1, "bad setting")}
                ]
            },
            "CrashLoopBackOff",
            "bad setting",
        ),
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "cpu"}]},
            "Unschedulable",
            "cpu",
        ),
    ],
)
def test_why_a_pod_does_not_run(status: Body, waiting: str, message: str) -> None:
    found = pod_of(pod(status))
    assert (found.waiting, found.message) == (waiting, message)
    assert found.running is ("running" in (status.get("containerStatuses") or [{"state": {}}])[0]["state"])


def test_times_and_readiness_of_a_pod() -> None:
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "1970-01-01T00:01:00Z"}
    found = pod_of(pod({"conditions": [ready], "startTime": "1970-01-01T00:00:30Z"}))
    assert (found.ready, found.unready_since, found.started, found.deleting) == (True, None, 30.0, False)
    unready = pod({"conditions": [ready | {"status": "False"}]}, deletionTimestamp="1970-01-01T00:02:00Z")
    found = pod_of(unready)
    assert (found.ready, found.unready_since, found.deleting_since) == (False, 60.0, 120.0)
    assert pod_of(pod(creationTimestamp="1970-01-01T00:00:05Z")).unready_since == 5.0, "unready since its creation"


@pytest.mark.parametrize(
    ("text", "expected"),
    [(None, None), ("", None), ("soon", None), ("1970-01-01T00:00:01Z", 1.0), ("1970-01-01T01:00:00+01:00", 0.0)],
)
def test_times_of_the_api(text: str | None, expected: float | None) -> None:
    assert seconds(text) == expected
    assert expected is None or seconds(timestamp(expected)) == expected


def claim(annotations: Body | None = None, **parts: Any) -> Body:
    return {"metadata": {"name": "c", "uid": "u", "annotations": annotations or {}}, **parts}


@pytest.mark.parametrize(
    ("requested", "capacity", "conditions", "resizing"),
    [
        ("1Gi", "", (), ""),
        ("1Gi", "1Gi", (), ""),
        ("1Gi", "1024Mi", (), ""),
        ("2Gi", "1Gi", (), "1Gi of 2Gi"),
        (
            "2Gi",
            "1Gi",
            ({"type": "FileSystemResizePending"},),
            "1Gi of 2Gi, the file system is resized when the pod runs",
        ),
        ("large", "1Gi", (), ""),
    ],
)
def test_growth_of_a_claim(requested: str, capacity: str, conditions: tuple[Body, ...], resizing: str) -> None:
    status: Body = {"capacity": {"storage": capacity} if capacity else {}, "conditions": list(conditions)}
    body = claim(spec={"resources": {"requests": {"storage": requested}}}, status=status)
    assert claim_of(body).resizing == resizing


def test_marks_of_a_claim() -> None:
    marks = {"tallystick.dev/formed": "true", "tallystick.dev/left": "True", "tallystick.dev/first-members": "n0;n2"}
    found = claim_of(claim(marks, status={"phase": "Lost"}))
    assert (found.formed, found.left, found.first, found.lost) == (True, True, (0, 2), True)
    none = claim_of(claim({"tallystick.dev/formed": "yes", "tallystick.dev/first-members": "all"}))
    assert (none.formed, none.left, none.first, none.lost) == (False, False, (), False)


# -- clusters ----------------------------------------------------------------------------------------------------------


def cluster(**spec: Any) -> Cluster:
    return Cluster("shop", "orders", "uid", 1, False, ClusterSpec(image="i", **spec))


def labelled(name: str, group: int, member: int, **parts: Any) -> Body:
    labels = {"tallystick.dev/group": str(group), "tallystick.dev/member": str(member)}
    return {"metadata": {"name": name, "uid": name, "labels": labels}, **parts}


def objects(**kinds: list[Body]) -> Objects:
    return Objects({}, {kind: {body["metadata"]["name"]: body for body in bodies} for kind, bodies in kinds.items()})


@pytest.mark.parametrize(
    ("found", "members"),
    [
        (objects(), {0: [0, 1, 2]}),
        (objects(BrokerNode=[labelled("orders-0-4", 0, 4)]), {0: [0, 1, 2, 4]}),
        (objects(Pod=[labelled("orders-1-0-0", 1, 0)]), {0: [0, 1, 2], 1: [0]}),
        (objects(PersistentVolumeClaim=[labelled("data-orders-0-4", 0, 4)]), {0: [0, 1, 2, 4]}),
        (objects(PersistentVolumeClaim=[labelled("data-orders-3-0", 3, 0)]), {0: [0, 1, 2]}),
        (objects(Pod=[{"metadata": {"name": "x"}}]), {0: [0, 1, 2]}),
    ],
    ids=["wanted", "left over", "of a removed group", "claim", "claim alone makes no group", "without labels"],
)
def test_which_members_there_are(found: Objects, members: dict[int, list[int]]) -> None:
    observed = read(cluster(), found, {}, now=0.0)
    assert {group.number: [each.number for each in group.members] for group in observed.groups} == members


def says(group: str = "orders-0", member: int = 0, **changes: Any) -> Body:
    return {"group": group, "member": member, "role": "follower", "term": 3, "ready": False, "voters": [0], **changes}


@pytest.mark.parametrize(
    ("answer", "refused", "known"),
    [
        (None, "", False),
        (UnreachableError("timed out"), "", False),
        (NodeRefusedError("orders-0-0: no", status=401), "orders-0-0: no", False),
        (says(learners=[]), "", True),
        (says(member=1, learners=[]), "n1 of orders-0 responds at the address of this member", False),
        (says(group="billing-0", learners=[]), "n0 of billing-0 responds at the address of this member", False),
        (says(), "invalid response: KeyError('learners')", False),
        ("hello", "invalid response: TypeError('string indices must be integers, not \\'str\\'')", False),
    ],
)
def test_what_a_member_answers(answer: Any, refused: str, known: bool) -> None:
    (group,) = read(cluster(replicas=1), objects(), {(0, 0): answer}, now=0.0).groups
    assert (group.members[0].answer is not None) is known
    assert group.members[0].refused.replace('"', "'") == refused.replace("\\'", "'")


@pytest.mark.parametrize(
    ("changes", "healthy"),
    [
        ({}, True),
        ({"disk": "ok", "doubt": "none"}, True),
        ({"disk": "full"}, False),
        ({"doubt": "votes"}, False),
    ],
)
def test_disk_and_doubt_of_a_member_and_its_peers(changes: Body, healthy: bool) -> None:
    peer = {"member": 1, "connected": True, "lag_bytes": 5, **changes}
    found = understood(says(learners=[], peers=[peer], **changes))
    assert (found.sound, found.peers[0].sound) == (healthy, healthy)


@pytest.mark.parametrize(("silent", "connected"), [(0.0, True), (3.0, True), (3.1, False)])
def test_a_peer_that_is_silent_for_long_is_not_connected(silent: float, connected: bool) -> None:
    peer = {"member": 1, "connected": True, "seconds_since_heard": silent}
    assert understood(says(learners=[], peers=[peer])).peers[0].connected is connected


def test_only_members_with_a_running_container_are_asked() -> None:
    running = labelled("orders-0-1-0", 0, 1, status=container(running={}))
    stopped = labelled("orders-0-2-0", 0, 2, status=container(waiting={"reason": "CrashLoopBackOff"}))
    assert running_members(cluster(), objects(Pod=[running, stopped])) == [(0, 1)]


@pytest.mark.parametrize(
    ("observed", "generation", "digest"), [(2, 2, "abc"), (3, 2, "abc"), (1, 2, ""), (None, 2, "")]
)
def test_the_template_counts_when_its_controller_has_seen_it(
    observed: int | None, generation: int, digest: str
) -> None:
    body = labelled("orders-0-0", 0, 0, status={} if observed is None else {"observedGeneration": observed})
    body["metadata"]["generation"] = generation
    body["spec"] = {"template": {"metadata": {"annotations": {"tallystick.dev/template": "abc"}}}}
    (group,) = read(cluster(replicas=1), objects(StatefulSet=[body]), {}, now=0.0).groups
    assert group.members[0].stateful_set == digest


NODE_PORT = {"type": "NodePort", "ports": [{"nodePort": 30001}]}
BALANCER = {"loadBalancer": {"ingress": [{"ip": "10.0.0.9"}]}}


@pytest.mark.parametrize(
    ("listener", "service", "external"),
    [
        (Listener(), {"spec": NODE_PORT}, ""),
        (Listener(External.NODE_PORT), None, ""),
        (Listener(External.NODE_PORT), {"spec": {"type": "NodePort"}}, ""),
        (Listener(External.NODE_PORT), {"spec": NODE_PORT}, "192.168.0.1:30001"),
        (Listener(External.NODE_PORT, host="mq.example"), {"spec": NODE_PORT}, "mq.example:30001"),
        (Listener(External.LOAD_BALANCER), {"spec": NODE_PORT}, ""),
        (Listener(External.LOAD_BALANCER), {"spec": {"type": "LoadBalancer"}}, ""),
        (Listener(External.LOAD_BALANCER), {"spec": {"type": "LoadBalancer"}, "status": BALANCER}, "10.0.0.9:10911"),
    ],
)
def test_the_external_address_of_a_member(listener: Listener, service: Body | None, external: str) -> None:
    kinds: dict[str, list[Body]] = {"Pod": [labelled("orders-0-0-0", 0, 0, status={"hostIP": "192.168.0.1"})]}
    if service is not None:
        kinds["Service"] = [{"metadata": {"name": "orders-0-0-external"}, **service}]
    (group,) = read(cluster(replicas=1, listener=listener), objects(**kinds), {}, now=0.0).groups
    assert group.members[0].external == external


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (None, None),
        ({"action": "RestartMember", "target": "orders-0-1", "reason": "waits: why"}, None),
        ({"action": "AddMember", "target": "orders-0-1", "reason": "why"}, None),
        (
            {"action": "ReplaceNode", "target": "orders-0-1", "reason": "why", "since": "1970-01-01T00:00:09Z"},
            Underway("ReplaceNode", "orders-0-1", "why", 9.0),
        ),
    ],
)
def test_the_step_that_the_status_notes(step: Body | None, expected: Underway | None) -> None:
    assert underway_of({"step": step}) == expected
