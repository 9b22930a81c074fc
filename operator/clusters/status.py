"""The status of clusters and nodes. Pure: it follows from the observed state, the decision and the previous status.

An unchanged state produces an equal status, which is not written again. See `core/conditions.py` for conditions.
"""

from __future__ import annotations

from collections.abc import Sequence

from tallystick.operator.clusters import adoption_status
from tallystick.operator.clusters.decide import Action, Decision, Hold, Step, outdated
from tallystick.operator.clusters.layout import Layout, wanted_of
from tallystick.operator.clusters.name_servers import is_updating
from tallystick.operator.clusters.observed import Group, Member, Observed, Underway
from tallystick.operator.clusters.quorum import blind, majority, sound, voters_of
from tallystick.operator.clusters.recovery import recovered_condition
from tallystick.operator.clusters.security_status import security_condition, security_status
from tallystick.operator.clusters.spec import Cluster, External
from tallystick.operator.clusters.stopping import (
    Stop,
    fenced_condition,
    hibernated_condition,
    is_hibernated,
    quorum_lost,
    stop_of,
)
from tallystick.operator.clusters.volumes import differences
from tallystick.operator.core.conditions import MAX_MESSAGE, Condition, merged
from tallystick.operator.core.kube import Json
from tallystick.operator.core.names import NAME_SERVER, Names
from tallystick.operator.core.quantity import rounded
from tallystick.operator.core.times import timestamp

HELD = "waits: "
"""Prefix of the reason of a step in the status while the step is blocked and was not started."""
ATTENTION = frozenset({"Degraded", "Failed", "Unknown"})
"""Phases of a cluster for the alert TallystickClusterDegraded."""
DISRUPTIVE = (Action.RESTART, Action.REPLACE, Action.FORCE)


# -- the cluster -------------------------------------------------------------------------------------------------------


def cluster_status(
    cluster: Cluster, observed: Observed, layout: Layout, decision: Decision, underway: Underway | None, before: Json
) -> Json:
    """Returns BrokerCluster.status. `underway`: the disruptive step in progress; `before`: the previous status."""
    names = Names(cluster.namespace, cluster.name)
    count = cluster.spec.groups * cluster.spec.replicas
    ready = sum(member.ready for member in _wanted_members(cluster, observed))
    led = sum(group.leader is not None for group in observed.groups)
    findings = _findings(cluster, observed, layout, decision)
    status: Json = {
        "observedGeneration": cluster.generation,
        "phase": _phase(cluster, observed, layout, decision, underway),
        "replicas": _present_replicas(cluster, observed),
        "selector": ",".join(f"{key}={value}" for key, value in names.broker_selector().items()),
        "nodes": count,
        "ready": ready,
        "readyNodes": f"{ready}/{count}",
        "leaders": f"{'?' if _unseen(observed) else led}/{len(observed.groups)}",
        "image": cluster.spec.image,
        "nameServers": {
            "ready": observed.name_servers.ready,
            "address": f"{names.host(names.name_server)}:{NAME_SERVER}",
        },
        "groups": [_group_status(cluster, names, group) for group in observed.groups],
        "conditions": merged(before.get("conditions") or (), observed.now, cluster.generation, findings),
    }
    if observed.name_servers.external:
        status["nameServers"]["externalAddress"] = observed.name_servers.external
    if security := security_status(cluster, observed):
        status["security"] = security
    step = decision.step
    switched = step.group if step is not None and step.action is Action.SWITCH else None
    if told := adoption_status.adoption_status(cluster, observed, before, switched):
        status["adoption"] = told
    if shown := _step_status(names, observed, decision, underway, before):
        status["step"] = shown
    return status


def failed_status(generation: int, now: float, reason: str, message: str, before: Json) -> Json:
    """Returns the status for an invalid spec: it keeps the known state and reports the error."""
    conditions = [
        Condition("Ready", False, reason, message),
        Condition("Progressing", False, reason, message),
        Condition("UpdateBlocked", True, reason, message),
    ]
    told = {condition.type for condition in conditions}
    kept = [each for each in before.get("conditions") or () if each.get("type") not in told]
    changed = merged(before.get("conditions") or (), now, generation, conditions)
    return {**before, "observedGeneration": generation, "phase": "Failed", "conditions": [*changed, *kept]}


