"""What should stand in the API server for a cluster as it was seen: pure, manifests in the order to apply them.

A claim and a Service come before the StatefulSet that needs them, and the mark that a group has formed before the
template that no longer makes one. Objects are made and mended in every pass; to take something away is a step, but for
what the spec switches on and off.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tallystick.operator.clusters import broker_manifests, cluster_manifests, name_server_manifests
from tallystick.operator.clusters.broker_manifests import HOST_ADDRESS, MemberPlan
from tallystick.operator.clusters.decide import Wanted
from tallystick.operator.clusters.observed import Claim, Group, Member, Observed
from tallystick.operator.clusters.quorum import majority, voters_of
from tallystick.operator.clusters.spec import Cluster, External
from tallystick.operator.core.kube import Json
from tallystick.operator.core.quantity import larger

OPERATOR_LABELS = {"app.kubernetes.io/name": "tallystick-operator"}


@dataclass(frozen=True, slots=True)
class Layout:
    """`manifests`: all that can be had now. `waits`: members and what is missing before theirs are complete."""

    manifests: tuple[Json, ...]
    templates: Mapping[tuple[int, int], str | None] = field(default_factory=dict)
    waits: tuple[tuple[str, str], ...] = ()


def wanted_of(cluster: Cluster, layout: Layout) -> Wanted:
    """What the steps lead to."""
    return Wanted(cluster.spec.groups, cluster.spec.replicas, layout.templates, cluster.paused)


def shared_manifests(cluster: Cluster) -> list[Json]:
    """What does not depend on anything that was seen; the Secret is not among them (see `reconcile.py`)."""
    found = [
        cluster_manifests.service_account(cluster),
        cluster_manifests.config_map(cluster),
        *name_server_manifests.name_server_services(cluster),
        name_server_manifests.name_server_set(cluster),
    ]
    if cluster.spec.disruption_budget:
        found += [cluster_manifests.disruption_budget(cluster, group) for group in range(cluster.spec.groups)]
    if cluster.spec.network_policy:
        found += cluster_manifests.network_policies(cluster, OPERATOR_LABELS)
    return found


def is_obsolete(cluster: Cluster, body: Json, manifests: tuple[Json, ...]) -> bool:
    """Whether an object of the cluster is one that the spec has switched off."""
    kind, name = body["kind"], body["metadata"]["name"]
    if kind == "Service" and not name.endswith("-external"):
        return False
    if kind not in ("Service", "PodDisruptionBudget", "NetworkPolicy"):
        return False
    if kind == "Service" and cluster.spec.listener.type is not External.NONE:
        return False
    return all((each["kind"], each["metadata"]["name"]) != (kind, name) for each in manifests)


def placed(group: Group, replicas: int) -> tuple[int, ...]:
    """Members of a group that have objects: those wanted, and those that were not let go yet.

    A group that has not formed has those that it was begun with, and no others: members that began with different ideas
    of who votes could elect two leaders. One that has formed and has no leader may need every disk that never left it:
    a cluster that was deleted and made again with fewer replicas than the group has voters.
    """
    if not group.formed:
        return group.first or tuple(range(replicas))
    present = {member.number for member in group.members if member.node_uid is not None}
    if group.leader is None:
        present |= {
            member.number
            for member in group.members
            if member.claim is not None and member.claim.formed and not member.claim.left and not member.claim.deleting
        }
    return tuple(sorted({*range(replicas), *present, *voters_of(group)}))


def layout(cluster: Cluster, observed: Observed) -> Layout:
    """Everything of a cluster."""
    manifests, waits = shared_manifests(cluster), []
    templates: dict[tuple[int, int], str | None] = {}
    for group in observed.groups:
        for number in placed(group, cluster.spec.replicas):
            member = group.member(number) or Member(group.number, number)
            plan = plan_of(cluster, group, member)
            templates[group.number, number] = None if plan is None else broker_manifests.template_digest(cluster, plan)
            for found in _member_manifests(cluster, group, member, plan):
                if isinstance(found, str):
                    waits.append((f"{cluster.name}-{group.number}-{number}", found))
                else:
                    manifests.append(found)
    return Layout(tuple(manifests), templates, tuple(waits))


def plan_of(cluster: Cluster, group: Group, member: Member) -> MemberPlan | None:
    """None: its address for clients outside is not known yet."""
    listener = cluster.spec.listener
    external = member.external
    if listener.type is External.NODE_PORT and external:
        external = f"{listener.host or HOST_ADDRESS}:{external.rpartition(':')[2]}"
    if listener.type is External.NONE:
        external = ""
    elif not external:
        return None
    first = group.first or tuple(range(cluster.spec.replicas))
    return MemberPlan(group.number, member.number, group.formed, first, external)


def _member_manifests(cluster: Cluster, group: Group, member: Member, plan: MemberPlan | None) -> Iterator[Json | str]:
    """The objects of a member, or what they wait for."""
    yield broker_manifests.broker_node(cluster, group.number, member.number)
    if member.node_uid is None:
        yield "waiting for the BrokerNode"
        return  # it owns the rest
    yield from broker_manifests.services(cluster, group.number, member.number, member.node_uid)
    first = group.first or tuple(range(cluster.spec.replicas))
    about_claim = MemberPlan(group.number, member.number, group.formed, first)
    if member.claim is None and (doubt := rebirth_doubt(group, member)):
        yield doubt
    elif member.claim is None or not member.claim.deleting:
        yield broker_manifests.claim(cluster, about_claim, _size(cluster, member.claim))
    if plan is None:
        yield "the external Service has no address yet"
        return
    yield broker_manifests.stateful_set(cluster, plan, member.node_uid)


def rebirth_doubt(group: Group, member: Member) -> str:
    """Why a claim that is missing must not be made anew yet; empty: it may.

    In a group that has formed, a member with an empty disk is brought up to date by the others. In one that has not,
    it would be told to make the group, which is wrong if the group formed unseen: then it may already have promised
    something. That no leader can have been there is proved by a majority of the others who never heard of one.
    """
    if group.formed or not group.first or member.stateful_set is None:
        return ""
    innocent = [
        other.number
        for other in group.members
        if other.number in group.first
        and other.number != member.number
        and other.answer is not None
        and not other.answer.formed
    ]
    if len(innocent) >= majority(len(group.first)):
        return ""
    return (
        "the claim is missing; it is created when a majority of the members confirms that the group never had a leader"
    )


def _size(cluster: Cluster, claim: Claim | None) -> str:
    """Claims grow and never shrink."""
    wanted = cluster.spec.storage.size
    return larger(wanted, claim.requested) if claim is not None and claim.requested else wanted
