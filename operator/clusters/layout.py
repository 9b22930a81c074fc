"""The objects of a cluster. Pure: manifests in the order in which they are applied.

A claim and a Service come before the StatefulSet that needs them, and the annotation that a group has formed before the
template without the bootstrap settings. Every pass creates and corrects objects. Deletions are steps, except for
objects that the spec enables and disables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tallystick.operator.clusters import adoption, broker_manifests, cluster_manifests, name_server_manifests
from tallystick.operator.clusters.adoption_source import AdoptSpec
from tallystick.operator.clusters.broker_manifests import HOST_ADDRESS, MemberPlan
from tallystick.operator.clusters.decide import Wanted
from tallystick.operator.clusters.name_servers import image_of
from tallystick.operator.clusters.observed import Group, Member, Observed
from tallystick.operator.clusters.quorum import majority, voters_of
from tallystick.operator.clusters.recovery import (
    FIRST,
    held,
    is_pending,
    mark_of,
    pending_groups,
    restore_for,
)
from tallystick.operator.clusters.spec import Cluster, External
from tallystick.operator.clusters.stopping import Stop, name_server_replicas, replicas_of, stop_of
from tallystick.operator.clusters.volumes import class_of, differences, size_of
from tallystick.operator.core.kube import Json

OPERATOR_LABELS = {"app.kubernetes.io/name": "tallystick-operator"}


@dataclass(frozen=True, slots=True)
class Layout:
    """`manifests`: the objects that can be applied now. `waits`: members, and what their other objects wait for."""

    manifests: tuple[Json, ...]
    templates: Mapping[tuple[int, int], str | None] = field(default_factory=dict)
    waits: tuple[tuple[str, str], ...] = ()
    stops: Mapping[tuple[int, int], Stop] = field(default_factory=dict)
    """The members to stop, by group and member."""
    restoring: frozenset[int] = frozenset()
    """Groups that are being restored from backups."""
    volumes: Mapping[tuple[int, int], str] = field(default_factory=dict)
    """By group and member: how its volume differs from the spec. It is replaced."""
    adopt: AdoptSpec | None = None
    """How groups take the places of masters; None: none is to do so any longer."""
    adopting: frozenset[int] = frozenset()
    """The numbers of these groups."""


def wanted_of(cluster: Cluster, layout: Layout) -> Wanted:
    """Returns the wanted state for the decision."""
    return Wanted(
        cluster.spec.groups,
        cluster.spec.replicas,
        layout.templates,
        cluster.paused,
        layout.stops,
        layout.restoring,
        layout.volumes,
        layout.adopt,
        layout.adopting,
    )


def shared_manifests(cluster: Cluster, observed: Observed) -> list[Json]:
    """Returns the objects that a cluster has once or for each group, except Secrets (see `writing.py`)."""
    found = [
        cluster_manifests.service_account(cluster),
        cluster_manifests.config_map(cluster),
        *name_server_manifests.name_server_services(cluster),
        name_server_manifests.name_server_set(
            cluster,
            image_of(observed, cluster.spec.image),
            name_server_replicas(cluster, observed),
            observed.tls,
        ),
    ]
    if observed.security.trusted:
        found.append(cluster_manifests.authorities(cluster, observed.security.trusted))
    if cluster.spec.disruption_budget:
        found.append(cluster_manifests.name_server_budget(cluster))
        found += [
            cluster_manifests.disruption_budget(cluster, group, _evictable(cluster, observed, group))
            for group in range(cluster.spec.groups)
        ]
    if cluster.spec.network_policy:
        found += cluster_manifests.network_policies(cluster, OPERATOR_LABELS)
    return found


def _evictable(cluster: Cluster, observed: Observed, number: int) -> int:
    """Returns how many members of a group may be evicted: none if the fence leaves no more than a majority.

    A budget counts present pods only, and a fenced member has none.
    """
    group = next((each for each in observed.groups if each.number == number), None)
    fenced = sum(stop_of(cluster, number, each.number) is Stop.FENCED for each in group.members) if group else 0
    spare = cluster.spec.replicas - fenced - majority(cluster.spec.replicas)
    return 0 if fenced and spare < 1 else 1


def is_obsolete(cluster: Cluster, body: Json, manifests: tuple[Json, ...]) -> bool:
    """Whether the spec has disabled an object of the cluster."""
    kind, name = body["kind"], body["metadata"]["name"]
    if kind == "Service" and not name.endswith("-external"):
        return False
    if kind not in ("Service", "PodDisruptionBudget", "NetworkPolicy"):
        return False
    if kind == "Service" and cluster.spec.listener.type is not External.NONE:
        return False
    return all((each["kind"], each["metadata"]["name"]) != (kind, name) for each in manifests)


def placed(group: Group, replicas: int) -> tuple[int, ...]:
    """Returns the members of a group that have objects: wanted members, and members that have not left yet.

    A group that has not formed has its initial members only: members that start with different initial voters could
    elect two leaders. A formed group without a leader may need every volume that has not left it, for example after a
    cluster was deleted and created again with fewer replicas than the group has voters.
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
    """Returns all objects of a cluster."""
    manifests, waits = shared_manifests(cluster, observed), []
    templates: dict[tuple[int, int], str | None] = {}
    for group in observed.groups:
        first = _first(cluster, observed, group)
        for number in placed(group, len(first) if is_pending(cluster, observed, group) else cluster.spec.replicas):
            member = group.member(number) or Member(group.number, number)
            plan = plan_of(cluster, observed, group, member)
            templates[group.number, number] = None if plan is None else broker_manifests.template_digest(cluster, plan)
            for found in _member_manifests(cluster, observed, group, member, plan):
                if isinstance(found, str):
                    waits.append((f"{cluster.name}-{group.number}-{number}", found))
                else:
                    manifests.append(found)
    stops = {
        (member.group, member.number): stop
        for member in observed.members
        if (stop := stop_of(cluster, member.group, member.number)) is not None
    }
    return Layout(
        tuple(manifests),
        templates,
        tuple(waits),
        stops,
        pending_groups(cluster, observed),
        volumes=differences(cluster, observed) if cluster.spec.storage.replaces else {},
        adopt=cluster.spec.adopt if adoption.is_active(cluster, observed) else None,
        adopting=frozenset(each.number for each in adoption.concerned(cluster, observed)),
    )