def failed_pass_status(cluster: Cluster, now: float, message: str, before: Json) -> Json:
    """Returns the status after a pass that failed: the state of the cluster is unknown, and the message says why."""
    told = f"the operator cannot reconcile the cluster: {message}"
    conditions = [
        Condition("Ready", None, "PassFailed", told),
        Condition("Progressing", False, "PassFailed", told),
        Condition("Degraded", None, "PassFailed", told),
        Condition("QuorumAtRisk", None, "PassFailed", told),
    ]
    types = {condition.type for condition in conditions}
    old = before.get("conditions") or ()
    kept = [each for each in old if each.get("type") not in types]
    changed = merged(old, now, cluster.generation, conditions)
    return {**before, "observedGeneration": cluster.generation, "phase": "Unknown", "conditions": [*changed, *kept]}


def next_underway(observed: Observed, names: Names, step: Step | None) -> Underway | None:
    """Returns the disruptive step to record: a new one, otherwise the recorded one until its target is ready.

    The record keeps the operator from stopping a second ready pod. So a step for a member that is down anyway does not
    replace the record of one that is still in progress.
    """
    noted = observed.underway
    waits = {names.node(each.group, each.number) for each in observed.members if each.exists and not each.ready}
    stopped = {names.node(each.group, each.number) for each in observed.members if each.stopped}
    open_step = noted if noted is not None and noted.target in waits - stopped else None
    if step is None or step.action not in DISRUPTIVE:
        return open_step
    target = names.node(step.group, step.member)
    if open_step is not None and open_step.target != target and target in waits:
        return open_step
    same = noted is not None and (noted.action, noted.target) == (step.action.value, target)
    return Underway(
        step.action.value, target, step.message, noted.since if same and noted is not None else observed.now
    )


def _wanted_members(cluster: Cluster, observed: Observed) -> list[Member]:
    return [member for member in observed.members if member.number < cluster.spec.replicas]


def _present_replicas(cluster: Cluster, observed: Observed) -> int:
    """Returns the number of members of the smallest group, for kubectl scale."""
    counts = [sum(member.exists for member in group.members) for group in observed.groups]
    return min(counts, default=0)


def _group_status(cluster: Cluster, names: Names, group: Group) -> Json:
    leader = group.leader
    status: Json = {
        "name": names.group(group.number),
        "formed": group.formed,
        "leader": names.node(group.number, leader.number) if leader is not None else "",
        "members": len(voters_of(group)),
        "readyMembers": sum(member.ready for member in group.members if member.number < cluster.spec.replicas),
        "lastError": next(iter(_complaints(names, group)), ""),
    }
    if leader is not None and leader.answer is not None:
        status["term"] = leader.answer.term
    return status


def _complaints(names: Names, group: Group) -> list[str]:
    told = []
    for member in group.members:
        text = node_error(member)
        if text:
            told.append(f"{names.node(member.group, member.number)}: {text}"[:MAX_MESSAGE])
    return told


def node_error(member: Member) -> str:
    """Returns the error that the pod or the member reports; empty: no error."""
    pod = member.pod
    if pod is not None and pod.waiting:
        return f"{pod.waiting}: {pod.message}" if pod.message else pod.waiting
    if member.answer is not None and member.answer.fatal:
        return member.answer.fatal
    return member.refused


def _step_status(
    names: Names, observed: Observed, decision: Decision, underway: Underway | None, before: Json
) -> Json | None:
    if underway is not None:
        action, target, reason, since = underway.action, underway.target, underway.reason, underway.since
    elif decision.step is not None:
        step = decision.step
        action, target = step.action.value, names.node(step.group, step.member)
        reason, since = step.message, observed.now
    elif decision.holds:
        held = decision.holds[0]
        action, target = held.action.value, names.node(held.group, held.member)
        reason, since = f"{HELD}{held.message}", observed.now
    else:
        return None
    noted = before.get("step") or {}
    same = (noted.get("action"), noted.get("target"), str(noted.get("reason", "")).startswith(HELD))
    kept = noted.get("since") if same == (action, target, reason.startswith(HELD)) else None
    return {"action": action, "target": target, "reason": reason[:MAX_MESSAGE], "since": kept or timestamp(since)}


def unplanned_phase(
    cluster: Cluster, observed: Observed, layout: Layout, decision: Decision, underway: Underway | None
) -> str:
    """Returns the phase of a cluster that needs attention; empty: it needs none, or a fence explains its phase."""
    found = (_phase(cluster, observed, layout, decision, underway, with_fence=each) for each in (True, False))
    phase, apart_from_fence = found
    return phase if phase in ATTENTION and apart_from_fence in ATTENTION else ""


