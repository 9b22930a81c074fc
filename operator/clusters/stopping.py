"""Fencing and hibernation: which members a user wants stopped, and whether they are. Pure.

Both are annotations of the BrokerCluster. A member is stopped by a step, in an orderly way; its StatefulSet then has no
replicas. Its claim, Services and Secrets stay. The manifest of a StatefulSet keeps one replica until the step was
carried out (`replicas_of`), so that no correction of an object stops a member.
"""

from __future__ import annotations

from enum import Enum

from tallystick.operator.clusters.observed import Group, Member, Observed
from tallystick.operator.clusters.quorum import majority
from tallystick.operator.clusters.spec import Cluster
from tallystick.operator.core.conditions import Condition
from tallystick.operator.core.names import EVERYONE, FENCED, HIBERNATION, Names, is_fenced


class Stop(Enum):
    """Why a member is to be stopped: the reason of the step."""

    FENCED = "Fenced"
    HIBERNATING = "Hibernating"


def stop_of(cluster: Cluster, group: int, member: int) -> Stop | None:
    """Returns why a member is to be stopped; None: it is to run."""
    if cluster.hibernating:
        return Stop.HIBERNATING
    name = Names(cluster.namespace, cluster.name).node(group, member)
    return Stop.FENCED if is_fenced(cluster.fenced, name) else None


def stopped_peers(cluster: Cluster, observed: Observed) -> list[tuple[str, str, str]]:
    """Returns the members that a user stops: the labels `node_id` and `peer` of brokers' metrics, and the reason."""
    names = Names(cluster.namespace, cluster.name)
    stops = [(each, stop_of(cluster, each.group, each.number)) for each in observed.members if each.exists]
    return [(names.group(each.group), f"n{each.number}", stop.value) for each, stop in stops if stop is not None]


def replicas_of(cluster: Cluster, member: Member) -> int:
    """Returns the replicas of the StatefulSet of a member: none once it is stopped, or if it never started."""
    if stop_of(cluster, member.group, member.number) is None:
        return 1
    return 0 if member.stopped or (member.stateful_set is None and member.pod is None) else 1


def name_server_replicas(cluster: Cluster, observed: Observed) -> int:
    """Returns the replicas of the name servers: they stop after the last broker."""
    return 0 if cluster.hibernating and _brokers_gone(observed) else cluster.spec.name_servers


def is_hibernated(cluster: Cluster, observed: Observed) -> bool:
    """Whether the cluster is to hibernate, and no pod of it exists."""
    return cluster.hibernating and _brokers_gone(observed) and not observed.name_servers.pods


def _brokers_gone(observed: Observed) -> bool:
    return all((member.pod is None and member.stateful_set is None) or member.gone for member in observed.members)


def fence_warnings(cluster: Cluster, observed: Observed) -> list[tuple[str, str]]:
    """Returns reasons and messages about a fence: a group loses its quorum, or a name or value is unknown."""
    names, told = Names(cluster.namespace, cluster.name), []
    if not cluster.hibernating:
        for group in observed.groups:
            if lost := quorum_lost(cluster, group):
                told.append(("QuorumLost", f"{names.group(group.number)} cannot accept messages: {lost}"))
    known = {names.node(member.group, member.number) for member in observed.members}
    if unknown := sorted(cluster.fenced - known - {EVERYONE}):
        told.append(("UnknownMember", f"annotation {FENCED}: the cluster has no member {', '.join(unknown)}"))
    if cluster.hibernation not in ("", "on", "off"):
        text = f'annotation {HIBERNATION}: the value must be "on" or "off", not {cluster.hibernation!r}'
        told.append(("InvalidHibernation", text[:200]))
    return told


def quorum_lost(cluster: Cluster, group: Group) -> str:
    """Returns why the fence costs a group its quorum; empty: it does not."""
    answers = [member.answer for member in group.members if member.answer is not None and member.answer.voters]
    newest = max(answers, key=lambda answer: answer.term, default=None)
    voters = tuple(newest.voters) if newest is not None else tuple(range(cluster.spec.replicas))
    fenced = [voter for voter in voters if stop_of(cluster, group.number, voter) is Stop.FENCED]
    left, needed = len(voters) - len(fenced), majority(len(voters))
    if not fenced or left >= needed:
        return ""
    return f"{len(fenced)} of {len(voters)} voters are fenced; {needed} are required"


def fenced_condition(cluster: Cluster, observed: Observed) -> Condition:
    """Returns the condition `Fenced`. Its reason warns if the fence costs a group its quorum."""
    names = Names(cluster.namespace, cluster.name)
    asked = [each for each in observed.members if stop_of(cluster, each.group, each.number) is Stop.FENCED]
    told = "; ".join(message for reason, message in fence_warnings(cluster, observed) if reason != "InvalidHibernation")
    if not asked:
        if cluster.hibernating and cluster.fenced:
            return Condition("Fenced", False, "Hibernating", "the fence applies when the hibernation ends")
        return Condition("Fenced", False, "UnknownMember" if told else "NotFenced", told or "no member is fenced")
    listed = ", ".join(names.node(each.group, each.number) for each in asked)
    waiting = [names.node(each.group, each.number) for each in asked if not each.gone]
    message = f"fenced: {listed}" + (f"; not stopped yet: {', '.join(waiting)}" if waiting else "")
    if any(quorum_lost(cluster, group) for group in observed.groups):
        reason = "QuorumLost"
    else:
        reason = "Fencing" if waiting else "MembersFenced"
    return Condition("Fenced", True, reason, f"{message}; {told}" if told else message)


def hibernated_condition(cluster: Cluster, observed: Observed) -> Condition:
    """Returns the condition `Hibernated`: True when no pod of the cluster exists."""
    if not cluster.hibernating:
        for reason, message in fence_warnings(cluster, observed):
            if reason == "InvalidHibernation":
                return Condition("Hibernated", False, reason, message)
        return Condition("Hibernated", False, "NotHibernated", "the cluster is to run")
    if is_hibernated(cluster, observed):
        return Condition("Hibernated", True, "Hibernated", "no pod runs; claims, Secrets and Services are kept")
    return Condition("Hibernated", False, "Hibernating", _remaining(cluster, observed))


def _remaining(cluster: Cluster, observed: Observed) -> str:
    names = Names(cluster.namespace, cluster.name)
    brokers = [names.node(each.group, each.number) for each in observed.members if not each.gone and each.exists]
    pods = brokers or [name for name, _ in observed.name_servers.pods]
    more = f" and {len(pods) - 5} more" if len(pods) > 5 else ""
    return f"not stopped yet: {', '.join(pods[:5])}{more}"
