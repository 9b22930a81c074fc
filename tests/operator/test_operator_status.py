"""Conditions and phases of clusters and nodes, as tables: an observed state for each row, and its status."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tallystick.operator.clusters.decide import Action, Decision, Hold, Step
from tallystick.operator.clusters.layout import Layout
from tallystick.operator.clusters.observed import (
    AcceptedLoss,
    Answer,
    Claim,
    Group,
    Member,
    NameServers,
    Observed,
    Peer,
    Underway,
    understood,
)
from tallystick.operator.clusters.spec import Cluster, ClusterSpec
from tallystick.operator.clusters.status import (
    cluster_status,
    failed_pass_status,
    failed_status,
    next_underway,
    node_error,
    node_status,
)
from tallystick.operator.core.conditions import Condition, merged
from tallystick.operator.core.names import Names
from tallystick.operator.core.pods import Pod
from tallystick.operator.core.quantity import rounded

NOW = 1_000_000.0
SERVERS = NameServers(wanted=2, ready=2, updated=2, current=True)
NAMES = Names("shop", "orders")
READY_POD = Pod(uid="p", template="new", ready=True, created=0.0, started=1.0, running=True)
UNREADY_POD = replace(READY_POD, ready=False, unready_since=1.0)


def cluster(**spec: Any) -> Cluster:
    return Cluster("shop", "orders", "uid", 7, False, ClusterSpec(image="node:1", **spec))


def member(number: int, **changes: Any) -> Member:
    fields: dict[str, Any] = {
        "node_uid": f"node-{number}",
        "claim": Claim(uid="c", formed=True),
        "stateful_set": "new",
        "pod": READY_POD,
        "answer": Answer("follower", 5, 0, ready=False, commit_index=7),
    }
    return Member(group=0, number=number, **(fields | changes))


def leader(voters: tuple[int, ...] = (0, 1, 2), lag: int = 0, **changes: Any) -> Member:
    peers = tuple(Peer(number, True, lag) for number in voters if number)
    return member(0, answer=Answer("leader", 5, 0, True, voters, (), True, 7, peers=peers), **changes)


def seen(*members: Member, **changes: Any) -> Observed:
    return replace(Observed(NOW, (Group(0, members),), SERVERS), **changes)


HEALTHY = seen(leader(), member(1), member(2))
LOST = Answer("follower", 5, None, ready=False, voters=(0, 1, 2), commit_index=7)
LEADERLESS = seen(*(member(number, answer=LOST) for number in range(3)))
SILENT = seen(*(member(number, answer=None) for number in range(3)))
REJECTED = seen(*(member(number, answer=None, refused="a token is needed", unauthorized=True) for number in range(3)))
NO_LEADER = ("False", "NoLeader", "no leader in orders-0")
TAKEN = "Service x exists. The operator does not change it: delete or rename it"
UNREACHABLE = ("Unknown", "Unreachable", "the operator cannot reach the brokers in orders-0")
UNFORMED = seen(*(member(number, claim=Claim(uid="c"), answer=None) for number in range(3)))
ONE_DOWN = seen(leader(), member(1, pod=UNREADY_POD, answer=None), member(2))
RESTART = Step(Action.RESTART, 0, 1, "Outdated", "the pod is outdated", "p")
HELD = Hold(Action.RESTART, 0, 2, "MemberNotReady", "the pod is outdated; n1 of the same group not ready")
UNDERWAY = Underway("RestartMember", "orders-0-1", "r", 1.0)
LAYOUT = Layout((), {(0, number): "new" for number in range(3)})


def status(
    observed: Observed, decision: Decision | None = None, wanted: Cluster | None = None, layout: Layout = LAYOUT
) -> dict[str, Any]:
    return cluster_status(
        wanted or cluster(), observed, layout, decision or Decision(None), observed.underway, before={}
    )


def condition(found: dict[str, Any], type_: str) -> tuple[str, str, str]:
    (row,) = [each for each in found["conditions"] if each["type"] == type_]
    return row["status"], row["reason"], row["message"]


@pytest.mark.parametrize(
    ("type_", "observed", "expected"),
    [
        ("Ready", HEALTHY, ("True", "AllReady", "all groups accept messages and all nodes are ready")),
        ("Ready", UNFORMED, ("False", "NotFormed", "no leader has been elected yet in orders-0")),
        ("Ready", seen(groups=()), ("False", "NotFormed", "no leader has been elected yet")),
        ("Ready", LEADERLESS, ("False", "NoLeader", "no leader in orders-0")),
        ("Ready", SILENT, UNREACHABLE),
        ("Degraded", SILENT, UNREACHABLE),
        ("QuorumAtRisk", SILENT, UNREACHABLE),
        ("Ready", seen(member(0, answer=None), member(1), member(2)), UNREACHABLE),
        ("Ready", seen(member(0, answer=None), member(1, answer=LOST), member(2, answer=LOST)), NO_LEADER),
        ("Ready", seen(member(0, answer=None, pod=None), member(1, answer=LOST), member(2, answer=LOST)), NO_LEADER),
        ("Ready", replace(UNFORMED, taken=("Service x exists",)), ("False", "NameTaken", TAKEN)),
        ("Ready", replace(UNFORMED, refusals=("quota",)), ("False", "Refused", "quota")),
        ("Progressing", replace(HEALTHY, taken=("Service x exists",)), ("False", "NameTaken", TAKEN)),
        ("UpdateBlocked", replace(HEALTHY, taken=("Service x exists",)), ("True", "NameTaken", TAKEN)),
        ("UpdateBlocked", replace(HEALTHY, refusals=("quota",)), ("True", "Refused", "quota")),
        ("Ready", ONE_DOWN, ("False", "NodesNotReady", "not ready: orders-0-1")),
        (
            "Ready",
            replace(HEALTHY, name_servers=replace(SERVERS, ready=0)),
            ("False", "NoNameServer", "no name server is ready"),
        ),
        (
            "Ready",
            seen(leader(voters=(0, 1)), member(1), member(2)),
            ("False", "MembersMissing", "fewer voters than spec.replicas in orders-0"),
        ),
        ("Progressing", HEALTHY, ("False", "AsSpecified", "the cluster matches its spec")),
        ("Progressing", UNFORMED, ("True", "Forming", "members are starting and electing a leader")),
        ("Progressing", ONE_DOWN, ("True", "NodesStarting", "not ready: orders-0-1")),
        ("Progressing", replace(HEALTHY, refusals=("quota", "policy")), ("False", "Refused", "quota; policy")),
        ("Degraded", HEALTHY, ("False", "NodesReady", "all nodes are ready")),
        ("Degraded", UNFORMED, ("False", "NodesReady", "all nodes are ready")),
        ("Degraded", ONE_DOWN, ("True", "NodesNotReady", "orders-0-1 not ready")),
        ("Degraded", LEADERLESS, ("True", "NoLeader", "no member leads in orders-0")),
        (
            "Degraded",
            replace(HEALTHY, name_servers=replace(SERVERS, ready=1)),
            ("True", "NameServersNotReady", "1 of 2 name servers are ready"),
        ),
        (
            "QuorumAtRisk",
            HEALTHY,
            ("False", "MajoritySound", "every group can lose one member and keep its quorum"),
        ),
        ("QuorumAtRisk", ONE_DOWN, ("True", "TooFewSound", "orders-0: 2 of 3 voters are healthy")),
        ("QuorumAtRisk", LEADERLESS, ("True", "TooFewSound", "orders-0 has no leader")),
        ("UpdateBlocked", HEALTHY, ("False", "NothingHeld", "no step is blocked")),
        ("StorageResizing", HEALTHY, ("False", "AsSpecified", "all volumes have the requested size")),
        ("StorageResizing", replace(HEALTHY, resize_refusals=("no",)), ("False", "ResizeRefused", "no")),
        (
            "StorageResizing",
            seen(leader(), member(1, claim=Claim(uid="c", formed=True, resizing="1Gi of 2Gi")), member(2)),
            ("True", "Growing", "data-orders-0-1: 1Gi of 2Gi"),
        ),
        ("OperatorConflict", HEALTHY, ("False", "OneOperator", "no other operator waits for this namespace")),
        (
            "OperatorConflict",
            replace(HEALTHY, other_operator="mq/tally"),
            (
                *("True", "OtherOperatorWaits"),
                "the operator mq/tally watches this namespace as well; it waits and changes nothing",
            ),
        ),
    ],
)
def test_conditions_of_a_cluster(type_: str, observed: Observed, expected: tuple[str, str, str]) -> None:
    assert condition(status(observed), type_) == expected


@pytest.mark.parametrize(
    ("decision", "type_", "expected"),
    [
        (Decision(RESTART), "Progressing", ("True", "RestartMember", "orders-0-1: the pod is outdated")),
        (Decision(None, (HELD,)), "Progressing", ("True", "Waiting", HELD.message)),
        (
            Decision(None, (HELD,)),
            "UpdateBlocked",
            ("True", "MemberNotReady", f"RestartMember orders-0-2: {HELD.message}"),
        ),
        (Decision(RESTART, (HELD,)), "UpdateBlocked", ("False", "NothingHeld", "no step is blocked")),
        (
            Decision(RESTART, (replace(HELD, reason="Refused", message="a budget"),)),
            "UpdateBlocked",
            ("True", "Refused", "RestartMember orders-0-2: a budget"),
        ),
        (
            Decision(None, (replace(HELD, reason="CatchingUp"),)),
            "UpdateBlocked",
            ("False", "NothingHeld", "no step is blocked"),
        ),
    ],
)
def test_conditions_report_the_decision(decision: Decision, type_: str, expected: tuple[str, str, str]) -> None:
    assert condition(status(HEALTHY, decision), type_) == expected


@pytest.mark.parametrize(
    ("waits", "reason"),
    [("waiting for the BrokerNode", "NodesPending"), ("the external Service has no address yet", "AddressPending")],
)
def test_progressing_reports_what_the_layout_waits_for(waits: str, reason: str) -> None:
    found = status(HEALTHY, layout=replace(LAYOUT, waits=(("orders-0-1", waits),)))
    assert condition(found, "Progressing") == ("True", reason, f"orders-0-1: {waits}")


def test_a_single_member_and_removed_groups_have_their_own_reasons() -> None:
    alone = status(seen(leader(voters=(0,))), wanted=cluster(replicas=1))
    expected = ("False", "SingleMember", "a single-member group tolerates no failure")
    assert condition(alone, "QuorumAtRisk") == expected
    two = replace(HEALTHY, groups=(*HEALTHY.groups, Group(1, (replace(leader(), group=1),))))
    assert condition(status(two), "UpdateBlocked")[1] == "GroupsNotRemoved"


@pytest.mark.parametrize(
    ("observed", "decision", "wanted", "phase"),
    [
        (HEALTHY, Decision(None), cluster(), "Ready"),
        (UNFORMED, Decision(None), cluster(), "Creating"),
        (HEALTHY, Decision(None), cluster(groups=2), "Creating"),
        (HEALTHY, Decision(None, (replace(HELD, reason="Paused"),)), cluster(), "Paused"),
        (HEALTHY, Decision(None, (replace(HELD, reason="LastCopy"),)), cluster(), "Failed"),
        (ONE_DOWN, Decision(None), cluster(), "Degraded"),
        (LEADERLESS, Decision(None), cluster(), "Degraded"),
        (SILENT, Decision(None), cluster(), "Unknown"),
        (replace(UNFORMED, refusals=("quota",)), Decision(None), cluster(), "Failed"),
        (replace(UNFORMED, taken=("Service x",)), Decision(None), cluster(), "Failed"),
        (replace(HEALTHY, name_servers=replace(SERVERS, ready=1)), Decision(None), cluster(), "Degraded"),
        (HEALTHY, Decision(None), cluster(replicas=5), "Scaling"),
        (replace(ONE_DOWN, underway=UNDERWAY), Decision(None), cluster(), "Updating"),
        (replace(HEALTHY, name_servers=replace(SERVERS, updated=1)), Decision(None), cluster(), "Updating"),
    ],
)
def test_phase_of_a_cluster(observed: Observed, decision: Decision, wanted: Cluster, phase: str) -> None:
    assert status(observed, decision, wanted)["phase"] == phase


@pytest.mark.parametrize("type_", ["Ready", "Degraded", "QuorumAtRisk"])
def test_a_rejected_token_says_nothing_about_the_cluster(type_: str) -> None:
    found = status(REJECTED)
    known, reason, message = condition(found, type_)
    assert (known, reason, found["phase"], found["leaders"]) == ("Unknown", "Unauthorized", "Unknown", "?/1")
    assert "a token is needed" in message and NAMES.admin("uid") in message


def test_a_failed_pass_says_why_and_claims_nothing() -> None:
    found = failed_pass_status(cluster(), NOW, "pods is forbidden", status(ONE_DOWN))
    assert (found["phase"], found["nodes"]) == ("Unknown", 3)
    for type_ in ("Ready", "Degraded", "QuorumAtRisk"):
        known, reason, message = condition(found, type_)
        assert (known, reason) == ("Unknown", "PassFailed") and "pods is forbidden" in message
    assert len({each["type"] for each in found["conditions"]}) == len(found["conditions"]) == 10


def test_a_blocked_step_is_marked_in_the_status_and_a_started_one_is_not() -> None:
    blocked = status(HEALTHY, Decision(None, (HELD,)))["step"]
    assert (blocked["action"], blocked["target"]) == ("RestartMember", "orders-0-2")
    assert blocked["reason"] == f"waits: {HELD.message}"
    started = status(replace(HEALTHY, underway=UNDERWAY))["step"]
    assert (started["reason"], started["since"]) == ("r", "1970-01-01T00:00:01Z")
    assert "step" not in status(HEALTHY)


def test_a_disruptive_step_is_noted_until_its_target_is_ready() -> None:
    noted = next_underway(HEALTHY, NAMES, RESTART)
    assert noted == Underway("RestartMember", "orders-0-1", RESTART.message, NOW)
    later = replace(ONE_DOWN, now=NOW + 5, underway=noted)
    assert next_underway(later, NAMES, RESTART) == noted, "the time of its start is kept"
    assert next_underway(later, NAMES, None) == noted
    assert next_underway(replace(HEALTHY, underway=noted), NAMES, None) is None
    assert next_underway(HEALTHY, NAMES, replace(RESTART, action=Action.ADD)) is None, "that stops no pod"


def test_an_accepted_loss_is_told_as_long_as_the_member_has_its_volume() -> None:
    loss = AcceptedLoss(1_764_115_200_000, 41)
    survivor = replace(leader(), answer=replace(leader().answer or LOST, accepted_loss=loss))
    reason, message = condition(status(seen(survivor, member(1), member(2))), "LossAccepted")[1:]
    assert reason == "MajorityGivenUp"
    assert message == (
        "orders-0-0 was made the only voter of orders-0 at 2025-11-26T00:00:00Z:"
        " acknowledged messages behind entry 41 may be lost"
    )
    assert "LossAccepted" not in {each["type"] for each in status(HEALTHY)["conditions"]}


@pytest.mark.parametrize(("reason", "expected"), [("accepted-loss", AcceptedLoss(1_000, 41)), ("restored", None)])
def test_a_restored_member_has_accepted_no_loss(reason: str, expected: AcceptedLoss | None) -> None:
    says = {"role": "leader", "term": 5, "leader": 0, "ready": True, "voters": [0], "learners": []}
    note = {"reason": reason, "at_ms": 1_000, "term": 5, "index": 42, "before": {"last_index": 41}}
    assert understood({**says, "recovered": note}).accepted_loss == expected
    assert understood({**says, "recovered": None}).accepted_loss is understood(says).accepted_loss is None


def test_an_invalid_spec_keeps_what_is_known() -> None:
    before = status(ONE_DOWN)
    found = failed_status(8, NOW, "InvalidSpec", "spec.groups: 0", before)
    assert (found["phase"], found["observedGeneration"], found["nodes"]) == ("Failed", 8, 3)
    assert condition(found, "Ready") == ("False", "InvalidSpec", "spec.groups: 0")
    assert condition(found, "UpdateBlocked") == ("True", "InvalidSpec", "spec.groups: 0")
    assert condition(found, "Degraded")[1] == "NodesNotReady"
    assert len({each["type"] for each in found["conditions"]}) == len(found["conditions"]) == 10


def test_a_condition_keeps_the_time_of_its_last_change() -> None:
    first = merged((), 0.0, 1, [Condition("Ready", True, "A", "a" * 2000)])
    assert (first[0]["lastTransitionTime"], len(first[0]["message"])) == ("1970-01-01T00:00:00Z", 1000)
    same = merged(first, 60.0, 2, [Condition("Ready", True, "B")])
    assert (same[0]["lastTransitionTime"], same[0]["observedGeneration"]) == ("1970-01-01T00:00:00Z", 2)
    changed = merged(same, 60.0, 2, [Condition("Ready", None, "C")])
    assert (changed[0]["status"], changed[0]["lastTransitionTime"]) == ("Unknown", "1970-01-01T00:01:00Z")


# -- nodes -------------------------------------------------------------------------------------------------------------


def node(observed: Observed, number: int, wanted: Cluster | None = None) -> dict[str, Any]:
    (group,) = observed.groups
    found = group.member(number)
    assert found is not None
    return node_status(wanted or cluster(), observed, LAYOUT, group, found, 3, {})


@pytest.mark.parametrize(
    ("changes", "phase", "role"),
    [
        ({}, "Ready", "Follower"),
        ({"pod": None, "answer": None}, "Pending", "Follower"),
        ({"pod": replace(UNREADY_POD, running=False)}, "Pending", "Follower"),
        ({"pod": UNREADY_POD}, "CatchingUp", "Follower"),
        ({"pod": UNREADY_POD, "answer": None}, "Starting", "Follower"),
        ({"pod": replace(READY_POD, deleting_since=1.0)}, "Restarting", "Follower"),
        ({"claim": Claim(uid="c", formed=True, lost=True)}, "Lost", "Follower"),
        ({"claim": Claim(uid="c", formed=True, deleting=True)}, "Lost", "Follower"),
    ],
)
def test_phase_and_role_of_a_node(changes: dict[str, Any], phase: str, role: str) -> None:
    found = node(seen(leader(), member(1, **changes), member(2)), 1)
    assert (found["phase"], found["role"]) == (phase, role)


def test_a_node_that_is_no_longer_wanted_is_removed() -> None:
    observed = seen(leader(voters=(0,)), member(1))
    assert (node(observed, 1, cluster(replicas=1))["phase"], node(observed, 1)["role"]) == ("Removing", "None")
    assert node(LEADERLESS, 1)["role"] == "None"
    assert node(HEALTHY, 0)["role"] == "Leader"


@pytest.mark.parametrize(
    ("changes", "type_", "expected"),
    [
        ({}, "Ready", ("True", "Ready", "the member is the leader or an in-sync follower")),
        ({"pod": UNREADY_POD}, "Ready", ("False", "NotReady", "the pod is not ready")),
        ({}, "UpToDate", ("True", "UpToDate", "the pod matches the current template")),
        ({"pod": None}, "UpToDate", ("False", "NoPod", "the pod does not exist")),
        (
            {"pod": replace(READY_POD, template="old")},
            "UpToDate",
            ("False", "Outdated", "the pod was created from an older template"),
        ),
        ({}, "DiskHealthy", ("True", "Healthy", "the disk accepts writes")),
        (
            {"answer": None},
            "DiskHealthy",
            ("Unknown", "Unknown", "the member does not report the state of its disk"),
        ),
        (
            {"answer": Answer("follower", 5, 0, False, sound=False)},
            "DiskHealthy",
            ("False", "InDoubt", "the disk is full or has lost data"),
        ),
        (
            {"answer": Answer("follower", 5, 0, False, fatal="no space")},
            "DiskHealthy",
            ("False", "InDoubt", "no space"),
        ),
    ],
)
def test_conditions_of_a_node(changes: dict[str, Any], type_: str, expected: tuple[str, str, str]) -> None:
    assert condition(node(seen(leader(), member(1, **changes), member(2)), 1), type_) == expected


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({}, ""),
        ({"pod": replace(UNREADY_POD, waiting="CrashLoopBackOff")}, "CrashLoopBackOff"),
        ({"pod": replace(UNREADY_POD, waiting="CrashLoopBackOff", message="m")}, "CrashLoopBackOff: m"),
        ({"answer": Answer("follower", 5, 0, False, fatal="no space")}, "no space"),
        ({"answer": None, "refused": "401"}, "401"),
    ],
)
def test_the_error_of_a_node(changes: dict[str, Any], error: str) -> None:
    assert node_error(member(1, **changes)) == error


@pytest.mark.parametrize(
    ("lag_bytes", "shown"), [(0, 0), ((1 << 20) - 1, 0), (1 << 20, 1_000_000), (123_456_789, 120_000_000)]
)
def test_lags_are_rounded_so_that_the_status_rarely_changes(lag_bytes: int, shown: int) -> None:
    assert rounded(lag_bytes) == shown
    assert node(seen(leader(lag=lag_bytes), member(1), member(2)), 1)["lagBytes"] == shown