def _phase(
    cluster: Cluster,
    observed: Observed,
    layout: Layout,
    decision: Decision,
    underway: Underway | None,
    *,
    with_fence: bool = True,
) -> str:
    """Returns the phase. Without `with_fence`: what it would be if the members that a user stops were ready."""
    if any(hold.reason == "Paused" for hold in decision.holds):
        return "Paused"
    if cluster.hibernating:
        return "Hibernated" if is_hibernated(cluster, observed) else "Hibernating"
    if observed.hindrance is not None:
        return "Creating" if observed.hindrance.waits else "Failed"
    if not all(group.formed for group in observed.groups) or len(observed.groups) < cluster.spec.groups:
        return "Failed" if observed.taken or observed.refusals else "Creating"
    if any(hold.reason == "LastCopy" for hold in decision.holds):
        return "Failed"
    if layout.adopting:
        return "Adopting"
    names = Names(cluster.namespace, cluster.name)
    target = underway.target if underway is not None else ""
    voting = {(group.number, number) for group in observed.groups for number in voters_of(group)}
    broken = [
        member
        for member in _wanted_members(cluster, observed)
        if not member.ready
        and names.node(member.group, member.number) != target
        and ((member.group, member.number) in voting or not voting)
        and (with_fence or stop_of(cluster, member.group, member.number) is None)
    ]
    leaderless = [group for group in observed.groups if group.leader is None and not blind(group)]
    if not with_fence:
        leaderless = [group for group in leaderless if not quorum_lost(cluster, group)]
    if broken or leaderless:
        return "Degraded"
    if _unseen(observed):
        return "Unknown"
    if observed.taken or observed.refusals:
        return "Failed"
    if _scaling(cluster, observed):
        return "Scaling"
    if target or _updating(cluster, observed, layout):
        return "Updating"
    servers = observed.name_servers
    return "Ready" if servers.ready >= servers.wanted else "Degraded"


def _scaling(cluster: Cluster, observed: Observed) -> bool:
    wanted = set(range(cluster.spec.replicas))
    return any(
        set(voters_of(group)) != wanted
        or any(member.exists and member.number not in wanted for member in group.members)
        for group in observed.groups
    )


def _updating(cluster: Cluster, observed: Observed, layout: Layout) -> bool:
    wanted = wanted_of(cluster, layout)
    stale = any(outdated(wanted, member) for member in observed.members)
    return stale or bool(layout.volumes) or is_updating(observed.name_servers)


def _findings(cluster: Cluster, observed: Observed, layout: Layout, decision: Decision) -> list[Condition]:
    if cluster.hibernating:
        running = _asleep(cluster, observed)
    else:
        running = [
            _ready(cluster, observed),
            _progressing(cluster, observed, layout, decision),
            _degraded(cluster, observed),
            _quorum_at_risk(cluster, observed),
        ]
    optional = (
        recovered_condition(cluster, observed),
        _loss_accepted(cluster, observed),
        adoption_status.adopted_condition(cluster, observed),
        adoption_status.ready_condition(cluster, observed),
    )
    return [
        *running,
        _update_blocked(cluster, observed, decision),
        _storage(cluster, observed),
        _operators(observed),
        fenced_condition(cluster, observed),
        hibernated_condition(cluster, observed),
        security_condition(cluster, observed),
        *(each for each in optional if each is not None),
    ]


def _asleep(cluster: Cluster, observed: Observed) -> list[Condition]:
    """Returns the conditions of a cluster that hibernates: it is not ready, and nothing of it is missing."""
    hibernated = hibernated_condition(cluster, observed)
    reason, message = hibernated.reason, hibernated.message
    return [
        Condition("Ready", False, reason, message),
        Condition("Progressing", not hibernated.status, reason, message),
        Condition("Degraded", False, reason, message),
        Condition("QuorumAtRisk", False, reason, message),
    ]