def _first(cluster: Cluster, observed: Observed, group: Group) -> tuple[int, ...]:
    """Returns the initial voters of a group."""
    default = (FIRST,) if is_pending(cluster, observed, group) else tuple(range(cluster.spec.replicas))
    return group.first or default


def plan_of(cluster: Cluster, observed: Observed, group: Group, member: Member) -> MemberPlan | None:
    """Returns the input of the objects of a member; None: its external address is unknown yet."""
    listener = cluster.spec.listener
    external = member.external
    if listener.type is External.NODE_PORT and external:
        external = f"{listener.host or HOST_ADDRESS}:{external.rpartition(':')[2]}"
    if listener.type is External.NONE:
        external = ""
    elif not external:
        return None
    return MemberPlan(
        group.number,
        member.number,
        group.formed,
        _first(cluster, observed, group),
        external,
        restore_for(cluster, observed, group, member.number),
        mark_of(cluster, observed, group),
        adoption.mark_of(cluster, observed, group),
        adoption.name_of(cluster, observed, group),
        adoption.follows(cluster, observed, group),
        observed.tls.stage,
        observed.tls.secret,
    )


def _member_manifests(
    cluster: Cluster, observed: Observed, group: Group, member: Member, plan: MemberPlan | None
) -> Iterator[Json | str]:
    """Yields the objects of a member, or what they wait for."""
    yield broker_manifests.broker_node(cluster, group.number, member.number)
    if member.node_uid is None:
        yield "waiting for the BrokerNode"
        return  # it owns the other objects
    yield from broker_manifests.services(cluster, group.number, member.number, member.node_uid)
    if why := held(observed, group):
        yield why
        return
    first, mark = _first(cluster, observed, group), mark_of(cluster, observed, group)
    storage = cluster.spec.storage
    about_claim = MemberPlan(
        group.number,
        member.number,
        group.formed,
        first,
        recovered=mark,
        adopted=adoption.mark_of(cluster, observed, group),
        broker_name=adoption.name_of(cluster, observed, group),
    )
    if member.claim is None and (doubt := rebirth_doubt(group, member)):
        yield doubt
    elif member.claim is None or not member.claim.deleting:
        yield broker_manifests.claim(
            cluster, about_claim, size_of(storage, member.claim), class_of(storage, member.claim)
        )
    if member.claim is None and member.stateful_set is None:
        # A StatefulSet without a claim would look as if the member had run, and had lost its volume (`rebirth_doubt`).
        yield "the claim does not exist yet"
        return
    if plan is None:
        yield "the external Service has no address yet"
        return
    yield broker_manifests.stateful_set(cluster, plan, member.node_uid, replicas_of(cluster, member))


def rebirth_doubt(group: Group, member: Member) -> str:
    """Returns why a missing claim must not be created again yet; empty: it can be created.

    In a formed group, the other members replicate to a member with an empty volume. In a group that has not formed, the
    member would bootstrap the group, which is wrong if the group has formed unobserved: the member may already have
    voted. If a majority of the others reports that it never knew a leader, there was none.
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