def _ready(cluster: Cluster, observed: Observed) -> Condition:
    names = Names(cluster.namespace, cluster.name)
    if observed.hindrance is not None:
        return Condition("Ready", False, observed.hindrance.reason, observed.hindrance.message)
    unformed = [names.group(group.number) for group in observed.groups if not group.formed]
    if unformed or len(observed.groups) < cluster.spec.groups:
        if obstacle := _obstacle(observed):
            return Condition("Ready", False, *obstacle)
        return Condition("Ready", False, "NotFormed", f"no leader has been elected yet{_of(unformed)}")
    leaderless = [names.group(each.number) for each in observed.groups if each.leader is None and not blind(each)]
    if leaderless:
        return Condition("Ready", False, "NoLeader", f"no leader{_of(leaderless)}")
    absent = _absent(cluster, observed)
    found = adoption_status.adopted_condition(cluster, observed)
    if found is not None and not found.status:
        return Condition("Ready", False, "Adopting", f"{found.reason}: {found.message}")
    if absent:
        return Condition("Ready", False, "NodesNotReady", f"not ready: {_listed(absent)}")
    if unknown := _unknown(cluster, observed):
        return Condition("Ready", None, *unknown)
    if observed.name_servers.ready == 0:
        return Condition("Ready", False, "NoNameServer", "no name server is ready")
    few = [names.group(group.number) for group in observed.groups if len(voters_of(group)) < cluster.spec.replicas]
    if few:
        return Condition("Ready", False, "MembersMissing", f"fewer voters than spec.replicas{_of(few)}")
    return Condition("Ready", True, "AllReady", "all groups accept messages and all nodes are ready")


def _obstacle(observed: Observed) -> tuple[str, str] | None:
    """Returns reason and message of objects that cannot be written; None: all are."""
    if observed.hindrance is not None:
        return observed.hindrance.reason, observed.hindrance.message
    if observed.taken:
        return "NameTaken", f"{'; '.join(observed.taken)}. The operator does not change it: delete or rename it"
    return ("Refused", "; ".join(observed.refusals)) if observed.refusals else None


def _unseen(observed: Observed) -> list[Group]:
    """Returns the groups about whose leader nothing is known."""
    return [group for group in observed.groups if group.formed and blind(group)]


def _unknown(cluster: Cluster, observed: Observed) -> tuple[str, str] | None:
    """Returns why the state of a group is unknown, even if its pods are ready; None: that of all groups is known."""
    names = Names(cluster.namespace, cluster.name)
    unseen = _unseen(observed)
    if not unseen:
        return None
    told = "; ".join(text for group in unseen for text in _complaints(names, group)[:1])
    if any(blind(group) == "Unauthorized" for group in unseen):
        secrets = f"{names.admin(cluster.uid)} and {names.reader(cluster.uid)}"
        advice = f"if the key of the operator was replaced, delete the Secrets {secrets}"
        return "Unauthorized", f"the brokers reject the token of the operator; {advice} ({told})"
    groups = [names.group(group.number) for group in unseen]
    return "Unreachable", f"the operator cannot reach the brokers{_of(groups)}" + (f" ({told})" if told else "")


def _progressing(cluster: Cluster, observed: Observed, layout: Layout, decision: Decision) -> Condition:
    if decision.step is not None:
        step = decision.step
        node = Names(cluster.namespace, cluster.name).node(step.group, step.member)
        return Condition("Progressing", True, step.action.value, f"{node}: {step.message}")
    if obstacle := _obstacle(observed):
        return Condition("Progressing", False, *obstacle)
    if layout.waits:
        told = [f"{node}: {what}" for node, what in layout.waits]
        address = any("address" in what for _, what in layout.waits)
        return Condition("Progressing", True, "AddressPending" if address else "NodesPending", _listed(told))
    if not all(group.formed for group in observed.groups):
        return Condition("Progressing", True, "Forming", "members are starting and electing a leader")
    if decision.holds:
        hold = decision.holds[0]
        return Condition("Progressing", True, "Waiting", hold.message)
    absent = _absent(cluster, observed)
    if absent:
        return Condition("Progressing", True, "NodesStarting", f"not ready: {_listed(absent)}")
    servers = observed.name_servers
    if is_updating(servers) or servers.image not in ("", cluster.spec.image):
        message = f"{servers.updated} of {servers.wanted} name servers have the current template"
        return Condition("Progressing", True, "NameServersUpdating", message)
    return Condition("Progressing", False, "AsSpecified", "the cluster matches its spec")


def _degraded(cluster: Cluster, observed: Observed) -> Condition:
    names = Names(cluster.namespace, cluster.name)
    told = [
        f"{names.node(member.group, member.number)} {'fenced' if member.stopped else node_error(member) or 'not ready'}"
        for group in observed.groups
        if group.formed
        for member in group.members
        if member.number < cluster.spec.replicas and not member.ready
    ]
    if told:
        return Condition("Degraded", True, "NodesNotReady", _listed(told))
    formed = [group for group in observed.groups if group.formed]
    leaderless = [names.group(group.number) for group in formed if group.leader is None and not blind(group)]
    if leaderless:
        return Condition("Degraded", True, "NoLeader", f"no member leads{_of(leaderless)}")
    if unknown := _unknown(cluster, observed):
        return Condition("Degraded", None, *unknown)
    servers = observed.name_servers
    if servers.ready < servers.wanted and all(group.formed for group in observed.groups):
        message = f"{servers.ready} of {servers.wanted} name servers are ready"
        return Condition("Degraded", True, "NameServersNotReady", message)
    return Condition("Degraded", False, "NodesReady", "all nodes are ready")


def _quorum_at_risk(cluster: Cluster, observed: Observed) -> Condition:
    names, told = Names(cluster.namespace, cluster.name), []
    for group in observed.groups:
        if not group.formed or blind(group):
            continue
        voters = voters_of(group)
        good = sum(sound(group, voter) for voter in voters)
        if not voters:
            told.append(f"{names.group(group.number)} has no leader")
        elif len(voters) > 1 and good <= majority(len(voters)) and good < len(voters):
            told.append(f"{names.group(group.number)}: {good} of {len(voters)} voters are healthy")
    if told:
        return Condition("QuorumAtRisk", True, "TooFewSound", _listed(told))
    if unknown := _unknown(cluster, observed):
        return Condition("QuorumAtRisk", None, *unknown)
    if cluster.spec.replicas == 1:
        return Condition("QuorumAtRisk", False, "SingleMember", "a single-member group tolerates no failure")
    return Condition("QuorumAtRisk", False, "MajoritySound", "every group can lose one member and keep its quorum")


def _loss_accepted(cluster: Cluster, observed: Observed) -> Condition | None:
    """Returns which groups continue after the loss of a majority; None: no member reports one.

    The file of the member tells it, so this is true until the volume of this member is replaced.
    """
    names = Names(cluster.namespace, cluster.name)
    told = [
        f"{names.node(member.group, member.number)} was made the only voter of {names.group(member.group)} at"
        f" {timestamp(loss.at_ms / 1000)}: acknowledged messages behind entry {loss.last_index} may be lost"
        for member in observed.members
        if member.answer is not None and (loss := member.answer.accepted_loss) is not None
    ]
    return Condition("LossAccepted", True, "MajorityGivenUp", _listed(told)) if told else None


def _update_blocked(cluster: Cluster, observed: Observed, decision: Decision) -> Condition:
    present = len(observed.groups)
    if present > cluster.spec.groups:
        message = (
            f"{present} groups hold messages; with {cluster.spec.groups} groups, some messages would be unreachable"
        )
        return Condition("UpdateBlocked", True, "GroupsNotRemoved", message)
    if obstacle := _obstacle(observed):
        return Condition("UpdateBlocked", True, *obstacle)
    held = [hold for hold in decision.holds if hold.reason not in ("CatchingUp", "TemplateNotApplied")]
    if held and (decision.step is None or held[0].reason == "Refused"):
        return Condition("UpdateBlocked", True, held[0].reason, _told(cluster, held))
    return Condition("UpdateBlocked", False, "NothingHeld", "no step is blocked")


def _told(cluster: Cluster, holds: Sequence[Hold]) -> str:
    names = Names(cluster.namespace, cluster.name)
    return _listed([f"{hold.action.value} {names.node(hold.group, hold.member)}: {hold.message}" for hold in holds])


def _storage(cluster: Cluster, observed: Observed) -> Condition:
    names = Names(cluster.namespace, cluster.name)
    if observed.resize_refusals:
        return Condition("StorageResizing", False, "ResizeRefused", "; ".join(observed.resize_refusals))
    growing = [
        f"{names.claim(member.group, member.number)}: {member.claim.resizing}"
        for member in observed.members
        if member.claim is not None and member.claim.resizing
    ]
    if growing:
        return Condition("StorageResizing", True, "Growing", _listed(growing))
    different = [f"{names.claim(*each)}: {told}" for each, told in differences(cluster, observed).items()]
    if different and cluster.spec.storage.replaces:
        return Condition("StorageResizing", True, "Replacing", _listed(different))
    if different:
        advice = "set storage.changePolicy to ReplaceMembers to replace the members one at a time"
        return Condition("StorageResizing", False, "ClassDiffers", f"{_listed(different)}; {advice}")
    return Condition("StorageResizing", False, "AsSpecified", "all volumes have the requested size")


def _operators(observed: Observed) -> Condition:
    if observed.other_operator:
        message = f"the operator {observed.other_operator} watches this namespace as well; it waits and changes nothing"
        return Condition("OperatorConflict", True, "OtherOperatorWaits", message)
    return Condition("OperatorConflict", False, "OneOperator", "no other operator waits for this namespace")


def _absent(cluster: Cluster, observed: Observed) -> list[str]:
    names = Names(cluster.namespace, cluster.name)
    have = {(member.group, member.number) for member in observed.members if member.ready}
    wanted = [(group, number) for group in range(cluster.spec.groups) for number in range(cluster.spec.replicas)]
    return [names.node(*each) for each in wanted if each not in have]


def _of(groups: Sequence[str]) -> str:
    return f" in {_listed(groups)}" if groups else ""


def _listed(texts: Sequence[str]) -> str:
    """Joins at most five texts, so that messages of large clusters stay readable."""
    more = f" and {len(texts) - 5} more" if len(texts) > 5 else ""
    return ", ".join(texts[:5]) + more


# -- a node ------------------------------------------------------------------------------------------------------------


def node_status(
    cluster: Cluster, observed: Observed, layout: Layout, group: Group, member: Member, generation: int, before: Json
) -> Json:
    """Returns BrokerNode.status."""
    names, pod = Names(cluster.namespace, cluster.name), member.pod
    name, answer = names.node(member.group, member.number), member.answer
    status: Json = {
        "observedGeneration": generation,
        "phase": _node_phase(cluster, observed, name, group, member),
        "role": _role(group, member),
        "address": f"{names.host(name)}:10911",
        "claim": names.claim(member.group, member.number),
        "lastError": node_error(member)[:MAX_MESSAGE],
        "conditions": merged(
            before.get("conditions") or (),
            observed.now,
            generation,
            _node_findings(cluster, layout, group, member),
        ),
    }
    if answer is not None:
        status["term"] = answer.term
    if cluster.spec.listener.type is not External.NONE and member.external:
        status["externalAddress"] = member.external
    if pod is not None:
        status |= {"pod": names.pod(member.group, member.number), "nodeName": pod.node_name, "image": pod.image}
    lag = _lag(group, member)
    if lag is not None:
        status["lagBytes"] = rounded(lag)
    return status


def _lag(group: Group, member: Member) -> int | None:
    leader = group.leader
    if leader is None or leader.answer is None:
        return None
    if leader.number == member.number:
        return 0
    peer = leader.answer.peer(member.number)
    return peer.lag_bytes if peer is not None else None


def _role(group: Group, member: Member) -> str:
    leader = group.leader
    if leader is None or leader.answer is None:
        return "None"
    if leader.number == member.number:
        return "Leader"
    if member.number in leader.answer.learners:
        return "Learner"
    return "Follower" if member.number in leader.answer.voters else "None"


def _node_phase(cluster: Cluster, observed: Observed, name: str, group: Group, member: Member) -> str:
    pod, claim, step = member.pod, member.claim, observed.underway
    if member.number >= cluster.spec.replicas and group.formed:
        return "Removing"
    if claim is not None and (claim.lost or claim.deleting):
        return "Lost"
    if member.gone and (stop := stop_of(cluster, member.group, member.number)) is not None:
        return "Fenced" if stop is Stop.FENCED else "Hibernated"
    if member.ready and not member.stopped:
        return "Ready"
    if (pod is not None and pod.deleting) or (step is not None and step.target == name):
        return "Restarting"
    if pod is None or not pod.running:
        return "Pending"
    return "CatchingUp" if member.answer is not None and group.formed else "Starting"


def _node_findings(cluster: Cluster, layout: Layout, group: Group, member: Member) -> list[Condition]:
    wanted, answer = wanted_of(cluster, layout), member.answer
    if member.ready:
        ready = Condition("Ready", True, "Ready", "the member is the leader or an in-sync follower")
    else:
        ready = Condition("Ready", False, "NotReady", node_error(member) or "the pod is not ready")
    if member.pod is None:
        fresh = Condition("UpToDate", False, "NoPod", "the pod does not exist")
    elif outdated(wanted, member):
        fresh = Condition("UpToDate", False, "Outdated", "the pod was created from an older template")
    else:
        fresh = Condition("UpToDate", True, "UpToDate", "the pod matches the current template")
    if answer is None:
        disk = Condition("DiskHealthy", None, "Unknown", "the member does not report the state of its disk")
    elif answer.fatal or not answer.sound:
        disk = Condition("DiskHealthy", False, "InDoubt", answer.fatal or "the disk is full or has lost data")
    else:
        disk = Condition("DiskHealthy", True, "Healthy", "the disk accepts writes")
    return [ready, fresh, disk]
